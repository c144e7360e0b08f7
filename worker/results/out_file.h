/* A file of the run's folder that has its own name only once it is whole. */
#ifndef PS_OUT_FILE_H
#define PS_OUT_FILE_H

#include <stdio.h>

#include "run_dir.h"

typedef struct ps_out_file {
    char path[PATH_MAX], temporary[PATH_MAX];
    FILE *file; // NULL: not open
} ps_out_file;

/* IO names the path; also when a file of this name is there already, unless overwrite. */
ps_err ps_out_file_open(ps_out_file *o, const ps_run_dir *dir, const char *name,
                        bool overwrite);
/* Closes the file and gives it its name. IO when any write has failed; nothing is left
 * then. */
ps_err ps_out_file_keep(ps_out_file *o);
void ps_out_file_drop(ps_out_file *o); // leaves nothing; safe on a zeroed or kept one

#endif
