#include "check_data.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "interrupt.h"
#include "loader.h"
#include "mem.h"
#include "picture_reader.h"
#include "printable.h"
#include "trainer.h"

enum { READ_MS = 5000, BATCH_MS = 60000, BATCH = 32 };
enum { COLUMNS = 80, INDENT = 12, MOST_ROWS = 20, NAME_BYTES = 50, ITEM_BYTES = 1600 };
enum { MOST_COLUMNS = 12, MOST_BROKEN = 10, UNLIKE = 100 };

/* --- lines ------------------------------------------------------------------------- */

/* A label, and a text that is broken between words. */
__attribute__((format(printf, 3, 4))) static void print_item(FILE *out, const char *label,
                                                             const char *fmt, ...)
{
    char said[ITEM_BYTES], text[ITEM_BYTES];
    int at = fprintf(out, "%-*s", INDENT - 1, label);
    va_list args;
    va_start(args, fmt);
    vsnprintf(said, sizeof said, fmt, args);
    va_end(args);
    ps_printable(said, text, sizeof text);
    for (const char *word = text; *word;) {
        const int n = (int)strcspn(word, " ");
        if (at + 1 + n > COLUMNS && at > INDENT)
            at = fprintf(out, "\n%*s", INDENT - 1, "") - 1;
        at += fprintf(out, " %.*s", n, word);
        word += n + (word[n] == ' ');
    }
    fputc('\n', out);
}

static const char *check_data_plural(int64_t n)
{
    return n == 1 ? "" : "s";
}

/* --- what the model gets ----------------------------------------------------------- */

typedef struct range {
    double least, most;
    int64_t numbers, missing;
} range;

typedef struct figures {
    int64_t samples, values;
    double least, most, sum, squares;
    double seconds;
} figures;

static void figures_add(figures *f, const float *values, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        const double v = values[i];
        f->least = f->values + i == 0 || v < f->least ? v : f->least;
        f->most = f->values + i == 0 || v > f->most ? v : f->most;
        f->sum += v;
        f->squares += v * v;
    }
    f->values += n;
}

static ps_err read_batches(const ps_check_data_options *o, ps_loader *loader, figures *f)
{
    const uint64_t begun_ns = ps_clock_ns();
    const ps_deadline end = ps_deadline_in_ms(READ_MS);
    const int64_t count = ps_dims_count(&o->spec->input);
    ps_loaded *b;
    PS_TRY(ps_loader_epoch(loader, 0, 0));
    do {
        PS_TRY(ps_interrupt_check());
        PS_TRY(ps_loader_next(loader, ps_deadline_in_ms(BATCH_MS), &b));
        if (!b) break;
        figures_add(f, b->x, b->n * count);
        f->samples += b->n;
        ps_loader_release(loader, b);
    } while (!ps_deadline_passed(end));
    f->seconds = ps_clock_seconds_since(begun_ns);
    return PS_OK;
}

/* By a loader as the job's. */
static ps_err read_set(const ps_check_data_options *o, const ps_dataset *set,
                       const char *key, figures *f)
{
    const int64_t batch = BATCH;
    const ps_sampler_options random = {.n_samples = set->n,
                                       .world_size = 1,
                                       .shuffle = true,
                                       .seed = o->config->data.seed,
                                       .batch = &batch};
    const ps_loader_options options = {.config = o->config,
                                       .dataset = set,
                                       .input = &o->spec->input,
                                       .sampler = set == &o->data->train ? &random : NULL,
                                       .n = set->n,
                                       .max_batch = batch,
                                       .classes = o->spec->n_outputs};
    ps_loader *loader = NULL;
    ps_err err = ps_loader_create(&options, &loader);
    if (err == PS_ERR_SHAPE) ps_err_prefix(err, "%s", key);
    if (err == PS_OK) err = read_batches(o, loader, f);
    ps_loader_destroy(&loader);
    return err;
}

static void print_read(const ps_check_data_options *o, const ps_dataset *set,
                       const figures *f, FILE *out)
{
    const double n = (double)f->values, mean = f->sum / n;
    const double variance = fmax(f->squares / n - mean * mean, 0);
    char shape[PS_DIMS_TEXT];
    print_item(out, "  read", "%s%" PRId64 " in %.1f s%s",
               f->samples == set->n ? "all " : "", f->samples, f->seconds,
               f->samples == set->n ? "" : "; the others were not looked at");
    print_item(out, "  input", "%s, from %.4g to %.4g, mean %.4g, deviation %.4g",
               ps_dims_product_text(&o->spec->input, shape), f->least, f->most, mean,
               sqrt(variance));
}

/* --- columns of a table ------------------------------------------------------------ */

static double range_size(const range *r)
{
    return fmax(fabs(r->least), fabs(r->most));
}

/* ranges: (inputs) of a table as its file has it. */
static ps_err find_ranges(const ps_table *t, range *ranges)
{
    ps_table_scan scan = {.table = t};
    const ps_cell *row;
    ps_err err = PS_OK;
    for (int64_t i = 0; i < t->n && err == PS_OK; i++) {
        err = ps_table_scan_line(&scan, i, &row);
        for (int64_t k = 0; k < t->n_inputs && err == PS_OK; k++) {
            range *r = &ranges[k];
            r->missing += ps_cell_is_missing(row[k]);
            if (!ps_cell_is_number(row[k])) continue;
            if (r->numbers == 0 || row[k] < r->least) r->least = row[k];
            if (r->numbers++ == 0 || row[k] > r->most) r->most = row[k];
        }
    }
    ps_table_scan_fini(&scan);
    return err;
}

static const char *column_text(const ps_dataset *set, int64_t column,
                               char out[NAME_BYTES + 32])
{
    char name[NAME_BYTES] = "";
    if (set->preprocessing->named)
        ps_printable(set->preprocessing->columns[column].name, name, sizeof name);
    else if (column < set->columns.n)
        ps_printable(set->columns.names[column], name, sizeof name);
    if (set->preprocessing->named) return strcpy(out, name);
    snprintf(out, NAME_BYTES + 32, "column %" PRId64 "%s%s", column + 1,
             name[0] ? " " : "", name);
    return out;
}

/* Columns of zeros have no size. */
static void warn_of_unlike(const ps_check_data_options *o, const ps_dataset *set,
                           const range *columns, FILE *out)
{
    char small[NAME_BYTES + 32], large[NAME_BYTES + 32];
    int64_t least = -1, most = 0;
    for (int64_t i = 0; i < set->preprocessing->n_columns; i++) {
        const double size = range_size(&columns[i]);
        if (set->preprocessing->columns[i].std != 1) return; // it is done
        if (size > range_size(&columns[most])) most = i;
        if (size > 0 && (least < 0 || size < range_size(&columns[least]))) least = i;
    }
    if (least < 0 || o->spec->layers[0].kind == PS_LAYER_BATCH_NORM2D) return;
    const double times = range_size(&columns[most]) / range_size(&columns[least]);
    if (times <= UNLIKE) return;
    print_item(out, "  look at",
               "the values of %s are %.3g times as large as those of %s: bring all to a "
               "like size, for instance (x - mean) / std, or begin the layers with "
               "batch_norm1d",
               column_text(set, most, large), times, column_text(set, least, small));
}

static void print_column(const ps_dataset *set, int64_t i, const range *r, FILE *out)
{
    char text[NAME_BYTES + 32], first[NAME_BYTES];
    const ps_class_names *texts = &set->preprocessing->columns[i].categories;
    if (texts->n > 0) {
        ps_printable(texts->names[0], first, sizeof first);
        fprintf(out, "%*s%" PRId64 " text%s, such as %s", INDENT, "", texts->n,
                check_data_plural(texts->n), first);
    } else {
        fprintf(out, "%*sfrom %.6g to %.6g", INDENT, "", r->least, r->most);
    }
    if (r->missing > 0) fprintf(out, ", %" PRId64 " missing", r->missing);
    fprintf(out, "  %s\n", column_text(set, i, text));
}

static ps_err print_columns(const ps_check_data_options *o, const ps_dataset *set,
                            FILE *out)
{
    range *ranges;
    const int64_t n = set->preprocessing->n_columns;
    PS_TRY(ps_mem_zalloc(&ranges, (size_t)n, sizeof *ranges, "columns"));
    const ps_err err = find_ranges(set->table, ranges);
    for (int64_t i = 0; i < n && i < MOST_COLUMNS && err == PS_OK; i++)
        print_column(set, i, &ranges[i], out);
    if (n > MOST_COLUMNS)
        fprintf(out, "%*sand %" PRId64 " more\n", INDENT, "", n - MOST_COLUMNS);
    if (err == PS_OK) warn_of_unlike(o, set, ranges, out);
    free(ranges);
    return err;
}

/* --- pictures that cannot be read -------------------------------------------------- */

/* Whether the picture is at fault; what does not fit the job has another mend. */
static bool is_broken(ps_err err)
{
    return err == PS_ERR_FORMAT || err == PS_ERR_IO;
}

/* Reads the pictures in their order, for some seconds, and prints the first errors. */
static ps_err list_broken(const ps_check_data_options *o, const ps_dataset *set,
                          FILE *out, int64_t *read, int64_t *broken)
{
    const ps_deadline end = ps_deadline_in_ms(READ_MS);
    char text[ITEM_BYTES];
    ps_picture_reader reader;
    uint8_t *sample;
    ps_err err = PS_OK;
    PS_TRY(ps_mem_zalloc(&sample, (size_t)ps_dims_count(&set->dims), 1, "a picture"));
    ps_picture_reader_init(&reader, &o->config->data, &set->dims, false);
    for (*read = 0; *read < set->n && !ps_deadline_passed(end) && err == PS_OK; ++*read) {
        const char *path = set->files[*read];
        if (is_broken(ps_picture_read(&reader, path, (ps_draw_key){0}, sample)) &&
            ++*broken <= MOST_BROKEN) {
            ps_printable(ps_err_message(), text, sizeof text);
            fprintf(out, "%*s%s\n", INDENT, "", text);
        }
        err = ps_interrupt_check();
    }
    if (*broken > MOST_BROKEN)
        fprintf(out, "%*sand %" PRId64 " more\n", INDENT, "", *broken - MOST_BROKEN);
    fflush(out);
    ps_picture_reader_fini(&reader);
    free(sample);
    return err;
}

/* err: of the first broken picture, after which the loader has stopped. */
static ps_err count_broken(const ps_check_data_options *o, const ps_dataset *set,
                           const char *key, ps_err err, FILE *out)
{
    const ps_err_saved first = ps_err_save(err);
    int64_t read = 0, broken = 0;
    if (!set->files || !is_broken(err)) return err;
    PS_TRY(list_broken(o, set, out, &read, &broken));
    if (broken == 0) return ps_err_restore(&first); // it stands behind those
    return ps_err_set(err,
                      "%s: %" PRId64 " of %" PRId64 " pictures cannot be read, as "
                      "listed: remove them, or save them again",
                      key, broken, read);
}

/* --- what it is compared with ------------------------------------------------------ */

/* counts: (classes) samples of each. Returns how many samples are of none. */
static int64_t check_data_count_classes(const ps_dataset *set, int64_t classes,
                                        int64_t *counts)
{
    int64_t others = 0;
    memset(counts, 0, (size_t)classes * sizeof *counts);
    for (int64_t i = 0; i < set->n; i++)
        if (set->labels[i] >= 0 && set->labels[i] < classes)
            counts[set->labels[i]]++;
        else
            others++;
    return others;
}

static const char *class_text(const ps_dataset *set, int64_t class,
                              char out[NAME_BYTES + 32])
{
    char name[NAME_BYTES] = "";
    if (ps_class_name(&set->names, class))
        ps_printable(ps_class_name(&set->names, class), name, sizeof name);
    snprintf(out, NAME_BYTES + 32, "%" PRId64 "%s%s", class, name[0] ? " " : "", name);
    return out;
}

static void print_classes(const ps_dataset *set, int64_t classes, const int64_t *counts,
                          FILE *out)
{
    char first[NAME_BYTES + 32], last[NAME_BYTES + 32];
    int64_t least = 0, most = 0, used = 0;
    for (int64_t k = 0; k < classes; k++) {
        used += counts[k] > 0;
        if (counts[k] < counts[least]) least = k;
        if (counts[k] >= counts[most]) most = k;
    }
    print_item(out, "  classes",
               "%" PRId64 " of the model's %" PRId64 "; samples of each: %" PRId64
               " (class %s) to %" PRId64 " (class %s)",
               used, classes, counts[least], class_text(set, least, first), counts[most],
               class_text(set, most, last));
    const int width = snprintf(NULL, 0, "%" PRId64, counts[most]);
    for (int64_t k = 0; k < classes && classes <= MOST_ROWS; k++)
        fprintf(out, "%*s%*" PRId64 "  class %s\n", INDENT, "", width, counts[k],
                class_text(set, k, first));
}

static ps_err print_labels(const ps_check_data_options *o, const ps_dataset *set,
                           FILE *out)
{
    const int64_t most = o->spec->n_outputs;
    const int64_t classes = most > set->n_classes ? most : set->n_classes;
    int64_t *counts;
    PS_TRY(ps_mem_zalloc(&counts, (size_t)classes, sizeof *counts, "classes"));
    const int64_t ignored = check_data_count_classes(set, classes, counts);
    print_classes(set, classes, counts, out);
    if (ignored > 0)
        print_item(out, "  left out",
                   "%" PRId64 " samples with the label %" PRId64 " (train.ignore_index)",
                   ignored, o->config->train.ignore_index);
    free(counts);
    return PS_OK;
}

static void print_targets(const ps_dataset *set, FILE *out)
{
    figures f = {0};
    for (int64_t i = 0; i < set->n * set->n_targets; i++) {
        float value = set->targets[i];
        const ps_column *c =
            set->table ? &set->preprocessing->targets[i % set->n_targets] : NULL;
        if (c) value = (float)(value * c->std + c->mean);
        figures_add(&f, &value, 1);
    }
    print_item(out, "  numbers",
               "%" PRId64 " for each sample, from %.4g to %.4g, mean %.4g",
               set->n_targets, f.least, f.most, f.sum / (double)f.values);
}

/* --- all --------------------------------------------------------------------------- */

static const char *check_data_storage_of(const ps_dataset *set)
{
    return set->files ? "pictures, read as" : set->is_float ? "float32," : "uint8,";
}

static ps_err check_set(const ps_check_data_options *o, const ps_dataset *set,
                        const char *key, const char *named, FILE *out)
{
    char shape[PS_DIMS_TEXT];
    figures f = {0};
    if (set->n == 0) {
        print_item(out, key, "no samples");
        return PS_OK;
    }
    print_item(out, key, "%" PRId64 " sample%s, %s %s%s%s%s", set->n,
               check_data_plural(set->n), check_data_storage_of(set),
               ps_dims_product_text(&set->dims, shape), named[0] ? " (" : "", named,
               named[0] ? ")" : "");
    if (set->notes) print_item(out, "  note", "%s", set->notes);
    if (set->doubts) print_item(out, "  look at", "%s", set->doubts);
    fflush(out);
    ps_err err = read_set(o, set, key, &f);
    if (err == PS_OK) print_read(o, set, &f, out);
    if (err == PS_OK && set->table && set == &o->data->train)
        err = print_columns(o, set, out);
    if (err != PS_OK) return count_broken(o, set, key, err, out);
    if (set->labels) return print_labels(o, set, out);
    print_targets(set, out);
    return PS_OK;
}

static int64_t samples_of_step(const ps_check_data_options *o)
{
    int64_t sum = 0;
    for (int r = 0; r < o->sampler->world_size; r++)
        sum += o->sampler->batch[r];
    return sum * o->accumulate;
}

static void print_steps(const ps_check_data_options *o, FILE *out)
{
    const int64_t n = o->sampler->n_samples, each = samples_of_step(o);
    ps_config once = *o->config;
    once.train.epochs = 1;
    once.train.steps = 0;
    const int64_t steps =
        (int64_t)ps_trainer_total_steps(&once, o->sampler, o->accumulate, 0);
    print_item(out, "an epoch", "%" PRId64 " step%s of %" PRId64 " samples; %d worker%s",
               steps, check_data_plural(steps), each, o->sampler->world_size,
               check_data_plural(o->sampler->world_size));
    if (steps * each < n)
        print_item(out, "  left out",
                   "%" PRId64 " samples of each epoch, others each time "
                   "(data.drop_last, data.drop_last_batch)",
                   n - steps * each);
    print_item(out, "the job", "%" PRIu64 " step%s", o->total_steps,
               check_data_plural((int64_t)o->total_steps));
}

ps_err ps_check_data(const ps_check_data_options *o, FILE *out)
{
    const ps_config_data *data = &o->config->data;
    print_item(out, "data", "%s, in %s", ps_word_name(ps_data_words, (int)data->kind),
               data->path[0] ? data->path : ".");
    PS_TRY(check_set(o, &o->data->train, "data.train", data->train, out));
    PS_TRY(check_set(o, &o->data->test, "data.test", data->test, out));
    if (o->total_steps > 0) print_steps(o, out);
    return PS_OK;
}
