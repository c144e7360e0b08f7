/* Kernels (cuda_kernels.h) that move values without changing them: taking a batch,
 * changing a layout, copying. */
#ifndef PS_CUDA_MOVING_KERNELS_H
#define PS_CUDA_MOVING_KERNELS_H

#include "cuda_values.h"

/* What dropout's draws depend on besides the sample (rng.h). It lies in the GPU's memory,
 * so that a captured launch reads the current step's words. */
typedef struct ps_dropout_words {
    uint32_t key[2], epoch;
} ps_dropout_words;

/* y (B, A, inner) = x (A, B, inner): converts images to and from the order of a
 * convolution's products. Count: all elements. */
typedef struct ps_k_swap {
    ps_values x, y;
    uint32_t b;
    ps_divisor a, inner;
} ps_k_swap;

PS_ARITH void ps_k_swap_at(const ps_k_swap *k, uint32_t i)
{
    ps_divided row = ps_divide(i, k->inner), at = ps_divide(row.q, k->a);
    size_t from = ((size_t)at.r * k->b + at.q) * k->inner.by + row.r;
    ps_set(k->y, i, ps_get(k->x, from), false);
}

/* Copies an uploaded batch to where passes read it, and its step's key. Count: x's
 * elements. */
typedef struct ps_k_take {
    ps_values x_in, x;
    uint32_t n; // samples
    const int32_t *labels_in;
    const uint32_t *positions_in;
    int32_t *labels;
    uint32_t *positions;
    ps_dropout_words *key, value;
} ps_k_take;

PS_ARITH void ps_k_take_at(const ps_k_take *k, uint32_t i)
{
    ps_set(k->x, i, ps_get(k->x_in, i), false);
    if (i == 0) *k->key = k->value;
    if (i >= k->n) return;
    k->labels[i] = k->labels_in[i];
    k->positions[i] = k->positions_in[i];
}

/* Copies or adds, also from one format to another. */
typedef struct ps_k_pass {
    ps_values x, y;
    bool add;
} ps_k_pass;

PS_ARITH void ps_k_pass_at(const ps_k_pass *k, uint32_t i)
{
    ps_set(k->y, i, ps_get(k->x, i), k->add);
}

#endif
