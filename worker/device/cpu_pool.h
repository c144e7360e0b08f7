/* Pooling over activations of any layout; PyTorch's max_pool2d and avg_pool2d (its
 * default count_include_pad). x is shaped as in, y as out, of the same lanes. */
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

/* place (count of out): where in its window each maximum was found, for the gradient. */
void ps_cpu_max_pool_forward(const ps_cpu_pool *pool, const float *x, float *y,
                             uint8_t *place);
void ps_cpu_max_pool_backward(const ps_cpu_pool *pool, const float *dy,
                              const uint8_t *place, float *dx, bool add);

void ps_cpu_avg_pool_forward(const ps_cpu_pool *pool, const float *x, float *y);
void ps_cpu_avg_pool_backward(const ps_cpu_pool *pool, const float *dy, float *dx,
                              bool add);

#endif
