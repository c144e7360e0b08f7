/* Waiting for a GPU, with a deadline: a kernel that hangs never ends, and CUDA's own
 * waits have none. Where a wait has been in vain the GPU counts as hanging: no wait lasts
 * longer again, and memory that its work may use stays taken until the process ends.
 *
 * A wait looks for 50 us, and then about every 70 us, which takes about as long as an
 * interrupt of the GPU needs to wake a thread. It is in vain when for as long as the
 * deadline the event has not passed and no thread has recorded another one: a sum of the
 * exchange may take longer than a step's kernels, in parts. */
#ifndef PS_CUDA_WAIT_H
#define PS_CUDA_WAIT_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

/* Of one GPU. Any thread. */
typedef struct ps_gpu_patience ps_gpu_patience;

/* *out is owned by the caller. most_ms 0: a minute. */
ps_err ps_gpu_patience_create(uint64_t most_ms, ps_gpu_patience **out);
void ps_gpu_patience_destroy(ps_gpu_patience **patience); // *patience may be NULL
/* An event was recorded. */
void ps_gpu_patience_moved(ps_gpu_patience *patience);
bool ps_gpu_patience_is_over(const ps_gpu_patience *patience);

#endif
