#include "idx.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { TYPE_UINT8 = 0x08, TYPE_FLOAT32 = 0x0D };

typedef struct idx_header {
    int type;
    int n_dims;
    int64_t n;
    ps_dims sample; // the sizes after n
} idx_header;

static uint32_t big_endian_32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static ps_err idx_read_header(ps_source *source, idx_header *header)
{
    uint8_t magic[4], size[4];
    PS_TRY(ps_source_read(source, magic, sizeof magic, "the IDX header"));
    if (magic[0] != 0 || magic[1] != 0)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: is not an IDX file: it starts with %02x %02x, not 00 00",
                          source->path, magic[0], magic[1]);
    header->type = magic[2];
    header->n_dims = magic[3];
    if (header->n_dims < 1 || header->n_dims > PS_MAX_DIMS)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: has %d dimensions; only 1 to %d are supported",
                          source->path, header->n_dims, (int)PS_MAX_DIMS);
    header->sample.n = header->n_dims - 1;
    for (int i = 0; i < header->n_dims; i++) {
        PS_TRY(ps_source_read(source, size, sizeof size, "the IDX header"));
        *(i == 0 ? &header->n : &header->sample.d[i - 1]) = big_endian_32(size);
    }
    return PS_OK;
}

static void to_host_order(float *values, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        uint32_t word = big_endian_32((const uint8_t *)&values[i]);
        memcpy(&values[i], &word, sizeof word);
    }
}

/* The name of the format's type code. */
static const char *type_name(int type)
{
    switch (type) {
    case TYPE_UINT8:
        return "uint8";
    case 0x09:
        return "int8";
    case 0x0B:
        return "int16";
    case 0x0C:
        return "int32";
    case TYPE_FLOAT32:
        return "float32";
    case 0x0E:
        return "float64";
    default:
        return "unknown";
    }
}

ps_err ps_idx_read_values(ps_source *source, ps_dataset *set)
{
    idx_header header = {0};
    PS_TRY(idx_read_header(source, &header));
    if (header.type != TYPE_UINT8 && header.type != TYPE_FLOAT32)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: holds values of type 0x%02x (%s); 0x08 (uint8) and 0x0d "
                          "(float32) are supported",
                          source->path, (unsigned)header.type, type_name(header.type));
    if (header.n_dims < 2)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: has one dimension; images have two or more (are these "
                          "the labels?)",
                          source->path);
    uint64_t bytes = 0;
    set->is_float = header.type == TYPE_FLOAT32;
    PS_TRY(
        ps_dataset_bytes(source->path, header.n, &header.sample, set->is_float, &bytes));
    PS_TRY(ps_source_read_alloc(source, bytes, "values", &set->values));
    if (set->is_float) to_host_order(set->values, bytes / sizeof(float));
    set->n = header.n;
    set->dims = header.sample;
    if (set->dims.n == 2) // (H, W): one channel
        set->dims = (ps_dims){3, {1, header.sample.d[0], header.sample.d[1]}};
    return ps_source_end(source);
}

ps_err ps_idx_read_labels(ps_source *source, int32_t **labels, int64_t *n)
{
    *labels = NULL;
    idx_header header = {0};
    PS_TRY(idx_read_header(source, &header));
    if (header.type != TYPE_UINT8 || header.n_dims != 1)
        return ps_err_set(
            PS_ERR_FORMAT,
            "%s: labels are one dimension of type 0x08 (uint8); this has %d "
            "of type 0x%02x (%s)%s",
            source->path, header.n_dims, (unsigned)header.type, type_name(header.type),
            header.n_dims > 1 ? " (are these the images?)" : "");
    void *bytes = NULL;
    PS_TRY(ps_source_read_alloc(source, (uint64_t)header.n, "labels", &bytes));
    ps_err err = PS_OK;
    PS_TRY_GOTO(ps_source_end(source), err, out);
    PS_TRY_GOTO(PS_NEW(labels, (size_t)header.n, "labels"), err, out);
    for (int64_t i = 0; i < header.n; i++)
        (*labels)[i] = ((uint8_t *)bytes)[i];
    *n = header.n;
out:
    free(bytes);
    return err;
}

ps_err ps_idx_read(char *const *paths, int n_paths, ps_dataset *out)
{
    memset(out, 0, sizeof *out);
    ps_source source;
    ps_err err = ps_source_init(&source, paths[0]);
    if (err == PS_OK) err = ps_idx_read_values(&source, out);
    ps_source_fini(&source);
    if (err != PS_OK) goto fail;

    int64_t n = 0;
    err = ps_source_init(&source, paths[1]);
    if (err == PS_OK) err = ps_idx_read_labels(&source, &out->labels, &n);
    ps_source_fini(&source);
    if (err != PS_OK) goto fail;
    if (n == out->n) return PS_OK;
    err = ps_err_set(PS_ERR_FORMAT,
                     "%s has %" PRId64 " images, %s has %" PRId64
                     " labels; the numbers have to be equal",
                     paths[0], out->n, paths[1], n);
fail:
    ps_dataset_fini(out);
    return err;
}
