/* Convolutions and linear layers whose factors are rounded to bf16: their inputs and the
 * gradients of their outputs on the way to the products. Values between layers are
 * float32. */
#ifndef PS_CPU_NARROW_H
#define PS_CPU_NARROW_H

#include "cpu_plan.h"

/* The factors of a step's products: those of the device where the layer multiplies
 * narrow factors (layer_precision.h), else float32. */
ps_cpu_factors ps_cpu_narrow_factors(const ps_cpu_run *run, const ps_model_node *node);

/* Takes memory for the copy of the input (slot_x) that a convolution or linear layer
 * reads: in the layout `wanted`, as factors. Takes none where it reads the input itself.
 */
ps_err ps_cpu_narrow_plan_input(ps_cpu_run *run, ps_cpu_step *step,
                                const ps_cpu_shape *wanted);

/* Fills the copy, if there is one. Returns what the products read. */
const void *ps_cpu_narrow_input(const ps_cpu_run *run, const ps_cpu_step *step,
                                const ps_cpu_shape *wanted);
/* The same for the gradient of the output. */
const void *ps_cpu_narrow_gradient(const ps_cpu_run *run, const ps_cpu_step *step);

/* A linear layer of narrow factors. dweight and dbias: in the gradient arena. */
ps_err ps_cpu_narrow_linear_forward(const ps_cpu_run *run, ps_cpu_step *step);
ps_err ps_cpu_narrow_linear_backward(const ps_cpu_run *run, ps_cpu_step *step,
                                     float *dweight, float *dbias, bool accumulate);

#endif
