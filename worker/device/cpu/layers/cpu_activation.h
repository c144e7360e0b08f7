/* Activations: elementwise, over arrays of any layout. */
#ifndef PS_CPU_ACTIVATION_H
#define PS_CPU_ACTIVATION_H

#include "cpu_factors.h"
#include "cpu_shape.h"
#include "model_spec.h"

/* layer: of a kind of ps_model_is_activation. y may be x, except where the backward pass
 * reads the input (ps_model_grad_reads_input). */
void ps_cpu_activation_forward(const ps_layer *layer, const ps_cpu_shape *shape,
                               const float *x, float *y);
/* v: the forward's output, or its input with ps_model_grad_reads_input. dx may be dy.
 * add: the result is added to dx, where other readers of the same value have written. */
void ps_cpu_activation_backward(const ps_layer *layer, int64_t count, const float *v,
                                const float *dy, float *dx, bool add);

/* The same of values of 16 bits, computed in float32. type: BF16 or FP16. */
void ps_cpu_activation_forward_narrow(ps_cpu_factors type, const ps_layer *layer,
                                      const ps_cpu_shape *shape, const uint16_t *x,
                                      uint16_t *y);
void ps_cpu_activation_backward_narrow(ps_cpu_factors type, const ps_layer *layer,
                                       int64_t count, const uint16_t *v,
                                       const uint16_t *dy, uint16_t *dx, bool add);

#endif
