/* LAMB (You et al. 2019, arXiv 1904.00962), in the form of NVIDIA's apex (FusedLAMB with
 * its defaults, without its clipping) and of timm:
 *
 *   m = b1*m + (1-b1)g; v = b2*v + (1-b2)g*g
 *   u = (m/(1-b1^t)) / (sqrt(v)/sqrt(1-b2^t) + eps) + wd*p
 *   p -= lr * r * u; r = |p| / |u|, norms of the whole tensor
 *   r = 1 where one of the norms is 0, and for tensors without weight decay
 *
 * A tensor without a gradient (absent.h) is left as it is; t counts the step.
 *
 * Shards and ranks own parts of tensors. So a step has two passes: the first makes u and
 * the sums of squares of each block (gradnorm.h), then everybody gets the sums of all
 * blocks, and the second adds those of a tensor in their order. So the bits do not depend
 * on how tensors are cut.
 */
#ifndef PS_LAMB_H
#define PS_LAMB_H

#include "optimizer.h"
#include "plan.h"

/* A range of the arena: arrays of chunk->count elements each. All borrowed. */
typedef struct ps_lamb_part {
    const ps_tensor_table *table;
    const ps_chunk *chunk;
    const ps_optimizer *optimizer;
    float *weights, *grads;
    float *states[PS_OPTIMIZER_MAX_STATES];
} ps_lamb_part;

static inline bool ps_lamb_on(const ps_optimizer *opt)
{
    return opt->kind == PS_OPTIMIZER_LAMB;
}

/* The numbers that everybody gets: sums of squares of all blocks of the arena's weights,
 * then of its updates. Pure. */
uint64_t ps_lamb_sums(const ps_tensor_table *table);

/* Makes m, v, and u in place of the gradients. Fills the sums of the part's blocks, of
 * the weights before the step and of u. */
void ps_lamb_update(const ps_lamb_part *part, const ps_optimizer_step *step,
                    double *weight_sums, double *update_sums);

/* Makes the new weights. sums: (ps_lamb_sums). */
void ps_lamb_apply(const ps_lamb_part *part, const ps_optimizer_step *step,
                   const double *sums);

#endif
