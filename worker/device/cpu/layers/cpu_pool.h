/* Pooling over activations of any layout; PyTorch's max_pool2d and avg_pool2d (its
 * default count_include_pad). x has the shape in, y the shape out; both have in's lanes.
 */
#ifndef PS_CPU_POOL_H
#define PS_CPU_POOL_H

#include "cpu_shape.h"

typedef struct ps_cpu_pool {
    ps_cpu_shape in, out;
    int64_t kernel[2], stride[2], padding[2]; // h, w; kernel of at most 256 positions
    /* The pooling applies the relu before it, on the maxima, and its gradient (max_pool
     * of at most 255 positions). The relu may or may not have been applied to x already.
     */
    bool with_relu;
} ps_cpu_pool;

/* argmax (ps_cpu_pool_argmax_bytes): each maximum's position in its window, for the
 * gradient. A position is one byte; four neighbours of a channel share a word, so that
 * vectors of argmax and of values have the same lanes. */
size_t ps_cpu_pool_argmax_bytes(const ps_cpu_pool *pool);
void ps_cpu_max_pool_forward(const ps_cpu_pool *pool, const float *x, float *y,
                             uint32_t *argmax);
void ps_cpu_max_pool_backward(const ps_cpu_pool *pool, const float *dy,
                              const uint32_t *argmax, float *dx, bool add);

/* The same for block o of channels, 0 <= o < ps_cpu_shape_outer(&in). x, argmax and dx
 * are the whole arrays; y and dy hold only this block. */
void ps_cpu_max_pool_block_forward(const ps_cpu_pool *pool, int64_t o, const float *x,
                                   float *y, uint32_t *argmax);
void ps_cpu_max_pool_block_backward(const ps_cpu_pool *pool, int64_t o, const float *dy,
                                    const uint32_t *argmax, float *dx, bool add);

void ps_cpu_avg_pool_forward(const ps_cpu_pool *pool, const float *x, float *y);
void ps_cpu_avg_pool_backward(const ps_cpu_pool *pool, const float *dy, float *dx,
                              bool add);

#endif
