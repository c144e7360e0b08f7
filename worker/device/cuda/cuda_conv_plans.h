/* A library's plans for convolutions: one for each layer, direction and number of
 * samples, made when it is first asked for. */
#ifndef PS_CUDA_CONV_PLANS_H
#define PS_CUDA_CONV_PLANS_H

#include "conv_library.h"
#include "model_spec.h"

typedef struct ps_cuda_conv_plans ps_cuda_conv_plans;

/* *out is owned by the caller; NULL where the library, which it borrows, is. most_bytes:
 * that a plan may need for a moment. */
ps_err ps_cuda_conv_plans_create(ps_conv_library *library, ps_format format,
                                 size_t most_bytes, ps_cuda_conv_plans **out);
void ps_cuda_conv_plans_destroy(ps_cuda_conv_plans **plans); // NULL inside: nothing
/* What plans that were made until now need at most; NULL: nothing. */
size_t ps_cuda_conv_plans_bytes(const ps_cuda_conv_plans *plans);
/* From now on. NULL: nothing happens. */
void ps_cuda_conv_plans_limit(ps_cuda_conv_plans *plans, size_t most_bytes);

/* *out NULL: the device's own products compute it, as there is no library, or none of its
 * kernels fits. plans may be NULL. */
ps_err ps_cuda_conv_plans_find(ps_cuda_conv_plans *plans, const ps_layer *layer,
                               ps_conv_kind kind, int64_t n, bool add,
                               ps_conv_plan **out);

#endif
