/* All of n bytes at a place of an open file. name: of the file, for messages. */
#ifndef PS_FILE_AT_H
#define PS_FILE_AT_H

#include <stdint.h>

#include "err.h"

/* IO. */
ps_err ps_file_write_at(int fd, const char *name, uint64_t at, const void *bytes,
                        uint64_t n);
/* IO: also where the file ends before. */
ps_err ps_file_read_at(int fd, const char *name, uint64_t at, void *bytes, uint64_t n);

#endif
