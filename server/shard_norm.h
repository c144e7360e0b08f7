/* The norm of a step's gradient, which only the coordinator can know: shards send it the
 * sums of squares of their blocks, and keep the sums meanwhile. */
#ifndef PS_SHARD_NORM_H
#define PS_SHARD_NORM_H

#include "shard_state.h"

/* Notes what the sum of a chunk, in its memory, adds to the norm. */
void ps_shard_norm_note(ps_shard *s, const ps_shard_chunk *c);
/* Asks the coordinator for the norm of a step, all of whose chunks were noted. */
ps_err ps_shard_norm_ask(ps_shard *s, uint64_t step);
/* The sums of the chunk with that index: one per block. With LAMB those of the updates
 * stand n_blocks behind. */
double *ps_shard_norm_sums(const ps_shard *s, uint32_t i);

#endif
