/* From a step's gradients to new weights: at once, chunk by chunk, or, with clipping and
 * loss scaling, when the coordinator knows the norm of the whole gradient. */
#ifndef PS_SHARD_APPLY_H
#define PS_SHARD_APPLY_H

#include "shard_state.h"

/* Every worker's push of the chunk is here: makes the new weights and replies with them;
 * or keeps the sum, and asks for the norm after the last chunk of the step. */
ps_err ps_shard_apply_pushes(ps_shard *s, ps_shard_chunk *c);

/* The coordinator has written: with the norm of the step, applies and replies with all
 * chunks. */
ps_err ps_shard_apply_norm(ps_shard *s);

#endif
