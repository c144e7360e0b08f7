/* Data files: how data.train and data.test name them, and how they are read.
 *
 *   split = [ files ] [ "@" range ] | range      files = name { "," name }
 *   range = first "-" last                       both inclusive, from 0
 *
 * "0-7999" alone is a range of the default files; a file of that name is "./0-7999". */
#ifndef PS_DATA_FILES_H
#define PS_DATA_FILES_H

#include <stdbool.h>
#include <stdint.h>
#include <zlib.h>

#include "err.h"

enum { PS_DATA_MAX_FILES = 64 };

typedef struct ps_data_spec {
    int n_files; // 0: the kind's default files
    char *files[PS_DATA_MAX_FILES];
    bool has_range;
    int64_t first, last;
} ps_data_spec;

/* key ("data.train") is named in errors. CONFIG; spec is then safe for fini. */
ps_err ps_data_spec_init(ps_data_spec *spec, const char *key, const char *text);
void ps_data_spec_fini(ps_data_spec *spec);

bool ps_data_is_folder(const char *path);
/* Finds the folder data.path, relative to the configuration file's folder, else relative
 * to the working folder. *out is owned by the caller. IO names both when neither
 * exists. */
ps_err ps_data_folder(const char *path, const char *config_file, char **out);

/* folder/name, or name when it is absolute; owned by the caller. */
ps_err ps_data_path(const char *folder, const char *name, char **out);

/* Opens a file without a name, which ends with the process, in that folder or in
 * /var/tmp. IO. */
ps_err ps_data_temporary(const char *folder, int *fd);

/* A file, plain or gzip (recognised by its first bytes), read from start to end. */
typedef struct ps_source {
    gzFile file;
    char *path;     // for messages
    uint64_t bytes; // on disk
    uint64_t taken; // read so far, after decompression
} ps_source;

ps_err ps_source_init(ps_source *source, const char *path);
/* The same for an open descriptor; takes ownership of fd, even on failure. */
ps_err ps_source_init_fd(ps_source *source, int fd, const char *path);
void ps_source_fini(ps_source *source); // safe on a zeroed or failed one

/* Up to n bytes; *got < n only at the end of the file. */
ps_err ps_source_read_some(ps_source *source, void *out, uint64_t n, uint64_t *got);
/* Reads exactly n bytes. FORMAT, naming what, when the file ends before that. */
ps_err ps_source_read(ps_source *source, void *out, uint64_t n, const char *what);

/* Reads exactly n bytes into a buffer that the caller owns. Fails before allocating
 * anything when n is more than the file can hold (deflate compresses at most 1032-fold).
 * For a compressed file the buffer grows only as data is read. */
ps_err ps_source_read_alloc(ps_source *source, uint64_t n, const char *what, void **out);

/* FORMAT unless everything has been read. */
ps_err ps_source_end(ps_source *source);

#define PS_SOURCE_MAX_BYTES ((uint64_t)1 << 36)

/* Reads a whole file into a buffer that the caller owns, NULL after an error; FORMAT when
 * it has more than limit bytes. */
ps_err ps_source_read_file(const char *path, uint64_t limit, void **out, uint64_t *n);

#endif
