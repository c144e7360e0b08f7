/* Waiting for the files of rank 0: it reads train.init, and writes checkpoints, the last
 * weights and the summary.
 *
 * Disks have a pace of their own, which the deadlines of a step know nothing of: so
 * nobody goes on to the next one before rank 0 is done with the file. That takes no time
 * from a synchronous job, for no step ends without rank 0.
 *
 * member may be NULL everywhere: there is nobody else.
 */
#ifndef PS_FILE_WAIT_H
#define PS_FILE_WAIT_H

#include "member.h"
#include "run_dir.h"

/* Rank 0's, once: where it writes, for the messages of those who wait. */
ps_err ps_file_announce_folder(ps_member *member, const ps_run_dir *dir,
                               ps_deadline deadline);

/* All ranks, rank 0 when it has written the file `name` of its folder. TIMEOUT, after
 * train.file_timeout_ms, names file and key. */
ps_err ps_file_wait_written(ps_member *member, const ps_config *config, const char *name);

/* Rank 0's, once, as soon as it has joined: the file that it is going to read its first
 * weights from, or "". The others cannot know: a host has settings of its own. */
ps_err ps_file_announce_init(ps_member *member, const char *path, ps_deadline deadline);

/* Rank 0's, when the weights are there. */
ps_err ps_file_init_is_read(ps_member *member, ps_deadline deadline);

/* The other ranks': waits until then where there is such a file. TIMEOUT as above. */
ps_err ps_file_wait_init(ps_member *member, const ps_config *config);

#endif
