/* Elementwise layers, over arrays of any layout. add: the result is added to the
 * destination, where other readers of the same value have already written. */
#ifndef PS_CPU_POINTWISE_H
#define PS_CPU_POINTWISE_H

#include "cpu_shape.h"
#include "model_spec.h"

/* kind: RELU, TANH, SIGMOID. y may be x. */
void ps_cpu_activation_forward(ps_layer_kind kind, const ps_cpu_shape *shape,
                               const float *x, float *y);
/* y: the forward's output. dx may be dy. */
void ps_cpu_activation_backward(ps_layer_kind kind, int64_t count, const float *y,
                                const float *dy, float *dx, bool add);

/* y = a + b, then max(0, .) if relu. y may be a or b. */
void ps_cpu_sum_forward(int64_t count, const float *a, const float *b, float *y,
                        bool relu);
/* dx = or += dy; dx may be dy, then it does nothing. */
void ps_cpu_pass(int64_t count, const float *dy, float *dx, bool add);

#endif
