/* The losses, over (N, outputs) in row-major order, and log_softmax. Formulas:
 * loss_arith.h; sums over the batch are double. */
#ifndef PS_CPU_LOSS_H
#define PS_CPU_LOSS_H

#include "device.h"

void ps_cpu_log_softmax_forward(int64_t n, int64_t classes, const float *x, float *y);
/* y: the forward's output. dx may be dy unless add. */
void ps_cpu_log_softmax_backward(int64_t n, int64_t classes, const float *y,
                                 const float *dy, float *dx, bool add);

/* out: the model's outputs. */
void ps_cpu_loss_forward(const ps_model_spec *spec, const ps_batch *batch,
                         const float *out, ps_pass_result *result);
/* dout = scale * d(mean loss)/d(out). */
void ps_cpu_loss_backward(const ps_model_spec *spec, const ps_batch *batch,
                          const float *out, float scale, float *dout);
/* nll and log_softmax together: dx is the gradient of log_softmax's input. */
void ps_cpu_nll_log_softmax_backward(const ps_model_spec *spec, const ps_batch *batch,
                                     const float *out, float scale, float *dx);

#endif
