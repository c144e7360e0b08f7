#include "cpu_product_choice.h"

#include <string.h>

typedef struct maker {
    ps_dnnl_product product;
    ps_dnnl_md *x, *dy, *weights;  // bf16
    ps_dnnl_md *dx, *y, *dweights; // float32
    dnnl_primitive_attr_t attr;
} maker;

static void maker_fini(maker *m)
{
    ps_dnnl_md **const all[] = {&m->x, &m->dy, &m->weights, &m->dx, &m->y, &m->dweights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ps_dnnl_md_destroy(all[i]);
    if (m->attr) dnnl_primitive_attr_destroy(m->attr);
}

/* The weights are in PyTorch's order: products in the library's own order are as fast,
 * and bringing the weights there and their gradient back takes longer than the products.
 * m is safe for fini after a failure. */
static ps_err maker_init(maker *m, dnnl_engine_t engine, const char *who, int64_t n,
                         int64_t in, int64_t out)
{
    const dnnl_dims_t x = {n, in}, y = {n, out}, weights = {out, in};
    *m = (maker){.product = {.engine = engine, .who = who}};
    PS_TRY(ps_dnnl_md_create_as(who, 2, x, dnnl_bf16, dnnl_nc, &m->x));
    PS_TRY(ps_dnnl_md_create_as(who, 2, y, dnnl_bf16, dnnl_nc, &m->dy));
    PS_TRY(ps_dnnl_md_create_as(who, 2, weights, dnnl_bf16, dnnl_oi, &m->weights));
    PS_TRY(ps_dnnl_md_create(who, 2, x, dnnl_nc, &m->dx));
    PS_TRY(ps_dnnl_md_create(who, 2, y, dnnl_nc, &m->y));
    PS_TRY(ps_dnnl_md_create(who, 2, weights, dnnl_oi, &m->dweights));
    PS_TRY(ps_dnnl_attr_create(who, false, &m->attr));
    m->product.attr = m->attr;
    return PS_OK;
}

static ps_err make_passes(maker *m, const ps_cpu_conv_use *use, ps_cpu_conv_choice *c)
{
    ps_dnnl_product p = m->product;
    p.src = m->x, p.weights = m->weights, p.dst = m->y;
    PS_TRY(ps_dnnl_product_forward(&p, use->training, &c->forward));
    if (!use->training) return PS_OK;
    p.dst = m->dy, p.weights = m->dweights;
    PS_TRY(ps_dnnl_product_backward_weights(&p, c->forward, &c->backward_weights));
    if (!use->data_gradient) return PS_OK;
    p.src = m->dx, p.weights = m->weights;
    return ps_dnnl_product_backward_data(&p, c->forward, &c->backward_data);
}

static bool is_reference(dnnl_primitive_desc_t pd)
{
    return pd && strstr(ps_dnnl_pd_name(pd), "ref");
}

ps_err ps_cpu_product_choose(ps_cpu_conv_choice *c, dnnl_engine_t engine,
                             const ps_layer *layer, const ps_cpu_shape *in,
                             const ps_cpu_conv_use *use)
{
    maker m;
    *c = (ps_cpu_conv_choice){.in = *in, .out = ps_cpu_shape_make(in->n, &layer->out, 1)};
    ps_err err = maker_init(&m, engine, layer->name, in->n, c->in.c, c->out.c);
    if (err == PS_OK) err = make_passes(&m, use, c);
    maker_fini(&m);
    PS_TRY(err);
    if (is_reference(c->forward) || is_reference(c->backward_data) ||
        is_reference(c->backward_weights))
        return ps_err_set(PS_ERR_UNSUPPORTED, "%s: oneDNN has no fast bf16 products",
                          layer->name);
    return PS_OK;
}
