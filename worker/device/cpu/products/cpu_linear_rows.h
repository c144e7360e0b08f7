/* A large linear layer in blocks of rows of its weight. The backward pass announces each
 * block's gradient, so that it travels while the next one is computed; the forward pass
 * waits for each block's weights. The results have the bits of the whole layer's: sgemm
 * chooses its loop over k from all three sizes, so this is tried, not assumed. */
#ifndef PS_CPU_LINEAR_ROWS_H
#define PS_CPU_LINEAR_ROWS_H

#include "cpu_linear.h"
#include "device.h"

/* Sets forward_rows and backward_rows: blocks of at least `bytes` of the weight. Each
 * stays 0 where there would be one block only, or where random numbers show other bits.
 * Takes the memory of one weight while it tries. NOMEM, INTERNAL. */
ps_err ps_cpu_linear_rows_choose(ps_cpu_linear *linear, size_t bytes);

/* Where the layer's parameters are in the arenas. */
typedef struct ps_cpu_linear_range {
    uint64_t weight; // its first element
    uint64_t end;    // after the bias, which follows the weight, or after the weight
} ps_cpu_linear_range;

/* As ps_cpu_linear_forward, with hooks->params_needed before each block. */
ps_err ps_cpu_linear_rows_forward(const ps_cpu_linear *linear, const ps_pass_hooks *hooks,
                                  const ps_cpu_linear_range *place, const float *x,
                                  const float *weight, const float *bias, float *y,
                                  bool relu);
/* As ps_cpu_linear_backward_weights, with hooks->grads_ready after each block, in the
 * order in which the next forward pass waits for them. The pass must not need W any
 * more. */
ps_err ps_cpu_linear_rows_backward(const ps_cpu_linear *linear,
                                   const ps_pass_hooks *hooks,
                                   const ps_cpu_linear_range *place, const float *x,
                                   const float *dy, float *dweight, float *dbias,
                                   bool accumulate);

#endif
