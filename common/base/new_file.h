/* Files that are written aside and then renamed, so that nobody sees half of one. */
#ifndef PS_NEW_FILE_H
#define PS_NEW_FILE_H

#include "err.h"

/* Opens a file of our own for writing. What stands there already is taken away, be it
 * left by a run that died, or a link that somebody else put there to have another file
 * overwritten: it is never opened, nor followed. IO names the path. */
ps_err ps_new_file_open(const char *path, int *fd);

#endif
