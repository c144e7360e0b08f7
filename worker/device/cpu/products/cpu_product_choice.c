#include "cpu_product_choice.h"

#include "cpu_windows.h"

typedef struct maker {
    ps_dnnl_product product;
    ps_dnnl_md *x, *dy, *weights;     // factors
    ps_dnnl_md *y;                    // a factor or float32
    ps_dnnl_md *dx, *dweights, *bias; // float32; bias may be NULL
    dnnl_primitive_attr_t attr, attr_back;
} maker;

/* y (n, out) = x (n, in) W^T + b. */
typedef struct sizes {
    int64_t n, in, out;
    bool bias;
} sizes;

static void product_maker_fini(maker *m)
{
    ps_dnnl_md **const all[] = {&m->x, &m->dy,       &m->weights, &m->dx,
                                &m->y, &m->dweights, &m->bias};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        ps_dnnl_md_destroy(all[i]);
    if (m->attr) dnnl_primitive_attr_destroy(m->attr);
    if (m->attr_back) dnnl_primitive_attr_destroy(m->attr_back);
}

static ps_err product_make_descriptors(maker *m, const char *who, const sizes *s,
                                       const ps_cpu_conv_use *use)
{
    const dnnl_data_type_t factor = ps_cpu_factor_type(use->factors);
    const dnnl_data_type_t result = use->narrow_y ? factor : dnnl_f32;
    const dnnl_dims_t x = {s->n, s->in}, y = {s->n, s->out}, weights = {s->out, s->in};
    const dnnl_dims_t bias = {s->out};
    PS_TRY(ps_dnnl_md_create_as(who, 2, x, factor, dnnl_nc, &m->x));
    PS_TRY(ps_dnnl_md_create_as(who, 2, y, factor, dnnl_nc, &m->dy));
    PS_TRY(ps_dnnl_md_create_as(who, 2, weights, factor, dnnl_oi, &m->weights));
    PS_TRY(ps_dnnl_md_create(who, 2, x, dnnl_nc, &m->dx));
    PS_TRY(ps_dnnl_md_create_as(who, 2, y, result, dnnl_nc, &m->y));
    PS_TRY(ps_dnnl_md_create(who, 2, weights, dnnl_oi, &m->dweights));
    return s->bias ? ps_dnnl_md_create(who, 1, bias, dnnl_x, &m->bias) : PS_OK;
}

/* The weights are in PyTorch's order: products in the library's own order are as fast,
 * and bringing the weights there and their gradient back takes longer than the products.
 * m is safe for fini after a failure. */
static ps_err product_maker_init(maker *m, dnnl_engine_t engine, const char *who,
                                 const sizes *s, const ps_cpu_conv_use *use)
{
    *m = (maker){.product = {.engine = engine, .who = who}};
    PS_TRY(product_make_descriptors(m, who, s, use));
    PS_TRY(ps_dnnl_attr_create(who, use->relu, &m->attr));
    return ps_dnnl_attr_create(who, false, &m->attr_back);
}

static ps_err product_make_forward(const maker *m, bool training,
                                   dnnl_primitive_desc_t *out)
{
    ps_dnnl_product p = m->product;
    p.src = m->x, p.weights = m->weights, p.bias = m->bias, p.dst = m->y;
    p.attr = m->attr;
    return ps_dnnl_product_forward(&p, training, out);
}

static ps_err product_make_backward_weights(const maker *m, dnnl_primitive_desc_t forward,
                                            dnnl_primitive_desc_t *out)
{
    ps_dnnl_product p = m->product;
    p.src = m->x, p.weights = m->dweights, p.bias = m->bias, p.dst = m->dy;
    p.attr = m->attr_back;
    return ps_dnnl_product_backward_weights(&p, forward, out);
}

static ps_err product_make_backward_data(const maker *m, dnnl_primitive_desc_t forward,
                                         dnnl_primitive_desc_t *out)
{
    ps_dnnl_product p = m->product;
    p.src = m->dx, p.weights = m->weights, p.dst = m->dy;
    p.attr = m->attr_back;
    return ps_dnnl_product_backward_data(&p, forward, out);
}

static ps_err make_passes(const maker *m, const ps_cpu_conv_use *use,
                          ps_cpu_conv_choice *c)
{
    PS_TRY(product_make_forward(m, use->training, &c->forward));
    if (!use->training) return PS_OK;
    PS_TRY(product_make_backward_weights(m, c->forward, &c->backward_weights));
    if (!use->data_gradient) return PS_OK;
    return product_make_backward_data(m, c->forward, &c->backward_data);
}

static bool is_reference(dnnl_primitive_desc_t pd)
{
    return pd && ps_dnnl_pd_is_reference(pd);
}

static ps_err product_choose(ps_cpu_conv_choice *c, dnnl_engine_t engine, const char *who,
                             const sizes *s, const ps_cpu_conv_use *use)
{
    maker m;
    ps_err err = product_maker_init(&m, engine, who, s, use);
    if (err == PS_OK) err = make_passes(&m, use, c);
    product_maker_fini(&m);
    PS_TRY(err);
    if (is_reference(c->forward) || is_reference(c->backward_data) ||
        is_reference(c->backward_weights))
        return ps_err_set(PS_ERR_UNSUPPORTED, "%s: oneDNN has no fast products", who);
    return PS_OK;
}

ps_err ps_cpu_product_choose(ps_cpu_conv_choice *c, dnnl_engine_t engine,
                             const ps_layer *layer, const ps_cpu_shape *in,
                             const ps_cpu_conv_use *use)
{
    *c = (ps_cpu_conv_choice){.in = *in, .out = ps_cpu_shape_make(in->n, &layer->out, 1)};
    const sizes s = {.n = in->n, .in = c->in.c, .out = c->out.c};
    return product_choose(c, engine, layer->name, &s, use);
}

/* The largest plane, and the fewest weights, for which products took less time. */
enum { PRODUCTS_PLANE = 16, PRODUCTS_WEIGHTS = 1 << 16 };

/* oneDNN's kernels go over all weights, or their whole gradient, once for each sample.
 * With planes of a few positions this takes most of their time; products go over them
 * once for the batch. */
ps_cpu_conv_products ps_cpu_product_of_windows(const ps_layer *l,
                                               const ps_cpu_conv_use *use)
{
    const int64_t plane = l->out.d[1] * l->out.d[2];
    const int64_t weights = l->out.d[0] * l->in.d[0] * l->kernel[0] * l->kernel[1];
    if (l->groups > 1 || plane > PRODUCTS_PLANE || weights < PRODUCTS_WEIGHTS ||
        l->kernel[0] * l->kernel[1] > PS_CPU_WINDOW_ELEMENTS)
        return PS_CPU_NO_PRODUCTS;
    if (ps_cpu_factors_are_narrow(use->factors))
        return ps_cpu_has_amx(use->factors) ? PS_CPU_ALL_PRODUCTS : PS_CPU_NO_PRODUCTS;
    return use->factors == PS_CPU_FLOAT32 && use->training ? PS_CPU_WEIGHTS_PRODUCTS
                                                           : PS_CPU_NO_PRODUCTS;
}

static sizes sizes_of(const ps_layer *l, const ps_cpu_shape *in)
{
    const ps_cpu_windows w = ps_cpu_windows_of(l, in);
    return (sizes){.n = ps_cpu_windows_rows(&w),
                   .in = ps_cpu_windows_columns(&w),
                   .out = l->out.d[0],
                   .bias = l->bias != PS_NONE};
}

ps_err ps_cpu_product_choose_windows(ps_cpu_conv_choice *c, dnnl_engine_t engine,
                                     const ps_layer *layer, const ps_cpu_shape *in,
                                     const ps_cpu_conv_use *use)
{
    const sizes s = sizes_of(layer, in);
    *c = (ps_cpu_conv_choice){.in = ps_cpu_shape_make(in->n, &layer->in, in->c),
                              .out = ps_cpu_shape_make(in->n, &layer->out, s.out),
                              .products = PS_CPU_ALL_PRODUCTS};
    return product_choose(c, engine, layer->name, &s, use);
}

ps_err ps_cpu_product_choose_weights(ps_cpu_conv_choice *c, dnnl_engine_t engine,
                                     const ps_layer *layer, const ps_cpu_shape *in,
                                     const ps_cpu_conv_use *use)
{
    const sizes s = sizes_of(layer, in);
    const ps_cpu_conv_use alone = {.training = true, .factors = use->factors};
    ps_cpu_conv_choice products = {0};
    ps_err err = product_choose(&products, engine, layer->name, &s, &alone);
    if (err == PS_OK) {
        const dnnl_primitive_desc_t replaced = c->backward_weights;
        c->backward_weights = products.backward_weights;
        products.backward_weights = replaced;
        c->products = PS_CPU_WEIGHTS_PRODUCTS;
    }
    ps_cpu_conv_choice_fini(&products);
    return err == PS_ERR_UNSUPPORTED ? PS_OK : err;
}
