/* The folder that a run leaves behind: metrics.jsonl, summary.json, model.safetensors,
 * best.safetensors, evaluation.json, evaluation.svg, membership.jsonl, config.json,
 * classes.txt, policy.log, checkpoints/step-N.safetensors and trace.json are rank 0's. */
#ifndef PS_RUN_DIR_H
#define PS_RUN_DIR_H

#include <limits.h>
#include <stdbool.h>
#include <stdio.h>

#include "err.h"

typedef struct ps_run_dir {
    char path[PATH_MAX];
    bool made;    // by this process
    int claim_fd; // locked as long as the run lasts; -1: not claimed
} ps_run_dir;

/* Makes the folder given, or, where given is NULL or "", runs/<job>-<time>. IO names the
 * folder that cannot be made. */
ps_err ps_run_dir_init(ps_run_dir *dir, const char *given, const char *job);

/* Called by rank 0: makes metrics.jsonl, which marks the folder as taken. Without
 * overwrite, IO when the folder already holds a run. With overwrite, removes that run's
 * files and no others; IO when a job is writing into the folder now. old: it is an earlier
 * start of this job, which may still go on from what another worker has in memory: its
 * membership.jsonl stays, until ps_membership_note writes what is so. */
ps_err ps_run_dir_claim(ps_run_dir *dir, bool overwrite, bool old);

/* Whether overwriting removes this file: then the job cannot read it any more. */
bool ps_run_dir_replaces(const ps_run_dir *dir, const char *file);

/* Called by rank 0 instead when a run resumes: the folder keeps all of its files. IO when
 * a job is writing into it now. */
ps_err ps_run_dir_claim_again(ps_run_dir *dir);

/* Gives the claim back. A run that has written nothing leaves nothing: no empty
 * metrics.jsonl, and no empty folder that it has made. */
void ps_run_dir_fini(ps_run_dir *dir);

/* out (PATH_MAX bytes) = "<folder>/<name>"; makes the folder of a name with a slash. */
ps_err ps_run_dir_path(const ps_run_dir *dir, const char *name, char *out);

/* A file that has its own name only once it is whole. */
typedef struct ps_out_file {
    char path[PATH_MAX], temporary[PATH_MAX];
    FILE *file; // NULL: not open
} ps_out_file;

ps_err ps_out_file_begin(ps_out_file *o, const char *path); // IO names the path
/* The same in a folder: IO also when a file of this name is there, unless overwrite. */
ps_err ps_out_file_open(ps_out_file *o, const ps_run_dir *dir, const char *name,
                        bool overwrite);
/* Closes the file and gives it its name; both survive a power cut from here on. IO when
 * any write has failed; nothing is left then. */
ps_err ps_out_file_keep(ps_out_file *o);
void ps_out_file_drop(ps_out_file *o); // leaves nothing; safe on a zeroed or kept one

#endif
