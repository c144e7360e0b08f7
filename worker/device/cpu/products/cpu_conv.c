#include "cpu_conv.h"

#include <string.h>

#include "cpu_depthwise.h"
#include "cpu_pointwise.h"
#include "cpu_product_choice.h"

/* Makes no primitive when the two descriptors are equal. */
static ps_err make_order(dnnl_engine_t engine, const char *who, const ps_dnnl_md *from,
                         const ps_dnnl_md *to, ps_cpu_op *op)
{
    dnnl_primitive_desc_t pd = NULL;
    dnnl_primitive_attr_t attr = NULL;
    if (dnnl_memory_desc_equal(from, to)) return PS_OK;
    PS_TRY(ps_dnnl_attr_create(who, false, &attr));
    ps_err err = ps_dnnl_reorder(engine, who, from, to, attr, &pd);
    dnnl_primitive_attr_destroy(attr);
    return err == PS_OK ? ps_cpu_op_create(op, who, &pd) : err;
}

/* The weights in PyTorch's order, as factors, and their gradient. */
typedef struct plain_mds {
    ps_dnnl_md *weights, *gradient;
} plain_mds;

/* matrix: (out, all others), as products take them. */
static ps_err plain_md(const ps_cpu_conv *c, bool matrix, dnnl_data_type_t type,
                       ps_dnnl_md **out)
{
    static const dnnl_format_tag_t tags[] = {
        [2] = dnnl_oi, [4] = dnnl_oihw, [5] = dnnl_goihw};
    dnnl_dims_t dims = {c->out.c, c->n_weights / c->out.c};
    const int n_dims = matrix ? 2 : ps_cpu_conv_weight_dims(c->layer, dims);
    return ps_dnnl_md_create_as(c->layer->name, n_dims, dims, type, tags[n_dims], out);
}

static ps_err plain_init(plain_mds *plain, const ps_cpu_conv *c)
{
    const dnnl_data_type_t type = ps_cpu_factor_type(c->factors);
    const bool linear = c->layer->kind == PS_LAYER_LINEAR;
    *plain = (plain_mds){0};
    PS_TRY(
        plain_md(c, linear || c->products == PS_CPU_ALL_PRODUCTS, type, &plain->weights));
    return plain_md(c, linear || c->products != PS_CPU_NO_PRODUCTS, dnnl_f32,
                    &plain->gradient);
}

static void plain_fini(plain_mds *plain)
{
    ps_dnnl_md_destroy(&plain->weights);
    ps_dnnl_md_destroy(&plain->gradient);
}

static ps_err make_backward(ps_cpu_conv *c, dnnl_engine_t engine,
                            ps_cpu_conv_choice *choice, const plain_mds *plain)
{
    const char *who = c->layer->name;
    if (choice->backward_data && !choice->depthwise_data) {
        PS_TRY(ps_cpu_op_create(&c->backward_data, who, &choice->backward_data));
        const ps_dnnl_md *wanted =
            ps_cpu_op_md(&c->backward_data, dnnl_query_weights_md, 0);
        c->own_weights_back = !dnnl_memory_desc_equal(
            wanted, ps_cpu_op_md(&c->forward, dnnl_query_weights_md, 0));
        if (c->own_weights_back)
            PS_TRY(
                make_order(engine, who, plain->weights, wanted, &c->order_weights_back));
    }
    if (c->depthwise_weights) return PS_OK;
    PS_TRY(ps_cpu_op_create(&c->backward_weights, who, &choice->backward_weights));
    return make_order(engine, who,
                      ps_cpu_op_md(&c->backward_weights, dnnl_query_diff_weights_md, 0),
                      plain->gradient, &c->order_gradient);
}

static ps_err make_primitives(ps_cpu_conv *c, dnnl_engine_t engine,
                              ps_cpu_conv_choice *choice)
{
    const char *who = c->layer->name;
    plain_mds plain;
    ps_err err = plain_init(&plain, c);
    if (err == PS_OK) err = ps_cpu_op_create(&c->forward, who, &choice->forward);
    if (err == PS_OK)
        err = make_order(engine, who, plain.weights,
                         ps_cpu_op_md(&c->forward, dnnl_query_weights_md, 0),
                         &c->order_weights);
    if (err == PS_OK && choice->backward_weights)
        err = make_backward(c, engine, choice, &plain);
    plain_fini(&plain);
    return err;
}

static void set_layouts(ps_cpu_conv *c, const ps_cpu_conv_choice *choice)
{
    const int64_t h = c->in.h, w = c->in.w;
    c->in = choice->in;
    c->out = choice->out;
    c->slow = choice->slow;
    c->products = choice->products;
    c->wide_weights = choice->wide_weights;
    if (choice->border) {
        c->bordered = choice->in;
        c->in.h = h;
        c->in.w = w;
    }
    c->depthwise_weights = choice->depthwise_weights;
    c->depthwise_data = choice->depthwise_data;
    if (c->products != PS_CPU_NO_PRODUCTS || c->depthwise_weights)
        c->windows =
            ps_cpu_windows_of(c->layer, c->depthwise_weights ? &choice->in : &c->in);
    if (c->depthwise_weights && choice->border) // then the padding is part of x
        c->windows.padding[0] = c->windows.padding[1] = 0;
}

/* The least channels, positions of an output, and positions of a batch for which
 * Winograd's algorithm in float32 took less time in all passes than AVX-512's products of
 * bf16. */
enum { WINOGRAD_CHANNELS = 64, WINOGRAD_PLANE = 64, WINOGRAD_POSITIONS = 2048 };

/* AMX's products are faster still. Of factors of 8 bits, the algorithm's own rounding
 * errors, in float32, are not seen; so it computes the forward pass, too. */
static bool prefers_winograd(const ps_cpu_conv *c, const ps_cpu_conv_use *use)
{
    const ps_layer *l = c->layer;
    const int64_t plane = l->out.d[1] * l->out.d[2];
    return PS_DNNL_HAS_WINOGRAD && use->winograd != PS_WINOGRAD_OFF &&
           !ps_cpu_has_amx(use->factors) && ps_cpu_conv_can_be_winograd(l) &&
           c->in.c >= WINOGRAD_CHANNELS && l->out.d[0] >= WINOGRAD_CHANNELS &&
           plane >= WINOGRAD_PLANE && c->in.n * plane >= WINOGRAD_POSITIONS;
}

/* For a depthwise convolution's gradients the library has kernels of its own up to 3 x 3
 * windows without dilation; for the others in float32 we have code (cpu_depthwise.h). In
 * fp16 the library has none for the gradient of data. The answer is the same for
 * evaluations, whose products have to be rounded alike. */
static bool is_slow_depthwise(const ps_layer *l, ps_cpu_factors factors)
{
    return ps_cpu_is_depthwise(l) &&
           (factors == PS_CPU_FP16 || l->kernel[0] > 3 || l->kernel[1] > 3 ||
            l->dilation[0] > 1 || l->dilation[1] > 1);
}

/* Products of 16 bits, or of rounded float32 where the library has better code for that.
 */
static ps_err choose_narrow(ps_cpu_conv *c, dnnl_engine_t engine, const ps_cpu_shape *in,
                            const ps_cpu_conv_use *use, ps_cpu_conv_choice *choice)
{
    ps_cpu_conv_choice rounded;
    ps_cpu_conv_use with = *use;
    with.winograd = PS_WINOGRAD_OFF; // the library has it for float32 alone
    ps_err err = ps_cpu_conv_choose(choice, engine, c->layer, in, &with);
    if (err != PS_OK && err != PS_ERR_UNSUPPORTED) return err;
    with = *use;
    with.factors = ps_cpu_factors_rounded(use->factors);
    const bool winograd = prefers_winograd(c, use);
    if (winograd) with.winograd = PS_WINOGRAD_ALL;
    ps_err other = ps_cpu_conv_choose(&rounded, engine, c->layer, in, &with);
    const bool faster = winograd || (is_slow_depthwise(c->layer, use->factors) &&
                                     rounded.grade >= choice->grade);
    if (other == PS_OK && (err != PS_OK || faster || rounded.grade > choice->grade)) {
        const ps_cpu_conv_choice swapped = *choice;
        *choice = rounded;
        rounded = swapped;
        c->factors = with.factors;
        err = PS_OK;
    }
    ps_cpu_conv_choice_fini(&rounded);
    return err;
}

static ps_err cpu_conv_choose(ps_cpu_conv *c, dnnl_engine_t engine,
                              const ps_cpu_shape *in, const ps_cpu_conv_use *use,
                              ps_cpu_conv_choice *choice)
{
    const ps_layer *l = c->layer;
    if (l->kind == PS_LAYER_LINEAR)
        return ps_cpu_product_choose(choice, engine, l, in, use);
    const ps_cpu_conv_products products = ps_cpu_product_of_windows(l, use);
    if (products == PS_CPU_ALL_PRODUCTS) {
        ps_err err = ps_cpu_product_choose_windows(choice, engine, l, in, use);
        if (err != PS_ERR_UNSUPPORTED) return err;
        ps_cpu_conv_choice_fini(choice);
    }
    if (ps_cpu_factors_are_narrow(use->factors))
        return choose_narrow(c, engine, in, use, choice);
    PS_TRY(ps_cpu_conv_choose(choice, engine, l, in, use));
    if (products != PS_CPU_WEIGHTS_PRODUCTS) return PS_OK;
    return ps_cpu_product_choose_weights(choice, engine, l, in, use);
}

static void count_parameters(ps_cpu_conv *c)
{
    const ps_layer *l = c->layer;
    const bool linear = l->kind == PS_LAYER_LINEAR;
    const int64_t window = l->kernel[0] * l->kernel[1];
    c->n_bias = linear || l->bias == PS_NONE ? 0 : c->out.c;
    c->n_weights = c->out.c * c->in.c;
    if (!linear) c->n_weights = c->n_weights / l->groups * window;
}

ps_err ps_cpu_conv_init(ps_cpu_conv *c, dnnl_engine_t engine, const ps_layer *layer,
                        const ps_cpu_shape *in, const ps_cpu_conv_use *use)
{
    ps_cpu_conv_choice choice = {0};
    *c = (ps_cpu_conv){.layer = layer, .in = *in, .factors = use->factors};
    c->slot.rows = PS_NO_SLOT;
    ps_err err = cpu_conv_choose(c, engine, in, use, &choice);
    if (err == PS_OK) {
        set_layouts(c, &choice);
        c->narrow_dx = use->narrow_dx && ps_cpu_factors_are_narrow(c->factors) &&
                       layer->kind == PS_LAYER_CONV2D &&
                       choice.products == PS_CPU_NO_PRODUCTS;
        count_parameters(c);
        err = make_primitives(c, engine, &choice);
    }
    ps_cpu_conv_choice_fini(&choice);
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

static size_t bordered_bytes(const ps_cpu_conv *c)
{
    return sizeof(float) * (size_t)ps_cpu_shape_count(&c->bordered);
}

/* Of the products' matrix of windows. */
static size_t rows_bytes(const ps_cpu_conv *c, ps_cpu_conv_products products,
                         size_t element)
{
    if (c->products != products) return 0;
    return element * (size_t)(ps_cpu_windows_rows(&c->windows) *
                              ps_cpu_windows_columns(&c->windows));
}

/* In channels-last order. */
static size_t rows_dy_bytes(const ps_cpu_conv *c)
{
    if (c->products != PS_CPU_WEIGHTS_PRODUCTS || c->out.lanes == c->out.c) return 0;
    return sizeof(float) * (size_t)(ps_cpu_windows_rows(&c->windows) * c->out.c);
}

/* Of float32 copies for the gradient of the weights. */
static size_t wide_bytes(const ps_cpu_conv *c, const ps_cpu_shape *shape)
{
    return c->wide_weights ? sizeof(float) * (size_t)ps_cpu_shape_count(shape) : 0;
}

static size_t rounded_bytes(const ps_cpu_conv *c)
{
    if (c->factors == PS_CPU_FLOAT32) return 0;
    return ps_cpu_factor_bytes(c->factors) * (size_t)c->n_weights;
}

ps_err ps_cpu_conv_plan_forward(ps_cpu_conv *c, ps_memory_plan *memory, bool training)
{
    PS_TRY(ps_memory_plan_take(memory, rounded_bytes(c), &c->slot.rounded));
    PS_TRY(ps_memory_plan_take(memory, bordered_bytes(c), &c->slot.bordered));
    PS_TRY(ps_memory_plan_take(
        memory, rows_bytes(c, PS_CPU_ALL_PRODUCTS, ps_cpu_factor_bytes(c->factors)),
        &c->slot.rows));
    PS_TRY(ps_memory_plan_take(
        memory, ps_cpu_op_bytes(&c->order_weights, dnnl_query_dst_md), &c->slot.weights));
    PS_TRY(ps_memory_plan_take(memory, ps_cpu_op_scratch_bytes(&c->forward),
                               &c->slot.scratch));
    ps_memory_plan_give(memory, c->slot.scratch);
    if (!training) ps_memory_plan_give(memory, c->slot.bordered);
    if (!training) ps_memory_plan_give(memory, c->slot.rows);
    if (!training) ps_memory_plan_give(memory, c->slot.rounded);
    bool kept = training && c->backward_data.primitive && !c->own_weights_back;
    if (!kept) ps_memory_plan_give(memory, c->slot.weights);
    return PS_OK;
}

/* What the gradient of the weights needs while it is computed. */
static ps_err lend_weights_scratch(ps_cpu_conv *c, ps_memory_plan *memory)
{
    PS_TRY(ps_memory_plan_take(memory, wide_bytes(c, &c->in), &c->slot.wide_x));
    PS_TRY(ps_memory_plan_take(memory, wide_bytes(c, &c->out), &c->slot.wide_dy));
    PS_TRY(ps_memory_plan_take(memory, ps_cpu_op_scratch_bytes(&c->backward_weights),
                               &c->slot.scratch_weights));
    ps_memory_plan_give(memory, c->slot.scratch_weights);
    ps_memory_plan_give(memory, c->slot.wide_x);
    ps_memory_plan_give(memory, c->slot.wide_dy);
    return PS_OK;
}

static ps_err take_rows(ps_cpu_conv *c, ps_memory_plan *memory)
{
    const size_t dx = rows_bytes(c, PS_CPU_ALL_PRODUCTS, sizeof(float));
    if (c->products == PS_CPU_WEIGHTS_PRODUCTS)
        PS_TRY(ps_memory_plan_take(memory,
                                   rows_bytes(c, PS_CPU_WEIGHTS_PRODUCTS, sizeof(float)),
                                   &c->slot.rows));
    PS_TRY(ps_memory_plan_take(memory, c->backward_data.primitive ? dx : 0,
                               &c->slot.rows_dx));
    return ps_memory_plan_take(memory, rows_dy_bytes(c), &c->slot.rows_dy);
}

static void give_rows(const ps_cpu_conv *c, ps_memory_plan *memory)
{
    ps_memory_plan_give(memory, c->slot.rows);
    ps_memory_plan_give(memory, c->slot.rows_dx);
    ps_memory_plan_give(memory, c->slot.rows_dy);
}

ps_err ps_cpu_conv_plan_backward(ps_cpu_conv *c, ps_memory_plan *memory)
{
    PS_TRY(take_rows(c, memory));
    PS_TRY(ps_memory_plan_take(memory, c->backward_data.primitive ? bordered_bytes(c) : 0,
                               &c->slot.bordered_dx));
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
    PS_TRY(lend_weights_scratch(c, memory));
    ps_memory_plan_give(memory, c->slot.weights_back);
    ps_memory_plan_give(memory, c->slot.gradient);
    ps_memory_plan_give(memory, c->slot.plain_gradient);
    ps_memory_plan_give(memory, c->slot.bias_gradient);
    give_rows(c, memory);
    ps_memory_plan_give(memory, c->slot.bordered_dx);
    ps_memory_plan_give(memory, c->slot.bordered);
    ps_memory_plan_give(memory, c->slot.rounded);
    if (c->backward_data.primitive && !c->own_weights_back)
        ps_memory_plan_give(memory, c->slot.weights);
    return PS_OK;
}

/* Binds a reorder from PyTorch's layout to a slot; *where: where the weights are
 * afterwards. */
static ps_err bind_order(ps_cpu_op *op, const char *who, void *weight, void *ordered,
                         void **where)
{
    *where = op->primitive ? ordered : weight;
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_FROM, dnnl_query_src_md, weight));
    return ps_cpu_op_bind_own(op, who, DNNL_ARG_TO, dnnl_query_dst_md, ordered);
}

/* What the forward pass reads, if the input is x. */
static void *forward_source(const ps_cpu_conv *c, void *x)
{
    if (c->products == PS_CPU_ALL_PRODUCTS) return c->rows;
    return c->bordered_x ? c->bordered_x : x;
}

/* What the gradient of the weights is computed of. */
static void *weights_source(const ps_cpu_conv *c, void *x)
{
    if (c->wide_x) return c->wide_x;
    return c->rows ? c->rows : forward_source(c, x);
}

static ps_err cpu_conv_bind_forward(ps_cpu_conv *c, const ps_memory_plan *memory,
                                    const ps_cpu_conv_arrays *p, void **weights)
{
    const char *who = c->layer->name;
    ps_cpu_op *op = &c->forward;
    c->weight = p->weight;
    c->rounded = ps_memory_plan_at(memory, c->slot.rounded);
    PS_TRY(bind_order(&c->order_weights, who, c->rounded ? c->rounded : p->weight,
                      ps_memory_plan_at(memory, c->slot.weights), weights));
    c->bordered_x = ps_memory_plan_at(memory, c->slot.bordered);
    c->rows = ps_memory_plan_at(memory, c->slot.rows);
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_SRC, dnnl_query_src_md,
                              forward_source(c, p->x)));
    PS_TRY(
        ps_cpu_op_bind_own(op, who, DNNL_ARG_WEIGHTS, dnnl_query_weights_md, *weights));
    if (p->bias)
        PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_BIAS,
                              ps_cpu_op_md(op, dnnl_query_weights_md, 1), p->bias));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DST, dnnl_query_dst_md, p->y));
    return ps_cpu_op_bind_scratch(op, who, ps_memory_plan_at(memory, c->slot.scratch));
}

static ps_err bind_backward_data(ps_cpu_conv *c, const ps_memory_plan *memory,
                                 const ps_cpu_conv_arrays *p, void *weights)
{
    const char *who = c->layer->name;
    ps_cpu_op *op = &c->backward_data;
    c->dx = p->dx;
    if (!op->primitive) return PS_OK;
    if (c->own_weights_back)
        PS_TRY(bind_order(&c->order_weights_back, who,
                          c->rounded ? c->rounded : p->weight,
                          ps_memory_plan_at(memory, c->slot.weights_back), &weights));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_WEIGHTS, dnnl_query_weights_md, weights));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, p->dy));
    c->bordered_dx = ps_memory_plan_at(memory, c->slot.bordered_dx);
    c->rows_dx = ps_memory_plan_at(memory, c->slot.rows_dx);
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md,
                              c->bordered_dx ? c->bordered_dx
                              : c->rows_dx   ? c->rows_dx
                                             : p->dx));
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
    c->dy = p->dy;
    if (c->depthwise_weights) return PS_OK;
    c->rows_dy = ps_memory_plan_at(memory, c->slot.rows_dy);
    c->wide_x = ps_memory_plan_at(memory, c->slot.wide_x);
    c->wide_dy = ps_memory_plan_at(memory, c->slot.wide_dy);
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_SRC, dnnl_query_src_md,
                              weights_source(c, p->x)));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md,
                              c->wide_dy   ? c->wide_dy
                              : c->rows_dy ? c->rows_dy
                                           : p->dy));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DIFF_WEIGHTS, dnnl_query_diff_weights_md,
                              gradient));
    if (p->bias)
        PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_BIAS,
                              ps_cpu_op_md(op, dnnl_query_diff_weights_md, 1),
                              c->bias_gradient));
    PS_TRY(ps_cpu_op_bind_scratch(op, who,
                                  ps_memory_plan_at(memory, c->slot.scratch_weights)));
    if (!reorder->primitive) return PS_OK;
    PS_TRY(ps_cpu_op_bind_own(reorder, who, DNNL_ARG_FROM, dnnl_query_src_md, gradient));
    return ps_cpu_op_bind_own(reorder, who, DNNL_ARG_TO, dnnl_query_dst_md,
                              c->plain_gradient);
}

ps_err ps_cpu_conv_bind(ps_cpu_conv *c, const ps_memory_plan *memory,
                        const ps_cpu_conv_arrays *p)
{
    void *weights = NULL;
    PS_TRY(cpu_conv_bind_forward(c, memory, p, &weights));
    if (!p->dy) return PS_OK;
    c->plain_gradient = ps_memory_plan_at(memory, c->slot.plain_gradient);
    c->bias_gradient = ps_memory_plan_at(memory, c->slot.bias_gradient);
    PS_TRY(bind_backward_data(c, memory, p, weights));
    return bind_backward_weights(c, memory, p);
}

/* Elements of x, and of the same in a border of zeros: of its shape and layout, except
 * that h and w are larger by an even number. */
typedef struct conv_border {
    int64_t row, pitch; // a row of x; a row with its border
    int64_t top, left;  // before x
    int64_t plane;      // with its border
    int64_t outer;      // planes
} conv_border;

static conv_border conv_border_of(const ps_cpu_conv *c)
{
    const ps_cpu_shape *x = &c->in, *y = &c->bordered;
    const int64_t row = x->w * x->lanes, pitch = y->w * x->lanes;
    return (conv_border){.row = row,
                         .pitch = pitch,
                         .top = (y->h - x->h) / 2 * pitch,
                         .left = (pitch - row) / 2,
                         .plane = y->h * pitch,
                         .outer = ps_cpu_shape_outer(x)};
}

static void conv_add_border(const ps_cpu_conv *c, const float *x, float *y)
{
    const conv_border b = conv_border_of(c);
    for (int64_t o = 0; o < b.outer; o++, y += b.plane) {
        memset(y, 0, sizeof *y * (size_t)b.top);
        for (int64_t h = 0; h < c->in.h; h++, x += b.row) {
            float *to = y + b.top + h * b.pitch;
            memset(to, 0, sizeof *to * (size_t)b.left);
            memcpy(to + b.left, x, sizeof *to * (size_t)b.row);
            memset(to + b.left + b.row, 0, sizeof *to * (size_t)b.left);
        }
        memset(y + b.plane - b.top, 0, sizeof *y * (size_t)b.top);
    }
}

static void conv_remove_border(const ps_cpu_conv *c, const float *y, float *x)
{
    const conv_border b = conv_border_of(c);
    for (int64_t o = 0; o < b.outer; o++, y += b.plane) {
        for (int64_t h = 0; h < c->in.h; h++, x += b.row)
            memcpy(x, y + b.top + h * b.pitch + b.left, sizeof *x * (size_t)b.row);
    }
}

ps_err ps_cpu_conv_forward(ps_cpu_conv *c, dnnl_stream_t stream, const void *x)
{
    const char *who = c->layer->name;
    if (c->rounded) ps_cpu_narrow(c->factors, c->n_weights, c->weight, c->rounded);
    PS_TRY(ps_cpu_op_run(&c->order_weights, who, stream));
    if (c->products == PS_CPU_ALL_PRODUCTS)
        ps_cpu_windows_gather(&c->windows, ps_cpu_factor_bytes(c->factors), x, c->rows);
    else if (c->bordered_x)
        conv_add_border(c, x, c->bordered_x);
    else
        PS_TRY(ps_cpu_op_rebind(&c->forward, who, DNNL_ARG_SRC, x));
    return ps_cpu_op_run(&c->forward, who, stream);
}

/* Brings what the gradient of the weights is computed of into its type or order. */
static void arrange_factors(const ps_cpu_conv *c, const void *x)
{
    if (c->wide_x) {
        ps_cpu_widen(c->factors, ps_cpu_shape_count(&c->in), x, c->wide_x);
        ps_cpu_widen(c->factors, ps_cpu_shape_count(&c->out), c->dy, c->wide_dy);
    }
    if (c->products != PS_CPU_WEIGHTS_PRODUCTS) return;
    ps_cpu_windows_gather(&c->windows, sizeof(float), x, c->rows);
    if (!c->rows_dy) return;
    ps_cpu_shape last = c->out;
    last.lanes = last.c;
    last.blocks = 1;
    ps_cpu_convert(&c->out, c->dy, &last, c->rows_dy, false);
}

static ps_err library_weights(ps_cpu_conv *c, dnnl_stream_t stream, const void *x,
                              float *dweight, float *dbias)
{
    const char *who = c->layer->name;
    ps_cpu_op *last =
        c->order_gradient.primitive ? &c->order_gradient : &c->backward_weights;
    int arg = c->order_gradient.primitive ? DNNL_ARG_TO : DNNL_ARG_DIFF_WEIGHTS;
    PS_TRY(ps_cpu_op_rebind(last, who, arg, dweight));
    PS_TRY(ps_cpu_op_rebind(&c->backward_weights, who, DNNL_ARG_DIFF_BIAS, dbias));
    arrange_factors(c, x);
    if (!c->bordered_x && !c->rows && !c->wide_x) // else they have been filled
        PS_TRY(ps_cpu_op_rebind(&c->backward_weights, who, DNNL_ARG_SRC, x));
    PS_TRY(ps_cpu_op_run(&c->backward_weights, who, stream));
    return ps_cpu_op_run(&c->order_gradient, who, stream);
}

/* One of the two that is not needed is computed beside the other, and dropped. */
static ps_err backward_weights(ps_cpu_conv *c, dnnl_stream_t stream, const void *x,
                               float *dweight, float *dbias, bool accumulate)
{
    float *weights = accumulate || !dweight ? c->plain_gradient : dweight;
    float *bias = accumulate || !dbias ? c->bias_gradient : dbias;
    if (c->depthwise_weights)
        ps_cpu_depthwise_weights(&c->windows, c->bordered_x ? c->bordered_x : x, c->dy,
                                 weights, c->n_bias > 0 ? bias : NULL);
    else
        PS_TRY(library_weights(c, stream, x, weights, bias));
    if (accumulate && dweight) ps_cpu_pass(c->n_weights, weights, dweight, true);
    if (accumulate && dbias) ps_cpu_pass(c->n_bias, bias, dbias, true);
    return PS_OK;
}

ps_err ps_cpu_conv_backward(ps_cpu_conv *c, dnnl_stream_t stream, const void *x,
                            float *dweight, float *dbias, bool accumulate)
{
    const char *who = c->layer->name;
    if (dweight || dbias)
        PS_TRY(backward_weights(c, stream, x, dweight, dbias, accumulate));
    if (c->depthwise_data) {
        const ps_cpu_windows windows = ps_cpu_windows_of(c->layer, &c->in);
        ps_cpu_depthwise_data(&windows, c->rounded ? c->rounded : c->weight, c->dy,
                              c->dx);
    }
    PS_TRY(ps_cpu_op_run(&c->order_weights_back, who, stream));
    PS_TRY(ps_cpu_op_run(&c->backward_data, who, stream));
    if (c->bordered_dx) conv_remove_border(c, c->bordered_dx, c->dx);
    if (c->rows_dx) ps_cpu_windows_sum(&c->windows, c->rows_dx, c->dx);
    return PS_OK;
}
