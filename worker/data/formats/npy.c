#include "npy.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "npy values are taken as they are, which needs a little-endian machine"
#endif

enum { MAX_HEADER_BYTES = 1 << 16 };

/* The header's text and the read position in it. */
typedef struct cursor {
    const char *at, *end;
    const char *path;
} cursor;

static ps_err bad_header(const cursor *c, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT, "%s: the npy header %s", c->path, what);
}

static void skip_space(cursor *c)
{
    while (c->at < c->end && isspace((unsigned char)*c->at))
        c->at++;
}

static bool npy_accept(cursor *c, char token)
{
    skip_space(c);
    if (c->at == c->end || *c->at != token) return false;
    c->at++;
    return true;
}

static bool accept_word(cursor *c, const char *word)
{
    skip_space(c);
    size_t n = strlen(word);
    if ((size_t)(c->end - c->at) < n || memcmp(c->at, word, n) != 0) return false;
    c->at += n;
    return true;
}

/* A Python string without escapes, at most size - 1 characters. */
static ps_err read_string(cursor *c, char *out, size_t size)
{
    char quote = npy_accept(c, '\'') ? '\'' : npy_accept(c, '"') ? '"' : '\0';
    if (quote == '\0') return bad_header(c, "lacks a string where one is expected");
    size_t n = 0;
    for (; c->at < c->end && *c->at != quote; c->at++) {
        if (n + 1 == size || *c->at == '\\')
            return bad_header(c, "has a string that is too long or has escapes");
        out[n++] = *c->at;
    }
    out[n] = '\0';
    return npy_accept(c, quote) ? PS_OK : bad_header(c, "has a string without an end");
}

static ps_err npy_read_size(cursor *c, int64_t *out)
{
    skip_space(c);
    const char *start = c->at;
    uint64_t v = 0;
    for (; c->at < c->end && isdigit((unsigned char)*c->at); c->at++) {
        if (v > (INT64_MAX - 9) / 10)
            return bad_header(c, "has a size that is too large");
        v = v * 10 + (uint64_t)(*c->at - '0');
    }
    *out = (int64_t)v;
    return c->at > start ? PS_OK
                         : bad_header(c, "has a shape that is not a list of sizes");
}

static ps_err npy_read_shape(cursor *c, ps_npy_header *header)
{
    if (!npy_accept(c, '(')) return bad_header(c, "has a shape that is not a tuple");
    while (!npy_accept(c, ')')) {
        if (header->n_dims == PS_NPY_MAX_DIMS)
            return bad_header(c, "has too many dimensions");
        PS_TRY(npy_read_size(c, &header->shape[header->n_dims++]));
        npy_accept(c, 'L'); // Python 2's suffix of long integers
        if (npy_accept(c, ',')) continue;
        if (!npy_accept(c, ')')) return bad_header(c, "has a shape without an end");
        break;
    }
    return PS_OK;
}

/* "<f4": byte order, type, size; "|O": none. */
static ps_err read_descr(cursor *c, ps_npy_header *header)
{
    char text[16];
    PS_TRY(read_string(c, text, sizeof text));
    if (strlen(text) < 2 || strchr("<>|=", text[0]) == NULL ||
        !isalpha((unsigned char)text[1]))
        return bad_header(c, "has a descr that is no type");
    header->order = text[0];
    header->type = text[1];
    header->item_bytes = text[2] && !text[3] ? text[2] - '0' : 0;
    strcpy(header->name, text + 1);
    return PS_OK;
}

static ps_err npy_read_entry(cursor *c, ps_npy_header *header, unsigned *seen)
{
    char key[16];
    PS_TRY(read_string(c, key, sizeof key));
    if (!npy_accept(c, ':')) return bad_header(c, "has a key without a value");
    unsigned bit = 0;
    if (strcmp(key, "descr") == 0) {
        bit = 1;
        PS_TRY(read_descr(c, header));
    } else if (strcmp(key, "fortran_order") == 0) {
        bit = 2;
        header->fortran_order = accept_word(c, "True");
        if (!header->fortran_order && !accept_word(c, "False"))
            return bad_header(c, "has a fortran_order that is neither True nor False");
    } else if (strcmp(key, "shape") == 0) {
        bit = 4;
        if (*seen & bit) return bad_header(c, "has a key twice");
        PS_TRY(npy_read_shape(c, header));
    } else {
        return bad_header(c, "has an unknown key");
    }
    if (*seen & bit) return bad_header(c, "has a key twice");
    *seen |= bit;
    return PS_OK;
}

static ps_err parse_header(cursor *c, ps_npy_header *header)
{
    unsigned seen = 0;
    if (!npy_accept(c, '{')) return bad_header(c, "is no dictionary");
    while (!npy_accept(c, '}')) {
        PS_TRY(npy_read_entry(c, header, &seen));
        if (npy_accept(c, ',')) continue;
        if (!npy_accept(c, '}')) return bad_header(c, "has no end");
        break;
    }
    skip_space(c);
    if (c->at != c->end) return bad_header(c, "has something after its end");
    return seen == 7 ? PS_OK : bad_header(c, "lacks descr, fortran_order or shape");
}

static ps_err npy_read_header(ps_source *source, ps_npy_header *header)
{
    memset(header, 0, sizeof *header);
    uint8_t magic[8], size[4] = {0};
    PS_TRY(ps_source_read(source, magic, sizeof magic, "the npy header"));
    if (memcmp(magic, "PK\3\4", 4) == 0)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: is an .npz file, of several arrays: save each of them "
                          "with numpy.save",
                          source->path);
    if (memcmp(magic, "\x93NUMPY", 6) != 0)
        return ps_err_set(PS_ERR_FORMAT, "%s: is not an npy file", source->path);
    if (magic[6] < 1 || magic[6] > 3)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: npy version %d.%d; only 1 to 3 are supported",
                          source->path, magic[6], magic[7]);
    PS_TRY(ps_source_read(source, size, magic[6] == 1 ? 2 : 4, "the npy header"));
    uint32_t bytes = (uint32_t)size[0] | (uint32_t)size[1] << 8 |
                     (uint32_t)size[2] << 16 | (uint32_t)size[3] << 24;
    if (bytes > MAX_HEADER_BYTES)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: claims an npy header of %" PRIu32 " bytes; %d at most",
                          source->path, bytes, (int)MAX_HEADER_BYTES);
    void *text = NULL;
    PS_TRY(ps_source_read_alloc(source, bytes, "the npy header", &text));
    cursor c = {text, (const char *)text + bytes, source->path};
    ps_err err = parse_header(&c, header);
    free(text);
    return err;
}

/* Whether the order of dimensions matters: not where at most one is longer than 1. */
static bool has_order(const ps_npy_header *header)
{
    int longer = 0;
    for (int i = 0; i < header->n_dims; i++)
        longer += header->shape[i] > 1;
    return longer > 1;
}

static ps_err npy_check_layout(const ps_source *source, const ps_npy_header *header)
{
    if (header->fortran_order && has_order(header))
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s: is in Fortran order; save numpy.ascontiguousarray(x)",
                          source->path);
    if (header->order == '>' && header->item_bytes > 1)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s: is big-endian; save x.astype(x.dtype.newbyteorder('<'))",
                          source->path);
    if (header->n_dims < 1)
        return ps_err_set(PS_ERR_FORMAT, "%s: has no dimension: a single number",
                          source->path);
    return PS_OK;
}

/* A sample's dims: (), (F), (H, W), (C, H, W). */
static ps_err sample_dims(const ps_source *source, const ps_npy_header *header,
                          ps_dims *dims)
{
    const int64_t *d = header->shape + 1;
    switch (header->n_dims) {
    case 1:
        *dims = (ps_dims){1, {1}};
        return PS_OK;
    case 2:
        *dims = (ps_dims){1, {d[0]}};
        return PS_OK;
    case 3:
        *dims = (ps_dims){2, {d[0], d[1]}};
        return PS_OK;
    case 4:
        *dims = (ps_dims){3, {d[0], d[1], d[2]}};
        return PS_OK;
    default:
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: has %d dimensions; only 1 to 4 are supported",
                          source->path, header->n_dims);
    }
}

/* Converts in place and shrinks the allocation. */
static void double_to_float(void **values, uint64_t n)
{
    double v;
    for (uint64_t i = 0; i < n; i++) {
        memcpy(&v, (char *)*values + i * sizeof v, sizeof v);
        float f = (float)v;
        memcpy((char *)*values + i * sizeof f, &f, sizeof f);
    }
    void *smaller = realloc(*values, n * sizeof(float));
    if (smaller != NULL) *values = smaller;
}

/* Reads the header of samples; sets dims, is_float and n. */
static ps_err read_values_header(ps_source *source, ps_npy_header *header,
                                 ps_dataset *set)
{
    PS_TRY(npy_read_header(source, header));
    PS_TRY(npy_check_layout(source, header));
    const bool u8 = header->type == 'u' && header->item_bytes == 1;
    const bool f64 = header->type == 'f' && header->item_bytes == 8;
    if (!u8 && !f64 && !(header->type == 'f' && header->item_bytes == 4))
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s: samples of type %s are not supported; save them with "
                          "astype('float32') or astype('uint8')",
                          source->path, header->name);
    PS_TRY(sample_dims(source, header, &set->dims));
    set->is_float = !u8;
    return PS_OK;
}

ps_err ps_npy_read_values(ps_source *source, ps_dataset *set)
{
    ps_npy_header header;
    uint64_t bytes = 0;
    PS_TRY(read_values_header(source, &header, set));
    const bool f64 = header.item_bytes == 8;
    PS_TRY(ps_dataset_bytes(source->path, header.shape[0], &set->dims, set->is_float,
                            &bytes));
    if (f64 && __builtin_mul_overflow(bytes, (uint64_t)2, &bytes))
        return ps_err_set(PS_ERR_FORMAT, "%s: is too large", source->path);
    PS_TRY(ps_source_read_alloc(source, bytes, "values", &set->values));
    set->n = header.shape[0];
    if (f64) double_to_float(&set->values, bytes / sizeof(double));
    return ps_source_end(source);
}

ps_err ps_npy_open_values(ps_source *source, ps_dataset *set)
{
    ps_npy_header header;
    uint64_t bytes = 0;
    if (!gzdirect(source->file))
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s: is compressed, and data.stream reads samples in any "
                          "order: unpack it with gunzip, or remove data.stream",
                          source->path);
    PS_TRY(read_values_header(source, &header, set));
    PS_TRY(ps_dataset_bytes(source->path, header.shape[0], &set->dims, set->is_float,
                            &bytes));
    set->n = header.shape[0];
    return ps_sample_file_open(source->path, source->taken, set->n,
                               ps_dims_count(&set->dims), header.item_bytes,
                               &set->stream);
}

/* Item i of type u or i as int64; a uint64 above INT64_MAX becomes negative. */
static int64_t npy_integer_at(const char *items, int64_t i, char type, int bytes)
{
    uint64_t v = 0;
    memcpy(&v, items + i * bytes, (size_t)bytes);
    int unused = 64 - 8 * bytes;
    return type == 'i' ? (int64_t)(v << unused) >> unused : (int64_t)v;
}

static bool is_whole(const ps_npy_header *header)
{
    return header->type == 'u' || header->type == 'i';
}

static ps_err npy_check_labels(const ps_source *source, const ps_npy_header *header)
{
    PS_TRY(npy_check_layout(source, header));
    int size = header->item_bytes;
    bool known = size == 1 || size == 2 || size == 4 || size == 8;
    const bool one_hot = header->n_dims == 2 && header->shape[1] > 1;
    const bool text = strchr("USO", header->type) != NULL;
    const char *mend = one_hot ? "save y.argmax(1)"
                       : text  ? "save numpy.unique(y, return_inverse=True)[1], of the "
                                 "labels of all files together"
                               : "save them with astype('int64')";
    if (!is_whole(header) || !known)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s: labels are integers, these are of type %s; %s%s",
                          source->path, header->name, mend,
                          text ? "" : ", or take a loss of numbers (model.loss)");
    if (header->n_dims == 1 || (header->n_dims == 2 && header->shape[1] == 1))
        return PS_OK;
    return ps_err_set(PS_ERR_FORMAT, "%s: labels have one dimension, these have %d%s%s",
                      source->path, header->n_dims, one_hot ? "; " : "",
                      one_hot ? mend : "");
}

static ps_err bad_label(const ps_source *source, char type, int64_t i, int64_t v)
{
    char value[24];
    snprintf(value, sizeof value, type == 'u' ? "%" PRIu64 : "%" PRId64, v);
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: label %" PRId64 " is %s; labels count from 0, below %d",
                      source->path, i, value, INT32_MAX);
}

/* All items after the header; owned by the caller. */
static ps_err read_items(ps_source *source, const ps_npy_header *header, int64_t columns,
                         void **items)
{
    uint64_t bytes = 0;
    if (__builtin_mul_overflow((uint64_t)header->shape[0], (uint64_t)header->item_bytes,
                               &bytes) ||
        __builtin_mul_overflow(bytes, (uint64_t)columns, &bytes))
        return ps_err_set(PS_ERR_FORMAT, "%s: is too large", source->path);
    PS_TRY(ps_source_read_alloc(source, bytes, "labels", items));
    ps_err err = ps_source_end(source);
    if (err == PS_OK) return PS_OK;
    free(*items);
    *items = NULL;
    return err;
}

static ps_err npy_read_labels(ps_source *source, const ps_npy_header *header,
                              const ps_wanted *wanted, int32_t **labels)
{
    void *items = NULL;
    const int64_t n = header->shape[0];
    PS_TRY(npy_check_labels(source, header));
    PS_TRY(read_items(source, header, 1, &items));
    ps_err err = PS_NEW(labels, (size_t)n, "labels");
    for (int64_t i = 0; i < n && err == PS_OK; i++) {
        const int64_t v = npy_integer_at(items, i, header->type, header->item_bytes);
        const bool ignored = wanted->may_be_ignored && v == wanted->ignore_index;
        if ((v < 0 || v > INT32_MAX) && !ignored)
            err = bad_label(source, header->type, i, v);
        (*labels)[i] = (int32_t)v;
    }
    free(items);
    if (err == PS_OK) return PS_OK;
    free(*labels);
    *labels = NULL;
    return err;
}

/* Numbers that a sample is compared with: (N) or (N, K). */
static ps_err check_targets(const ps_source *source, const ps_npy_header *header,
                            const ps_wanted *wanted)
{
    const int size = header->item_bytes;
    const bool real = header->type == 'f' && (size == 4 || size == 8);
    const bool known = size == 1 || size == 2 || size == 4 || size == 8;
    const int64_t columns = header->n_dims == 2 ? header->shape[1] : 1;
    if (!real && !(is_whole(header) && known) && strcmp(header->name, "b1") != 0)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "%s: numbers to compare with of type %s are not supported; "
                          "save them with astype('float32')",
                          source->path, header->name);
    if (header->n_dims > 2)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: has %d dimensions; numbers to compare with have the shape "
                          "(samples) or (samples, outputs)",
                          source->path, header->n_dims);
    if (wanted->n == 0 || columns == wanted->n) return PS_OK;
    char mend[PS_OUTPUTS_TEXT];
    return ps_err_set(PS_ERR_FORMAT,
                      "%s: has %" PRId64
                      " numbers for each sample; the model has %" PRId64 " outputs: %s",
                      source->path, columns, wanted->n,
                      ps_wanted_outputs(wanted, columns, mend));
}

static double number_at(const char *items, int64_t i, const ps_npy_header *header)
{
    float single;
    double wide;
    if (header->type == 'b') return items[i] != 0;
    if (header->type == 'u')
        return (double)(uint64_t)npy_integer_at(items, i, 'u', header->item_bytes);
    if (header->type == 'i')
        return (double)npy_integer_at(items, i, 'i', header->item_bytes);
    if (header->item_bytes == 8) {
        memcpy(&wide, items + i * 8, sizeof wide);
        return wide;
    }
    memcpy(&single, items + i * 4, sizeof single);
    return single;
}

static ps_err read_targets(ps_source *source, const ps_npy_header *header,
                           const ps_wanted *wanted, ps_dataset *set)
{
    void *items = NULL;
    PS_TRY(check_targets(source, header, wanted));
    const int64_t columns = header->n_dims == 2 ? header->shape[1] : 1;
    PS_TRY(read_items(source, header, columns, &items));
    const int64_t count = header->shape[0] * columns;
    ps_err err = PS_NEW(&set->targets, (size_t)count, "numbers to compare with");
    set->n_targets = columns;
    for (int64_t i = 0; i < count && err == PS_OK; i++) {
        const double v = number_at(items, i, header);
        set->targets[i] = (float)v;
        err = ps_target_check(source->path, i / columns, i % columns, v, wanted);
    }
    free(items);
    return err;
}

ps_err ps_npy_read_answers(ps_source *source, const ps_wanted *wanted, ps_dataset *set,
                           int64_t *n)
{
    ps_npy_header header;
    PS_TRY(npy_read_header(source, &header));
    PS_TRY(npy_check_layout(source, &header));
    *n = header.shape[0];
    const bool column =
        header.n_dims == 1 || (header.n_dims == 2 && header.shape[1] == 1);
    const bool classes = is_whole(&header) && column && wanted->n != 1;
    if (!wanted->numbers || classes)
        return npy_read_labels(source, &header, wanted, &set->labels);
    return read_targets(source, &header, wanted, set);
}

static ps_err npy_read_pair(char *const *paths, const ps_wanted *wanted,
                            ps_err (*take_values)(ps_source *, ps_dataset *),
                            ps_dataset *out)
{
    ps_source source;
    int64_t n = 0;
    ps_err err = ps_source_init(&source, paths[0]);
    if (err == PS_OK) err = take_values(&source, out);
    ps_source_fini(&source);
    PS_TRY(err);
    err = ps_source_init(&source, paths[1]);
    if (err == PS_OK) err = ps_npy_read_answers(&source, wanted, out, &n);
    ps_source_fini(&source);
    PS_TRY(err);
    if (n == out->n) return PS_OK;
    return ps_err_set(PS_ERR_FORMAT,
                      "%s has %" PRId64 " samples, %s has %" PRId64
                      " labels; the numbers have to be equal",
                      paths[0], out->n, paths[1], n);
}

ps_err ps_npy_read(char *const *paths, int n_paths, const ps_wanted *wanted,
                   ps_dataset *out)
{
    memset(out, 0, sizeof *out);
    const ps_err err = npy_read_pair(paths, wanted, ps_npy_read_values, out);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}

ps_err ps_npy_open(char *const *paths, int n_paths, const ps_wanted *wanted,
                   ps_dataset *out)
{
    memset(out, 0, sizeof *out);
    const ps_err err = npy_read_pair(paths, wanted, ps_npy_open_values, out);
    if (err != PS_OK) ps_dataset_fini(out);
    return err;
}
