/* linear: y = x W^T + b through oneDNN's sgemm, straight from and into the arenas.
 * x (n, in), W (out, in) as in PyTorch, b (out) or NULL, y (n, out), row-major. */
#ifndef PS_CPU_LINEAR_H
#define PS_CPU_LINEAR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"

typedef struct ps_cpu_linear {
    const char *name;
    int64_t n, in, out;
    float *turned; // borrowed scratch of ps_cpu_linear_turned_bytes
} ps_cpu_linear;

/* Bytes of scratch for computing y^T = W x^T, then transposing; 0: y is computed
 * directly. For few samples this is faster: as the second factor, sgemm would first copy
 * W into another order, which takes most of its time. */
size_t ps_cpu_linear_turned_bytes(const ps_cpu_linear *linear);

ps_err ps_cpu_linear_forward(const ps_cpu_linear *linear, const float *x,
                             const float *weight, const float *bias, float *y, bool relu);
/* dW = or += dy^T x, db = or += the sum of dy over the batch. */
ps_err ps_cpu_linear_backward_weights(const ps_cpu_linear *linear, const float *x,
                                      const float *dy, float *dweight, float *dbias,
                                      bool accumulate);
/* dx = or += dy W. */
ps_err ps_cpu_linear_backward_data(const ps_cpu_linear *linear, const float *weight,
                                   const float *dy, float *dx, bool add);

#endif
