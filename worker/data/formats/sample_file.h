/* Samples that stay in their file until a batch needs them (data.stream).
 *
 * Items are read by pread, not through a mapping: a file that becomes shorter is then an
 * error, and not a signal. */
#ifndef PS_SAMPLE_FILE_H
#define PS_SAMPLE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_sample_file {
    int fd;
    char *path;
    uint64_t offset; // of sample 0 in the file
    int64_t first;   // the file's sample that is sample 0; for messages
    int64_t *kept;   // (samples) which of those from first on; owned; NULL: all
    int64_t count;   // values of a sample
    int item_bytes;  // of a value in the file: 1 (uint8), 4 (float32), 8 (float64)
    size_t more;     // bytes behind a sample's values
} ps_sample_file;

/* Opens path; from: the file's place of its n samples, of count values each. FORMAT when
 * the file is larger or smaller than that. *out is owned by the caller. */
ps_err ps_sample_file_open(const char *path, uint64_t from, int64_t n, int64_t count,
                           int item_bytes, ps_sample_file **out);
/* Samples that a reader has written itself: count float32, then `more` bytes each. Takes
 * fd, also after a failure. name: of the file, for messages. */
ps_err ps_sample_file_of(int fd, const char *name, int64_t count, size_t more,
                         ps_sample_file **out);
void ps_sample_file_close(ps_sample_file **file); // clears the caller's pointer

/* The file's next `samples` samples are no longer part of it: sample 0 follows them. */
void ps_sample_file_skip(ps_sample_file *file, int64_t samples);

/* Only these of the samples are left, in this order; rows: (n). NOMEM. */
ps_err ps_sample_file_keep(ps_sample_file *file, const int64_t *rows, int64_t n);

/* Bytes that ps_sample_file_read needs. */
size_t ps_sample_file_room(const ps_sample_file *file);

/* Tells the system that these samples are read soon, so that it fetches them at once.
 * indices: (n). */
void ps_sample_file_expect(const ps_sample_file *file, const int64_t *indices, int64_t n);

/* Reads a sample into room, which has ps_sample_file_room bytes: uint8, or float32; what
 * stands behind them in the file follows at ps_sample_file_more. IO;
 * FORMAT when the file has become shorter, NUMERIC for a value that is not finite; each
 * names file and sample. Any number of threads may read at a time. */
ps_err ps_sample_file_read(const ps_sample_file *file, int64_t index, void *room);
const void *ps_sample_file_more(const ps_sample_file *file, const void *room);

#endif
