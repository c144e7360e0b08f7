/* policy.log in the folder of a job whose workers go on at their own pace
 * (sync_policy.h): which push counted in which version, so that the job can be repeated
 * bit for bit. The first line is JSON and says of what job it is; the others are the
 * record's lines. Written whenever the workers rest. A job that goes on from the
 * checkpoint of step N begins policy-N.log.
 *
 *   {"policy":"asp","workers":3,"first":0,"total":96,"stretch":32}
 *   1 1
 *   0 0
 *   0-2 0-2 rest
 *   steps 16 16 4               with sync.steps_by_speed: of their rounds from here
 */
#ifndef PS_POLICY_LOG_H
#define PS_POLICY_LOG_H

#include "run_dir.h"
#include "sync_policy.h"

/* first: the step at which the job begins, or goes on. Begins the file anew. IO. */
ps_err ps_policy_log_begin(const ps_run_dir *dir, uint64_t first,
                           const ps_sync_rules *rules);
/* Appends lines. IO. */
ps_err ps_policy_log_add(const ps_run_dir *dir, uint64_t first, const char *lines);

/* Appends the line of the workers' steps (n). IO. */
ps_err ps_policy_log_add_steps(const ps_run_dir *dir, uint64_t first,
                               const int64_t *steps, int n);

/* Reads the lines of a log that was written for a job like this one: those of orders, and
 * those of steps. Both are owned by the caller (free()). IO; FORMAT names what differs.
 */
ps_err ps_policy_log_read(const char *path, const ps_sync_rules *rules, char **lines,
                          char **steps);
/* Takes the next of the lines of steps, from *at on: `least` to `most` for each
 * worker, into steps (n). At the end it leaves them alone. FORMAT. */
ps_err ps_policy_log_next_steps(const char *lines, size_t *at, int64_t least,
                                int64_t most, int64_t *steps, int n);

#endif
