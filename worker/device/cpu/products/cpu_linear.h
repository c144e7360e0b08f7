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
    /* Rows of W in a block, for passes whose hooks want them (cpu_linear_rows.h); 0: the
     * whole layer at once. */
    int64_t forward_rows, backward_rows;
} ps_cpu_linear;

/* Bytes of scratch for computing y^T = W x^T, then transposing; 0: y is computed
 * directly. For few samples this is faster: as the second factor, sgemm would first copy
 * W into another order, which takes most of its time. */
size_t ps_cpu_linear_turned_bytes(const ps_cpu_linear *linear);

ps_err ps_cpu_linear_forward(const ps_cpu_linear *linear, const float *x,
                             const float *weight, const float *bias, float *y, bool relu);
/* Forward in two parts: the products with rows [first, first + rows) of W, in y or in the
 * scratch; and, once all rows are there, what is left to make y. */
ps_err ps_cpu_linear_forward_rows(const ps_cpu_linear *linear, const float *x,
                                  const float *weight, int64_t first, int64_t rows,
                                  float *y);
void ps_cpu_linear_forward_end(const ps_cpu_linear *linear, const float *bias, float *y,
                               bool relu);
/* dW = or += dy^T x, db = or += the sum of dy over the batch. */
ps_err ps_cpu_linear_backward_weights(const ps_cpu_linear *linear, const float *x,
                                      const float *dy, float *dweight, float *dbias,
                                      bool accumulate);
/* The two parts of it: rows [first, first + rows) of dW, and db. */
ps_err ps_cpu_linear_backward_rows(const ps_cpu_linear *linear, const float *x,
                                   const float *dy, int64_t first, int64_t rows,
                                   float *dweight, bool accumulate);
void ps_cpu_linear_backward_bias(const ps_cpu_linear *linear, const float *dy,
                                 float *dbias, bool accumulate);
/* dx = or += dy W. */
ps_err ps_cpu_linear_backward_data(const ps_cpu_linear *linear, const float *weight,
                                   const float *dy, float *dx, bool add);

#endif
