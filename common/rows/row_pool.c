#include "row_pool.h"

#include <inttypes.h>

#include "cpu_level.h"
#include "fused.h"
#include "row_dim.h"
#include "row_set.h"

PS_PER_LEVEL(ps_err, ps_row_bags_check, (const ps_row_bags *bags), (bags))
{
    const int64_t *offsets = bags->offsets;
    if (bags->weights && bags->mode != PS_ROW_SUM)
        return ps_err_set(PS_ERR_ARG, "per_sample_weights go with mode sum alone");
    if (!offsets && bags->n_bags > 0 && bags->n_lookups % bags->n_bags != 0)
        return ps_err_set(PS_ERR_ARG, "%" PRIu64 " bags of %" PRIu64 " ids: give offsets",
                          bags->n_bags, bags->n_lookups);
    if (bags->n_bags == 0 && bags->n_lookups > 0)
        return ps_err_set(PS_ERR_ARG, "%" PRIu64 " ids in no bag: give offsets[0]",
                          bags->n_lookups);
    for (uint64_t b = 0; offsets && b < bags->n_bags; b++) {
        if (b == 0 && offsets[0] != 0)
            return ps_err_set(PS_ERR_ARG, "offsets[0] is %" PRId64 ": it must be 0",
                              offsets[0]);
        if (b > 0 && offsets[b] < offsets[b - 1])
            return ps_err_set(PS_ERR_ARG,
                              "offsets[%" PRIu64 "] is %" PRId64
                              ", less than the one before it, %" PRId64,
                              b, offsets[b], offsets[b - 1]);
        if ((uint64_t)offsets[b] > bags->n_lookups)
            return ps_err_set(PS_ERR_ARG,
                              "offsets[%" PRIu64 "] is %" PRId64
                              ", but there are %" PRIu64 " ids",
                              b, offsets[b], bags->n_lookups);
    }
    return PS_OK;
}

/* Where a bag's look-ups end; where the next one's begin. */
static uint64_t bag_end(const ps_row_bags *bags, uint64_t bag)
{
    if (!bags->offsets) return (bag + 1) * (bags->n_lookups / bags->n_bags);
    return bag + 1 < bags->n_bags ? (uint64_t)bags->offsets[bag + 1] : bags->n_lookups;
}

PS_ROW_INLINED void bag_add(uint32_t dim, const float *restrict row, float *restrict out)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        out[i] += row[i];
}

PS_ROW_INLINED void bag_add_weighted(uint32_t dim, float weight,
                                     const float *restrict row, float *restrict out)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        out[i] = ps_fused(weight, row[i], out[i]);
}

PS_ROW_INLINED void bag_divide(uint32_t dim, float by, float *restrict out)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        out[i] = out[i] / by;
}

PS_ROW_INLINED void pool_forward(uint32_t dim, const ps_row_bags *bags, const float *rows,
                                 float *out)
{
    uint64_t at = 0;
    for (uint64_t b = 0; b < bags->n_bags; b++, out += dim) {
        uint64_t count = 0;
        for (uint32_t i = 0; i < dim; i++)
            out[i] = 0;
        for (const uint64_t end = bag_end(bags, b); at < end; at++) {
            if (bags->row[at] == PS_ROW_PADDING) continue;
            const float *row = rows + (uint64_t)bags->row[at] * dim;
            if (bags->weights)
                bag_add_weighted(dim, bags->weights[at], row, out);
            else
                bag_add(dim, row, out);
            count++;
        }
        if (bags->mode == PS_ROW_MEAN && count > 1) bag_divide(dim, (float)count, out);
    }
}

PS_PER_LEVEL(void, ps_row_pool_forward,
             (const ps_row_bags *bags, const float *rows, float *out),
             (bags, rows, out)){PS_ROW_AT_DIM(bags->dim, pool_forward, bags, rows, out)}

/* PyTorch rounds the product of gradient and factor before it adds. */
PS_ROW_INLINED void bag_add_scaled(uint32_t dim, float factor, const float *restrict grad,
                                   float *restrict sum)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        sum[i] += factor * grad[i];
}

/* A sum from zero: -0 becomes 0. */
PS_ROW_INLINED void bag_set_scaled(uint32_t dim, float factor, const float *restrict grad,
                                   float *restrict sum)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        sum[i] = 0.0f + factor * grad[i];
}

/* 1 over the look-ups of a bag that are no padding. */
static float bag_share(const ps_row_bags *bags, uint64_t at, uint64_t end)
{
    uint64_t count = 0;
    for (; at < end; at++)
        count += bags->row[at] != PS_ROW_PADDING;
    return count > 0 ? 1.0f / (float)count : 0.0f;
}

/* place: in the order in which look-ups first come to the rows. */
PS_ROW_INLINED void pool_backward(uint32_t dim, const ps_row_bags *bags,
                                  const float *grad, const uint32_t *place, float *grads)
{
    uint64_t at = 0;
    for (uint64_t b = 0; b < bags->n_bags; b++, grad += dim) {
        const uint64_t end = bag_end(bags, b);
        const float share = bags->mode == PS_ROW_MEAN ? bag_share(bags, at, end) : 1.0f;
        for (; at < end; at++) {
            if (bags->row[at] == PS_ROW_PADDING) continue;
            float *sum = grads + (uint64_t)bags->row[at] * dim;
            const float factor = bags->weights ? bags->weights[at] : share;
            if (!place || bags->row[at] != *place) {
                bag_add_scaled(dim, factor, grad, sum);
            } else {
                bag_set_scaled(dim, factor, grad, sum);
                place++;
            }
        }
    }
}

PS_PER_LEVEL(void, ps_row_pool_backward,
             (const ps_row_bags *bags, const float *grad, const uint32_t *place,
              float *grads),
             (bags, grad, place, grads)){
    PS_ROW_AT_DIM(bags->dim, pool_backward, bags, grad, place, grads)}

PS_ROW_INLINED void pool_weights(uint32_t dim, const ps_row_bags *bags, const float *rows,
                                 const float *grad, float *weights_grad)
{
    uint64_t at = 0;
    for (uint64_t b = 0; b < bags->n_bags; b++, grad += dim)
        for (const uint64_t end = bag_end(bags, b); at < end; at++)
            weights_grad[at] =
                bags->row[at] == PS_ROW_PADDING
                    ? 0.0f
                    : (float)ps_row_dot(dim, rows + (uint64_t)bags->row[at] * dim, grad);
}

PS_PER_LEVEL(void, ps_row_pool_weights_backward,
             (const ps_row_bags *bags, const float *rows, const float *grad,
              float *weights_grad),
             (bags, rows, grad, weights_grad))
{
    PS_ROW_AT_DIM(bags->dim, pool_weights, bags, rows, grad, weights_grad)
}
