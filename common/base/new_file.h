/* Files that are written under another name and then renamed, so that nobody sees half a
 * file. */
#ifndef PS_NEW_FILE_H
#define PS_NEW_FILE_H

#include <stdbool.h>

#include "err.h"

/* Creates a file and opens it for writing. Whatever is at the path is removed first,
 * never opened or followed: a run that died may have left it, or it may be a link that
 * somebody placed to have another file overwritten. IO names the path. */
ps_err ps_new_file_open(const char *path, int *fd);

/* The same, but the file has no name yet: a process that is killed before
 * ps_new_file_name leaves nothing. Where the file system has no such files, it has its
 * name from the start. IO. */
ps_err ps_new_file_nameless(const char *path, int *fd);
/* Gives it the name; whatever has it is removed. IO. */
ps_err ps_new_file_name(int fd, const char *path);

/* Opens a file for reading and writing that has no name any more: it ends with the
 * process. path: where it has one for a moment, on the disk that is meant. IO. */
ps_err ps_new_file_unnamed(const char *path, int *fd);

/* mkdir -p. made (may be NULL): whether the last folder is new. IO names the folder that
 * cannot be made. */
ps_err ps_new_file_folders(const char *path, bool *made);

#endif
