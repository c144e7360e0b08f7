#include "dnnl_compat.h"

#include <oneapi/dnnl/dnnl_debug.h>

#include <stdlib.h>
#include <string.h>

#include "mem.h"

ps_err ps_dnnl_check(dnnl_status_t status, const char *who, const char *call)
{
    if (status == dnnl_success) return PS_OK;
    ps_err code = status == dnnl_out_of_memory   ? PS_ERR_NOMEM
                  : status == dnnl_unimplemented ? PS_ERR_UNSUPPORTED
                                                 : PS_ERR_INTERNAL;
    return ps_err_set(code, "%s: oneDNN %s: %s", who, call, dnnl_status2str(status));
}

void ps_dnnl_pd_destroy(dnnl_primitive_desc_t *pd)
{
    if (*pd) dnnl_primitive_desc_destroy(*pd);
    *pd = NULL;
}

const char *ps_dnnl_pd_name(const_dnnl_primitive_desc_t pd)
{
    const char *name = "";
    dnnl_primitive_desc_query(pd, dnnl_query_impl_info_str, 0, (void *)&name);
    return name;
}

bool ps_dnnl_pd_is_reference(const_dnnl_primitive_desc_t pd)
{
    return strstr(ps_dnnl_pd_name(pd), "ref") != NULL;
}

ps_err ps_dnnl_attr_create(const char *who, bool relu, dnnl_primitive_attr_t *out)
{
    dnnl_post_ops_t ops = NULL;
    PS_TRY(ps_dnnl_check(dnnl_primitive_attr_create(out), who, "attributes"));
    dnnl_status_t s =
        dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user);
    if (s == dnnl_success && relu) s = dnnl_post_ops_create(&ops);
    if (s == dnnl_success && relu) {
#if DNNL_VERSION_MAJOR >= 3
        s = dnnl_post_ops_append_eltwise(ops, dnnl_eltwise_relu, 0.0f, 0.0f);
#else
        s = dnnl_post_ops_append_eltwise(ops, 1.0f, dnnl_eltwise_relu, 0.0f, 0.0f);
#endif
    }
    if (s == dnnl_success && relu) s = dnnl_primitive_attr_set_post_ops(*out, ops);
    if (ops) dnnl_post_ops_destroy(ops);
    if (s != dnnl_success) {
        dnnl_primitive_attr_destroy(*out);
        *out = NULL;
    }
    return ps_dnnl_check(s, who, "attributes");
}

ps_err ps_dnnl_reorder(dnnl_engine_t engine, const char *who, const ps_dnnl_md *from,
                       const ps_dnnl_md *to, const_dnnl_primitive_attr_t attr,
                       dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(
        dnnl_reorder_primitive_desc_create(out, from, engine, to, engine, attr), who,
        "reorder");
}

const ps_dnnl_md *ps_dnnl_pd_md(const_dnnl_primitive_desc_t pd, dnnl_query_t what,
                                int index)
{
    return dnnl_primitive_desc_query_md(pd, what, index);
}

ps_err ps_dnnl_md_create(const char *who, int n_dims, const dnnl_dims_t dims,
                         dnnl_format_tag_t tag, ps_dnnl_md **out)
{
    return ps_dnnl_md_create_as(who, n_dims, dims, dnnl_f32, tag, out);
}

/* RETURN_FORWARD, RETURN_BACKWARD: make *out of the operation *o, and return. The
 * arguments after `call` are those that both versions take. */
#if DNNL_VERSION_MAJOR >= 3

ps_err ps_dnnl_md_create_as(const char *who, int n_dims, const dnnl_dims_t dims,
                            dnnl_data_type_t type, dnnl_format_tag_t tag,
                            ps_dnnl_md **out)
{
    return ps_dnnl_check(dnnl_memory_desc_create_with_tag(out, n_dims, dims, type, tag),
                         who, "memory descriptor");
}

void ps_dnnl_md_destroy(ps_dnnl_md **md)
{
    if (*md) dnnl_memory_desc_destroy(*md);
    *md = NULL;
}

#define CONV(pass)    dnnl_convolution_##pass##_primitive_desc_create
#define PRODUCT(pass) dnnl_inner_product_##pass##_primitive_desc_create
#define NORM(pass)    dnnl_batch_normalization_##pass##_primitive_desc_create
#define NORM_DATA(n)  (n)->src, (n)->src

#define RETURN_FORWARD(create, o, call, ...)                                             \
    return ps_dnnl_check(create(out, (o)->engine, __VA_ARGS__, (o)->attr), (o)->who, call)
#define RETURN_BACKWARD(create, o, call, ...)                                            \
    RETURN_FORWARD(create, o, call, __VA_ARGS__, forward)

#else

ps_err ps_dnnl_md_create_as(const char *who, int n_dims, const dnnl_dims_t dims,
                            dnnl_data_type_t type, dnnl_format_tag_t tag,
                            ps_dnnl_md **out)
{
    PS_TRY(PS_NEW(out, 1, who));
    dnnl_status_t s = dnnl_memory_desc_init_by_tag(*out, n_dims, dims, type, tag);
    if (s != dnnl_success) ps_dnnl_md_destroy(out);
    return ps_dnnl_check(s, who, "memory descriptor");
}

void ps_dnnl_md_destroy(ps_dnnl_md **md)
{
    free(*md);
    *md = NULL;
}

#define CONV(pass)    dnnl_dilated_convolution_##pass##_desc_init
#define PRODUCT(pass) dnnl_inner_product_##pass##_desc_init
#define NORM(pass)    dnnl_batch_normalization_##pass##_desc_init
#define NORM_DATA(n)  (n)->src

typedef union op_desc {
    dnnl_convolution_desc_t conv;
    dnnl_inner_product_desc_t product;
    dnnl_batch_normalization_desc_t norm;
} op_desc;

#define RETURN_AFTER(hint, describe, o, call, ...)                                       \
    op_desc d;                                                                           \
    PS_TRY(ps_dnnl_check(describe((void *)&d, __VA_ARGS__), (o)->who, call));            \
    return ps_dnnl_check(                                                                \
        dnnl_primitive_desc_create(out, &d, (o)->attr, (o)->engine, hint), (o)->who,     \
        call)
#define RETURN_FORWARD(...)  RETURN_AFTER(NULL, __VA_ARGS__)
#define RETURN_BACKWARD(...) RETURN_AFTER(forward, __VA_ARGS__)

#endif

static dnnl_prop_kind_t forward_kind(bool training)
{
    return training ? dnnl_forward_training : dnnl_forward_inference;
}

ps_err ps_dnnl_conv_forward(const ps_dnnl_conv *c, bool training,
                            dnnl_primitive_desc_t *out)
{
    RETURN_FORWARD(CONV(forward), c, "convolution", forward_kind(training), c->alg,
                   c->src, c->weights, c->bias, c->dst, c->stride, c->dilation,
                   c->padding, c->padding);
}

ps_err ps_dnnl_conv_backward_data(const ps_dnnl_conv *c,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out)
{
    RETURN_BACKWARD(CONV(backward_data), c, "convolution backward data", c->alg, c->src,
                    c->weights, c->dst, c->stride, c->dilation, c->padding, c->padding);
}

ps_err ps_dnnl_conv_backward_weights(const ps_dnnl_conv *c,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out)
{
    RETURN_BACKWARD(CONV(backward_weights), c, "convolution backward weights", c->alg,
                    c->src, c->weights, c->bias, c->dst, c->stride, c->dilation,
                    c->padding, c->padding);
}

ps_err ps_dnnl_product_forward(const ps_dnnl_product *p, bool training,
                               dnnl_primitive_desc_t *out)
{
    RETURN_FORWARD(PRODUCT(forward), p, "inner product", forward_kind(training), p->src,
                   p->weights, p->bias, p->dst);
}

ps_err ps_dnnl_product_backward_data(const ps_dnnl_product *p,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out)
{
    RETURN_BACKWARD(PRODUCT(backward_data), p, "inner product backward data", p->src,
                    p->weights, p->dst);
}

ps_err ps_dnnl_product_backward_weights(const ps_dnnl_product *p,
                                        const_dnnl_primitive_desc_t forward,
                                        dnnl_primitive_desc_t *out)
{
    RETURN_BACKWARD(PRODUCT(backward_weights), p, "inner product backward weights",
                    p->src, p->weights, p->bias, p->dst);
}

ps_err ps_dnnl_batchnorm_forward(const ps_dnnl_batchnorm *n, bool training,
                                 dnnl_primitive_desc_t *out)
{
    RETURN_FORWARD(NORM(forward), n, "batch normalisation", forward_kind(training),
                   NORM_DATA(n), n->eps, n->flags);
}

ps_err ps_dnnl_batchnorm_backward(const ps_dnnl_batchnorm *n,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out)
{
    RETURN_BACKWARD(NORM(backward), n, "batch normalisation backward", dnnl_backward,
                    n->src, NORM_DATA(n), n->eps, n->flags);
}
