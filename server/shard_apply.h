/* Turns a step's gradients into new weights: chunk by chunk at once, or, with clipping or
 * loss scaling, when the coordinator knows the norm of the whole gradient. */
#ifndef PS_SHARD_APPLY_H
#define PS_SHARD_APPLY_H

#include "shard_state.h"

/* Called when every worker's push of the chunk is here. Makes the new weights and replies
 * with them; with clipping or loss scaling it keeps the sum, and asks for the norm after
 * the last chunk of the step. */
ps_err ps_shard_apply_pushes(ps_shard *s, ps_shard_chunk *c);

/* Called when the coordinator has written. Once the norm of the step is here, applies all
 * chunks and replies with them. */
ps_err ps_shard_apply_norm(ps_shard *s);

/* Parts of it, where an order says what is summed: notes the sum of a chunk for the norm;
 * asks the coordinator for the norm when the last chunk of the step is summed. */
void ps_shard_apply_judge(ps_shard *s, const ps_shard_chunk *c);
ps_err ps_shard_apply_ask_norm(ps_shard *s, uint64_t step);

#endif
