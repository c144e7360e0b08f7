/* The loops over rows, built for each level of the processor (cpu_level.h). rows:
 * pointers to n rows, a few at a time so that they are in the cache. */
#ifndef PS_ROW_LOOPS_H
#define PS_ROW_LOOPS_H

#include "row_spec.h"

/* What every row of a step uses, rounded once from double as PyTorch does. */
typedef struct ps_row_scalars {
    ps_row_optimizer optimizer;
    float lr_neg, eps;  // sparse_adam: -lr sqrt(1 - b2^t) / (1 - b1^t)
    float lerp1, lerp2; // 1 - b1, 1 - b2
} ps_row_scalars;

/* One step on n rows (width) with gradients grads (n, dim); NULL: no row. */
void ps_row_loops_apply(const ps_row_scalars *k, uint32_t dim, uint32_t n,
                        float *const *rows, const float *grads);

/* out (n, dim) becomes the rows; where a pointer is NULL, out stays. */
void ps_row_loops_gather(uint32_t dim, uint32_t n, const float *const *rows, float *out);

/* sums (any, dim): row positions[i] += grads (n, dim) row i, one after another. Rows from
 * *filled on hold nothing yet; they come in this order, and count as zeros. */
void ps_row_loops_add(uint32_t dim, uint32_t n, const uint32_t *positions,
                      const float *grads, float *sums, uint32_t *filled);

#endif
