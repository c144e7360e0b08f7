/* Which convolutions a library computes, and its plans for them: one for each layer,
 * direction and number of samples, made when it is first asked for. */
#ifndef PS_CUDA_CONV_PLANS_H
#define PS_CUDA_CONV_PLANS_H

#include "conv_library.h"
#include "model_spec.h"

/* train.cudnn. */
typedef struct ps_cuda_convs {
    ps_conv_library *library; // borrowed; NULL: none
    bool all;                 // else by the rule of ps_cuda_conv_plans_find
} ps_cuda_convs;

typedef struct ps_cuda_conv_plans ps_cuda_conv_plans;

/* *out is owned by the caller; NULL where there is no library. most_bytes: that a plan
 * may need for a moment. */
ps_err ps_cuda_conv_plans_create(const ps_cuda_convs *convs, ps_format format,
                                 size_t most_bytes, ps_cuda_conv_plans **out);
void ps_cuda_conv_plans_destroy(ps_cuda_conv_plans **plans); // NULL inside: nothing
/* What plans that were made until now need at most; NULL: nothing. */
size_t ps_cuda_conv_plans_bytes(const ps_cuda_conv_plans *plans);
/* From now on. NULL: nothing happens. */
void ps_cuda_conv_plans_limit(ps_cuda_conv_plans *plans, size_t most_bytes);

/* A window of one value that moves by one: the input is its own im2col. */
bool ps_cuda_conv_is_direct(const ps_layer *layer);

/* *out NULL: the device's own products compute it. So it is without a library, where the
 * library has nothing that fits, and, unless all are the library's, where the convolution
 * is direct: then it is a product and nothing else, while a larger window costs our own
 * way its columns, as many times the input as the window has values, written and read
 * again. plans may be NULL. */
ps_err ps_cuda_conv_plans_find(ps_cuda_conv_plans *plans, const ps_layer *layer,
                               ps_conv_kind kind, int64_t n, bool add,
                               ps_conv_plan **out);

#endif
