/* Which of oneDNN's implementations compute products of matrices: linear layers whose
 * factors have 16 bits, and convolutions of small planes. */
#ifndef PS_CPU_PRODUCT_CHOICE_H
#define PS_CPU_PRODUCT_CHOICE_H

#include "cpu_conv_choice.h"

/* y = x W^T without the bias; in: the input's shape, (n, in, 1, 1). choice is safe for
 * fini after a failure. UNSUPPORTED when oneDNN has only slow code for one of the passes.
 */
ps_err ps_cpu_product_choose(ps_cpu_conv_choice *choice, dnnl_engine_t engine,
                             const ps_layer *layer, const ps_cpu_shape *in,
                             const ps_cpu_conv_use *use);

/* Which passes of a CONV2D take less time as products. */
ps_cpu_conv_products ps_cpu_product_of_windows(const ps_layer *layer,
                                               const ps_cpu_conv_use *use);

/* All passes of a CONV2D as products, of channels-last input and output. As
 * ps_cpu_product_choose. */
ps_err ps_cpu_product_choose_windows(ps_cpu_conv_choice *choice, dnnl_engine_t engine,
                                     const ps_layer *layer, const ps_cpu_shape *in,
                                     const ps_cpu_conv_use *use);
/* Only the gradient of the weights, in float32: replaces that of choice, which has been
 * chosen, if oneDNN has fast code for it. */
ps_err ps_cpu_product_choose_weights(ps_cpu_conv_choice *choice, dnnl_engine_t engine,
                                     const ps_layer *layer, const ps_cpu_shape *in,
                                     const ps_cpu_conv_use *use);

#endif
