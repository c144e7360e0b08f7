/* safetensors: named tensors in one file, as PyTorch's safetensors.torch reads and
 * writes.
 *
 *   u64 little-endian N | N bytes of JSON, padded with spaces to a multiple of 8 | data
 *   {"__metadata__": {str: str}, name: {"dtype": "F32", "shape": [..],
 *    "data_offsets": [begin, end]}, ...}
 *
 * The reader checks everything before it uses a byte: N <= 100,000,000, JSON starting
 * with '{' without duplicate keys, offsets sorted, contiguous from 0 to the end of the
 * file, no overflow, end - begin = elements x size.
 */
#ifndef PS_SAFETENSORS_H
#define PS_SAFETENSORS_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "tensor_table.h"

typedef struct ps_st_tensor {
    char *name;
    char dtype[8]; // "F32", "I64", ...
    ps_dims dims;
    const void *data; // into the file's bytes; not aligned where the header isn't padded
    uint64_t bytes;
} ps_st_tensor;

typedef struct ps_st_file {
    int n;
    ps_st_tensor *tensors;
    json_t *metadata; // owned; NULL: none
    void *bytes;      // the file's data, behind the header; owned
    void *map;        // of ps_st_map: the whole file, in which bytes lies; else NULL
    uint64_t map_bytes;
} ps_st_file;

ps_err ps_st_load(const char *path, ps_st_file *out);
/* check sees names, dtypes and shapes before memory for the data is taken; its failure is
 * the result. */
typedef ps_err ps_st_check(const char *path, const ps_st_file *file, const void *ctx);
ps_err ps_st_load_checked(const char *path, ps_st_check *check, const void *ctx,
                          ps_st_file *out);
/* The same, but the data stays in the file and is mapped: it takes no memory that the
 * system could not have back. A file that becomes shorter meanwhile ends the process; one
 * that is replaced by another (rename, as ps_st_save does it) stays as it was. */
ps_err ps_st_map(const char *path, ps_st_file *out);
/* Of a mapped file: pages that were read are the process's no more, until they are read
 * again. */
void ps_st_forget_pages(const ps_st_file *file);
/* The same from memory; copies the bytes. For tests and fuzzing; name stands for the
 * path. */
ps_err ps_st_parse(const char *name, const void *bytes, size_t n_bytes, ps_st_file *out);
void ps_st_fini(ps_st_file *file);
/* The value of a key of the metadata, or NULL. */
const char *ps_st_metadata(const ps_st_file *file, const char *key);
/* The same of a file, whose tensors are not read; *out is owned by the caller. */
ps_err ps_st_read_metadata(const char *path, const char *key, char **out);
const ps_st_tensor *ps_st_find(const ps_st_file *file, const char *name);

/* Of a tensor in a model's memory. */
const char *ps_st_dtype_of(const ps_tensor *tensor);
/* A tensor of a model (or of its shape) with its values, for ps_st_save; borrows both. */
ps_st_tensor ps_st_tensor_of(const ps_tensor *tensor, const void *values);

/* Writes n tensors in this order, except that those of 8-byte elements come first, so
 * that all data is aligned. Writes path.tmp, syncs and renames it: a full disk or a kill
 * leaves the old file. metadata: n_meta pairs key, value. */
ps_err ps_st_save(const char *path, const ps_st_tensor *tensors, int n,
                  const char *const *metadata, int n_meta);

/* The same piece by piece, for data that is not in memory at once. */
typedef struct ps_st_writer {
    const char *path; // borrowed
    char *temporary;  // path.tmp
    int fd;
    uint64_t head_bytes;
} ps_st_writer;

/* The header; the tensors' data is not looked at. w is safe for end in every case. A
 * process that is killed before the end leaves no file, as far as the file system has
 * such files (ps_new_file_nameless). */
ps_err ps_st_begin(ps_st_writer *w, const char *path, const ps_st_tensor *tensors, int n,
                   const char *const *metadata, int n_meta);
/* n bytes from the place `at` on of all tensors' data, one after another; in any order.
 * IO. */
ps_err ps_st_put(ps_st_writer *w, uint64_t at, const void *bytes, uint64_t n);
/* After all of the data: syncs and renames the file. err: of what came before; if it is
 * not PS_OK, the file is removed, and err is the result. */
ps_err ps_st_end(ps_st_writer *w, ps_err err);

#endif
