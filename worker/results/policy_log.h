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
 *   cut 2 0:0 0:0 8:5           with sync.quorum: of each worker, which of its rounds was
 *                               cut short before the third rest, and after how many steps
 */
#ifndef PS_POLICY_LOG_H
#define PS_POLICY_LOG_H

#include "own_rounds.h"
#include "run_dir.h"
#include "sync_codec.h"

/* first: the step at which the job begins, or goes on. Begins the file anew. IO. */
ps_err ps_policy_log_begin(const ps_run_dir *dir, uint64_t first,
                           const ps_sync_rules *rules);
/* Appends the lines up to a rest. last: the workers end here, which the coordinator need
 * not know. IO. */
ps_err ps_policy_log_add_rest(const ps_run_dir *dir, uint64_t first,
                              const ps_sync_rest *rest, bool last);

/* Appends the line of the workers' steps (n). IO. */
ps_err ps_policy_log_add_steps(const ps_run_dir *dir, uint64_t first,
                               const int64_t *steps, int n);

/* Appends the line of what was cut short (n) before rest number `rest`, from 0 on. IO. */
ps_err ps_policy_log_add_cuts(const ps_run_dir *dir, uint64_t first, uint64_t rest,
                              const ps_round_cut *cuts, int n);

typedef struct ps_policy_lines {
    char *orders, *steps, *cuts; // owned
    size_t steps_at, cuts_at;    // the next line
} ps_policy_lines;               // zeroed: none

/* Reads the lines of a log that was written for a job like this one. IO; FORMAT names
 * what differs. out is safe for fini in every case. */
ps_err ps_policy_log_read(const char *path, const ps_sync_rules *rules,
                          ps_policy_lines *out);
void ps_policy_lines_fini(ps_policy_lines *lines);
/* Takes the next line of steps: `least` to `most` for each worker, into steps (n). At the
 * end it leaves them alone. FORMAT. */
ps_err ps_policy_lines_next_steps(ps_policy_lines *lines, int64_t least, int64_t most,
                                  int64_t *steps, int n);
/* Takes the line of what was cut short before that rest, into cuts (n): nothing, if there
 * is no such line. FORMAT. */
ps_err ps_policy_lines_next_cuts(ps_policy_lines *lines, uint64_t rest,
                                 ps_round_cut *cuts, int n);

#endif
