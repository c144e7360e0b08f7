/* NaN that oneDNN's relu would hide. It makes 0 of NaN, where torch's keeps it and shows
 * that training has diverged; a pass of our own over a convolution's output would be a
 * twentieth of a step. Samples are finite, so NaN has two sources:
 *
 * - Numbers that have become infinite between layers. The gradient of the weights that
 *   they met is NaN all the same, for 0 times infinity is; exchange.nan=error refuses it.
 * - A parameter, from a file or with exchange.nan=allow. Weights in the middle of a model
 *   show in the gradient of what stands before them, by the same rule. Those in front,
 *   and biases, do not, and nothing does in evaluation: they are looked at, and what NaN
 *   in them makes of a model's outputs is known without computing them.
 */
#ifndef PS_CPU_NAN_H
#define PS_CPU_NAN_H

#include "cpu_plan.h"

/* Whether the step has a parameter (in evaluation, a statistic too) that is not finite,
 * one of oneDNN's relus comes after it or in it, and no gradient of this pass shows it.
 */
bool ps_cpu_nan_is_hidden(const ps_cpu_run *run, const ps_cpu_step *step,
                          const ps_pass *pass);

/* What becomes of the outputs then. */
void ps_cpu_nan_show(const ps_cpu_run *run);

#endif
