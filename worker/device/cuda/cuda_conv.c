#include "cuda_conv.h"

#include "cuda_products.h"

/* The shapes of a convolution as products, for `samples` of the n samples at a time: for
 * each group, y (out, columns) = weight (out, window) columns (window, columns). */
typedef struct conv_slice {
    int64_t first, samples;
    int64_t columns;     // samples * P
    int64_t window, out; // rows of a group
    int64_t groups;
    int64_t count; // out * columns
    size_t at;     // index in y of the first sample
} conv_slice;

static conv_slice slice_at(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t first)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    int64_t left = r->n - first;
    conv_slice c = {.first = first, .samples = left < s->slice ? left : s->slice};
    c.columns = c.samples * out->plane;
    c.groups = l->groups;
    c.window = l->in.d[0] / c.groups * l->kernel[0] * l->kernel[1];
    c.out = out->channels / c.groups;
    c.count = out->channels * c.columns;
    c.at = (size_t)(first * out->features);
    return c;
}

/* Where a group's rows begin. */
static ps_values weights_of(const conv_slice *c, ps_values weights, int64_t group)
{
    return ps_values_from(weights, (size_t)(group * c->out * c->window));
}

static ps_values cuda_conv_columns_of(const conv_slice *c, ps_values columns,
                                      int64_t group)
{
    return ps_values_from(columns, (size_t)(group * c->window * c->columns));
}

static ps_values outputs_of(const conv_slice *c, ps_values outputs, int64_t group)
{
    return ps_values_from(outputs, (size_t)(group * c->out * c->columns));
}

/* Of ps_column_row, as the weights' rows are. */
static ps_divisor row_channels(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    return ps_divisor_of(ps_cuda_turns_weight(r->plan, l) ? l->in.d[0] / l->groups : 1);
}

static ps_err make_columns(const ps_cuda_pass *r, const ps_cuda_step *s,
                           const conv_slice *c, ps_values *columns)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    *columns = (ps_values){p->scratch, ps_gpu_format(p->gpu)};
    return PS_LAUNCH(p->gpu, im2col, in->channels * c->columns, PS_CUDA_NAME(s),
                     .x = in->at, .col = *columns, .channels = (uint32_t)in->channels,
                     .n_first = (uint32_t)c->first, .in_group = row_channels(r, s),
                     .columns = ps_divisor_of(c->columns), .at = s->planes);
}

/* Writes the product (out, samples, P) to the outputs (samples, out, P), or (samples, P,
 * out). */
static ps_err put_outputs(const ps_cuda_pass *r, const ps_cuda_step *s,
                          const conv_slice *c)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH(r->plan->gpu, swap, c->count, PS_CUDA_NAME(s), .x = r->plan->swapped,
                     .y = ps_values_from(out->at, c->at),
                     .b = (uint32_t)(c->samples * ps_cuda_outer(out)),
                     .a = ps_divisor_of(c->groups * c->out),
                     .inner = ps_divisor_of(ps_cuda_inner(out)));
}

/* Converts the outputs' gradient to the order that products read. */
static ps_err get_gradient(const ps_cuda_pass *r, const ps_cuda_step *s,
                           const conv_slice *c)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH(r->plan->gpu, swap, c->count, PS_CUDA_NAME(s),
                     .x = ps_values_from(out->grad, c->at), .y = r->plan->swapped,
                     .b = (uint32_t)(c->groups * c->out),
                     .a = ps_divisor_of(c->samples * ps_cuda_outer(out)),
                     .inner = ps_divisor_of(ps_cuda_inner(out)));
}

/* *plan NULL: the layer computes this direction by products. */
static ps_err library_plan(const ps_cuda_pass *r, const ps_cuda_step *s,
                           ps_conv_kind kind, bool add, ps_conv_plan **plan)
{
    ps_format format = ps_gpu_format(r->plan->gpu);
    *plan = NULL;
    if (ps_cuda_input_of(r, s, 0)->at.format != format ||
        ps_cuda_output_of(r, s)->at.format != format)
        return PS_OK;
    return ps_cuda_conv_plans_find(r->plan->convs, s->node->layer, kind, r->n, add, plan);
}

static ps_err multiply_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    for (int64_t first = 0; first < r->n; first += s->slice) {
        conv_slice c = slice_at(r, s, first);
        ps_values columns;
        PS_TRY(make_columns(r, s, &c, &columns));
        for (int64_t g = 0; g < c.groups; g++)
            PS_TRY(ps_cuda_multiply(
                r, PS_CUDA_NAME(s),
                (ps_gpu_gemm){.m = c.out,
                              .n = c.columns,
                              .k = c.window,
                              .a = weights_of(&c, ps_cuda_weight(r, s), g),
                              .lda = c.window,
                              .b = cuda_conv_columns_of(&c, columns, g),
                              .ldb = c.columns,
                              .c = outputs_of(&c, r->plan->swapped, g),
                              .ldc = c.columns}));
        PS_TRY(put_outputs(r, s, &c));
    }
    return PS_OK;
}

ps_err ps_cuda_conv_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    ps_conv_plan *plan;
    PS_TRY(ps_cuda_narrow_weight(r, s));
    PS_TRY(library_plan(r, s, PS_CONV_FORWARD, false, &plan));
    if (plan)
        PS_TRY(ps_conv_plan_run(plan, in->at.at, ps_cuda_weight(r, s).at, out->at.at,
                                r->plan->scratch, PS_CUDA_NAME(s)));
    else
        PS_TRY(multiply_forward(r, s));
    if (s->node->relu_by_pool) return PS_OK; // the max_pool adds the bias too
    return ps_cuda_add_bias(r, s, ps_cuda_inner(out), out->channels);
}

/* Writes, or adds, the layer's weight gradient to the arena. */
static ps_err put_weight_grad(const ps_cuda_pass *r, const ps_cuda_step *s,
                              ps_values gradient)
{
    const ps_layer *l = s->node->layer;
    const ps_tensor *t = ps_tensor_table_at(&r->plan->options->spec->table, l->weight);
    const ps_values dw = ps_floats(ps_cuda_grad(r->plan, l->weight));
    if (ps_cuda_turns_weight(r->plan, l))
        return PS_LAUNCH(
            r->plan->gpu, turn, (int64_t)t->count, PS_CUDA_NAME(s), .x = gradient,
            .y = dw, .a = ps_divisor_of(l->kernel[0] * l->kernel[1]),
            .b = ps_divisor_of(l->in.d[0] / l->groups), .add = r->accumulate);
    return PS_LAUNCH_WIDE(r->plan->gpu, pass, (int64_t)t->count, PS_CUDA_NAME(s),
                          .x = gradient, .y = dw, .add = r->accumulate);
}

static ps_err multiply_backward_weight(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const bool turns = ps_cuda_turns_weight(r->plan, s->node->layer);
    float *dw = ps_cuda_grad(r->plan, s->node->layer->weight);
    const ps_values gradient = ps_floats(turns ? r->plan->weight_grad : dw);
    const bool add = r->accumulate && !turns;
    for (int64_t first = 0; first < r->n; first += s->slice) {
        conv_slice c = slice_at(r, s, first);
        ps_values columns;
        PS_TRY(make_columns(r, s, &c, &columns));
        PS_TRY(get_gradient(r, s, &c));
        for (int64_t g = 0; g < c.groups; g++)
            PS_TRY(
                ps_cuda_multiply(r, PS_CUDA_NAME(s),
                                 (ps_gpu_gemm){.tb = true,
                                               .m = c.out,
                                               .n = c.window,
                                               .k = c.columns,
                                               .a = outputs_of(&c, r->plan->swapped, g),
                                               .lda = c.columns,
                                               .b = cuda_conv_columns_of(&c, columns, g),
                                               .ldb = c.columns,
                                               .beta = add || first > 0 ? 1.0f : 0.0f,
                                               .c = weights_of(&c, gradient, g),
                                               .ldc = c.window}));
    }
    return turns ? put_weight_grad(r, s, gradient) : PS_OK;
}

static ps_err conv_backward_bias(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    float *db = ps_cuda_grad(r->plan, s->node->layer->bias);
    const ps_rows rows = ps_rows_of(r->n, out->channels, out->plane);
    if (out->layout.channels_last) return ps_cuda_bias_by_blocks(r, s, r->n * out->plane);
    PS_TRY(PS_LAUNCH_ON(r->plan->gpu, PS_GPU_SIDE, row_sums,
                        out->channels * rows.parts.by, PS_CUDA_NAME(s), .x = out->grad,
                        .parts = r->plan->parts, .rows = rows));
    return PS_LAUNCH_ON(r->plan->gpu, PS_GPU_SIDE, row_total, out->channels,
                        PS_CUDA_NAME(s), .parts = r->plan->parts, .y = db, .rows = rows,
                        .add = r->accumulate);
}

static ps_err multiply_backward_input(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    for (int64_t first = 0; first < r->n; first += s->slice) {
        conv_slice c = slice_at(r, s, first);
        int64_t inputs = c.samples * in->plane;
        PS_TRY(get_gradient(r, s, &c));
        for (int64_t g = 0; g < c.groups; g++)
            PS_TRY(ps_cuda_multiply(
                r, PS_CUDA_NAME(s),
                (ps_gpu_gemm){
                    .ta = true,
                    .m = c.window,
                    .n = c.columns,
                    .k = c.out,
                    .a = weights_of(&c, ps_cuda_weight(r, s), g),
                    .lda = c.window,
                    .b = outputs_of(&c, r->plan->swapped, g),
                    .ldb = c.columns,
                    .c = cuda_conv_columns_of(&c, ps_floats(r->plan->scratch), g),
                    .ldc = c.columns}));
        PS_TRY(PS_LAUNCH(r->plan->gpu, col2im, in->channels * inputs, PS_CUDA_NAME(s),
                         .col = r->plan->scratch, .dx = in->grad,
                         .channels = (uint32_t)in->channels, .n_first = (uint32_t)first,
                         .in_group = row_channels(r, s), .inputs = ps_divisor_of(inputs),
                         .columns = (uint32_t)c.columns, .at = s->planes,
                         .add = s->add[0]));
    }
    return PS_OK;
}

static ps_err mirrored_backward_input(const ps_cuda_pass *r, const ps_cuda_step *s,
                                      ps_conv_plan *plan)
{
    const ps_layer *l = s->node->layer;
    const ps_tensor *t = ps_tensor_table_at(&r->plan->options->spec->table, l->weight);
    PS_TRY(PS_LAUNCH(r->plan->gpu, mirror, (int64_t)t->count, PS_CUDA_NAME(s),
                     .x = ps_cuda_param(r->plan, l->weight), .y = r->plan->mirrored,
                     .in = (uint32_t)l->in.d[0], .out = ps_divisor_of(l->out.d[0]),
                     .window = ps_divisor_of(l->kernel[0] * l->kernel[1])));
    return ps_conv_plan_run(plan, ps_cuda_output_of(r, s)->grad.at, r->plan->mirrored,
                            ps_cuda_input_of(r, s, 0)->grad.at, r->plan->scratch,
                            PS_CUDA_NAME(s));
}

/* With 16-bit products the library writes the gradient in 16 bits too, as autocast does.
 */
static ps_err backward_weight(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    float *dw = ps_cuda_grad(p, s->node->layer->weight);
    bool narrow = ps_gpu_format(p->gpu) != PS_FORMAT_FP32;
    ps_conv_plan *plan;
    if (!dw) return PS_OK;
    PS_TRY(library_plan(r, s, PS_CONV_BACKWARD_WEIGHT, !narrow && r->accumulate, &plan));
    if (!plan) return multiply_backward_weight(r, s);
    PS_TRY(ps_conv_plan_run(
        plan, ps_cuda_input_of(r, s, 0)->at.at, narrow ? p->weight_grad : dw,
        ps_cuda_output_of(r, s)->grad.at, p->scratch, PS_CUDA_NAME(s)));
    if (!narrow) return PS_OK;
    return put_weight_grad(r, s, (ps_values){p->weight_grad, ps_gpu_format(p->gpu)});
}

static ps_err backward_input(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    ps_conv_plan *plan;
    if (!in->grad.at) return PS_OK;
    PS_TRY(library_plan(r, s, PS_CONV_BACKWARD_DATA, s->add[0], &plan));
    if (!plan) return multiply_backward_input(r, s);
    if (ps_cuda_conv_plans_mirror(r->plan->convs, s->node->layer))
        return mirrored_backward_input(r, s, plan);
    return ps_conv_plan_run(plan, in->grad.at, ps_cuda_weight(r, s).at,
                            ps_cuda_output_of(r, s)->grad.at, r->plan->scratch,
                            PS_CUDA_NAME(s));
}

ps_err ps_cuda_conv_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    bool bias = ps_cuda_grad(r->plan, s->node->layer->bias) != NULL;
    if (bias) PS_TRY(ps_gpu_fork(r->plan->gpu));
    if (bias) PS_TRY(conv_backward_bias(r, s));
    PS_TRY(backward_weight(r, s));
    PS_TRY(backward_input(r, s));
    return bias ? ps_gpu_join(r->plan->gpu) : PS_OK;
}
