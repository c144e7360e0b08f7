#include "row_loops.h"

#include <math.h>

#include "cpu_level.h"
#include "fused.h"
#include "row_dim.h"

PS_ROW_INLINED void rows_sgd(uint32_t dim, ps_row_scalars k, float *restrict p,
                             const float *restrict g)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        p[i] = ps_fused(k.lr_neg, g[i], p[i]);
}

/* torch.optim.Adagrad's sparse path: the square is rounded, the last line is one fused
 * multiply-add. */
PS_ROW_INLINED void rows_adagrad(uint32_t dim, ps_row_scalars k, float *restrict p,
                                 float *restrict s, const float *restrict g)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++) {
        const float sum = s[i] + g[i] * g[i];
        s[i] = sum;
        p[i] = ps_fused(k.lr_neg, g[i] / (sqrtf(sum) + k.eps), p[i]);
    }
}

PS_ROW_INLINED void rows_sparse_adam(uint32_t dim, ps_row_scalars k, float *restrict p,
                                     float *restrict m, float *restrict v,
                                     const float *restrict g)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++) {
        const float mean = m[i] + (g[i] - m[i]) * k.lerp1;
        const float square = v[i] + (g[i] * g[i] - v[i]) * k.lerp2;
        m[i] = mean;
        v[i] = square;
        p[i] = p[i] + k.lr_neg * (mean / (sqrtf(square) + k.eps));
    }
}

PS_ROW_INLINED void rows_rowwise(uint32_t dim, ps_row_scalars k, float *restrict p,
                                 const float *restrict g)
{
    const float sum = p[dim] + (float)(ps_row_dot(dim, g, g) / dim);
    const float step = k.lr_neg / (sqrtf(sum) + k.eps);
    p[dim] = sum;
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        p[i] = ps_fused(step, g[i], p[i]);
}

PS_ROW_INLINED void rows_apply(uint32_t dim, ps_row_scalars k, uint32_t n,
                               float *const *rows, const float *grads)
{
    for (uint32_t i = 0; i < n; i++, grads += dim) {
        float *p = rows[i];
        if (!p) continue;
        switch (k.optimizer) {
        case PS_ROW_SGD:
            rows_sgd(dim, k, p, grads);
            break;
        case PS_ROW_ADAGRAD:
            rows_adagrad(dim, k, p, p + dim, grads);
            break;
        case PS_ROW_SPARSE_ADAM:
            rows_sparse_adam(dim, k, p, p + dim, p + 2 * (uint64_t)dim, grads);
            break;
        case PS_ROW_ROWWISE_ADAGRAD:
            rows_rowwise(dim, k, p, grads);
            break;
        }
    }
}

PS_PER_LEVEL(void, ps_row_loops_apply,
             (const ps_row_scalars *k, uint32_t dim, uint32_t n, float *const *rows,
              const float *grads),
             (k, dim, n, rows, grads))
{
    const ps_row_scalars scalars = *k;
    PS_ROW_AT_DIM(dim, rows_apply, scalars, n, rows, grads)
}

PS_ROW_INLINED void rows_copy(uint32_t dim, const float *restrict from,
                              float *restrict to)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        to[i] = from[i];
}

PS_ROW_INLINED void rows_gather(uint32_t dim, uint32_t n, const float *const *rows,
                                float *out)
{
    for (uint32_t i = 0; i < n; i++, out += dim)
        if (rows[i]) rows_copy(dim, rows[i], out);
}

PS_PER_LEVEL(void, ps_row_loops_gather,
             (uint32_t dim, uint32_t n, const float *const *rows, float *out),
             (dim, n, rows, out)){PS_ROW_AT_DIM(dim, rows_gather, n, rows, out)}

PS_ROW_INLINED
    void rows_add_one(uint32_t dim, const float *restrict from, float *restrict to)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        to[i] += from[i];
}

/* A sum from zero: -0 becomes 0. */
PS_ROW_INLINED
    void rows_set_one(uint32_t dim, const float *restrict from, float *restrict to)
{
#pragma omp simd
    for (uint32_t i = 0; i < dim; i++)
        to[i] = 0.0f + from[i];
}

PS_ROW_INLINED void rows_add(uint32_t dim, uint32_t n, const uint32_t *positions,
                             const float *grads, float *sums, uint32_t *filled)
{
    for (uint32_t i = 0; i < n; i++, grads += dim) {
        float *to = sums + (uint64_t)positions[i] * dim;
        if (positions[i] < *filled) {
            rows_add_one(dim, grads, to);
        } else {
            rows_set_one(dim, grads, to);
            ++*filled;
        }
    }
}

PS_PER_LEVEL(void, ps_row_loops_add,
             (uint32_t dim, uint32_t n, const uint32_t *positions, const float *grads,
              float *sums, uint32_t *filled),
             (dim, n, positions, grads, sums, filled))
{
    PS_ROW_AT_DIM(dim, rows_add, n, positions, grads, sums, filled)
}
