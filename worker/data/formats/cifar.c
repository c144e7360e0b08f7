#include "cifar.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { PIXELS = 3 * 32 * 32 };

/* Makes room for n more samples at the end of out. */
static ps_err cifar_grow(ps_dataset *out, uint64_t n, const char *path)
{
    uint64_t total = (uint64_t)out->n + n;
    void *values = realloc(out->values, total * PIXELS);
    if (values != NULL) out->values = values;
    int32_t *labels = realloc(out->labels, total * sizeof *labels);
    if (labels != NULL) out->labels = labels;
    if (values != NULL && labels != NULL) return PS_OK;
    return ps_err_set(PS_ERR_NOMEM, "%s: no memory for %" PRIu64 " images", path, total);
}

/* A record has label_bytes before its pixels; the last of them is the label, below
 * n_classes. */
static ps_err cifar_append(const char *path, const uint8_t *records, uint64_t n,
                           size_t label_bytes, int n_classes, ps_dataset *out)
{
    for (uint64_t i = 0; i < n; i++) {
        const uint8_t *record = records + i * (label_bytes + PIXELS);
        int label = record[label_bytes - 1];
        if (label >= n_classes)
            return ps_err_set(PS_ERR_FORMAT,
                              "%s: record %" PRIu64 " has the label %d; this kind has %d "
                              "classes",
                              path, i, label, n_classes);
        out->labels[out->n] = label;
        memcpy((uint8_t *)out->values + out->n * PIXELS, record + label_bytes, PIXELS);
        out->n++;
    }
    return PS_OK;
}

static ps_err cifar_read_file(const char *path, size_t label_bytes, int n_classes,
                              ps_dataset *out)
{
    void *records = NULL;
    uint64_t bytes = 0, record = label_bytes + PIXELS;
    ps_err err = PS_OK;
    PS_TRY(ps_source_read_file(path, PS_SOURCE_MAX_BYTES, &records, &bytes));
    if (bytes == 0 || bytes % record != 0)
        PS_TRY_GOTO(ps_err_set(PS_ERR_FORMAT,
                               "%s: %" PRIu64
                               " bytes are not a whole number of records of "
                               "%" PRIu64,
                               path, bytes, record),
                    err, out);
    PS_TRY_GOTO(cifar_grow(out, bytes / record, path), err, out);
    PS_TRY_GOTO(cifar_append(path, records, bytes / record, label_bytes, n_classes, out),
                err, out);
out:
    free(records);
    return err;
}

static ps_err cifar_read_files(char *const *paths, int n_paths, size_t label_bytes,
                               int n_classes, ps_dataset *out)
{
    memset(out, 0, sizeof *out);
    out->dims = (ps_dims){3, {3, 32, 32}};
    for (int i = 0; i < n_paths; i++) {
        ps_err err = cifar_read_file(paths[i], label_bytes, n_classes, out);
        if (err == PS_OK) continue;
        ps_dataset_fini(out);
        return err;
    }
    return PS_OK;
}

ps_err ps_cifar10_read(char *const *paths, int n_paths, ps_dataset *out)
{
    return cifar_read_files(paths, n_paths, 1, 10, out);
}

ps_err ps_cifar100_read(char *const *paths, int n_paths, ps_dataset *out)
{
    return cifar_read_files(paths, n_paths, 2, 100, out);
}
