/* What is rounded to 16 bits, by layer_precision.h: the factors of convolutions and
 * linear layers, and, where the processor multiplies such factors, the values between
 * layers with their gradients. A step without code for them computes with float32 copies
 * of them, which cpu_lend.h makes. */
#ifndef PS_CPU_NARROW_H
#define PS_CPU_NARROW_H

#include "cpu_plan.h"

/* Chooses the values that have 16 bits. */
void ps_cpu_narrow_choose(ps_cpu_run *run);
/* Sets which of its narrow values the step, whose primitives and layouts are planned, has
 * no code for. */
void ps_cpu_narrow_lend(const ps_cpu_run *run, ps_cpu_step *step);
/* Whether the step computes with 16 bits in its input k, and in its output. */
bool ps_cpu_narrow_in(const ps_cpu_run *run, const ps_cpu_step *step, int k);
bool ps_cpu_narrow_out(const ps_cpu_run *run, const ps_cpu_step *step);

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
