/* membership.jsonl in the folder of an elastic job: one line for each time that the job
 * began, or went on, with some workers. Together the lines say with how many workers each
 * step was made, so that the job can be repeated bit for bit:
 *
 *   {"step":0,"epoch":0,"position":0,"workers":2,"generation":1,"job":"5b0c6d1e88f2a407"}
 *   {"step":140,"epoch":3,"position":200,"workers":3,"generation":2,"job":"e71f09ab34cc5d62"}
 */
#ifndef PS_MEMBERSHIP_LOG_H
#define PS_MEMBERSHIP_LOG_H

#include <stdint.h>

#include "config.h"

typedef struct ps_membership {
    uint64_t step;           // optimizer steps that were made before
    int64_t epoch, position; // the place in the data, as in trainer_snapshot.h
    int workers;
    uint64_t generation; // survivors.h
    uint64_t nonce;      // "job": of the roster
} ps_membership;

/* Adds a line to the file at path. Lines of the same step and of later ones go: the job
 * has gone back behind them. A reader sees the old file or the new one. IO, or FORMAT
 * when a line is not as above. */
ps_err ps_membership_log_add(const char *path, const ps_membership *m);

/* The rank that a worker asks for. In an elastic job it may get another one whenever the
 * workers change: it keeps asking for the one that it was started with; worker 0 stays
 * worker 0. One without asks for a high rank, which nobody else has: so that nobody takes
 * the place of a worker 0 that is missing, and has the checkpoint. -1: any. */
int ps_membership_rank(const ps_config *config, int rank, int started_with);

/* Worker 0 of an elastic job; in others they do nothing: a line in the folder, a line in
 * the log. */
ps_err ps_membership_note(const ps_config *config, const char *folder,
                          const ps_membership *m);
/* The generation of the folder's last line; 0: there is none, or the job is not elastic. A
 * worker 0 that was started again knows by it which snapshots in the memory of others are
 * not of the job: it may have begun anew before they were back. IO, FORMAT. */
ps_err ps_membership_generation(const ps_config *config, const char *folder,
                                uint64_t *out);
void ps_membership_announce(const ps_config *config, int workers, uint64_t step);

#endif
