/* Pooling over activations of any layout; PyTorch's max_pool2d and avg_pool2d (its
 * default count_include_pad). x is shaped as in, y as out, both of in's lanes. */
#ifndef PS_CPU_POOL_H
#define PS_CPU_POOL_H

#include "cpu_shape.h"

typedef struct ps_cpu_pool {
    ps_cpu_shape in, out;
    int64_t kernel[2], stride[2], padding[2]; // h, w; kernel of at most 256 positions
    /* The relu before it is taken here, on the maxima, and so is its gradient (max_pool,
     * of at most 255 positions). What x holds may have been through it, or not. */
    bool with_relu;
} ps_cpu_pool;

/* argmax (ps_cpu_pool_argmax_bytes): where in its window each maximum was found, for the
 * gradient; a byte each, four neighbours of a channel to a word, so that vectors of
 * argmax and of values have the same lanes. */
size_t ps_cpu_pool_argmax_bytes(const ps_cpu_pool *pool);
void ps_cpu_max_pool_forward(const ps_cpu_pool *pool, const float *x, float *y,
                             uint32_t *argmax);
void ps_cpu_max_pool_backward(const ps_cpu_pool *pool, const float *dy,
                              const uint32_t *argmax, float *dx, bool add);

/* The same for one block of channels: x, argmax and dx are the whole arrays, o one of
 * ps_cpu_shape_outer(&in), y and dy of this block alone. */
void ps_cpu_max_pool_block_forward(const ps_cpu_pool *pool, int64_t o, const float *x,
                                   float *y, uint32_t *argmax);
void ps_cpu_max_pool_block_backward(const ps_cpu_pool *pool, int64_t o, const float *dy,
                                    const uint32_t *argmax, float *dx, bool add);

void ps_cpu_avg_pool_forward(const ps_cpu_pool *pool, const float *x, float *y);
void ps_cpu_avg_pool_backward(const ps_cpu_pool *pool, const float *dy, float *dx,
                              bool add);

#endif
