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

static dnnl_prop_kind_t forward_kind(bool training)
{
    return training ? dnnl_forward_training : dnnl_forward_inference;
}

ps_err ps_dnnl_reorder(dnnl_engine_t engine, const char *who, const ps_dnnl_md *from,
                       const ps_dnnl_md *to, const_dnnl_primitive_attr_t attr,
                       dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(
        dnnl_reorder_primitive_desc_create(out, from, engine, to, engine, attr), who,
        "reorder");
}

ps_err ps_dnnl_md_create(const char *who, int n_dims, const dnnl_dims_t dims,
                         dnnl_format_tag_t tag, ps_dnnl_md **out)
{
    return ps_dnnl_md_create_as(who, n_dims, dims, dnnl_f32, tag, out);
}

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

const ps_dnnl_md *ps_dnnl_pd_md(const_dnnl_primitive_desc_t pd, dnnl_query_t what,
                                int index)
{
    return dnnl_primitive_desc_query_md(pd, what, index);
}

ps_err ps_dnnl_conv_forward(const ps_dnnl_conv *c, bool training,
                            dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(dnnl_convolution_forward_primitive_desc_create(
                             out, c->engine, forward_kind(training), c->alg, c->src,
                             c->weights, c->bias, c->dst, c->stride, c->dilation,
                             c->padding, c->padding, c->attr),
                         c->who, "convolution");
}

ps_err ps_dnnl_conv_backward_data(const ps_dnnl_conv *c,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(dnnl_convolution_backward_data_primitive_desc_create(
                             out, c->engine, c->alg, c->src, c->weights, c->dst,
                             c->stride, c->dilation, c->padding, c->padding, forward,
                             c->attr),
                         c->who, "convolution backward data");
}

ps_err ps_dnnl_conv_backward_weights(const ps_dnnl_conv *c,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(dnnl_convolution_backward_weights_primitive_desc_create(
                             out, c->engine, c->alg, c->src, c->weights, c->bias, c->dst,
                             c->stride, c->dilation, c->padding, c->padding, forward,
                             c->attr),
                         c->who, "convolution backward weights");
}

ps_err ps_dnnl_product_forward(const ps_dnnl_product *p, bool training,
                               dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(dnnl_inner_product_forward_primitive_desc_create(
                             out, p->engine, forward_kind(training), p->src, p->weights,
                             p->bias, p->dst, p->attr),
                         p->who, "inner product");
}

ps_err ps_dnnl_product_backward_data(const ps_dnnl_product *p,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(
        dnnl_inner_product_backward_data_primitive_desc_create(
            out, p->engine, p->src, p->weights, p->dst, forward, p->attr),
        p->who, "inner product backward data");
}

ps_err ps_dnnl_product_backward_weights(const ps_dnnl_product *p,
                                        const_dnnl_primitive_desc_t forward,
                                        dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(
        dnnl_inner_product_backward_weights_primitive_desc_create(
            out, p->engine, p->src, p->weights, p->bias, p->dst, forward, p->attr),
        p->who, "inner product backward weights");
}

ps_err ps_dnnl_batchnorm_forward(const ps_dnnl_batchnorm *n, bool training,
                                 dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(dnnl_batch_normalization_forward_primitive_desc_create(
                             out, n->engine, forward_kind(training), n->src, n->src,
                             n->eps, n->flags, n->attr),
                         n->who, "batch normalisation");
}

ps_err ps_dnnl_batchnorm_backward(const ps_dnnl_batchnorm *n,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out)
{
    return ps_dnnl_check(dnnl_batch_normalization_backward_primitive_desc_create(
                             out, n->engine, dnnl_backward, n->src, n->src, n->src,
                             n->eps, n->flags, forward, n->attr),
                         n->who, "batch normalisation backward");
}

#else

ps_err ps_dnnl_md_create_as(const char *who, int n_dims, const dnnl_dims_t dims,
                            dnnl_data_type_t type, dnnl_format_tag_t tag,
                            ps_dnnl_md **out)
{
    PS_TRY(ps_mem_zalloc(out, 1, sizeof **out, who));
    dnnl_status_t s = dnnl_memory_desc_init_by_tag(*out, n_dims, dims, type, tag);
    if (s != dnnl_success) ps_dnnl_md_destroy(out);
    return ps_dnnl_check(s, who, "memory descriptor");
}

void ps_dnnl_md_destroy(ps_dnnl_md **md)
{
    free(*md);
    *md = NULL;
}

const ps_dnnl_md *ps_dnnl_pd_md(const_dnnl_primitive_desc_t pd, dnnl_query_t what,
                                int index)
{
    return dnnl_primitive_desc_query_md(pd, what, index);
}

/* desc: an operation descriptor; all of them begin with the same fields. */
static ps_err pd_create(dnnl_status_t described, const void *desc, dnnl_engine_t engine,
                        const char *who, const char *call,
                        const_dnnl_primitive_attr_t attr,
                        const_dnnl_primitive_desc_t forward, dnnl_primitive_desc_t *out)
{
    PS_TRY(ps_dnnl_check(described, who, call));
    return ps_dnnl_check(dnnl_primitive_desc_create(out, desc, attr, engine, forward),
                         who, call);
}

ps_err ps_dnnl_conv_forward(const ps_dnnl_conv *c, bool training,
                            dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t s = dnnl_dilated_convolution_forward_desc_init(
        &d, forward_kind(training), c->alg, c->src, c->weights, c->bias, c->dst,
        c->stride, c->dilation, c->padding, c->padding);
    return pd_create(s, &d, c->engine, c->who, "convolution", c->attr, NULL, out);
}

ps_err ps_dnnl_conv_backward_data(const ps_dnnl_conv *c,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t s = dnnl_dilated_convolution_backward_data_desc_init(
        &d, c->alg, c->src, c->weights, c->dst, c->stride, c->dilation, c->padding,
        c->padding);
    return pd_create(s, &d, c->engine, c->who, "convolution backward data", c->attr,
                     forward, out);
}

ps_err ps_dnnl_conv_backward_weights(const ps_dnnl_conv *c,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out)
{
    dnnl_convolution_desc_t d;
    dnnl_status_t s = dnnl_dilated_convolution_backward_weights_desc_init(
        &d, c->alg, c->src, c->weights, c->bias, c->dst, c->stride, c->dilation,
        c->padding, c->padding);
    return pd_create(s, &d, c->engine, c->who, "convolution backward weights", c->attr,
                     forward, out);
}

ps_err ps_dnnl_product_forward(const ps_dnnl_product *p, bool training,
                               dnnl_primitive_desc_t *out)
{
    dnnl_inner_product_desc_t d;
    dnnl_status_t s = dnnl_inner_product_forward_desc_init(
        &d, forward_kind(training), p->src, p->weights, p->bias, p->dst);
    return pd_create(s, &d, p->engine, p->who, "inner product", p->attr, NULL, out);
}

ps_err ps_dnnl_product_backward_data(const ps_dnnl_product *p,
                                     const_dnnl_primitive_desc_t forward,
                                     dnnl_primitive_desc_t *out)
{
    dnnl_inner_product_desc_t d;
    dnnl_status_t s =
        dnnl_inner_product_backward_data_desc_init(&d, p->src, p->weights, p->dst);
    return pd_create(s, &d, p->engine, p->who, "inner product backward data", p->attr,
                     forward, out);
}

ps_err ps_dnnl_product_backward_weights(const ps_dnnl_product *p,
                                        const_dnnl_primitive_desc_t forward,
                                        dnnl_primitive_desc_t *out)
{
    dnnl_inner_product_desc_t d;
    dnnl_status_t s = dnnl_inner_product_backward_weights_desc_init(
        &d, p->src, p->weights, p->bias, p->dst);
    return pd_create(s, &d, p->engine, p->who, "inner product backward weights", p->attr,
                     forward, out);
}

ps_err ps_dnnl_batchnorm_forward(const ps_dnnl_batchnorm *n, bool training,
                                 dnnl_primitive_desc_t *out)
{
    dnnl_batch_normalization_desc_t d;
    dnnl_status_t s = dnnl_batch_normalization_forward_desc_init(
        &d, forward_kind(training), n->src, n->eps, n->flags);
    return pd_create(s, &d, n->engine, n->who, "batch normalisation", n->attr, NULL, out);
}

ps_err ps_dnnl_batchnorm_backward(const ps_dnnl_batchnorm *n,
                                  const_dnnl_primitive_desc_t forward,
                                  dnnl_primitive_desc_t *out)
{
    dnnl_batch_normalization_desc_t d;
    dnnl_status_t s = dnnl_batch_normalization_backward_desc_init(
        &d, dnnl_backward, n->src, n->src, n->eps, n->flags);
    return pd_create(s, &d, n->engine, n->who, "batch normalisation backward", n->attr,
                     forward, out);
}

#endif
