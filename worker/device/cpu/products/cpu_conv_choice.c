#include "cpu_conv_choice.h"

#include <string.h>

#include "cpu_depthwise.h"

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

/* The passes of a layer in one layout. */
typedef struct plan {
    ps_cpu_conv_choice choice;
    ps_dnnl_md *src, *dst, *src_grad, *dst_grad;
    grade worst;
    int sum;          // of the grades; the forward pass counts twice
    bool fills_lanes; // no lanes of the blocks are wasted on padding
} plan;

/* The descriptors that all plans of a layer share. */
typedef struct maker {
    ps_dnnl_conv conv;
    const ps_layer *layer;
    const ps_cpu_conv_use *use;
    ps_cpu_shape in, out; // in PyTorch's order; in: with its border, if there is one
    bool border;
    dnnl_data_type_t factor; // of the input, the weights and the output's gradient
    dnnl_data_type_t y, dx;
    ps_dnnl_md *any_src, *any_dst, *any_weights, *any_weights_grad, *bias;
    dnnl_primitive_attr_t attr, attr_back;
} maker;

void ps_cpu_conv_choice_fini(ps_cpu_conv_choice *c)
{
    ps_dnnl_pd_destroy(&c->forward);
    ps_dnnl_pd_destroy(&c->backward_data);
    ps_dnnl_pd_destroy(&c->backward_weights);
}

static void plan_fini(plan *p)
{
    ps_dnnl_md_destroy(&p->src);
    ps_dnnl_md_destroy(&p->dst);
    ps_dnnl_md_destroy(&p->src_grad);
    ps_dnnl_md_destroy(&p->dst_grad);
    ps_cpu_conv_choice_fini(&p->choice);
}

static void conv_maker_fini(maker *m)
{
    ps_dnnl_md_destroy(&m->any_src);
    ps_dnnl_md_destroy(&m->any_dst);
    ps_dnnl_md_destroy(&m->any_weights);
    ps_dnnl_md_destroy(&m->any_weights_grad);
    ps_dnnl_md_destroy(&m->bias);
    if (m->attr) dnnl_primitive_attr_destroy(m->attr);
    if (m->attr_back) dnnl_primitive_attr_destroy(m->attr_back);
}

/* Winograd's algorithm halves the time of 3 x 3 convolutions on AVX-512. Its outputs and
 * gradients of data have 4 to 9 times the rounding errors of direct sums, its gradients
 * of weights 0.3 to 1.6 times (bench/results, rounding-convolutions). The forward pass
 * uses it only where train.winograd is all: a relu near 0, or a max_pool2d between
 * equals, may decide otherwise. This changes a gradient by more than 1e-5 of the largest
 * in 9 to 17 steps of 100; without it, in 0 or 1. In the backward pass rounding errors
 * have no such effect. With fewer channels than a vector has lanes, the algorithm pads to
 * whole vectors and has no fast gradient. */
bool ps_cpu_conv_can_be_winograd(const ps_layer *l)
{
    return l->kernel[0] == 3 && l->kernel[1] == 3 && l->stride[0] == 1 &&
           l->stride[1] == 1 && l->dilation[0] == 1 && l->dilation[1] == 1 &&
           l->groups == 1 && l->in.d[0] % 16 == 0 && l->out.d[0] % 16 == 0;
}

/* Whether Winograd's algorithm is faster than direct convolution. The unit of cost is one
 * output position of direct convolution. A tile costs 5 for products, and 110 divided by
 * the channels for the transforms on either side; fixed is the transform of the weights
 * or of their gradient. The library's own choice (dnnl_convolution_auto) is not used: it
 * excludes batches up to 8, and larger ones on AMD's processors, whose cores it cannot
 * count. */
static bool is_cheaper(const maker *m, int64_t fixed)
{
    const ps_cpu_shape *out = &m->out;
    const int64_t rows = (out->h + TILE - 1) / TILE, columns = (out->w + TILE - 1) / TILE;
    const double tile = 5.0 + 110.0 / (double)m->in.c + 110.0 / (double)out->c;
    return (double)(out->n * rows * columns) * tile + (double)fixed <
           (double)(out->n * ps_cpu_shape_plane(out));
}

/* The outputs and the gradient of data, which are the same sums the other way round. */
static bool pays_for_activations(const maker *m)
{
    return ps_cpu_conv_can_be_winograd(m->layer) &&
           ps_cpu_shape_plane(&m->out) >= LEAST_PLANE_DATA && is_cheaper(m, FIXED_DATA);
}

static bool pays_for_weights(const maker *m)
{
    return ps_cpu_conv_can_be_winograd(m->layer) && is_cheaper(m, FIXED_WEIGHTS);
}

static bool is_forward_winograd(const maker *m)
{
    return m->use->winograd == PS_WINOGRAD_ALL && pays_for_activations(m);
}

int ps_cpu_conv_weight_dims(const ps_layer *l, dnnl_dims_t dims)
{
    int n = 0;
    if (l->groups > 1) dims[n++] = l->groups;
    dims[n++] = l->out.d[0] / l->groups;
    dims[n++] = l->in.d[0] / l->groups;
    dims[n++] = l->kernel[0];
    dims[n++] = l->kernel[1];
    return n;
}

static ps_err conv_make_descriptors(maker *m)
{
    const ps_layer *l = m->layer;
    const char *who = l->name;
    dnnl_dims_t weights;
    const int n_dims = ps_cpu_conv_weight_dims(l, weights);
    const dnnl_dims_t bias = {m->out.c};
    const dnnl_dims_t src = {m->in.n, m->in.c, m->in.h, m->in.w};
    const dnnl_dims_t dst = {m->out.n, m->out.c, m->out.h, m->out.w};
    const dnnl_format_tag_t any = dnnl_format_tag_any;
    PS_TRY(ps_dnnl_md_create_as(who, 4, src, m->factor, any, &m->any_src));
    PS_TRY(ps_dnnl_md_create_as(who, 4, dst, m->y, any, &m->any_dst));
    PS_TRY(ps_dnnl_md_create_as(who, n_dims, weights, m->factor, any, &m->any_weights));
    PS_TRY(ps_dnnl_md_create(who, n_dims, weights, any, &m->any_weights_grad));
    if (l->bias != PS_NONE) PS_TRY(ps_dnnl_md_create(who, 1, bias, dnnl_x, &m->bias));
    PS_TRY(ps_dnnl_attr_create(who, m->use->relu, &m->attr));
    // only the forward primitive applies the relu
    return ps_dnnl_attr_create(who, false, &m->attr_back);
}

/* border: the padding is part of the input. m is safe for fini after a failure. */
static ps_err conv_maker_init(maker *m, dnnl_engine_t engine, const ps_layer *l,
                              const ps_cpu_shape *in, const ps_cpu_conv_use *use,
                              bool border)
{
    *m = (maker){.layer = l, .use = use, .in = *in, .border = border};
    m->out = ps_cpu_shape_make(in->n, &l->out, 1);
    m->factor = ps_cpu_factor_type(use->factors);
    m->y = use->narrow_y ? m->factor : dnnl_f32;
    m->dx = use->narrow_dx ? m->factor : dnnl_f32;
    if (border) {
        m->in.h += 2 * l->padding[0];
        m->in.w += 2 * l->padding[1];
    }
    PS_TRY(conv_make_descriptors(m));
    m->conv.engine = engine;
    m->conv.alg = dnnl_convolution_direct;
    m->conv.who = l->name;
    m->conv.bias = m->bias;
    for (int i = 0; i < 2; i++) {
        m->conv.stride[i] = l->stride[i];
        m->conv.dilation[i] = l->dilation[i] - 1;
        m->conv.padding[i] = border ? 0 : l->padding[i];
    }
    return PS_OK;
}

static ps_err conv_make_forward(maker *m, const ps_dnnl_md *src, const ps_dnnl_md *dst,
                                dnnl_primitive_desc_t *out)
{
    m->conv.attr = m->attr;
    m->conv.src = src;
    m->conv.dst = dst;
    m->conv.weights = m->any_weights;
    // for evaluations the library does not always have one of its own with the same sums
    const bool training = m->use->training || m->conv.alg == dnnl_convolution_winograd;
    return ps_dnnl_conv_forward(&m->conv, training, out);
}

static ps_err make_any_forward(maker *m, const plan *p, dnnl_primitive_desc_t *out)
{
    return conv_make_forward(m, m->any_src, m->any_dst, out);
}

static ps_err make_planned_forward(maker *m, const plan *p, dnnl_primitive_desc_t *out)
{
    return conv_make_forward(m, p->src, p->dst, out);
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
static ps_err read_lanes(maker *m, plan *p, bool *known)
{
    ps_cpu_conv_choice *c = &p->choice;
    bool in_known = false, out_known = false;
    dnnl_primitive_desc_t pd = NULL;
    PS_TRY(make_by(m, p, is_forward_winograd(m), make_any_forward, &pd));
    ps_err err = ps_cpu_shape_read_md(&c->in, m->conv.who, m->factor,
                                      ps_dnnl_pd_md(pd, dnnl_query_src_md, 0), &in_known);
    if (err == PS_OK)
        err = ps_cpu_shape_read_md(&c->out, m->conv.who, m->y,
                                   ps_dnnl_pd_md(pd, dnnl_query_dst_md, 0), &out_known);
    ps_dnnl_pd_destroy(&pd);
    *known = in_known && out_known;
    return err;
}

/* With 8 or 16 channels, channels-last and blocked layouts are the same, but the library
 * recognises only the channels-last tag. */
static ps_err make_md(const ps_cpu_shape *s, const char *who, dnnl_data_type_t type,
                      order by, ps_dnnl_md **md)
{
    const dnnl_dims_t dims = {s->n, s->c, s->h, s->w};
    if (by == ORDER_CHANNELS_LAST)
        return ps_dnnl_md_create_as(who, 4, dims, type, dnnl_nhwc, md);
    return ps_cpu_shape_md(s, who, type, md);
}

/* The descriptors of the input, the output and their gradients, with the lanes chosen. */
static ps_err make_layouts(const maker *m, plan *p, order by)
{
    const char *who = m->conv.who;
    ps_cpu_shape *in = &p->choice.in, *out = &p->choice.out;
    in->blocks = (in->c + in->lanes - 1) / in->lanes;
    out->blocks = (out->c + out->lanes - 1) / out->lanes;
    PS_TRY(make_md(in, who, m->factor, by, &p->src));
    PS_TRY(make_md(out, who, m->y, by, &p->dst));
    PS_TRY(make_md(in, who, m->dx, by, &p->src_grad));
    return make_md(out, who, m->factor, by, &p->dst_grad);
}

/* Matrix products of rearranged windows ("x64:gemm:jit") take three to ten times what a
 * kernel takes. */
static grade grade_of(dnnl_primitive_desc_t pd)
{
    if (!pd) return GRADE_KERNEL;
    if (ps_dnnl_pd_is_reference(pd)) return GRADE_REFERENCE;
    return strstr(ps_dnnl_pd_name(pd), "gemm:") ? GRADE_PRODUCTS : GRADE_KERNEL;
}

/* Whether our own code computes a gradient: the library has kernels for depthwise
 * convolutions (their names have "_dw"), but not for all windows. */
static bool is_ours(const maker *m, const ps_cpu_conv_choice *c, dnnl_primitive_desc_t pd)
{
    return pd && m->factor == dnnl_f32 &&
           ps_cpu_depthwise_can(m->layer, &c->in, &c->out) &&
           !strstr(ps_dnnl_pd_name(pd), "_dw");
}

static void read_grades(plan *p)
{
    const dnnl_primitive_desc_t passes[] = {p->choice.forward, p->choice.backward_data,
                                            p->choice.backward_weights};
    const bool ours[] = {false, p->choice.depthwise_data, p->choice.depthwise_weights};
    p->worst = GRADE_KERNEL;
    p->sum = (int)grade_of(p->choice.forward); // evaluations run this pass alone
    for (int i = 0; i < 3; i++) {
        const grade g = ours[i] ? GRADE_KERNEL : grade_of(passes[i]);
        if (g < p->worst) p->worst = g;
        p->sum += (int)g;
    }
}

static ps_err conv_make_backward_data(maker *m, const plan *p, dnnl_primitive_desc_t *out)
{
    m->conv.src = p->src_grad;
    m->conv.dst = p->dst_grad;
    m->conv.weights = m->any_weights;
    return ps_dnnl_conv_backward_data(&m->conv, p->choice.forward, out);
}

static ps_err conv_make_backward_weights(maker *m, const plan *p,
                                         dnnl_primitive_desc_t *out)
{
    m->conv.src = p->src;
    m->conv.dst = p->dst_grad;
    m->conv.weights = m->any_weights_grad;
    return ps_dnnl_conv_backward_weights(&m->conv, p->choice.forward, out);
}

static ps_err make_pds(maker *m, plan *p)
{
    const bool back = m->use->winograd != PS_WINOGRAD_OFF;
    ps_cpu_conv_choice *c = &p->choice;
    PS_TRY(make_by(m, p, is_forward_winograd(m), make_planned_forward, &c->forward));
    if (!m->use->training) return PS_OK;
    m->conv.attr = m->attr_back;
    if (m->use->data_gradient)
        PS_TRY(make_by(m, p, back && pays_for_activations(m), conv_make_backward_data,
                       &c->backward_data));
    return make_by(m, p, back && pays_for_weights(m), conv_make_backward_weights,
                   &c->backward_weights);
}

/* The descriptions of the weights' gradient of float32 factors in the plan's layouts. */
static ps_err make_wide(maker *m, const plan *p, order by, dnnl_primitive_desc_t *forward,
                        dnnl_primitive_desc_t *backward)
{
    const char *who = m->conv.who;
    ps_dnnl_md *src = NULL, *dst = NULL;
    ps_err err = make_md(&p->choice.in, who, dnnl_f32, by, &src);
    if (err == PS_OK) err = make_md(&p->choice.out, who, dnnl_f32, by, &dst);
    m->conv.src = src;
    m->conv.dst = dst;
    m->conv.weights = m->any_weights_grad;
    if (err == PS_OK) err = ps_dnnl_conv_forward(&m->conv, true, forward);
    if (err == PS_OK) err = ps_dnnl_conv_backward_weights(&m->conv, *forward, backward);
    ps_dnnl_md_destroy(&src);
    ps_dnnl_md_destroy(&dst);
    return err;
}

/* For AVX512-FP16 the library computes the gradient of the weights by its reference code
 * alone. Float32 copies of the factors give the same products. */
static ps_err widen_weights_pass(maker *m, plan *p, order by)
{
    ps_cpu_conv_choice *c = &p->choice;
    dnnl_primitive_desc_t forward = NULL, wide = NULL;
    if (m->factor != dnnl_f16 || !c->backward_weights ||
        !ps_dnnl_pd_is_reference(c->backward_weights))
        return PS_OK;
    ps_err err = make_wide(m, p, by, &forward, &wide);
    ps_dnnl_pd_destroy(&forward);
    if (err != PS_OK) return err == PS_ERR_UNSUPPORTED ? PS_OK : err;
    ps_dnnl_pd_destroy(&c->backward_weights);
    c->backward_weights = wide;
    c->wide_weights = true;
    return PS_OK;
}

static bool fills_lanes(const ps_cpu_shape *s)
{
    return s->c % s->lanes == 0;
}

/* What oneDNN 2.6's kernels for AVX-512 BF16 compute wrongly: of channels-last gradients
 * with an odd number of channels, the data gradients of 1 x 1 windows; and where the rows
 * are shorter than the stride, the weights' gradients, for which a kernel reads parts of
 * its scratch memory that it has not written. */
static bool is_miscomputed(const maker *m, const plan *p)
{
    const ps_cpu_shape *out = &p->choice.out;
    const bool odd = out->lanes == out->c && out->c % 2 == 1;
    return m->factor == dnnl_bf16 && m->use->training &&
           ((m->use->data_gradient && odd) || m->in.w < m->layer->stride[1]);
}

/* The gradient of the weights that oneDNN's kernels for 1 x 1 windows with a stride
 * compute of channels-last input with fewer channels than a vector has lanes: a thread
 * copies the input as if it had a vector's channels, into the next thread's copy, and
 * past the end of the scratch memory. */
static bool overruns_scratch(const maker *m, const plan *p)
{
    const int64_t lanes = strstr(ps_cpu_isa_name(), "avx512") ? 16 : 8;
    const ps_cpu_shape *in = &p->choice.in;
    return p->choice.backward_weights && in->lanes == in->c && in->c < lanes &&
           (m->layer->stride[0] > 1 || m->layer->stride[1] > 1) &&
           strstr(ps_dnnl_pd_name(p->choice.backward_weights), "1x1");
}

/* p is safe for fini, also after a failure. *known: whether there is such a plan. */
static ps_err plan_init(plan *p, maker *m, order by, bool *known)
{
    ps_cpu_conv_choice *c = &p->choice;
    *p = (plan){.choice = {.in = m->in, .out = m->out, .border = m->border}};
    *known = true;
    c->in.lanes = lanes_of(by, &c->in);
    c->out.lanes = lanes_of(by, &c->out);
    if (by == ORDER_ANY) PS_TRY(read_lanes(m, p, known));
    *known = *known && !is_miscomputed(m, p);
    if (!*known) return PS_OK;
    PS_TRY(make_layouts(m, p, by));
    ps_err err = make_pds(m, p);
    if (err == PS_OK) err = widen_weights_pass(m, p, by);
    *known = err == PS_OK && !overruns_scratch(m, p);
    c->depthwise_data = *known && is_ours(m, c, c->backward_data);
    c->depthwise_weights = *known && is_ours(m, c, c->backward_weights);
    read_grades(p);
    c->slow = p->worst == GRADE_REFERENCE;
    c->grade = (int)p->worst;
    p->fills_lanes = fills_lanes(&c->in) && fills_lanes(&c->out);
    return err == PS_ERR_UNSUPPORTED ? PS_OK : err;
}

static bool conv_is_better(const plan *p, const plan *than)
{
    if (p->worst != than->worst) return p->worst > than->worst;
    if (p->sum != than->sum) return p->sum > than->sum;
    return p->fills_lanes && !than->fills_lanes;
}

static bool conv_is_best(const plan *p)
{
    return p->worst == GRADE_KERNEL && p->fills_lanes;
}

/* The kernels of AMX, and all of fp16, are for channels-last. */
static bool prefers_channels_last(const ps_cpu_conv_use *use)
{
    return use->factors == PS_CPU_FP16 ||
           (use->factors == PS_CPU_BF16 && ps_cpu_has_amx(use->factors));
}

/* Replaces *best by a better plan of the maker's, the first among equals. *found: whether
 * *best is a plan. */
static ps_err conv_improve_choice(plan *best, maker *m, bool *found)
{
    // where there are kernels for channels-last, others need no reorder if they use it
    static const order usual[] = {ORDER_ANY, ORDER_CHANNELS_LAST, ORDER_ROWS};
    static const order last_first[] = {ORDER_CHANNELS_LAST, ORDER_ANY, ORDER_ROWS};
    const order *by = prefers_channels_last(m->use) ? last_first : usual;
    for (int i = 0; i < N_ORDERS && !(*found && conv_is_best(best)); i++) {
        plan p;
        bool known;
        ps_err err = plan_init(&p, m, by[i], &known);
        bool better = err == PS_OK && known && (!*found || conv_is_better(&p, best));
        plan_fini(better ? best : &p);
        if (better) *best = p;
        PS_TRY(err);
        *found |= known;
    }
    return PS_OK;
}

/* Windows of more than 7 columns with a stride have fast AVX2 code only without padding,
 * so an input with a border of zeros is tried where nothing else is fast. Implementations
 * are compared by their names and none is timed, so every run on this processor computes
 * the same sums. */
ps_err ps_cpu_conv_choose(ps_cpu_conv_choice *choice, dnnl_engine_t engine,
                          const ps_layer *layer, const ps_cpu_shape *in,
                          const ps_cpu_conv_use *use)
{
    // a border is added to float32
    const bool pads = (layer->padding[0] > 0 || layer->padding[1] > 0) &&
                      !ps_cpu_factors_are_narrow(use->factors);
    plan best = {0};
    bool found = false;
    ps_err err = PS_OK;
    for (int border = 0; border <= pads && err == PS_OK; border++) {
        maker m;
        if (found && best.worst == GRADE_KERNEL) break;
        err = conv_maker_init(&m, engine, layer, in, use, border);
        if (err == PS_OK) err = conv_improve_choice(&best, &m, &found);
        conv_maker_fini(&m);
    }
    *choice = best.choice;
    best.choice = (ps_cpu_conv_choice){0};
    plan_fini(&best);
    if (err == PS_OK && !found)
        err = ps_err_set(PS_ERR_UNSUPPORTED, "%s: oneDNN has no convolution for it",
                         layer->name);
    return err;
}
