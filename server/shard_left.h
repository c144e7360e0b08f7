/* Workers that have left in order while others still need them: in a job whose ranks make
 * other numbers of steps. A worker says BYE when it has had all answers, and pushes
 * nothing afterwards. So a chunk that waits for its push then waits for ever, and the job
 * ends at once instead of at net.step_timeout_ms.
 *
 * Where workers go on at their own pace no step needs them all: nothing is checked. */
#ifndef PS_SHARD_LEFT_H
#define PS_SHARD_LEFT_H

#include "shard_state.h"

/* After a worker has pushed to the chunk, or asked for weights that are not there yet.
 * ARG (trying the job again would not help) names the worker that has left, the one that
 * waits for it, and the step. */
ps_err ps_shard_left_check(const ps_shard *s, const ps_shard_chunk *c);
/* The same for all chunks, after a worker has left. */
ps_err ps_shard_left_check_all(const ps_shard *s);

#endif
