/* Shows NaN that oneDNN's relu would hide. oneDNN's relu turns NaN into 0; torch's keeps
 * it, which shows that training has diverged. A separate check of every convolution's
 * output would take a twentieth of a step. Samples are finite, so NaN has two sources:
 *
 * - Values between layers that became infinite. The gradient of the weights that read
 *   them is NaN anyway, since 0 times infinity is NaN; exchange.nan=error refuses it.
 * - A parameter that is not finite, from a file or with exchange.nan=allow. Weights in
 *   the middle of a model make the gradients of the layers before them NaN, by the same
 *   rule. Weights of the first layer, and biases, do not, and evaluation has no
 *   gradients: such parameters are checked directly. If one is not finite, the outputs
 *   are known to be NaN without computing them.
 */
#ifndef PS_CPU_NAN_H
#define PS_CPU_NAN_H

#include "cpu_plan.h"

/* True when the step has a parameter (in evaluation also a running statistic) that is not
 * finite, one of oneDNN's relus is in this step or after it, and no gradient of this pass
 * shows it. */
bool ps_cpu_nan_is_hidden(const ps_cpu_run *run, const ps_cpu_step *step,
                          const ps_pass *pass);

/* Sets all outputs to NaN. */
void ps_cpu_nan_show(const ps_cpu_run *run);

#endif
