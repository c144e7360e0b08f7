/* The folder that a run leaves behind. */
#ifndef PS_RUN_DIR_H
#define PS_RUN_DIR_H

#include <limits.h>

#include "err.h"

typedef struct ps_run_dir {
    char path[PATH_MAX];
} ps_run_dir;

/* Makes the folder given, or, where given is NULL or "", runs/<job>-<time>. IO names the
 * folder that cannot be made. */
ps_err ps_run_dir_init(ps_run_dir *dir, const char *given, const char *job);

/* out (PATH_MAX bytes) = "<folder>/<name>"; a name with a slash gets its folder made. */
ps_err ps_run_dir_path(const ps_run_dir *dir, const char *name, char *out);

#endif
