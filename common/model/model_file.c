#include "model_file.h"

#include <ctype.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "finite.h"
#include "float16.h"
#include "log.h"
#include "mem.h"

enum { MAX_NAME = 128, MAX_REASON = 256, MAX_SAID = 40, MOST_PAIRS = 8 };

/* What the names of a wrapped model begin with. */
static const struct wrapper {
    const char *prefix, *of, *hint;
} wrappers[] = {
    {"module.", "DistributedDataParallel's", "save model.module.state_dict()"},
    {"_orig_mod.", "torch.compile's", "save model._orig_mod.state_dict()"}};

/* What a file is to fill. */
typedef struct target {
    const ps_tensor_table *table;
    bool strict;
} target;

static ps_err model_file_bad(const char *path, const char *tensor, const char *reason)
{
    return ps_err_set(PS_ERR_FORMAT, "%s: %.*s: %s", path, MAX_NAME, tensor, reason);
}

static int n_all(const ps_tensor_table *table)
{
    return table->n_tensors + table->n_buffers;
}

/* --- what fits --------------------------------------------------------------------- */

/* What becomes float32. */
static bool is_real(const char *dtype)
{
    return strcmp(dtype, "F32") == 0 || strcmp(dtype, "F64") == 0 ||
           strcmp(dtype, "F16") == 0 || strcmp(dtype, "BF16") == 0;
}

/* What becomes int64: I8, U64, ... */
static bool is_integer(const char *dtype)
{
    return (dtype[0] == 'I' || dtype[0] == 'U') && isdigit((unsigned char)dtype[1]);
}

static bool dtype_fits(const ps_st_tensor *found, const ps_tensor *t)
{
    return is_integer(ps_st_dtype_of(t)) ? is_integer(found->dtype)
                                         : is_real(found->dtype);
}

/* NULL, and the reason, where the file has nothing for the tensor. */
static const ps_st_tensor *find_fitting(const ps_st_file *file, const ps_tensor *t,
                                        char reason[MAX_REASON])
{
    char is[PS_DIMS_TEXT], wanted[PS_DIMS_TEXT];
    const ps_st_tensor *found = ps_st_find(file, t->name);
    if (!found)
        snprintf(reason, MAX_REASON, "missing, the model has it");
    else if (!dtype_fits(found, t))
        snprintf(reason, MAX_REASON, "dtype is %s, the model's is %s", found->dtype,
                 ps_st_dtype_of(t));
    else if (!ps_dims_equal(&found->dims, &t->dims))
        snprintf(reason, MAX_REASON, "shape is %s, the model's is %s",
                 ps_dims_text(&found->dims, is), ps_dims_text(&t->dims, wanted));
    else
        return found;
    return NULL;
}

/* The wrapper whose prefix a name has; NULL: none. */
static const struct wrapper *wrapper_of(const char *name)
{
    for (size_t i = 0; i < sizeof wrappers / sizeof *wrappers; i++)
        if (strncmp(name, wrappers[i].prefix, strlen(wrappers[i].prefix)) == 0)
            return &wrappers[i];
    return NULL;
}

/* One wrapper may be in another. */
static ps_err check_wrapped(const char *path, const ps_st_file *file,
                            const ps_tensor_table *table)
{
    char reason[MAX_REASON];
    for (int i = 0; i < file->n; i++) {
        const char *name = file->tensors[i].name, *inner = name;
        const struct wrapper *outer = wrapper_of(name);
        for (const struct wrapper *w; (w = wrapper_of(inner));)
            inner += strlen(w->prefix);
        if (!outer || ps_tensor_table_find(table, name) ||
            !ps_tensor_table_find(table, inner))
            continue;
        snprintf(reason, sizeof reason, "the names begin with \"%s\", as %s do: %s",
                 outer->prefix, outer->of, outer->hint);
        return model_file_bad(path, name, reason);
    }
    return PS_OK;
}

static ps_err check_all(const char *path, const ps_st_file *file,
                        const ps_tensor_table *table)
{
    char reason[MAX_REASON];
    for (int i = 0; i < n_all(table); i++)
        if (!find_fitting(file, ps_tensor_table_at(table, i), reason))
            return model_file_bad(path, ps_tensor_table_at(table, i)->name, reason);
    for (int i = 0; i < file->n; i++)
        if (!ps_tensor_table_find(table, file->tensors[i].name))
            return model_file_bad(path, file->tensors[i].name,
                                  "the model has no such tensor");
    return PS_OK;
}

static ps_err check_some(const char *path, const ps_st_file *file,
                         const ps_tensor_table *table)
{
    char reason[MAX_REASON];
    for (int i = 0; i < n_all(table); i++)
        if (find_fitting(file, ps_tensor_table_at(table, i), reason)) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: no tensor of the file has the name and shape of one of the "
                      "model's",
                      path);
}

static ps_err check_preprocessing(const char *path, const ps_st_file *file,
                                  const ps_tensor_table *table)
{
    const char *own = ps_st_metadata(file, PS_PREPROCESSING_KEY);
    if (!own || !table->preprocessing || strcmp(own, table->preprocessing) == 0)
        return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: these weights were trained on other data: the columns of the "
                      "table, their means or their categories have changed; give the "
                      "data of then, or begin anew",
                      path);
}

static ps_err model_file_check(const char *path, const ps_st_file *file, const void *ctx)
{
    const target *t = ctx;
    PS_TRY(check_wrapped(path, file, t->table));
    if (t->strict) PS_TRY(check_preprocessing(path, file, t->table));
    return t->strict ? check_all(path, file, t->table) : check_some(path, file, t->table);
}

/* --- taking it --------------------------------------------------------------------- */

static ps_err model_file_check_finite(const char *path, const ps_tensor *t,
                                      const float *values)
{
    char reason[MAX_REASON];
    if (ps_finite_all(values, t->count)) return PS_OK;
    uint64_t i = 0;
    while (ps_finite_all(values + i, 1))
        i++;
    snprintf(reason, sizeof reason,
             "element %" PRIu64 " is %g: training cannot start from it", i,
             (double)values[i]);
    return model_file_bad(path, t->name, reason);
}

static float real_at(const char *dtype, const char *at)
{
    uint16_t half;
    double wide;
    if (strcmp(dtype, "F64") == 0) {
        memcpy(&wide, at, sizeof wide);
        return (float)wide;
    }
    memcpy(&half, at, sizeof half);
    return strcmp(dtype, "BF16") == 0 ? ps_float_of_bf16(half) : ps_float_of_fp16(half);
}

/* A uint64 above INT64_MAX becomes negative. */
static int64_t model_file_integer_at(const char *dtype, const char *at, uint64_t bytes)
{
    const int unused = 64 - 8 * (int)bytes;
    uint64_t v = 0;
    memcpy(&v, at, bytes); // little-endian, as this machine is
    return dtype[0] == 'I' ? (int64_t)(v << unused) >> unused : (int64_t)v;
}

/* Element i, where the file has another dtype than the model. */
static void model_file_convert(const ps_st_tensor *from, uint64_t i, uint64_t bytes,
                               void *out)
{
    const char *at = (const char *)from->data + i * bytes;
    if (is_integer(from->dtype)) {
        const int64_t v = model_file_integer_at(from->dtype, at, bytes);
        memcpy((char *)out + i * sizeof v, &v, sizeof v);
    } else {
        const float v = real_at(from->dtype, at);
        memcpy((char *)out + i * sizeof v, &v, sizeof v);
    }
}

static void model_file_take(const ps_st_tensor *from, const ps_tensor *t, void *out)
{
    if (strcmp(from->dtype, ps_st_dtype_of(t)) == 0)
        memcpy(out, from->data, from->bytes);
    else
        for (uint64_t i = 0; i < t->count; i++)
            model_file_convert(from, i, from->bytes / t->count, out);
}

/* One line for each, up to MAX_SAID of them. */
static void say_one(int *said, const char *name, const char *what)
{
    if (++*said <= MAX_SAID) PS_INFO("init", "tensor=%.*s %s", MAX_NAME, name, what);
}

static void say_what_was_taken(const char *path, const ps_st_file *file,
                               const ps_tensor_table *table)
{
    char reason[MAX_REASON], text[MAX_REASON + 64];
    int said = 0, kept = 0;
    for (int i = 0; i < n_all(table); i++) {
        const ps_tensor *t = ps_tensor_table_at(table, i);
        if (find_fitting(file, t, reason)) continue;
        snprintf(text, sizeof text, "starts_from=\"initial values\" reason=\"%s\"",
                 ps_st_find(file, t->name) ? reason : "not in the file");
        say_one(&said, t->name, text);
        kept++;
    }
    for (int i = 0; i < file->n; i++)
        if (!ps_tensor_table_find(table, file->tensors[i].name))
            say_one(&said, file->tensors[i].name,
                    "ignored=\"the model has no such tensor\"");
    if (said > MAX_SAID) PS_INFO("init", "tensors_more=%d", said - MAX_SAID);
    PS_INFO("init", "path=%s taken=%d of=%d", path, n_all(table) - kept, n_all(table));
}

static ps_err take_fitting(const char *path, const ps_st_file *file,
                           const ps_tensor_table *table, float *params, void *buffers)
{
    char reason[MAX_REASON];
    for (int i = 0; i < n_all(table); i++) {
        const ps_tensor *t = ps_tensor_table_at(table, i);
        const ps_st_tensor *from = find_fitting(file, t, reason);
        if (!from) continue;
        const bool param = i < table->n_tensors;
        model_file_take(
            from, t, param ? (void *)(params + t->offset) : (char *)buffers + t->offset);
        if (param) PS_TRY(model_file_check_finite(path, t, params + t->offset));
    }
    return PS_OK;
}

/* What psrun writes into the folder of a run is what is meant. */
static ps_err refuse_folder(const char *path)
{
    char inside[PATH_MAX];
    const int n = snprintf(inside, sizeof inside, "%s/model.safetensors", path);
    if (n >= (int)sizeof inside || access(inside, F_OK) != 0) return PS_OK;
    return ps_err_set(PS_ERR_IO, "%s: is a folder; give its file: %s", path, inside);
}

ps_err ps_model_file_load(const char *path, const ps_tensor_table *table, bool strict,
                          float *params, void *buffers)
{
    const target to = {table, strict};
    ps_st_file file;
    PS_TRY(refuse_folder(path));
    PS_TRY(ps_st_load_checked(path, model_file_check, &to, &file));
    if (!strict) say_what_was_taken(path, &file, table);
    ps_err err = take_fitting(path, &file, table, params, buffers);
    ps_st_fini(&file);
    return err;
}

/* --- writing ----------------------------------------------------------------------- */

/* The model's tensors in the order of the file: counters first, so that all data is
 * aligned to its elements. Returns how many. */
static int list_model(const ps_tensor_table *table, const float *params,
                      const void *buffers, ps_st_tensor *out)
{
    int n = 0;
    for (int pass = 0; pass < 2; pass++)
        for (int i = 0; i < table->n_buffers; i++) {
            const ps_tensor *t = &table->buffers[i];
            if ((t->role == PS_TENSOR_COUNTER) == (pass == 0))
                out[n++] = ps_st_tensor_of(t, (const char *)buffers + t->offset);
        }
    for (int i = 0; i < table->n_tensors; i++)
        out[n++] = ps_st_tensor_of(&table->tensors[i], params + table->tensors[i].offset);
    return n;
}

ps_err ps_model_file_save(const char *path, const ps_tensor_table *table,
                          const float *params, const void *buffers,
                          const char *const *metadata, int n_meta)
{
    ps_st_tensor *list;
    const char *pairs[2 * MOST_PAIRS] = {0};
    if (n_meta + 2 > MOST_PAIRS)
        return ps_err_set(PS_ERR_ARG, "%s: %d pairs of metadata", path, n_meta);
    for (int i = 0; i < 2 * n_meta; i++)
        pairs[i] = metadata[i];
    if (table->preprocessing) {
        pairs[2 * n_meta] = PS_PREPROCESSING_KEY;
        pairs[2 * n_meta++ + 1] = table->preprocessing;
    }
    if (table->samples) {
        pairs[2 * n_meta] = PS_SAMPLES_KEY;
        pairs[2 * n_meta++ + 1] = table->samples;
    }
    PS_TRY(PS_NEW(&list, (size_t)(table->n_tensors + table->n_buffers), path));
    int n = list_model(table, params, buffers, list);
    ps_err err = ps_st_save(path, list, n, pairs, n_meta);
    free(list);
    return err;
}
