/* The sum over all blocks of a step's gradient, gathered from the shards: each gives the
 * sums of its own blocks, and they are added in the order of the arena when all are in,
 * so that the result does not depend on how the blocks were spread.
 *
 * A shard's part on the wire, little-endian:
 *
 *   u64 n | u64 first[n] | u64 counts[n] | double sums[counts[0] + ... + counts[n - 1]]
 */
#ifndef PS_GRADNORM_SUM_H
#define PS_GRADNORM_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

enum { PS_GRADNORM_BLOCKS_MAX = 1 << 26, PS_GRADNORM_SHARDS_MAX = 1 << 16 };

typedef struct ps_gradnorm_part ps_gradnorm_part;

typedef struct ps_gradnorm_sum {
    uint64_t step;                   // or any number that the caller tells sums apart by
    uint64_t n_shards, total_blocks; // 0: not in use
    uint64_t blocks_in;              // of the parts so far
    uint32_t n_parts;
    ps_gradnorm_part *parts;
} ps_gradnorm_sum;

void ps_gradnorm_sum_fini(ps_gradnorm_sum *s); // zeroes; safe on a zeroed one

/* The size of a part on the wire in bytes. write puts the part into out. */
size_t ps_gradnorm_part_bytes(uint32_t n, const uint64_t *counts);
void ps_gradnorm_part_write(void *out, uint32_t n, const uint64_t *first,
                            const uint64_t *counts, const double *sums);

/* Adds the part of the sender (any number that tells senders apart) to s, whose step the
 * caller has set. A sender's second part replaces its first. PROTOCOL when it does not
 * fit the others, or claims more than its bytes hold; s is then as before. */
ps_err ps_gradnorm_sum_add(ps_gradnorm_sum *s, uint64_t sender, uint64_t n_shards,
                           uint64_t total_blocks, const void *part, size_t bytes);
bool ps_gradnorm_sum_complete(const ps_gradnorm_sum *s);
/* sqrt of the sum in order. *sums: all of them (total_blocks), owned by the caller, NULL
 * after an error; sums NULL: not wanted. PROTOCOL when parts overlap or leave blocks out.
 */
ps_err ps_gradnorm_sum_total(const ps_gradnorm_sum *s, double *norm, double **sums);

#endif
