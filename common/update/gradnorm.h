/* The global gradient norm, the same bits whatever the chunks and shards.
 *
 * Each tensor is cut into blocks of PS_GRADNORM_BLOCK elements; a block's sum of squares
 * is a double; the blocks are added in the order of the arena. Chunks end on blocks, so a
 * shard can give the sums of its own blocks.
 */
#ifndef PS_GRADNORM_H
#define PS_GRADNORM_H

#include "plan.h"

/* Number of blocks of the whole arena. This and the next two are pure. */
uint64_t ps_gradnorm_blocks(const ps_tensor_table *table);
/* Index, in the order of the arena, of a tensor's first block. */
uint64_t ps_gradnorm_tensor_block(const ps_tensor_table *table, int tensor);
/* Index, in the order of the arena, of the first block of a chunk; *n: its blocks. */
uint64_t ps_gradnorm_chunk_blocks(const ps_tensor_table *table, const ps_chunk *chunk,
                                  uint64_t *n);
/* Fills sums[0 .. n) for the chunk's blocks; grad is the chunk's (chunk->count elements).
 */
void ps_gradnorm_chunk(const ps_tensor_table *table, const ps_chunk *chunk,
                       const float *grad, double *sums);
/* sqrt of the sum in order. */
double ps_gradnorm_total(const double *sums, uint64_t n);
/* torch.nn.utils.clip_grad_norm_: min(1, max_norm / (norm + 1e-6)). */
double ps_gradnorm_clip(double norm, double max_norm);

#endif
