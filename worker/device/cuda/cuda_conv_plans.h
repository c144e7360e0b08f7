/* A cache of the library's plans for convolutions: one for each layer, direction and
 * number of samples, made at its first use. */
#ifndef PS_CUDA_CONV_PLANS_H
#define PS_CUDA_CONV_PLANS_H

#include "conv_library.h"
#include "model_spec.h"

typedef struct ps_cuda_conv_plans ps_cuda_conv_plans;

/* Borrows library. *out is owned by the caller; it is NULL when library is NULL.
 * channels_last: of pictures and weights (ps_conv_shape). most_bytes: the most scratch
 * that a plan may need. */
ps_err ps_cuda_conv_plans_create(ps_conv_library *library, ps_format format,
                                 bool channels_last, size_t most_bytes,
                                 ps_cuda_conv_plans **out);
void ps_cuda_conv_plans_destroy(ps_cuda_conv_plans **plans); // *plans may be NULL
/* The most scratch that any plan made so far needs; 0 when plans is NULL. */
size_t ps_cuda_conv_plans_bytes(const ps_cuda_conv_plans *plans);
/* Changes most_bytes for plans made from now on. Does nothing when plans is NULL. */
void ps_cuda_conv_plans_limit(ps_cuda_conv_plans *plans, size_t most_bytes);

/* Whether the plan of PS_CONV_BACKWARD_DATA is a forward convolution of the output's
 * gradient with mirrored weights (ps_k_mirror). plans may be NULL. */
bool ps_cuda_conv_plans_mirror(const ps_cuda_conv_plans *plans, const ps_layer *layer);

/* *out NULL: there is no library, none of its kernels fits, or the device's own products
 * are faster. plans may be NULL. */
ps_err ps_cuda_conv_plans_find(ps_cuda_conv_plans *plans, const ps_layer *layer,
                               ps_conv_kind kind, int64_t n, bool add,
                               ps_conv_plan **out);

#endif
