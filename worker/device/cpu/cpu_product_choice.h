/* Which of oneDNN's implementations compute a linear layer whose factors are bf16. */
#ifndef PS_CPU_PRODUCT_CHOICE_H
#define PS_CPU_PRODUCT_CHOICE_H

#include "cpu_conv_choice.h"

/* y = x W^T without the bias; in: the input's shape, (n, in, 1, 1). choice is safe for
 * fini after a failure. UNSUPPORTED when oneDNN has only slow code for one of the passes.
 */
ps_err ps_cpu_product_choose(ps_cpu_conv_choice *choice, dnnl_engine_t engine,
                             const ps_layer *layer, const ps_cpu_shape *in,
                             const ps_cpu_conv_use *use);

#endif
