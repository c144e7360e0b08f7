/* The pace of a job whose workers make each step together: a chunk's new weights are made
 * when every worker's push of the step is in; with clipping, loss scaling or LAMB, when
 * the coordinator has added up what all shards know of the step.
 *
 * Workers that have left in order while others still need them: in a job whose ranks make
 * other numbers of steps. A worker says BYE when it has had all answers, and pushes
 * nothing afterwards. So a chunk that waits for its push then waits for ever, and the job
 * ends at once instead of at net.step_timeout_ms. The error (ARG: trying the job again
 * would not help) names the worker that has left, the one that waits, and the step. */
#ifndef PS_SHARD_BSP_H
#define PS_SHARD_BSP_H

#include "shard_state.h"

extern const ps_shard_pace_ops ps_shard_bsp;

#endif
