/* Waiting for the files of rank 0: it reads train.init, and writes checkpoints, the last
 * weights and the summary.
 *
 * The deadlines of a step do not allow for slow disks, so no rank begins the next step
 * before rank 0 is done with the file. This costs a synchronous job no time: no step ends
 * without rank 0.
 *
 * member may be NULL everywhere: the job has no other process. */
#ifndef PS_FILE_WAIT_H
#define PS_FILE_WAIT_H

#include "member.h"
#include "run_dir.h"

/* For a call in which all ranks meet when rank 0 is done with a file. It is the last to
 * come: it waits net.step_timeout_ms for the others, and they train.file_timeout_ms for
 * it. So a rank that never comes does not make them wait as for a disk. */
ps_deadline ps_file_meeting_deadline(const ps_config *config, int rank);

/* Called by rank 0, once: tells where it writes, for the messages of ranks that wait. */
ps_err ps_file_announce_folder(ps_member *member, const ps_run_dir *dir,
                               ps_deadline deadline);

/* Called by all ranks, by rank 0 when it has written the file `name` of its folder.
 * TIMEOUT: on rank 0 it names who has not come, on the others file and key. */
ps_err ps_file_wait_written(ps_member *member, const ps_config *config, const char *name);

/* Called by rank 0, once, as soon as it has joined: names the file of its first weights,
 * or "". The other ranks cannot know it: their hosts may have other settings. */
ps_err ps_file_announce_init(ps_member *member, const char *path, ps_deadline deadline);

/* Called by rank 0 when it has read the weights. */
ps_err ps_file_init_is_read(ps_member *member, ps_deadline deadline);

/* Called by the other ranks: if there is such a file, waits until rank 0 has read it.
 * TIMEOUT as above. */
ps_err ps_file_wait_init(ps_member *member, const ps_config *config);

#endif
