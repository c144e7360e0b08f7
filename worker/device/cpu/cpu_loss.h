/* The losses, over (N, classes) in row-major order, and log_softmax.
 * Sources: torch.nn.functional's nll_loss, cross_entropy and mse_loss with reduction
 * "mean"; sums over the batch are double. */
#ifndef PS_CPU_LOSS_H
#define PS_CPU_LOSS_H

#include "device.h"

/* ARG names the first label outside [0, classes). */
ps_err ps_cpu_labels_check(int64_t n, int64_t classes, const int32_t *labels);

void ps_cpu_log_softmax_forward(int64_t n, int64_t classes, const float *x, float *y);
/* y: the forward's output. dx may be dy unless add. */
void ps_cpu_log_softmax_backward(int64_t n, int64_t classes, const float *y,
                                 const float *dy, float *dx, bool add);

/* out: the model's outputs. */
void ps_cpu_loss_forward(ps_loss_kind kind, int64_t n, int64_t classes, const float *out,
                         const int32_t *labels, ps_pass_result *result);
/* dout = scale * d(mean loss)/d(out). */
void ps_cpu_loss_backward(ps_loss_kind kind, int64_t n, int64_t classes, const float *out,
                          const int32_t *labels, float scale, float *dout);
/* nll and log_softmax together: dx is the gradient of log_softmax's input. */
void ps_cpu_nll_log_softmax_backward(int64_t n, int64_t classes, const float *out,
                                     const int32_t *labels, float scale, float *dx);

#endif
