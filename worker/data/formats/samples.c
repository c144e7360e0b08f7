#include "samples.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hash.h"
#include "log.h"
#include "mem.h"
#include "readable.h"

enum { NOTE_BYTES = 512, NOTES_BYTES = 1024 }; // of one, and of several

void ps_dataset_fini(ps_dataset *set)
{
    for (int64_t i = 0; i < set->n && set->files != NULL; i++)
        free(set->files[i]);
    free(set->files);
    ps_class_names_fini(&set->names);
    ps_class_names_fini(&set->columns);
    ps_sample_file_close(&set->stream);
    if (set->table) ps_table_fini(set->table);
    free(set->table);
    ps_class_names_fini(&set->key_names);
    ps_class_names_fini(&set->keys);
    free(set->values);
    free(set->ids);
    free(set->labels);
    free(set->targets);
    free(set->rows);
    free(set->notes);
    free(set->doubts);
    memset(set, 0, sizeof *set);
}

ps_err ps_dataset_note(char **notes, const char *fmt, ...)
{
    const size_t had = *notes ? strlen(*notes) : 0;
    char text[NOTE_BYTES];
    if (had > NOTES_BYTES) return PS_OK;
    PS_PRINT(text, fmt);
    char *more = realloc(*notes, had + strlen(text) + sizeof "; ");
    if (!more) return ps_err_set(PS_ERR_NOMEM, "%s: no memory", text);
    sprintf(more + had, "%s%s", had > 0 ? "; " : "", text);
    *notes = more;
    return PS_OK;
}

ps_err ps_dataset_columns_check(const ps_class_names *columns, const char *where,
                                const ps_class_names *known, const char *known_where)
{
    for (int64_t i = 0; i < columns->n && i < known->n; i++)
        if (strcmp(columns->names[i], known->names[i]) != 0)
            return ps_err_set(
                PS_ERR_FORMAT,
                "%s: column %" PRId64 " is named \"%.40s\", and \"%.40s\" in "
                "%s: give all files the same columns in the same order",
                where, i + 1, columns->names[i], known->names[i], known_where);
    return PS_OK;
}

void ps_dataset_log(const ps_dataset *set, const char *key)
{
    if (set->notes) PS_INFO("data", "of %s: %s", key, set->notes);
    if (set->doubts) PS_WARN("data", "of %s: %s", key, set->doubts);
}

ps_err ps_dataset_bytes(const char *name, int64_t n, const ps_dims *dims, bool is_float,
                        uint64_t *bytes)
{
    uint64_t total = is_float ? sizeof(float) : 1;
    bool overflow = n < 0 || __builtin_mul_overflow(total, (uint64_t)n, &total);
    for (int i = 0; i < dims->n && !overflow; i++)
        overflow =
            dims->d[i] < 0 || __builtin_mul_overflow(total, (uint64_t)dims->d[i], &total);
    if (overflow || total > PTRDIFF_MAX)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: its sizes are more than this machine can address", name);
    if (total == 0)
        return ps_err_set(PS_ERR_FORMAT, "%s: holds no samples, or samples of size 0",
                          name);
    *bytes = total;
    return PS_OK;
}

/* Keeps n items of that size from `first` on. Shrinking may fail; then the larger
 * allocation stays. */
static void *slice_items(void *items, size_t bytes, int64_t first, size_t n)
{
    if (!items) return NULL;
    memmove(items, (char *)items + (size_t)first * bytes, n * bytes);
    void *less = realloc(items, n * bytes);
    return less ? less : items;
}

static void slice_files(ps_dataset *set, int64_t first, size_t n)
{
    for (int64_t i = 0; i < set->n; i++)
        if (i < first || i >= first + (int64_t)n) free(set->files[i]);
    memmove(set->files, set->files + first, n * sizeof *set->files);
}

ps_err ps_dataset_check_range(int64_t n, int64_t first, int64_t last)
{
    if (first >= 0 && last >= first && last < n) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "range %" PRId64 "-%" PRId64 ": there are %" PRId64
                      " samples, the last is number %" PRId64,
                      first, last, n, n - 1);
}

int64_t ps_dataset_place(const ps_dataset *set, int64_t i)
{
    if (set->table) return set->table->rows ? set->table->rows[i] : i;
    return set->rows ? set->rows[i] : set->first + i;
}

ps_err ps_dataset_slice(ps_dataset *set, int64_t first, int64_t last)
{
    PS_TRY(ps_dataset_check_range(set->n, first, last));
    const size_t n = (size_t)(last - first + 1);
    const size_t element = set->is_float ? sizeof(float) : 1;
    if (set->rows) memmove(set->rows, set->rows + first, n * sizeof *set->rows);
    set->first += first;
    if (set->files)
        slice_files(set, first, n);
    else if (set->stream)
        ps_sample_file_skip(set->stream, first);
    else
        set->values = slice_items(set->values,
                                  (size_t)ps_dims_count(&set->dims) * element, first, n);
    set->ids = slice_items(set->ids, (size_t)set->n_ids * sizeof *set->ids, first, n);
    set->labels = slice_items(set->labels, sizeof *set->labels, first, n);
    set->targets = slice_items(set->targets,
                               (size_t)set->n_targets * sizeof *set->targets, first, n);
    set->n = (int64_t)n;
    return PS_OK;
}

/* Moves items of that size up. */
static void keep_items(void *items, size_t bytes, const int64_t *rows, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        memmove((char *)items + (size_t)i * bytes,
                (char *)items + (size_t)rows[i] * bytes, bytes);
}

static void keep_files(ps_dataset *set, const int64_t *rows, int64_t n)
{
    for (int64_t i = 0, k = 0; i < set->n; i++)
        if (k < n && rows[k] == i)
            set->files[k++] = set->files[i];
        else
            free(set->files[i]);
}

ps_err ps_dataset_keep(ps_dataset *set, const int64_t *rows, int64_t n)
{
    const size_t element = set->is_float ? sizeof(float) : 1;
    int64_t *places;
    PS_TRY(PS_NEW(&places, (size_t)n, "places of samples"));
    for (int64_t i = 0; i < n; i++)
        places[i] = ps_dataset_place(set, rows[i]);
    free(set->rows);
    set->rows = places;
    if (set->stream) PS_TRY(ps_sample_file_keep(set->stream, rows, n));
    if (set->files) keep_files(set, rows, n);
    if (set->values)
        keep_items(set->values, (size_t)ps_dims_count(&set->dims) * element, rows, n);
    if (set->ids) keep_items(set->ids, (size_t)set->n_ids * sizeof *set->ids, rows, n);
    if (set->labels) keep_items(set->labels, sizeof *set->labels, rows, n);
    if (set->targets)
        keep_items(set->targets, (size_t)set->n_targets * sizeof *set->targets, rows, n);
    set->n = n;
    return PS_OK;
}

static ps_err samples_check_finite(const ps_dataset *set)
{
    const float *v = set->values;
    int64_t count = ps_dims_count(&set->dims);
    for (int64_t i = 0; i < set->n * count; i++)
        if (!isfinite(v[i]))
            return ps_err_set(PS_ERR_NUMERIC,
                              "sample %" PRId64 ": value %" PRId64
                              " is not a finite number: mend it, or leave the sample out",
                              ps_dataset_place(set, i / count), i % count);
    return PS_OK;
}

const char *ps_wanted_outputs(const ps_wanted *wanted, int64_t n,
                              char out[PS_OUTPUTS_TEXT])
{
    const ps_yaml *last = wanted->last, *name = last ? ps_yaml_path(last, "name") : NULL;
    if (!last) {
        snprintf(out, PS_OUTPUTS_TEXT, "give the last layer %" PRId64 " output%s", n,
                 n > 1 ? "s" : "");
        return out;
    }
    int used = snprintf(out, PS_OUTPUTS_TEXT, "set out: %" PRId64 " in %s", n,
                        name && name->text ? "linear \"" : "the last layer");
    if (name && name->text)
        used +=
            snprintf(out + used, PS_OUTPUTS_TEXT - (size_t)used, "%.40s\"", name->text);
    if (last->line > 0)
        snprintf(out + used, PS_OUTPUTS_TEXT - (size_t)used, " (%.120s:%d)", last->file,
                 last->line);
    return out;
}

/* Returns the error: the label of sample i is above the last class of the model, the
 * first of these. */
static ps_err label_too_large(const ps_dataset *set, int64_t i, const ps_wanted *wanted)
{
    const int32_t label = set->labels[i];
    int32_t least = label, most = label;
    int64_t n = 0;
    for (int64_t k = 0; k < set->n; k++) {
        if (wanted->may_be_ignored && set->labels[k] == wanted->ignore_index) continue;
        least = set->labels[k] < least ? set->labels[k] : least;
        most = set->labels[k] > most ? set->labels[k] : most;
        n += set->labels[k] >= wanted->n;
    }
    char outputs[PS_OUTPUTS_TEXT], mend[PS_OUTPUTS_TEXT + 64];
    ps_wanted_outputs(wanted, (int64_t)most + 1, outputs);
    if (most == wanted->n && least == 1)
        snprintf(mend, sizeof mend,
                 "classes count from 0, and the least label here is 1: take 1 from all");
    else if (n == 1)
        snprintf(mend, sizeof mend, "%s, or mend the label", outputs);
    else
        snprintf(mend, sizeof mend, "%s, or mend the %s labels that are too large",
                 outputs, PS_COUNTED(n));
    return ps_err_set(PS_ERR_FORMAT,
                      "sample %" PRId64 " has the label %" PRId32 "; the model's %" PRId64
                      " classes are 0 to %" PRId64 ": %s",
                      ps_dataset_place(set, i), label, wanted->n, wanted->n - 1, mend);
}

static ps_err samples_check_labels(ps_dataset *set, const ps_wanted *wanted)
{
    int32_t largest = 0;
    int64_t ignored = 0;
    for (int64_t i = 0; i < set->n; i++) {
        int32_t label = set->labels[i];
        if (wanted->may_be_ignored && label == wanted->ignore_index) {
            ignored++;
            continue;
        }
        if (label < 0)
            return ps_err_set(PS_ERR_FORMAT,
                              "sample %" PRId64 " has the label %" PRId32
                              "; labels start at 0",
                              ps_dataset_place(set, i), label);
        if (wanted->n > 0 && label >= wanted->n) return label_too_large(set, i, wanted);
        if (label > largest) largest = label;
    }
    set->n_classes = (int64_t)largest + 1;
    if (ignored == 0 || ignored < set->n) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "all samples have the label %" PRId32 ", which train.ignore_index "
                      "leaves out",
                      wanted->ignore_index);
}

ps_err ps_dataset_check(ps_dataset *set, const ps_wanted *wanted)
{
    if (set->labels) PS_TRY(samples_check_labels(set, wanted));
    return set->is_float && set->values ? samples_check_finite(set) : PS_OK;
}

uint64_t ps_dataset_mark(const ps_dataset *set)
{
    ps_hash h;
    const size_t n = (size_t)set->n;
    if (n == 0) return 0;
    ps_hash_init(&h);
    ps_hash_u64(&h, n);
    if (set->labels) ps_hash_bytes(&h, set->labels, n * sizeof *set->labels);
    if (set->targets)
        ps_hash_bytes(&h, set->targets,
                      n * (size_t)set->n_targets * sizeof *set->targets);
    return (ps_hash_value(&h) >> 12) + 1;
}

ps_err ps_dataset_check_ids(const ps_dataset *set, int64_t columns)
{
    if (columns <= set->n_ids) return PS_OK;
    if (set->n_ids > 0)
        return ps_err_set(PS_ERR_SHAPE,
                          "embedding_bag reads column C%" PRId64
                          " of ids; the samples have C1 to C%" PRId64,
                          columns, set->n_ids);
    return ps_err_set(PS_ERR_SHAPE,
                      "embedding_bag reads column C%" PRId64 " of ids; the samples have "
                      "none: take data.kind criteo or synthetic_clicks",
                      columns);
}

ps_err ps_dataset_labels_to_targets(ps_dataset *set)
{
    PS_TRY(PS_NEW(&set->targets, (size_t)set->n, "targets"));
    for (int64_t i = 0; i < set->n; i++)
        set->targets[i] = (float)set->labels[i];
    set->n_targets = 1;
    free(set->labels);
    set->labels = NULL;
    return PS_OK;
}

ps_err ps_target_check(const char *path, int64_t sample, int64_t column, double value,
                       const ps_wanted *wanted)
{
    if (!isfinite((float)value))
        return ps_err_set(PS_ERR_NUMERIC,
                          "%s: sample %" PRId64 ": number %" PRId64
                          " to compare with is %g",
                          path, sample, column, value);
    if (wanted->unit && (value < 0 || value > 1))
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: sample %" PRId64 ": number %" PRId64
                          " to compare with is %g; bce_with_logits takes 0 to 1",
                          path, sample, column, value);
    return PS_OK;
}
