/* The folder of a job's checkpoints: step-N/, each written under another name and renamed
 * when it is whole; best, a link to one of them. Files of train.save_every may stand
 * beside them. */
#ifndef PS_CHECKPOINT_FOLDER_H
#define PS_CHECKPOINT_FOLDER_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_checkpoint_folder {
    char path[PATH_MAX];
} ps_checkpoint_folder;

/* "<folder>/step-N". */
void ps_checkpoint_folder_step(const ps_checkpoint_folder *f, uint64_t step,
                               char out[PATH_MAX]);

/* The steps that there are checkpoints of, the newest first. *steps is owned by the
 * caller; a folder that is not there has none. IO, NOMEM. */
ps_err ps_checkpoint_folder_list(const ps_checkpoint_folder *f, uint64_t **steps,
                                 size_t *n);

/* Whether that file is in one of them. */
bool ps_checkpoint_folder_holds(const ps_checkpoint_folder *f, const char *file);

/* Makes the folders, and an empty one for the files of a new checkpoint: out. What an
 * earlier job has left unfinished is removed. IO. */
ps_err ps_checkpoint_folder_begin(const ps_checkpoint_folder *f, uint64_t step,
                                  char out[PATH_MAX]);
/* Its files are written: gives it its name, in place of an earlier one of that step. IO.
 */
ps_err ps_checkpoint_folder_commit(const ps_checkpoint_folder *f, uint64_t step);
/* Writing it failed: removes what there is of it. */
void ps_checkpoint_folder_abandon(const ps_checkpoint_folder *f, uint64_t step);

/* For a checkpoint that is not whole: renames it to step-N.damaged, so that it is not a
 * checkpoint any more. */
void ps_checkpoint_folder_set_aside(const ps_checkpoint_folder *f, uint64_t step);

/* best becomes the checkpoint of that step. IO. */
ps_err ps_checkpoint_folder_set_best(const ps_checkpoint_folder *f, uint64_t step);

/* Removes all checkpoints except the newest `keep` and the best. */
void ps_checkpoint_folder_prune(const ps_checkpoint_folder *f, size_t keep);
/* Removes all that were ever made here, and the folder if it is empty then. */
void ps_checkpoint_folder_remove(const ps_checkpoint_folder *f);

#endif
