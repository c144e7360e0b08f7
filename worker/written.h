/* Waiting for what rank 0 writes: checkpoints, the last weights, the summary.
 *
 * Disks have a pace of their own, which the deadlines of a step know nothing of: so
 * nobody goes on to the next one before the file is there. That takes no time from a
 * synchronous job, for no step ends without rank 0.
 */
#ifndef PS_WRITTEN_H
#define PS_WRITTEN_H

#include "member.h"
#include "run_dir.h"

/* Rank 0's, once: where it writes, for the messages of those who wait. member may be
 * NULL: there is nobody else. */
ps_err ps_written_announce(ps_member *member, const ps_run_dir *dir,
                           ps_deadline deadline);

/* All ranks, rank 0 when it has written the file `name` of its folder. TIMEOUT, after
 * train.save_timeout_ms, names file and key. member may be NULL. */
ps_err ps_written_wait(ps_member *member, const ps_config *config, const char *name);

#endif
