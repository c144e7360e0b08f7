/* Files that the user or an earlier run has placed. What is at a path may also be a FIFO,
 * a device or a folder: opening or reading one can wait for ever, and no signal ends
 * that. */
#ifndef PS_REGULAR_FILE_H
#define PS_REGULAR_FILE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "err.h"

/* Opens a file that must be a regular one. flags: of open(2); a file that does not exist
 * and may be created gets the mode 0666. One that is opened for writing must not be a
 * symbolic link: its target is another file, which would be overwritten. Never blocks. IO
 * names the path; *fd is -1 then, and errno says why (ENOENT: nothing is there). */
ps_err ps_regular_file_open(const char *path, int flags, int *fd);
/* The same as a stream; NULL after an error. mode: "r", "w" or "a". */
ps_err ps_regular_file_stream(const char *path, const char *mode, FILE **out);
/* Writes n bytes behind the file's last one, or none of them, where the disk has no room
 * for all. Nothing may be in the stream's buffer. IO; errno says why. */
ps_err ps_regular_file_append(FILE *file, const void *bytes, size_t n);
/* Syncs the folder of a file that has just got its name, so that the name survives a
 * power cut. A failure is ignored. */
void ps_regular_file_keep_name(const char *path);
/* Whether both paths lead to one file or folder. */
bool ps_regular_file_is_same(const char *a, const char *b);
/* Size and CRC-32 of a file. IO names it. */
ps_err ps_regular_file_sum(const char *path, uint64_t *bytes, uint32_t *crc);

#endif
