#include "cpu_conv.h"

#include <string.h>

#include "cpu_pointwise.h"

/* Winograd's algorithm F(4x4, 3x3): outputs along a tile, the fixed costs besides the
 * tiles (is_cheaper), and the number of positions from which it made the data gradient
 * faster. */
enum { TILE = 4, FIXED_DATA = 200, FIXED_WEIGHTS = 90, LEAST_PLANE_DATA = 17 };

/* The layouts that a layer may request for its activations, in order of preference. */
typedef enum order {
    ORDER_ANY,           // the library's own choice for the forward pass
    ORDER_CHANNELS_LAST, // oneDNN's fast kernels for it take any number of channels
    ORDER_ROWS,          // PyTorch's; oneDNN's matrix products for it take every shape
    N_ORDERS
} order;

/* How good an implementation is, by its kind. */
typedef enum grade { GRADE_REFERENCE, GRADE_PRODUCTS, GRADE_KERNEL } grade;

/* The primitives of a layer in one layout, before they are created. */
typedef struct plan {
    ps_cpu_shape in, out;
    ps_dnnl_md *src, *dst;
    dnnl_primitive_desc_t forward, backward_data, backward_weights;
    grade worst;
    bool padded; // some lanes of the blocks are padding: wasted work
} plan;

/* The descriptors that all plans of a layer share. */
typedef struct maker {
    ps_dnnl_conv conv;
    const ps_cpu_conv_use *use;
    ps_dnnl_md *any_src, *any_dst, *any_weights, *plain_weights, *bias;
    dnnl_primitive_attr_t attr, attr_back;
} maker;

static void destroy_pd(dnnl_primitive_desc_t *pd)
{
    if (*pd) dnnl_primitive_desc_destroy(*pd);
    *pd = NULL;
}

static void plan_fini(plan *p)
{
    ps_dnnl_md_destroy(&p->src);
    ps_dnnl_md_destroy(&p->dst);
    destroy_pd(&p->forward);
    destroy_pd(&p->backward_data);
    destroy_pd(&p->backward_weights);
}

static void maker_fini(maker *m)
{
    ps_dnnl_md_destroy(&m->any_src);
    ps_dnnl_md_destroy(&m->any_dst);
    ps_dnnl_md_destroy(&m->any_weights);
    ps_dnnl_md_destroy(&m->plain_weights);
    ps_dnnl_md_destroy(&m->bias);
    if (m->attr) dnnl_primitive_attr_destroy(m->attr);
    if (m->attr_back) dnnl_primitive_attr_destroy(m->attr_back);
}

/* Winograd's algorithm halves the time of 3 x 3 convolutions on AVX-512. The forward pass
 * uses it only where train.winograd is all: its rounding errors are as small as PyTorch's
 * but different, so a relu near 0, or a max_pool2d between equals, may decide otherwise.
 * In one step of twenty this changed a gradient by 1e-4 of the largest. In the backward
 * pass rounding errors have no such effect. With fewer channels than a vector has lanes,
 * the algorithm pads to whole vectors and has no fast gradient. */
static bool can_be_winograd(const ps_cpu_conv *c)
{
    const ps_layer *l = c->layer;
    return l->kernel[0] == 3 && l->kernel[1] == 3 && l->stride[0] == 1 &&
           l->stride[1] == 1 && c->in.c % 16 == 0 && c->out.c % 16 == 0;
}

/* Whether Winograd's algorithm is faster than direct convolution. The unit of cost is one
 * output position of direct convolution. A tile costs 5 for products, and 110 divided by
 * the channels for the transforms on either side; fixed is the transform of the weights
 * or of their gradient. The library's own choice (dnnl_convolution_auto) is not used: it
 * excludes batches up to 8, and larger ones on AMD's processors, whose cores it cannot
 * count. */
static bool is_cheaper(const ps_cpu_conv *c, int64_t fixed)
{
    const ps_cpu_shape *out = &c->out;
    const int64_t rows = (out->h + TILE - 1) / TILE, columns = (out->w + TILE - 1) / TILE;
    const double tile = 5.0 + 110.0 / (double)c->in.c + 110.0 / (double)out->c;
    return (double)(out->n * rows * columns) * tile + (double)fixed <
           (double)(out->n * ps_cpu_shape_plane(out));
}

/* The outputs and the gradient of data, which are the same sums the other way round. */
static bool pays_for_activations(const ps_cpu_conv *c)
{
    return can_be_winograd(c) && ps_cpu_shape_plane(&c->out) >= LEAST_PLANE_DATA &&
           is_cheaper(c, FIXED_DATA);
}

static bool pays_for_weights(const ps_cpu_conv *c)
{
    return can_be_winograd(c) && is_cheaper(c, FIXED_WEIGHTS);
}

static bool is_forward_winograd(const ps_cpu_conv *c, const ps_cpu_conv_use *use)
{
    return use->winograd == PS_WINOGRAD_ALL && pays_for_activations(c);
}

static ps_err maker_init(maker *m, const ps_cpu_conv *c, const ps_cpu_conv_use *use)
{
    const ps_layer *l = c->layer;
    const char *who = l->name;
    const dnnl_dims_t weights = {c->out.c, c->in.c, l->kernel[0], l->kernel[1]};
    const dnnl_dims_t bias = {c->out.c};
    const dnnl_dims_t src = {c->in.n, c->in.c, c->in.h, c->in.w};
    const dnnl_dims_t dst = {c->out.n, c->out.c, c->out.h, c->out.w};
    PS_TRY(ps_dnnl_md_create(who, 4, src, dnnl_format_tag_any, &m->any_src));
    PS_TRY(ps_dnnl_md_create(who, 4, dst, dnnl_format_tag_any, &m->any_dst));
    PS_TRY(ps_dnnl_md_create(who, 4, weights, dnnl_format_tag_any, &m->any_weights));
    PS_TRY(ps_dnnl_md_create(who, 4, weights, dnnl_oihw, &m->plain_weights));
    if (l->bias != PS_NONE) PS_TRY(ps_dnnl_md_create(who, 1, bias, dnnl_x, &m->bias));
    PS_TRY(ps_dnnl_attr_create(who, use->relu, &m->attr));
    // only the forward primitive applies the relu
    PS_TRY(ps_dnnl_attr_create(who, false, &m->attr_back));
    m->use = use;
    m->conv.alg = dnnl_convolution_direct;
    m->conv.who = who;
    m->conv.weights = m->any_weights;
    m->conv.bias = m->bias;
    for (int i = 0; i < 2; i++) {
        m->conv.stride[i] = l->stride[i];
        m->conv.padding[i] = l->padding[i];
    }
    return PS_OK;
}

static ps_err make_forward(maker *m, const ps_dnnl_md *src, const ps_dnnl_md *dst,
                           dnnl_primitive_desc_t *out)
{
    m->conv.attr = m->attr;
    m->conv.src = src;
    m->conv.dst = dst;
    // one of its own for evaluations, of the same sums, the library does not always have
    const bool training = m->use->training || m->conv.alg == dnnl_convolution_winograd;
    return ps_dnnl_conv_forward(&m->conv, training, out);
}

static ps_err make_any_forward(maker *m, const plan *p, dnnl_primitive_desc_t *out)
{
    return make_forward(m, m->any_src, m->any_dst, out);
}

static ps_err make_planned_forward(maker *m, const plan *p, dnnl_primitive_desc_t *out)
{
    return make_forward(m, p->src, p->dst, out);
}

/* Uses Winograd's algorithm if it is asked for and the library has it for the plan. */
static ps_err make_by(maker *m, const plan *p, bool winograd,
                      ps_err (*make)(maker *, const plan *, dnnl_primitive_desc_t *),
                      dnnl_primitive_desc_t *out)
{
    m->conv.alg = dnnl_convolution_winograd;
    ps_err err = winograd ? make(m, p, out) : PS_ERR_UNSUPPORTED;
    m->conv.alg = dnnl_convolution_direct;
    return err == PS_ERR_UNSUPPORTED ? make(m, p, out) : err;
}

static int64_t lanes_of(order by, const ps_cpu_shape *s)
{
    return by == ORDER_CHANNELS_LAST ? s->c : 1;
}

/* Reads the lanes that the library would choose. *known false: it chose a layout that
 * ps_cpu_shape cannot describe. */
static ps_err read_lanes(maker *m, const ps_cpu_conv *c, plan *p, bool *known)
{
    bool in_known = false, out_known = false;
    dnnl_primitive_desc_t pd = NULL;
    PS_TRY(make_by(m, p, is_forward_winograd(c, m->use), make_any_forward, &pd));
    ps_err err = ps_cpu_shape_read_md(&p->in, m->conv.who,
                                      ps_dnnl_pd_md(pd, dnnl_query_src_md, 0), &in_known);
    if (err == PS_OK)
        err = ps_cpu_shape_read_md(&p->out, m->conv.who,
                                   ps_dnnl_pd_md(pd, dnnl_query_dst_md, 0), &out_known);
    destroy_pd(&pd);
    *known = in_known && out_known;
    return err;
}

/* With 8 or 16 channels, channels-last and blocked layouts are the same, but the library
 * recognises only the channels-last tag. */
static ps_err set_lanes(ps_cpu_shape *s, const char *who, order by, ps_dnnl_md **md)
{
    const dnnl_dims_t dims = {s->n, s->c, s->h, s->w};
    s->blocks = (s->c + s->lanes - 1) / s->lanes;
    if (by == ORDER_CHANNELS_LAST) return ps_dnnl_md_create(who, 4, dims, dnnl_nhwc, md);
    return ps_cpu_shape_md(s, who, md);
}

/* "ref:any" takes a hundred times what a kernel takes; matrix products of rearranged
 * windows ("x64:gemm:jit") three to ten times. */
static grade grade_of(dnnl_primitive_desc_t pd)
{
    if (!pd) return GRADE_KERNEL;
    const char *name = ps_dnnl_pd_name(pd);
    if (strstr(name, "ref")) return GRADE_REFERENCE;
    return strstr(name, "gemm:") ? GRADE_PRODUCTS : GRADE_KERNEL;
}

static grade worst_of(const plan *p)
{
    grade worst = grade_of(p->forward), data = grade_of(p->backward_data);
    grade weights = grade_of(p->backward_weights);
    worst = data < worst ? data : worst;
    return weights < worst ? weights : worst;
}

static ps_err make_backward_data(maker *m, const plan *p, dnnl_primitive_desc_t *out)
{
    return ps_dnnl_conv_backward_data(&m->conv, p->forward, out);
}

static ps_err make_backward_weights(maker *m, const plan *p, dnnl_primitive_desc_t *out)
{
    return ps_dnnl_conv_backward_weights(&m->conv, p->forward, out);
}

static ps_err make_pds(maker *m, const ps_cpu_conv *c, plan *p)
{
    const bool back = m->use->winograd != PS_WINOGRAD_OFF;
    PS_TRY(
        make_by(m, p, is_forward_winograd(c, m->use), make_planned_forward, &p->forward));
    if (!m->use->training) return PS_OK;
    m->conv.attr = m->attr_back;
    if (m->use->data_gradient)
        PS_TRY(make_by(m, p, back && pays_for_activations(c), make_backward_data,
                       &p->backward_data));
    return make_by(m, p, back && pays_for_weights(c), make_backward_weights,
                   &p->backward_weights);
}

static bool is_padded(const ps_cpu_shape *s)
{
    return s->c % s->lanes != 0;
}

/* p is safe for fini, also after a failure. *known: whether there is such a plan. */
static ps_err plan_init(plan *p, maker *m, const ps_cpu_conv *c, order by, bool *known)
{
    *p = (plan){.in = c->in, .out = c->out};
    *known = true;
    p->in.lanes = lanes_of(by, &p->in);
    p->out.lanes = lanes_of(by, &p->out);
    if (by == ORDER_ANY) PS_TRY(read_lanes(m, c, p, known));
    if (!*known) return PS_OK;
    PS_TRY(set_lanes(&p->in, m->conv.who, by, &p->src));
    PS_TRY(set_lanes(&p->out, m->conv.who, by, &p->dst));
    ps_err err = make_pds(m, c, p);
    *known = err == PS_OK;
    p->worst = worst_of(p);
    p->padded = is_padded(&p->in) || is_padded(&p->out);
    return err == PS_ERR_UNSUPPORTED ? PS_OK : err;
}

static bool is_better(const plan *p, const plan *than)
{
    if (p->worst != than->worst) return p->worst > than->worst;
    return than->padded && !p->padded;
}

/* Chooses the best plan, the first among equals. It compares the implementations' names
 * and measures nothing, so every run on this processor computes the same sums. */
static ps_err choose_plan(plan *best, maker *m, const ps_cpu_conv *c)
{
    bool found = false;
    *best = (plan){0};
    for (order by = 0; by < N_ORDERS; by++) {
        plan p;
        bool known;
        ps_err err = plan_init(&p, m, c, by, &known);
        bool better = err == PS_OK && known && (!found || is_better(&p, best));
        plan_fini(better ? best : &p);
        if (better) *best = p;
        PS_TRY(err);
        found |= known;
        if (found && best->worst == GRADE_KERNEL && !best->padded) break;
    }
    if (!found)
        return ps_err_set(PS_ERR_UNSUPPORTED, "%s: oneDNN has no convolution for it",
                          m->conv.who);
    return PS_OK;
}

/* Makes no primitive when the two descriptors are equal. */
static ps_err make_order(const maker *m, const ps_dnnl_md *from, const ps_dnnl_md *to,
                         ps_cpu_op *op)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr = NULL;
    if (dnnl_memory_desc_equal(from, to)) return PS_OK;
    PS_TRY(ps_dnnl_attr_create(m->conv.who, false, &attr));
    ps_err err = ps_dnnl_reorder(m->conv.engine, m->conv.who, from, to, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    return err == PS_OK ? ps_cpu_op_create(op, m->conv.who, &pd) : err;
}

static ps_err make_backward(maker *m, plan *p, ps_cpu_conv *c)
{
    const char *who = m->conv.who;
    if (m->use->data_gradient) {
        PS_TRY(ps_cpu_op_create(&c->backward_data, who, &p->backward_data));
        const ps_dnnl_md *wanted =
            ps_cpu_op_md(&c->backward_data, dnnl_query_weights_md, 0);
        c->own_weights_back = !dnnl_memory_desc_equal(
            wanted, ps_cpu_op_md(&c->forward, dnnl_query_weights_md, 0));
        if (c->own_weights_back)
            PS_TRY(make_order(m, m->plain_weights, wanted, &c->order_weights_back));
    }
    PS_TRY(ps_cpu_op_create(&c->backward_weights, who, &p->backward_weights));
    return make_order(m,
                      ps_cpu_op_md(&c->backward_weights, dnnl_query_diff_weights_md, 0),
                      m->plain_weights, &c->order_gradient);
}

/* The primitives of the plan. */
static ps_err make_primitives(maker *m, plan *p, ps_cpu_conv *c)
{
    c->in = p->in;
    c->out = p->out;
    c->slow = p->worst == GRADE_REFERENCE;
    PS_TRY(ps_cpu_op_create(&c->forward, m->conv.who, &p->forward));
    PS_TRY(make_order(m, m->plain_weights,
                      ps_cpu_op_md(&c->forward, dnnl_query_weights_md, 0),
                      &c->order_weights));
    return m->use->training ? make_backward(m, p, c) : PS_OK;
}

ps_err ps_cpu_conv_init(ps_cpu_conv *c, dnnl_engine_t engine, const ps_layer *layer,
                        const ps_cpu_shape *in, const ps_cpu_conv_use *use)
{
    maker m = {.conv.engine = engine};
    plan p = {0};
    *c = (ps_cpu_conv){.layer = layer, .in = *in};
    c->out = ps_cpu_shape_make(in->n, &layer->out, 1);
    c->n_bias = layer->bias == PS_NONE ? 0 : c->out.c;
    c->n_weights = c->out.c * c->in.c * layer->kernel[0] * layer->kernel[1];
    ps_err err;
    PS_TRY_GOTO(maker_init(&m, c, use), err, out);
    PS_TRY_GOTO(choose_plan(&p, &m, c), err, out);
    err = make_primitives(&m, &p, c);
out:
    plan_fini(&p);
    maker_fini(&m);
    return err;
}

void ps_cpu_conv_fini(ps_cpu_conv *c)
{
    ps_cpu_op_fini(&c->order_weights);
    ps_cpu_op_fini(&c->forward);
    ps_cpu_op_fini(&c->order_weights_back);
    ps_cpu_op_fini(&c->backward_data);
    ps_cpu_op_fini(&c->backward_weights);
    ps_cpu_op_fini(&c->order_gradient);
}

ps_err ps_cpu_conv_plan_forward(ps_cpu_conv *c, ps_memory_plan *memory, bool training)
{
    PS_TRY(ps_memory_plan_take(
        memory, ps_cpu_op_bytes(&c->order_weights, dnnl_query_dst_md), &c->slot.weights));
    PS_TRY(ps_memory_plan_take(memory, ps_cpu_op_scratch_bytes(&c->forward),
                               &c->slot.scratch));
    ps_memory_plan_give(memory, c->slot.scratch);
    bool kept = training && c->backward_data.primitive && !c->own_weights_back;
    if (!kept) ps_memory_plan_give(memory, c->slot.weights);
    return PS_OK;
}

ps_err ps_cpu_conv_plan_backward(ps_cpu_conv *c, ps_memory_plan *memory)
{
    PS_TRY(ps_memory_plan_take(memory,
                               ps_cpu_op_bytes(&c->order_weights_back, dnnl_query_dst_md),
                               &c->slot.weights_back));
    PS_TRY(ps_memory_plan_take(memory,
                               ps_cpu_op_bytes(&c->order_gradient, dnnl_query_src_md),
                               &c->slot.gradient));
    PS_TRY(ps_memory_plan_take(memory, sizeof(float) * (size_t)c->n_weights,
                               &c->slot.plain_gradient));
    PS_TRY(ps_memory_plan_take(memory, sizeof(float) * (size_t)c->n_bias,
                               &c->slot.bias_gradient));
    PS_TRY(ps_memory_plan_take(memory, ps_cpu_op_scratch_bytes(&c->backward_data),
                               &c->slot.scratch_data));
    ps_memory_plan_give(memory, c->slot.scratch_data);
    PS_TRY(ps_memory_plan_take(memory, ps_cpu_op_scratch_bytes(&c->backward_weights),
                               &c->slot.scratch_weights));
    ps_memory_plan_give(memory, c->slot.scratch_weights);
    ps_memory_plan_give(memory, c->slot.weights_back);
    ps_memory_plan_give(memory, c->slot.gradient);
    ps_memory_plan_give(memory, c->slot.plain_gradient);
    ps_memory_plan_give(memory, c->slot.bias_gradient);
    if (c->backward_data.primitive && !c->own_weights_back)
        ps_memory_plan_give(memory, c->slot.weights);
    return PS_OK;
}

/* Binds a reorder from PyTorch's layout to a slot; *where: where the weights are
 * afterwards. */
static ps_err bind_order(ps_cpu_op *op, const char *who, float *weight, float *ordered,
                         float **where)
{
    *where = op->primitive ? ordered : weight;
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_FROM,
                          op->primitive ? ps_cpu_op_md(op, dnnl_query_src_md, 0) : NULL,
                          weight));
    return ps_cpu_op_bind(op, who, DNNL_ARG_TO,
                          op->primitive ? ps_cpu_op_md(op, dnnl_query_dst_md, 0) : NULL,
                          ordered);
}

static ps_err bind_forward(ps_cpu_conv *c, const ps_memory_plan *memory,
                           const ps_cpu_conv_arrays *p, float **weights)
{
    const char *who = c->layer->name;
    ps_cpu_op *op = &c->forward;
    PS_TRY(bind_order(&c->order_weights, who, p->weight,
                      ps_memory_plan_at(memory, c->slot.weights), weights));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_SRC, ps_cpu_op_md(op, dnnl_query_src_md, 0),
                          p->x));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_WEIGHTS,
                          ps_cpu_op_md(op, dnnl_query_weights_md, 0), *weights));
    if (p->bias)
        PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_BIAS,
                              ps_cpu_op_md(op, dnnl_query_weights_md, 1), p->bias));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DST, ps_cpu_op_md(op, dnnl_query_dst_md, 0),
                          p->y));
    return ps_cpu_op_bind_scratch(op, who, ps_memory_plan_at(memory, c->slot.scratch));
}

static ps_err bind_backward_data(ps_cpu_conv *c, const ps_memory_plan *memory,
                                 const ps_cpu_conv_arrays *p, float *weights)
{
    const char *who = c->layer->name;
    ps_cpu_op *op = &c->backward_data;
    if (!op->primitive) return PS_OK;
    if (c->own_weights_back)
        PS_TRY(bind_order(&c->order_weights_back, who, p->weight,
                          ps_memory_plan_at(memory, c->slot.weights_back), &weights));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_WEIGHTS,
                          ps_cpu_op_md(op, dnnl_query_weights_md, 0), weights));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_DST,
                          ps_cpu_op_md(op, dnnl_query_diff_dst_md, 0), p->dy));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_SRC,
                          ps_cpu_op_md(op, dnnl_query_diff_src_md, 0), p->dx));
    return ps_cpu_op_bind_scratch(op, who,
                                  ps_memory_plan_at(memory, c->slot.scratch_data));
}

static ps_err bind_backward_weights(ps_cpu_conv *c, const ps_memory_plan *memory,
                                    const ps_cpu_conv_arrays *p)
{
    const char *who = c->layer->name;
    ps_cpu_op *op = &c->backward_weights, *reorder = &c->order_gradient;
    float *gradient = reorder->primitive ? ps_memory_plan_at(memory, c->slot.gradient)
                                         : c->plain_gradient;
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_SRC, ps_cpu_op_md(op, dnnl_query_src_md, 0),
                          p->x));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_DST,
                          ps_cpu_op_md(op, dnnl_query_diff_dst_md, 0), p->dy));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_WEIGHTS,
                          ps_cpu_op_md(op, dnnl_query_diff_weights_md, 0), gradient));
    if (p->bias)
        PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_BIAS,
                              ps_cpu_op_md(op, dnnl_query_diff_weights_md, 1),
                              c->bias_gradient));
    PS_TRY(ps_cpu_op_bind_scratch(op, who,
                                  ps_memory_plan_at(memory, c->slot.scratch_weights)));
    if (!reorder->primitive) return PS_OK;
    PS_TRY(ps_cpu_op_bind(reorder, who, DNNL_ARG_FROM,
                          ps_cpu_op_md(reorder, dnnl_query_src_md, 0), gradient));
    return ps_cpu_op_bind(reorder, who, DNNL_ARG_TO,
                          ps_cpu_op_md(reorder, dnnl_query_dst_md, 0), c->plain_gradient);
}

ps_err ps_cpu_conv_bind(ps_cpu_conv *c, const ps_memory_plan *memory,
                        const ps_cpu_conv_arrays *p)
{
    float *weights = NULL;
    PS_TRY(bind_forward(c, memory, p, &weights));
    if (!p->dy) return PS_OK;
    c->plain_gradient = ps_memory_plan_at(memory, c->slot.plain_gradient);
    c->bias_gradient = ps_memory_plan_at(memory, c->slot.bias_gradient);
    PS_TRY(bind_backward_data(c, memory, p, weights));
    return bind_backward_weights(c, memory, p);
}

ps_err ps_cpu_conv_forward(ps_cpu_conv *c, dnnl_stream_t stream, const float *x)
{
    const char *who = c->layer->name;
    PS_TRY(ps_cpu_op_run(&c->order_weights, who, stream));
    PS_TRY(ps_cpu_op_rebind(&c->forward, who, DNNL_ARG_SRC, x));
    return ps_cpu_op_run(&c->forward, who, stream);
}

ps_err ps_cpu_conv_backward(ps_cpu_conv *c, dnnl_stream_t stream, const float *x,
                            float *dweight, float *dbias, bool accumulate)
{
    const char *who = c->layer->name;
    ps_cpu_op *last =
        c->order_gradient.primitive ? &c->order_gradient : &c->backward_weights;
    int arg = c->order_gradient.primitive ? DNNL_ARG_TO : DNNL_ARG_DIFF_WEIGHTS;
    PS_TRY(ps_cpu_op_rebind(last, who, arg, accumulate ? c->plain_gradient : dweight));
    PS_TRY(ps_cpu_op_rebind(&c->backward_weights, who, DNNL_ARG_DIFF_BIAS,
                            accumulate ? c->bias_gradient : dbias));
    PS_TRY(ps_cpu_op_rebind(&c->backward_weights, who, DNNL_ARG_SRC, x));
    PS_TRY(ps_cpu_op_run(&c->backward_weights, who, stream));
    PS_TRY(ps_cpu_op_run(&c->order_gradient, who, stream));
    if (accumulate) {
        ps_cpu_pass(c->n_weights, c->plain_gradient, dweight, true);
        ps_cpu_pass(c->n_bias, c->bias_gradient, dbias, true);
    }
    PS_TRY(ps_cpu_op_run(&c->order_weights_back, who, stream));
    return ps_cpu_op_run(&c->backward_data, who, stream);
}
