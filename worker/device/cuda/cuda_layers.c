#include "cuda_layers.h"

#include "cuda_conv.h"
#include "cuda_products.h"
#include "loss_terms.h"

/* ------------------------------------------------------------------- batch_norm2d */

/* *rows: where the parts of the channels' sums are. */
static ps_err norm_sums(const ps_cuda_pass *r, const ps_cuda_step *s, ps_rows *rows)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    if (!in->layout.channels_last)
        return PS_LAUNCH(p->gpu, batchnorm_sums, in->channels * rows->parts.by,
                         PS_CUDA_NAME(s), .x = in->at, .parts = p->parts, .rows = *rows);
    const ps_columns columns = ps_columns_of(r->n * in->plane, in->channels);
    rows->parts = columns.parts;
    return PS_LAUNCH(p->gpu, channel_moments, ps_columns_blocks(&columns, 1),
                     PS_CUDA_NAME(s), .x = in->at, .parts = p->parts, .columns = columns,
                     .in_group = ps_divisor_of(1));
}

/* The rows of a batch's channels. */
static ps_rows norm_rows(const ps_cuda_pass *r, const ps_cuda_value *in)
{
    return ps_rows_of(r->n * ps_cuda_outer(in), in->channels, ps_cuda_inner(in));
}

static ps_err norm_stats(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    ps_rows rows = norm_rows(r, in);
    bool training = r->training;
    if (training && rows.length == 1)
        return ps_err_set(PS_ERR_SHAPE,
                          "%s: one value per channel has no variance to train with; use "
                          "a larger batch or data.drop_last_batch",
                          l->name);
    if (training) PS_TRY(norm_sums(r, s, &rows));
    return PS_LAUNCH(p->gpu, batchnorm_stats, in->channels, PS_CUDA_NAME(s), .x = in->at,
                     .parts = training ? p->parts : NULL, .mean = s->mean, .inv = s->inv,
                     .running_mean = ps_cuda_buffer(p, l->running_mean),
                     .running_var = ps_cuda_buffer(p, l->running_var), .rows = rows,
                     .momentum = (float)l->momentum, .eps = l->eps);
}

static ps_err norm_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    const ps_model_node *last = s->adds ? s->node + 1 : s->node;
    ps_values other = {0};
    if (s->adds) other = p->values[last->in[last->in[0] == s->node->out]].at;
    PS_TRY(norm_stats(r, s));
    return PS_LAUNCH_WIDE(
        p->gpu, batchnorm, ps_cuda_count(r, in), PS_CUDA_NAME(s), .x = in->at,
        .other = other, .format = out->at.format, .mean = s->mean, .inv = s->inv,
        .weight = ps_cuda_param(p, l->weight), .bias = ps_cuda_param(p, l->bias),
        .y = p->values[last->out].at, .plane = ps_divisor_of(ps_cuda_inner(in)),
        .channels = ps_divisor_of(in->channels), .relu = last->relu);
}

/* y.at NULL: no relu. *rows: where the parts of the channels' sums are. */
static ps_err norm_dots(const ps_cuda_pass *r, const ps_cuda_step *s, ps_values y,
                        ps_rows *rows)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    if (!in->layout.channels_last)
        return PS_LAUNCH(p->gpu, batchnorm_dots, in->channels * rows->parts.by,
                         PS_CUDA_NAME(s), .x = in->at, .dy = out->grad, .y = y,
                         .mean = s->mean, .inv = s->inv, .parts = p->parts,
                         .rows = *rows);
    const ps_columns columns = ps_columns_of(r->n * in->plane, in->channels);
    rows->parts = columns.parts;
    return PS_LAUNCH(p->gpu, channel_dots, ps_columns_blocks(&columns, 1),
                     PS_CUDA_NAME(s), .x = in->at, .dy = out->grad, .y = y,
                     .mean = s->mean, .inv = s->inv, .parts = p->parts,
                     .columns = columns, .in_group = ps_divisor_of(1),
                     .groups = (uint32_t)in->channels);
}

static ps_err norm_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    const ps_values y = s->node->relu ? out->at : (ps_values){0};
    ps_rows rows = norm_rows(r, in);
    PS_TRY(norm_dots(r, s, y, &rows));
    PS_TRY(PS_LAUNCH(p->gpu, batchnorm_grad_sums, in->channels, PS_CUDA_NAME(s),
                     .parts = p->parts, .dweight = ps_cuda_grad(p, l->weight),
                     .dbias = ps_cuda_grad(p, l->bias), .mean_dy = p->mean_dy,
                     .mean_dot = p->mean_dot, .rows = rows, .add = r->accumulate));
    if (!in->grad.at) return PS_OK;
    return PS_LAUNCH_WIDE(p->gpu, batchnorm_grad, ps_cuda_count(r, in), PS_CUDA_NAME(s),
                          .x = in->at, .dy = out->grad, .y = y, .mean = s->mean,
                          .inv = s->inv, .weight = ps_cuda_param(p, l->weight),
                          .mean_dy = p->mean_dy, .mean_dot = p->mean_dot, .dx = in->grad,
                          .plane = ps_divisor_of(ps_cuda_inner(in)),
                          .channels = ps_divisor_of(in->channels), .add = s->add[0]);
}

/* -------------------------------------------------------- group_norm, layer_norm */

/* *rows: of the groups, with their parts. */
static ps_err groupnorm_sums(const ps_cuda_pass *r, const ps_cuda_step *s, ps_rows *rows)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    const int64_t in_group = in->channels / s->node->layer->groups;
    if (!in->layout.channels_last)
        return PS_LAUNCH(p->gpu, batchnorm_sums, (int64_t)rows->rows * rows->parts.by,
                         PS_CUDA_NAME(s), .x = in->at, .parts = p->parts, .rows = *rows);
    const ps_columns columns = ps_columns_of(in->plane, in->channels);
    rows->parts = ps_divisor_of(in_group * columns.parts.by);
    return PS_LAUNCH(p->gpu, channel_moments, ps_columns_blocks(&columns, r->n),
                     PS_CUDA_NAME(s), .x = in->at, .parts = p->parts, .columns = columns,
                     .in_group = ps_divisor_of(in_group));
}

/* *rows: of each sample's channels, with their parts. */
static ps_err groupnorm_dots(const ps_cuda_pass *r, const ps_cuda_step *s, ps_rows *rows)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    const int64_t groups = s->node->layer->groups;
    const ps_divisor in_group = ps_divisor_of(in->channels / groups);
    if (!in->layout.channels_last)
        return PS_LAUNCH(p->gpu, groupnorm_dots, (int64_t)rows->rows * rows->parts.by,
                         PS_CUDA_NAME(s), .x = in->at, .dy = out->grad, .mean = s->mean,
                         .inv = s->inv, .parts = p->parts, .rows = *rows,
                         .in_group = in_group, .lanes = ps_team_lanes(rows->part_length));
    const ps_columns columns = ps_columns_of(in->plane, in->channels);
    rows->parts = columns.parts;
    return PS_LAUNCH(p->gpu, channel_dots, ps_columns_blocks(&columns, r->n),
                     PS_CUDA_NAME(s), .x = in->at, .dy = out->grad, .mean = s->mean,
                     .inv = s->inv, .parts = p->parts, .columns = columns,
                     .in_group = in_group, .groups = (uint32_t)groups);
}

static ps_grouping grouping_of(const ps_cuda_value *in, const ps_layer *l)
{
    return (ps_grouping){.inner = ps_divisor_of(ps_cuda_inner(in)),
                         .channels = ps_divisor_of(in->channels),
                         .in_group = ps_divisor_of(in->channels / l->groups),
                         .features = ps_divisor_of(in->features),
                         .groups = (uint32_t)l->groups};
}

static ps_err groupnorm_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    const int64_t groups = r->n * l->groups, group = in->features / l->groups;
    ps_rows rows = ps_rows_of(1, groups, group);
    PS_TRY(groupnorm_sums(r, s, &rows));
    PS_TRY(PS_LAUNCH(p->gpu, groupnorm_stats, groups, PS_CUDA_NAME(s), .x = in->at,
                     .parts = p->parts, .mean = s->mean, .inv = s->inv, .rows = rows,
                     .groups = ps_divisor_of(l->groups),
                     .features = (uint32_t)in->features,
                     .step = (uint32_t)(in->channels / l->groups * ps_cuda_inner(in)),
                     .lanes = ps_team_lanes(rows.parts.by), .eps = l->eps));
    return PS_LAUNCH(p->gpu, groupnorm, ps_cuda_count(r, in), PS_CUDA_NAME(s),
                     .x = in->at, .y = out->at, .mean = s->mean, .inv = s->inv,
                     .weight = ps_cuda_param(p, l->weight),
                     .bias = ps_cuda_param(p, l->bias), .at = grouping_of(in, l));
}

static ps_err groupnorm_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    ps_rows rows = ps_rows_of(1, r->n * in->channels, in->plane);
    const int64_t in_group = in->channels / l->groups;
    PS_TRY(groupnorm_dots(r, s, &rows));
    PS_TRY(PS_LAUNCH(p->gpu, groupnorm_scales, in->channels, PS_CUDA_NAME(s),
                     .parts = p->parts, .dweight = ps_cuda_grad(p, l->weight),
                     .dbias = ps_cuda_grad(p, l->bias), .rows = rows, .n = (uint32_t)r->n,
                     .channels = (uint32_t)in->channels,
                     .lanes = ps_team_lanes(r->n * rows.parts.by), .add = r->accumulate));
    if (!in->grad.at) return PS_OK;
    PS_TRY(PS_LAUNCH(p->gpu, groupnorm_means, r->n * l->groups, PS_CUDA_NAME(s),
                     .parts = p->parts, .weight = ps_cuda_param(p, l->weight),
                     .mean_dy = p->mean_dy, .mean_dot = p->mean_dot, .rows = rows,
                     .in_group = (uint32_t)in_group,
                     .lanes = ps_team_lanes(in_group * rows.parts.by),
                     .groups = ps_divisor_of(l->groups)));
    return PS_LAUNCH(p->gpu, groupnorm_grad, ps_cuda_count(r, in), PS_CUDA_NAME(s),
                     .x = in->at, .dy = out->grad, .dx = in->grad, .mean = s->mean,
                     .inv = s->inv, .weight = ps_cuda_param(p, l->weight),
                     .mean_dy = p->mean_dy, .mean_dot = p->mean_dot,
                     .at = grouping_of(in, l), .add = s->add[0]);
}

/* ----------------------------------------------------------- layers without weights */

static ps_err cuda_layer_activate(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH_WIDE(r->plan->gpu, act, ps_cuda_count(r, in), PS_CUDA_NAME(s),
                          .x = in->at, .y = out->at, .kind = l->kind,
                          .alpha = (float)l->alpha);
}

static ps_err activate_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH_WIDE(r->plan->gpu, act_grad, ps_cuda_count(r, in), PS_CUDA_NAME(s),
                          .v = ps_model_grad_reads_input(l->kind) ? in->at : out->at,
                          .dy = out->grad, .dx = in->grad, .kind = l->kind,
                          .alpha = (float)l->alpha, .add = s->add[0]);
}

static ps_err cuda_layer_move(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t n,
                              ps_values x, ps_values y, bool add)
{
    return PS_LAUNCH_WIDE(r->plan->gpu, pass, n, PS_CUDA_NAME(s), .x = x, .y = y,
                          .add = add);
}

/* What channels have next to each other: of a sample, or of a position with channels
 * last. */
static int64_t cuda_layer_pitch(const ps_cuda_value *v)
{
    return v->channels * ps_cuda_inner(v);
}

/* x's part of a concatenation; `first`: the pitch of the parts before it. */
static ps_err cuda_layer_join(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t first,
                              const ps_cuda_value *part, const ps_cuda_value *whole)
{
    const int64_t pitch = cuda_layer_pitch(part);
    return PS_LAUNCH(
        r->plan->gpu, slice, ps_cuda_count(r, part), PS_CUDA_NAME(s), .x = part->at,
        .y = whole->at, .inner = ps_divisor_of(pitch), .x_pitch = (uint32_t)pitch,
        .y_pitch = (uint32_t)cuda_layer_pitch(whole), .y_first = (uint32_t)first);
}

static ps_err cuda_layer_concat(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *a = ps_cuda_input_of(r, s, 0), *b = ps_cuda_input_of(r, s, 1);
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    PS_TRY(cuda_layer_join(r, s, 0, a, out));
    return cuda_layer_join(r, s, cuda_layer_pitch(a), b, out);
}

static ps_err concat_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    int64_t first = 0;
    for (int k = 0; k < 2; k++) {
        const ps_cuda_value *in = ps_cuda_input_of(r, s, k);
        const int64_t pitch = cuda_layer_pitch(in);
        if (in->grad.at)
            PS_TRY(PS_LAUNCH(r->plan->gpu, slice, ps_cuda_count(r, in), PS_CUDA_NAME(s),
                             .x = out->grad, .y = in->grad, .inner = ps_divisor_of(pitch),
                             .x_pitch = (uint32_t)cuda_layer_pitch(out),
                             .x_first = (uint32_t)first, .y_pitch = (uint32_t)pitch,
                             .add = s->add[k]));
        first += pitch;
    }
    return PS_OK;
}

static ps_axis cuda_layer_axis_of(const ps_layer *l, int dim)
{
    return (ps_axis){(int32_t)l->in.d[dim], (int32_t)l->out.d[dim], l->mode};
}

static ps_err cuda_layer_interpolate(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH(r->plan->gpu, interpolate, ps_cuda_count(r, out), PS_CUDA_NAME(s),
                     .x = in->at, .y = out->at, .rows = cuda_layer_axis_of(l, 1),
                     .columns = cuda_layer_axis_of(l, 2),
                     .out_row = ps_divisor_of(l->out.d[2]),
                     .out_plane = ps_divisor_of(out->plane), .layout = in->layout);
}

static ps_err interpolate_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH(
        r->plan->gpu, interpolate_grad, ps_cuda_count(r, in), PS_CUDA_NAME(s),
        .dy = out->grad, .dx = in->grad, .rows = cuda_layer_axis_of(l, 1),
        .columns = cuda_layer_axis_of(l, 2), .in_row = ps_divisor_of(l->in.d[2]),
        .in_plane = ps_divisor_of(in->plane), .layout = in->layout, .add = s->add[0]);
}

static ps_err adaptive_max(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH(
        r->plan->gpu, adaptive_max, ps_cuda_count(r, out), PS_CUDA_NAME(s), .x = in->at,
        .y = out->at, .argmax = s->argmax, .rows = cuda_layer_axis_of(l, 1),
        .columns = cuda_layer_axis_of(l, 2), .out_row = ps_divisor_of(l->out.d[2]),
        .out_plane = ps_divisor_of(out->plane), .layout = in->layout);
}

static ps_err adaptive_max_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    return PS_LAUNCH(
        r->plan->gpu, adaptive_max_grad, ps_cuda_count(r, in), PS_CUDA_NAME(s),
        .dy = out->grad, .dx = in->grad, .argmax = s->argmax,
        .rows = cuda_layer_axis_of(l, 1), .columns = cuda_layer_axis_of(l, 2),
        .in_row = ps_divisor_of(l->in.d[2]), .in_plane = ps_divisor_of(in->plane),
        .layout = in->layout, .add = s->add[0]);
}

/* relu: also applies the gradient of a relu with these outputs. */
static ps_err cuda_layer_drop(const ps_cuda_pass *r, const ps_cuda_step *s, ps_values x,
                              ps_values y, ps_values relu, bool add)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    int64_t groups = (in->features + 7) / 8;
    return PS_LAUNCH(r->plan->gpu, dropout, r->n * groups, PS_CUDA_NAME(s), .x = x,
                     .y = y, .relu = relu, .positions = r->positions, .key = r->key,
                     .features = (uint32_t)in->features, .groups = ps_divisor_of(groups),
                     .layout = in->layout, .plane = ps_divisor_of(in->plane),
                     .id = (uint32_t)l->dropout_id,
                     .threshold = ps_dropout_threshold(l->p),
                     .scale = ps_dropout_scale(l->p), .add = add);
}

/* If x and y share memory (cuda_plan.h), there is nothing to do. With channels last the
 * order changes: a: what y has last. */
static ps_err cuda_layer_flatten(const ps_cuda_pass *r, const ps_cuda_step *s,
                                 ps_values x, ps_values y, bool back, bool add)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0);
    if (x.at == y.at) return PS_OK;
    if (!ps_cuda_flatten_turns(in))
        return cuda_layer_move(r, s, ps_cuda_count(r, in), x, y, add);
    return PS_LAUNCH(r->plan->gpu, turn, ps_cuda_count(r, in), PS_CUDA_NAME(s), .x = x,
                     .y = y, .a = ps_divisor_of(back ? in->channels : in->plane),
                     .b = ps_divisor_of(back ? in->plane : in->channels), .add = add);
}

/* The step before this pooling, if the pooling applies its folded relu: no other step
 * reads its outputs. */
static const ps_model_node *relu_before(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_model_graph *g = r->plan->graph;
    int producer = g->edges[s->node->in[0]].producer;
    bool takes = producer != PS_NONE && g->nodes[producer].relu_by_pool;
    return takes ? &g->nodes[producer] : NULL;
}

/* Also applies the bias and the relu of a convolution before it, which leaves them to the
 * pooling. */
static ps_err max_pool(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    const ps_model_node *before = relu_before(r, s);
    bool conv = before && before->layer->kind == PS_LAYER_CONV2D;
    return PS_LAUNCH(r->plan->gpu, max_pool, ps_cuda_count(r, out), PS_CUDA_NAME(s),
                     .x = in->at, .y = out->at, .place = s->place, .at = s->planes,
                     .bias = conv ? ps_cuda_param(r->plan, before->layer->bias) : NULL,
                     .channels = ps_divisor_of(in->channels), .relu = conv);
}

ps_err ps_cuda_layer_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    ps_gpu *gpu = r->plan->gpu;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    if (ps_model_is_activation(l->kind)) return cuda_layer_activate(r, s);
    switch (l->kind) {
    case PS_LAYER_CONV2D:
        return ps_cuda_conv_forward(r, s);
    case PS_LAYER_LINEAR:
        return ps_cuda_linear_forward(r, s);
    case PS_LAYER_BATCH_NORM2D:
        return norm_forward(r, s);
    case PS_LAYER_GROUP_NORM:
    case PS_LAYER_LAYER_NORM:
        return groupnorm_forward(r, s);
    case PS_LAYER_MAX_POOL2D:
        return max_pool(r, s);
    case PS_LAYER_AVG_POOL2D:
        return PS_LAUNCH(gpu, avg_pool, ps_cuda_count(r, out), PS_CUDA_NAME(s),
                         .x = in->at, .y = out->at, .at = s->planes);
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_UPSAMPLE:
        return cuda_layer_interpolate(r, s);
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
        return adaptive_max(r, s);
    case PS_LAYER_CONCAT:
        return cuda_layer_concat(r, s);
    case PS_LAYER_DROPOUT:
        if (r->training)
            return cuda_layer_drop(r, s, in->at, out->at, (ps_values){0}, false);
        return cuda_layer_move(r, s, ps_cuda_count(r, in), in->at, out->at, false);
    case PS_LAYER_FLATTEN:
        return cuda_layer_flatten(r, s, in->at, out->at, false, false);
    case PS_LAYER_ADD:
        if (s->added) return PS_OK;
        return PS_LAUNCH_WIDE(gpu, sum, ps_cuda_count(r, out), PS_CUDA_NAME(s),
                              .a = in->at, .b = ps_cuda_input_of(r, s, 1)->at,
                              .y = out->at, .relu = s->node->relu);
    case PS_LAYER_LOG_SOFTMAX:
        if (s->node->with_loss && r->loss) return PS_OK; // the loss computes both
        return PS_LAUNCH(gpu, log_softmax, r->n, PS_CUDA_NAME(s), .x = in->at.at,
                         .y = out->at.at, .classes = (uint32_t)in->features,
                         .lanes = ps_team_lanes(in->features));
    default:
        break;
    }
    return ps_err_set(PS_ERR_INTERNAL, "%s: unknown kind of layer", l->name);
}

/* One launch for the relu and both inputs, which are large in a residual network. */
static ps_err add_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    bool relu = s->node->relu && !s->node->relu_by_pool;
    const ps_values second =
        s->same_grads ? (ps_values){0} : ps_cuda_input_of(r, s, 1)->grad;
    return PS_LAUNCH_WIDE(r->plan->gpu, sum_grad, ps_cuda_count(r, out), PS_CUDA_NAME(s),
                          .y = relu ? out->at : (ps_values){0}, .dy = out->grad,
                          .a = ps_cuda_input_of(r, s, 0)->grad, .b = second,
                          .add_a = s->add[0], .add_b = s->add[1]);
}

/* Whether the node's only reader is a dropout, which then applies the gradient of its
 * folded relu. */
static bool relu_by_dropout(const ps_model_graph *g, const ps_model_node *node)
{
    const ps_model_edge *e = &g->edges[node->out];
    bool product =
        node->layer->kind == PS_LAYER_CONV2D || node->layer->kind == PS_LAYER_LINEAR;
    return node->relu && product && e->n_readers == 1 && e->last_reader < g->n_nodes &&
           g->nodes[e->last_reader].layer->kind == PS_LAYER_DROPOUT;
}

static bool drops_relu(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_model_graph *g = r->plan->graph;
    int producer = g->edges[s->node->in[0]].producer;
    return producer != PS_NONE && relu_by_dropout(g, &g->nodes[producer]);
}

/* Layers without parameters; their input needs a gradient. */
static ps_err plain_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    ps_gpu *gpu = r->plan->gpu;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    if (ps_model_is_activation(l->kind)) return activate_backward(r, s);
    switch (l->kind) {
    case PS_LAYER_MAX_POOL2D:
        return PS_LAUNCH(
            gpu, max_pool_grad, ps_cuda_count(r, in), PS_CUDA_NAME(s), .dy = out->grad,
            .y = relu_before(r, s) ? out->at : (ps_values){0}, .place = s->place,
            .dx = in->grad, .at = s->planes, .add = s->add[0]);
    case PS_LAYER_AVG_POOL2D:
        return PS_LAUNCH(gpu, avg_pool_grad, ps_cuda_count(r, in), PS_CUDA_NAME(s),
                         .dy = out->grad, .dx = in->grad, .at = s->planes,
                         .add = s->add[0]);
    case PS_LAYER_ADAPTIVE_AVG_POOL2D:
    case PS_LAYER_UPSAMPLE:
        return interpolate_backward(r, s);
    case PS_LAYER_ADAPTIVE_MAX_POOL2D:
        return adaptive_max_backward(r, s);
    case PS_LAYER_CONCAT:
        return concat_backward(r, s);
    case PS_LAYER_DROPOUT:
        return cuda_layer_drop(r, s, out->grad, in->grad,
                               drops_relu(r, s) ? in->at : (ps_values){0}, s->add[0]);
    case PS_LAYER_FLATTEN:
        return cuda_layer_flatten(r, s, out->grad, in->grad, true, s->add[0]);
    case PS_LAYER_LOG_SOFTMAX:
        return PS_LAUNCH(gpu, log_softmax_grad, r->n, PS_CUDA_NAME(s), .y = out->at.at,
                         .dy = out->grad.at, .dx = in->grad.at,
                         .classes = (uint32_t)in->features,
                         .lanes = ps_team_lanes(in->features), .add = s->add[0]);
    default:
        return ps_err_set(PS_ERR_INTERNAL, "%s: unknown kind of layer", l->name);
    }
}

ps_err ps_cuda_layer_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    ps_layer_kind kind = s->node->layer->kind;
    // batch norm and sums apply their relu's gradient themselves
    bool own = kind == PS_LAYER_BATCH_NORM2D || kind == PS_LAYER_ADD;
    bool by_reader = s->node->relu_by_pool || relu_by_dropout(r->plan->graph, s->node);
    if (s->node->relu && !by_reader && !own)
        PS_TRY(PS_LAUNCH_WIDE(r->plan->gpu, act_grad, ps_cuda_count(r, out),
                              PS_CUDA_NAME(s), .v = out->at, .dy = out->grad,
                              .dx = out->grad, .kind = PS_LAYER_RELU));
    if (kind == PS_LAYER_CONV2D) return ps_cuda_conv_backward(r, s);
    if (kind == PS_LAYER_LINEAR) return ps_cuda_linear_backward(r, s);
    if (kind == PS_LAYER_BATCH_NORM2D) return norm_backward(r, s);
    if (ps_model_is_group_norm(kind)) return groupnorm_backward(r, s);
    if (kind == PS_LAYER_ADD) return add_backward(r, s);
    return plain_backward(r, s);
}

/* --------------------------------------------------------------------------- loss */

static ps_loss_terms terms_of(const ps_cuda_plan *p)
{
    return ps_loss_terms_of(p->options->spec, p->class_weights);
}

ps_err ps_cuda_loss_forward(const ps_cuda_pass *r)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *out = &p->values[p->graph->output];
    int producer = p->graph->edges[p->graph->output].producer;
    bool folded = producer != PS_NONE && p->graph->nodes[producer].with_loss;
    const ps_cuda_value *in = folded ? &p->values[p->graph->nodes[producer].in[0]] : NULL;
    const ps_k_loss k = {.x = out->at.at,
                         .logits = in ? in->at.at : NULL,
                         .labels = r->labels,
                         .targets = r->targets,
                         .rows = p->total + 1,
                         .total = p->total,
                         .n = (uint32_t)r->n,
                         .outputs = (uint32_t)out->features,
                         .lanes = ps_team_lanes(out->features),
                         .terms = terms_of(p)};
    if (k.lanes == 1 && k.n <= PS_SUM_LANES)
        return ps_gpu_launch(p->gpu, PS_GPU_COMPUTE, PS_KERNEL_loss, &k, 1, "loss");
    PS_TRY(ps_gpu_launch(p->gpu, PS_GPU_COMPUTE, PS_KERNEL_loss_rows, &k, r->n, "loss"));
    return PS_LAUNCH(p->gpu, loss_total, 1, "loss", .rows = k.rows, .total = k.total,
                     .n = k.n);
}

ps_err ps_cuda_loss_backward(const ps_cuda_pass *r, float share)
{
    const ps_cuda_plan *p = r->plan;
    const ps_model_graph *g = p->graph;
    const ps_cuda_value *out = &p->values[g->output];
    int producer = g->edges[g->output].producer;
    bool folded = producer != PS_NONE && g->nodes[producer].with_loss;
    float *dx = folded ? p->values[g->nodes[producer].in[0]].grad.at : out->grad.at;
    if (!dx) return PS_OK;
    return PS_LAUNCH(p->gpu, loss_grad, r->n, "loss", .x = out->at.at,
                     .labels = r->labels, .targets = r->targets, .dx = dx,
                     .outputs = (uint32_t)out->features,
                     .lanes = ps_team_lanes(out->features), .terms = terms_of(p),
                     .folded = folded, .share = share);
}
