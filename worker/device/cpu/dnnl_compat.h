/* One interface to oneDNN's C API, versions 2 and 3.
 *
 * Version 2 describes an operation in a struct first; version 3 makes the primitive's
 * description directly, and its memory descriptors are opaque. Nothing outside
 * dnnl_compat.c knows which version is used. `who` names the layer in messages. */
#ifndef PS_DNNL_COMPAT_H
#define PS_DNNL_COMPAT_H

#include <stdbool.h>

#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_version.h>

#include "err.h"

#if DNNL_VERSION_MAJOR >= 3
typedef struct dnnl_memory_desc ps_dnnl_md;
enum { PS_DNNL_NORM_BACKWARD_TAKES_SHIFT = 0 }; // it refuses arguments it does not use
enum {
    PS_DNNL_ISA_FP16 = dnnl_cpu_isa_avx512_core_fp16,
    PS_DNNL_ISA_AMX_FP16 = dnnl_cpu_isa_avx512_core_amx_fp16
};
#else
typedef dnnl_memory_desc_t ps_dnnl_md;
enum { PS_DNNL_NORM_BACKWARD_TAKES_SHIFT = 1 }; // version 2 refuses to run without it
enum { PS_DNNL_ISA_FP16 = -2, PS_DNNL_ISA_AMX_FP16 = -1 }; // no processor has them in it
#endif

/* Whether there may be Winograd's algorithm: version 3 has left it out. */
enum { PS_DNNL_HAS_WINOGRAD = DNNL_VERSION_MAJOR < 3 };

/* Batch normalisation's scale and shift, and their gradients, are two arrays of (C). In
 * the first releases of version 2 they are the two rows of one array of (2, C), bound as
 * DNNL_ARG_SCALE. */
#ifdef DNNL_ARG_SCALE
enum {
    PS_DNNL_SCALE_SHIFT_IS_ONE = 0,
    PS_DNNL_USE_SCALE_SHIFT = dnnl_use_scale | dnnl_use_shift
};
#else
enum {
    PS_DNNL_SCALE_SHIFT_IS_ONE = 1,
    PS_DNNL_USE_SCALE_SHIFT = dnnl_use_scaleshift,
    DNNL_ARG_SCALE = DNNL_ARG_SCALE_SHIFT,
    DNNL_ARG_SHIFT = -1,
    DNNL_ARG_DIFF_SCALE = DNNL_ARG_DIFF_SCALE_SHIFT,
    DNNL_ARG_DIFF_SHIFT = -1
};
#endif

/* PS_OK, or an error "who: oneDNN call: reason". */
ps_err ps_dnnl_check(dnnl_status_t status, const char *who, const char *call);

/* A descriptor of a float32 array; *out is owned by the caller. */
ps_err ps_dnnl_md_create(const char *who, int n_dims, const dnnl_dims_t dims,
                         dnnl_format_tag_t tag, ps_dnnl_md **out);
/* Of an array of another type. */
ps_err ps_dnnl_md_create_as(const char *who, int n_dims, const dnnl_dims_t dims,
                            dnnl_data_type_t type, dnnl_format_tag_t tag,
                            ps_dnnl_md **out);
void ps_dnnl_md_destroy(ps_dnnl_md **md);
/* The descriptor of an argument (dnnl_query_src_md, ...); borrowed from pd. */
const ps_dnnl_md *ps_dnnl_pd_md(const_dnnl_primitive_desc_t pd, dnnl_query_t what,
                                int index);

void ps_dnnl_pd_destroy(dnnl_primitive_desc_t *pd); // *pd may be NULL
/* The implementation's name, such as "ref:any"; borrowed from pd. */
const char *ps_dnnl_pd_name(const_dnnl_primitive_desc_t pd);
/* Whether it is plain code, which takes a hundred times what a kernel takes. */
bool ps_dnnl_pd_is_reference(const_dnnl_primitive_desc_t pd);

/* Attributes: the scratchpad is the caller's; relu: max(0, .) after the operation, which
 * turns NaN into 0 (cpu_run.c). */
ps_err ps_dnnl_attr_create(const char *who, bool relu, dnnl_primitive_attr_t *out);

/* A convolution over (N, C, H, W) with weights (O, I, KH, KW), or (G, O/G, I/G, KH, KW)
 * with G groups. dilation counts the positions that are left out: 0: none. Descriptors of
 * format "any" let the library choose the layout. A gradient has the same descriptor as
 * the tensor that it belongs to. */
typedef struct ps_dnnl_conv {
    dnnl_engine_t engine;
    const char *who;
    dnnl_alg_kind_t alg;
    const ps_dnnl_md *src, *weights, *bias, *dst; // bias may be NULL
    dnnl_dims_t stride, dilation, padding;        // h, w
    const_dnnl_primitive_attr_t attr;
} ps_dnnl_conv;

/* UNSUPPORTED when the library has no implementation of alg for it. *out is owned by the
 * caller. */
ps_err ps_dnnl_conv_forward(const ps_dnnl_conv *conv, bool training,
                            dnnl_primitive_desc_t *out);
ps_err ps_dnnl_conv_backward_data(const ps_dnnl_conv *conv,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out);
ps_err ps_dnnl_conv_backward_weights(const ps_dnnl_conv *conv,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out);

/* dst (n, out) = src (n, in) weights (out, in)^T + bias (out). */
typedef struct ps_dnnl_product {
    dnnl_engine_t engine;
    const char *who;
    const ps_dnnl_md *src, *weights, *bias, *dst; // bias may be NULL
    const_dnnl_primitive_attr_t attr;
} ps_dnnl_product;

/* As the convolution's. */
ps_err ps_dnnl_product_forward(const ps_dnnl_product *product, bool training,
                               dnnl_primitive_desc_t *out);
ps_err ps_dnnl_product_backward_data(const ps_dnnl_product *product,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out);
ps_err ps_dnnl_product_backward_weights(const ps_dnnl_product *product,
                                        const_dnnl_primitive_desc_t forward,
                                        dnnl_primitive_desc_t *out);

/* Batch normalisation over (N, C, H, W); source, destination and their gradients share
 * one descriptor. flags: PS_DNNL_USE_SCALE_SHIFT, dnnl_use_global_stats and so on. */
typedef struct ps_dnnl_batchnorm {
    dnnl_engine_t engine;
    const char *who;
    const ps_dnnl_md *src;
    float eps;
    unsigned flags;
    const_dnnl_primitive_attr_t attr;
} ps_dnnl_batchnorm;

ps_err ps_dnnl_batchnorm_forward(const ps_dnnl_batchnorm *norm, bool training,
                                 dnnl_primitive_desc_t *out);
ps_err ps_dnnl_batchnorm_backward(const ps_dnnl_batchnorm *norm,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out);

ps_err ps_dnnl_reorder(dnnl_engine_t engine, const char *who, const ps_dnnl_md *from,
                       const ps_dnnl_md *to, const_dnnl_primitive_attr_t attr,
                       dnnl_primitive_desc_t *out);

#endif
