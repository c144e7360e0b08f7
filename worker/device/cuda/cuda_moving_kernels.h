/* Kernels (cuda_kernels.h) that move values without changing them: taking a batch,
 * changing a layout, copying, concatenating. */
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

/* y (outer, B, A) = or += x (outer, A, B): channels to and from the last place. Count:
 * all elements. */
typedef struct ps_k_turn {
    ps_values x, y;
    ps_divisor a, b;
    bool add;
} ps_k_turn;

PS_ARITH void ps_k_turn_at(const ps_k_turn *k, uint32_t i)
{
    const ps_divided row = ps_divide(i, k->a), at = ps_divide(row.q, k->b);
    const size_t from = ((size_t)at.q * k->a.by + row.r) * k->b.by + at.r;
    ps_set(k->y, i, ps_get(k->x, from), k->add);
}

/* y (in, out, window) = x (out, in, window), with windows turned by 180 degrees. The
 * gradient of a convolution's inputs is a convolution with them. Count: all elements. */
typedef struct ps_k_mirror {
    const float *x;
    float *y;
    uint32_t in;
    ps_divisor out, window;
} ps_k_mirror;

PS_ARITH void ps_k_mirror_at(const ps_k_mirror *k, uint32_t i)
{
    ps_divided row = ps_divide(i, k->window), at = ps_divide(row.q, k->out);
    size_t from = ((size_t)at.r * k->in + at.q + 1) * k->window.by - 1 - row.r;
    k->y[i] = k->x[from];
}

/* Copies an uploaded batch (n, C, H, W) to where passes read it, and its step's key.
 * Count: x's elements. byte_values, if not NULL: (channels, 256), what the bytes stand
 * for. */
typedef struct ps_k_take {
    const void *x_in; // float, or uint8_t
    const float *byte_values;
    ps_divisor plane, channels; // of bytes
    ps_values x;
    ps_layout layout; // of x
    ps_divisor x_plane;
    uint32_t n; // samples
    const int32_t *labels_in;
    const uint32_t *positions_in;
    int32_t *labels;
    uint32_t *positions;
    ps_dropout_words *key, value;
} ps_k_take;

/* Where x_in has x's element i. */
PS_ARITH uint32_t ps_taken_from(const ps_k_take *k, uint32_t i)
{
    if (!k->layout.channels_last) return i;
    const ps_divided pixel = ps_divide(i, k->layout.channels);
    const ps_divided at = ps_divide(pixel.q, k->x_plane);
    return (at.q * k->layout.channels.by + pixel.r) * k->x_plane.by + at.r;
}

PS_ARITH float ps_taken(const ps_k_take *k, uint32_t i)
{
    if (!k->byte_values) return ((const float *)k->x_in)[i];
    const uint32_t channel = ps_divide(ps_divide(i, k->plane).q, k->channels).r;
    return k->byte_values[256 * channel + ((const uint8_t *)k->x_in)[i]];
}

PS_ARITH void ps_k_take_at(const ps_k_take *k, uint32_t i)
{
    ps_set(k->x, i, ps_taken(k, ps_taken_from(k, i)), false);
    if (i == 0) *k->key = k->value;
    if (i >= k->n) return;
    k->labels[i] = k->labels_in[i];
    k->positions[i] = k->positions_in[i];
}

/* Copies or adds, also from one format to another. Wide. */
typedef struct ps_k_pass {
    uint32_t count;
    ps_values x, y;
    bool add;
} ps_k_pass;

PS_ARITH void ps_k_pass_at(const ps_k_pass *k, uint32_t i)
{
    float v[PS_WIDE];
    ps_get_some(k->x, (size_t)i * PS_WIDE, k->count, v);
    ps_set_some(k->y, (size_t)i * PS_WIDE, k->count, v, k->add);
}

/* Copies or adds a part of each sample: `inner` elements from x_first on of its x_pitch
 * to y_first of its y_pitch. Count: samples * inner. */
typedef struct ps_k_slice {
    ps_values x, y;
    ps_divisor inner;
    uint32_t x_pitch, x_first, y_pitch, y_first;
    bool add;
} ps_k_slice;

PS_ARITH void ps_k_slice_at(const ps_k_slice *k, uint32_t i)
{
    const ps_divided at = ps_divide(i, k->inner);
    const size_t from = (size_t)at.q * k->x_pitch + k->x_first + at.r;
    const size_t to = (size_t)at.q * k->y_pitch + k->y_first + at.r;
    ps_set(k->y, to, ps_get(k->x, from), k->add);
}

#endif
