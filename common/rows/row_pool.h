/* Pooling: rows become the outputs of a batch, gradients of the outputs become gradients
 * of rows. As torch.nn.EmbeddingBag with mode sum or mean, per_sample_weights and
 * padding_idx; with as many bags as look-ups, and offsets NULL, as torch.nn.Embedding: a
 * look-up of padding gives zeros.
 *
 * The order of all sums is the order of the look-ups, as index_add_ has it, so that equal
 * batches give equal bits. */
#ifndef PS_ROW_POOL_H
#define PS_ROW_POOL_H

#include <stdint.h>

#include "err.h"

typedef enum ps_row_mode {
    PS_ROW_SUM,
    PS_ROW_MEAN, // over the look-ups of a bag that are not padding
} ps_row_mode;

/* The bags of one table's look-ups. */
typedef struct ps_row_bags {
    ps_row_mode mode;
    uint32_t dim;
    uint64_t n_lookups, n_bags;
    const int64_t *offsets; // (n_bags) where each begins, the first at 0; NULL: all have
                            // equally many look-ups
    const uint32_t *row;    // (n_lookups) of ps_row_batch; PS_ROW_PADDING: none
    const float *weights;   // (n_lookups) per_sample_weights, with sum; NULL: none
} ps_row_bags;

/* ARG says which offset or setting is wrong: the first is not 0, one is smaller than the
 * one before it, or beyond the look-ups; weights with mean; bags without offsets that do
 * not share the look-ups evenly. */
ps_err ps_row_bags_check(const ps_row_bags *bags);

/* out (n_bags, dim) from rows (n_rows, dim). An empty bag gives zeros. The bags were
 * checked. */
void ps_row_pool_forward(const ps_row_bags *bags, const float *rows, float *out);

/* Adds to grads (n_rows, dim) from grad (n_bags, dim), the gradient of out. place of
 * ps_row_batch: grads hold nothing yet, and become the sums; NULL: they hold those of an
 * earlier call for the same batch. */
void ps_row_pool_backward(const ps_row_bags *bags, const float *grad,
                          const uint32_t *place, float *grads);

/* weights_grad (n_lookups) becomes the gradient of per_sample_weights: the dot product of
 * a bag's grad with the row; padding 0. */
void ps_row_pool_weights_backward(const ps_row_bags *bags, const float *rows,
                                  const float *grad, float *weights_grad);

#endif
