#include "safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "file_at.h"
#include "mem.h"
#include "new_file.h"
#include "regular_file.h"

#define MAX_HEADER UINT64_C(100000000)
enum { LENGTH_BYTES = 8, MAX_MESSAGE_NAME = 128 };

/* ---- the header ---- */

/* Bytes of an element; 0: not a dtype of the format. */
static uint64_t dtype_size(const char *dtype)
{
    static const struct {
        const char *name;
        uint64_t bytes;
    } known[] = {
        {"BOOL", 1}, {"U8", 1},  {"I8", 1},   {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"I16", 2},
        {"U16", 2},  {"F16", 2}, {"BF16", 2}, {"I32", 4},     {"U32", 4},     {"F32", 4},
        {"I64", 8},  {"U64", 8}, {"F64", 8},  {"C64", 8},
    };
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (strcmp(known[i].name, dtype) == 0) return known[i].bytes;
    return 0;
}

__attribute__((format(printf, 3, 4))) static ps_err
bad(const char *file, const char *tensor, const char *fmt, ...)
{
    char text[256];
    PS_PRINT(text, fmt);
    return ps_err_set(PS_ERR_FORMAT, "%s: %.*s%s%s", file, MAX_MESSAGE_NAME, tensor,
                      tensor[0] ? ": " : "", text);
}

/* A whole number from 0 on. */
static bool safetensors_whole(const json_t *value, int64_t *out)
{
    if (!json_is_integer(value)) return false;
    *out = json_integer_value(value);
    return *out >= 0;
}

static ps_err safetensors_read_shape(const char *file, const json_t *shape,
                                     ps_st_tensor *t)
{
    size_t n = json_array_size(shape);
    if (!json_is_array(shape)) return bad(file, t->name, "shape is not a list");
    if (n > PS_MAX_DIMS)
        return bad(file, t->name, "%zu dimensions, at most %d are supported", n,
                   PS_MAX_DIMS);
    t->dims.n = (int)n;
    for (size_t i = 0; i < n; i++)
        if (!safetensors_whole(json_array_get(shape, i), &t->dims.d[i]))
            return bad(file, t->name, "shape: dimension %zu is not a count", i);
    return PS_OK;
}

/* begin stays in t->data as a number until the data is there. */
static ps_err read_offsets(const char *file, const json_t *offsets, ps_st_tensor *t)
{
    int64_t begin, end;
    if (json_array_size(offsets) != 2 ||
        !safetensors_whole(json_array_get(offsets, 0), &begin) ||
        !safetensors_whole(json_array_get(offsets, 1), &end) || end < begin)
        return bad(file, t->name, "data_offsets is not [begin, end]");
    uint64_t size = dtype_size(t->dtype), wanted = 0;
    int64_t count = ps_dims_count_max(&t->dims, INT64_MAX);
    if (count < 0 || __builtin_mul_overflow((uint64_t)count, size, &wanted))
        return bad(file, t->name, "the product of its shape overflows");
    t->bytes = (uint64_t)(end - begin);
    t->data = (const void *)(uintptr_t)begin;
    if (t->bytes != wanted)
        return bad(file, t->name,
                   "data_offsets hold %" PRIu64 " bytes, its shape and dtype %" PRIu64,
                   t->bytes, wanted);
    return PS_OK;
}

static ps_err safetensors_read_entry(const char *file, const char *name,
                                     const json_t *entry, ps_st_tensor *t)
{
    PS_TRY(ps_mem_strdup(&t->name, name));
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype || dtype_size(dtype) == 0)
        return bad(file, name, "dtype %.16s is not known", dtype ? dtype : "(none)");
    snprintf(t->dtype, sizeof t->dtype, "%s", dtype);
    if (json_object_size(entry) != 3)
        return bad(file, name, "only dtype, shape and data_offsets are allowed");
    PS_TRY(safetensors_read_shape(file, json_object_get(entry, "shape"), t));
    return read_offsets(file, json_object_get(entry, "data_offsets"), t);
}

static ps_err take_metadata(const char *file, const json_t *metadata, ps_st_file *out)
{
    const char *key;
    const json_t *value;
    if (!json_is_object(metadata)) return bad(file, "__metadata__", "is not a map");
    json_object_foreach(
        (json_t *)(uintptr_t)metadata, key,
        value) if (!json_is_string(value)) return bad(file, "__metadata__",
                                                      "\"%.64s\" is not a text", key);
    out->metadata = json_incref((json_t *)(uintptr_t)metadata);
    return PS_OK;
}

static int by_offset(const void *a, const void *b)
{
    const ps_st_tensor *x = a, *y = b;
    uintptr_t at_x = (uintptr_t)x->data, at_y = (uintptr_t)y->data;
    if (at_x != at_y) return at_x < at_y ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes; // empty ones first
}

/* From 0 to the end of the file without holes or overlaps. */
static ps_err safetensors_check_layout(const char *file, ps_st_file *out,
                                       uint64_t data_bytes)
{
    uint64_t at = 0;
    qsort(out->tensors, (size_t)out->n, sizeof *out->tensors, by_offset);
    for (int i = 0; i < out->n; i++) {
        const ps_st_tensor *t = &out->tensors[i];
        uint64_t begin = (uintptr_t)t->data;
        if (begin != at)
            return bad(file, t->name, "begins at %" PRIu64 ", %s (%" PRIu64 ")", begin,
                       begin < at ? "within the tensor before" : "behind a hole", at);
        at += t->bytes; // both below 2^63
    }
    if (at != data_bytes)
        return bad(file, "", "the tensors have %" PRIu64 " bytes, the file has %" PRIu64,
                   at, data_bytes);
    return PS_OK;
}

static ps_err read_tensors(const char *file, json_t *root, uint64_t data_bytes,
                           ps_st_file *out)
{
    const char *name;
    const json_t *entry;
    PS_TRY(PS_NEW(&out->tensors, json_object_size(root), file));
    json_object_foreach(root, name, entry)
    {
        if (strcmp(name, "__metadata__") == 0)
            PS_TRY(take_metadata(file, entry, out));
        else
            PS_TRY(safetensors_read_entry(file, name, entry, &out->tensors[out->n++]));
    }
    return safetensors_check_layout(file, out, data_bytes);
}

/* text (n): the JSON; data_bytes: what follows it in the file. */
static ps_err safetensors_read_header(const char *file, const char *text, size_t n,
                                      uint64_t data_bytes, ps_st_file *out)
{
    json_error_t error;
    if (n == 0 || text[0] != '{') return bad(file, "", "the header is not a JSON map");
    json_t *root = json_loadb(text, n, JSON_REJECT_DUPLICATES, &error);
    if (!root) return bad(file, "", "header, byte %d: %s", error.position, error.text);
    ps_err err = read_tensors(file, root, data_bytes, out);
    json_decref(root);
    return err;
}

/* Whether a file begins as torch.save's do: a zip archive; before PyTorch 1.6 a pickle.
 */
static bool is_of_torch_save(const unsigned char *begin)
{
    return memcmp(begin, "PK\003\004", 4) == 0 || memcmp(begin, "\200\002", 2) == 0;
}

static ps_err header_length(const char *file, const unsigned char *length, uint64_t bytes,
                            uint64_t *out)
{
    *out = 0;
    for (int i = LENGTH_BYTES - 1; i >= 0; i--)
        *out = *out << 8 | length[i];
    // A header of 640 bytes begins with the bytes of a pickle, too.
    if (*out > MAX_HEADER && is_of_torch_save(length))
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: a file of torch.save, not of safetensors; in Python: "
                          "safetensors.torch.save_file(torch.load(\"%s\", "
                          "weights_only=True), \"FILE.safetensors\")",
                          file, file);
    if (*out > MAX_HEADER)
        return bad(file, "",
                   "a header of %" PRIu64 " bytes, at most %" PRIu64
                   " are allowed; is it a safetensors file?",
                   *out, MAX_HEADER);
    if (*out > bytes - LENGTH_BYTES)
        return bad(file, "", "a header of %" PRIu64 " bytes in a file of %" PRIu64, *out,
                   bytes);
    return PS_OK;
}

static void point_into(ps_st_file *file)
{
    for (int i = 0; i < file->n; i++)
        file->tensors[i].data =
            (const char *)file->bytes + (uintptr_t)file->tensors[i].data;
}

/* ---- reading ---- */

static ps_err safetensors_read_all(int fd, const char *path, void *out, uint64_t n)
{
    for (uint64_t done = 0; done < n;) {
        ssize_t got = read(fd, (char *)out + done, n - done);
        if (got < 0 && errno == EINTR) continue;
        if (got < 0) return ps_err_errno(PS_ERR_IO, "%s: reading", path);
        if (got == 0)
            return ps_err_set(PS_ERR_FORMAT, "%s: shrank while it was read", path);
        done += (uint64_t)got;
    }
    return PS_OK;
}

static ps_err open_file(const char *path, int *fd, uint64_t *bytes)
{
    struct stat st;
    PS_TRY(ps_regular_file_open(path, O_RDONLY, fd));
    if (fstat(*fd, &st) != 0) return ps_err_errno(PS_ERR_IO, "%s", path);
    if (st.st_size < LENGTH_BYTES)
        return ps_err_set(PS_ERR_FORMAT,
                          "%s: %lld bytes are too few for a safetensors file", path,
                          (long long)st.st_size);
    *bytes = (uint64_t)st.st_size;
    return PS_OK;
}

/* Reads the header of an open file. Its tensors' data are still offsets. */
static ps_err open_header(const char *path, int fd, uint64_t bytes, ps_st_file *out)
{
    unsigned char length[LENGTH_BYTES];
    uint64_t n = 0;
    char *text = NULL;
    PS_TRY(safetensors_read_all(fd, path, length, LENGTH_BYTES));
    PS_TRY(header_length(path, length, bytes, &n));
    PS_TRY(ps_mem_zalloc(&text, n, 1, path));
    ps_err err = safetensors_read_all(fd, path, text, n);
    if (err == PS_OK)
        err = safetensors_read_header(path, text, n, bytes - LENGTH_BYTES - n, out);
    free(text);
    return err;
}

static uint64_t data_bytes(const ps_st_file *file)
{
    uint64_t n = 0;
    for (int i = 0; i < file->n; i++)
        n += file->tensors[i].bytes;
    return n;
}

static ps_err read_data(const char *path, int fd, ps_st_file *file)
{
    uint64_t n = data_bytes(file);
    PS_TRY(ps_mem_zalloc(&file->bytes, n, 1, path));
    PS_TRY(safetensors_read_all(fd, path, file->bytes, n));
    point_into(file);
    return PS_OK;
}

static ps_err safetensors_map(const char *path, int fd, uint64_t bytes, ps_st_file *file)
{
    const uint64_t head = bytes - data_bytes(file);
    void *map = mmap(NULL, bytes, PROT_READ, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) return ps_err_errno(PS_ERR_IO, "%s: mapping", path);
    file->map = map;
    file->map_bytes = bytes;
    file->bytes = (char *)map + head;
    point_into(file);
    return PS_OK;
}

/* check: what it says of the header, before data are read; NULL: nothing. */
static ps_err safetensors_open(const char *path, bool maps, ps_st_check *check,
                               const void *ctx, ps_st_file *out)
{
    int fd = -1;
    uint64_t bytes = 0;
    *out = (ps_st_file){0};
    ps_err err = open_file(path, &fd, &bytes);
    if (err == PS_OK) err = open_header(path, fd, bytes, out);
    if (err == PS_OK && check) err = check(path, out, ctx);
    if (err == PS_OK)
        err = maps ? safetensors_map(path, fd, bytes, out) : read_data(path, fd, out);
    if (fd >= 0) close(fd);
    if (err != PS_OK) ps_st_fini(out);
    return err;
}

ps_err ps_st_load_checked(const char *path, ps_st_check *check, const void *ctx,
                          ps_st_file *out)
{
    return safetensors_open(path, false, check, ctx, out);
}

void ps_st_forget_pages(const ps_st_file *file)
{
    if (file->map) (void)madvise(file->map, file->map_bytes, MADV_DONTNEED); // advice
}

ps_err ps_st_load(const char *path, ps_st_file *out)
{
    return safetensors_open(path, false, NULL, NULL, out);
}

ps_err ps_st_map(const char *path, ps_st_file *out)
{
    return safetensors_open(path, true, NULL, NULL, out);
}

const char *ps_st_metadata(const ps_st_file *file, const char *key)
{
    return json_string_value(json_object_get(file->metadata, key));
}

ps_err ps_st_read_metadata(const char *path, const char *key, char **out)
{
    int fd = -1;
    uint64_t bytes = 0;
    ps_st_file file = {0};
    *out = NULL;
    ps_err err = open_file(path, &fd, &bytes);
    if (err == PS_OK) err = open_header(path, fd, bytes, &file);
    if (err == PS_OK && ps_st_metadata(&file, key))
        err = ps_mem_strdup(out, ps_st_metadata(&file, key));
    if (fd >= 0) close(fd);
    ps_st_fini(&file);
    return err;
}

static ps_err safetensors_parse(const char *name, const unsigned char *bytes,
                                uint64_t n_bytes, ps_st_file *out)
{
    uint64_t n = 0;
    if (n_bytes < LENGTH_BYTES)
        return bad(name, "", "%" PRIu64 " bytes are too few for a safetensors file",
                   n_bytes);
    PS_TRY(header_length(name, bytes, n_bytes, &n));
    uint64_t left = n_bytes - LENGTH_BYTES - n;
    PS_TRY(
        safetensors_read_header(name, (const char *)bytes + LENGTH_BYTES, n, left, out));
    PS_TRY(ps_mem_zalloc(&out->bytes, left, 1, name));
    if (left) memcpy(out->bytes, bytes + LENGTH_BYTES + n, left);
    point_into(out);
    return PS_OK;
}

ps_err ps_st_parse(const char *name, const void *bytes, size_t n_bytes, ps_st_file *out)
{
    *out = (ps_st_file){0};
    ps_err err = safetensors_parse(name, bytes, n_bytes, out);
    if (err != PS_OK) ps_st_fini(out);
    return err;
}

void ps_st_fini(ps_st_file *file)
{
    for (int i = 0; i < file->n; i++)
        free(file->tensors[i].name);
    free(file->tensors);
    if (file->map)
        munmap(file->map, file->map_bytes);
    else
        free(file->bytes);
    json_decref(file->metadata);
    *file = (ps_st_file){0};
}

const ps_st_tensor *ps_st_find(const ps_st_file *file, const char *name)
{
    for (int i = 0; i < file->n; i++)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

/* ---- writing ---- */

static ps_err safetensors_describe(json_t *root, const ps_st_tensor *t, uint64_t at)
{
    json_t *shape = json_array();
    for (int i = 0; shape && i < t->dims.n; i++)
        json_array_append_new(shape, json_integer(t->dims.d[i]));
    json_t *entry =
        json_pack("{s:s, s:o, s:[I, I]}", "dtype", t->dtype, "shape", shape,
                  "data_offsets", (json_int_t)at, (json_int_t)(at + t->bytes));
    if (json_object_set_new(root, t->name, entry) == 0) return PS_OK;
    return ps_err_set(PS_ERR_NOMEM, "no memory to describe tensor %s", t->name);
}

static ps_err describe_all(json_t *root, const ps_st_tensor *tensors, int n)
{
    uint64_t at = 0;
    for (int i = 0; i < n; i++) {
        PS_TRY(safetensors_describe(root, &tensors[i], at));
        at += tensors[i].bytes;
    }
    return PS_OK;
}

static ps_err describe_metadata(json_t *root, const char *const *metadata, int n_meta)
{
    if (n_meta == 0) return PS_OK;
    json_t *map = json_object();
    int failed = json_object_set_new(root, "__metadata__", map);
    for (int i = 0; i < n_meta && !failed; i++)
        failed =
            json_object_set_new(map, metadata[2 * i], json_string(metadata[2 * i + 1]));
    if (!failed) return PS_OK;
    return ps_err_set(PS_ERR_ARG, "metadata of a safetensors file is not UTF-8");
}

/* *out (bytes, owned): length, JSON and padding. */
static ps_err make_header(const ps_st_tensor *tensors, int n_tensors,
                          const char *const *metadata, int n_meta, char **out,
                          uint64_t *n)
{
    json_t *root = json_object();
    char *text = NULL;
    ps_err err = describe_metadata(root, metadata, n_meta);
    if (err == PS_OK) err = describe_all(root, tensors, n_tensors);
    if (err == PS_OK) text = json_dumps(root, JSON_COMPACT);
    json_decref(root);
    if (err == PS_OK && !text) err = ps_err_set(PS_ERR_NOMEM, "no memory for a header");
    uint64_t used = text ? strlen(text) : 0;
    uint64_t padded = (used + 7) / 8 * 8;
    *n = LENGTH_BYTES + padded;
    if (err == PS_OK) err = ps_mem_zalloc(out, *n, 1, "header");
    if (err == PS_OK) {
        for (int i = 0; i < LENGTH_BYTES; i++)
            (*out)[i] = (char)(padded >> (8 * i));
        memcpy(*out + LENGTH_BYTES, text, used);
        memset(*out + LENGTH_BYTES + used, ' ', padded - used);
    }
    free(text);
    return err;
}

static ps_err safetensors_begin(ps_st_writer *w, const char *path,
                                const ps_st_tensor *tensors, int n,
                                const char *const *metadata, int n_meta,
                                ps_err (*create)(const char *path, int *fd))
{
    char *head = NULL;
    const size_t room = strlen(path) + sizeof ".tmp";
    *w = (ps_st_writer){.path = path, .fd = -1};
    PS_TRY(make_header(tensors, n, metadata, n_meta, &head, &w->head_bytes));
    ps_err err = ps_mem_zalloc(&w->temporary, room, 1, path);
    if (err == PS_OK) {
        snprintf(w->temporary, room, "%s.tmp", path);
        err = create(w->temporary, &w->fd);
    }
    if (err == PS_OK) err = ps_file_write_at(w->fd, w->temporary, 0, head, w->head_bytes);
    free(head);
    return err;
}

ps_err ps_st_begin(ps_st_writer *w, const char *path, const ps_st_tensor *tensors, int n,
                   const char *const *metadata, int n_meta)
{
    return safetensors_begin(w, path, tensors, n, metadata, n_meta, ps_new_file_nameless);
}

ps_err ps_st_put(ps_st_writer *w, uint64_t at, const void *bytes, uint64_t n)
{
    return ps_file_write_at(w->fd, w->temporary, w->head_bytes + at, bytes, n);
}

static ps_err safetensors_finish(const ps_st_writer *w, ps_err err)
{
    if (err == PS_OK && fsync(w->fd) != 0 && errno != EINVAL) // EINVAL: has no fsync
        err = ps_err_errno(PS_ERR_IO, "%s: syncing", w->temporary);
    if (err == PS_OK) err = ps_new_file_name(w->fd, w->temporary);
    if (close(w->fd) != 0 && err == PS_OK)
        err = ps_err_errno(PS_ERR_IO, "%s: closing", w->temporary);
    if (err == PS_OK && rename(w->temporary, w->path) != 0)
        err = ps_err_errno(PS_ERR_IO, "%s", w->path);
    if (err == PS_OK)
        ps_regular_file_keep_name(w->path);
    else
        unlink(w->temporary);
    return err;
}

ps_err ps_st_end(ps_st_writer *w, ps_err err)
{
    if (w->fd >= 0) err = safetensors_finish(w, err);
    free(w->temporary);
    *w = (ps_st_writer){.fd = -1};
    return err;
}

ps_err ps_st_save(const char *path, const ps_st_tensor *tensors, int n,
                  const char *const *metadata, int n_meta)
{
    ps_st_writer w;
    uint64_t at = 0;
    ps_err err =
        safetensors_begin(&w, path, tensors, n, metadata, n_meta, ps_new_file_open);
    for (int i = 0; i < n && err == PS_OK; i++) {
        err = ps_st_put(&w, at, tensors[i].data, tensors[i].bytes);
        at += tensors[i].bytes;
    }
    return ps_st_end(&w, err);
}

/* ---- a model's tensors ---- */

const char *ps_st_dtype_of(const ps_tensor *t)
{
    return t->role == PS_TENSOR_COUNTER ? "I64" : "F32";
}

ps_st_tensor ps_st_tensor_of(const ps_tensor *t, const void *values)
{
    ps_st_tensor out = {.name = t->name,
                        .dims = t->dims,
                        .data = values,
                        .bytes = t->count * dtype_size(ps_st_dtype_of(t))};
    snprintf(out.dtype, sizeof out.dtype, "%s", ps_st_dtype_of(t));
    return out;
}
