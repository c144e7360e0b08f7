#include "cuda_layers.h"

#define NAME(s) ps_cuda_layer_name((s)->node->layer)

static const ps_cuda_value *input(const ps_cuda_pass *r, const ps_cuda_step *s, int k)
{
    return &r->plan->values[s->node->in[k]];
}

static const ps_cuda_value *output(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    return &r->plan->values[s->node->out];
}

static int64_t count(const ps_cuda_pass *r, const ps_cuda_value *v)
{
    return r->n * v->features;
}

/* ----------------------------------------------------------------- matrix products */

/* C (m, n) = op(A) op(B) + beta C in row-major order, leading dimensions those of the
 * rows as they lie. To BLAS, which sees columns, every matrix is its transpose: it is
 * asked for C^T = op(B)^T op(A)^T. */
static ps_err row_gemm(const ps_cuda_pass *r, const char *who, ps_gpu_gemm g)
{
    ps_gpu_gemm turned = {.ta = g.tb,
                          .tb = g.ta,
                          .m = g.n,
                          .n = g.m,
                          .k = g.k,
                          .a = g.b,
                          .lda = g.ldb,
                          .b = g.a,
                          .ldb = g.lda,
                          .beta = g.beta,
                          .c = g.c,
                          .ldc = g.ldc};
    return ps_gpu_multiply(r->plan->gpu, &turned, who);
}

/* x as a factor of products: itself, or 16-bit copies of its n values, in `to`. */
static ps_err narrow(const ps_cuda_pass *r, const ps_cuda_step *s, const float *x,
                     int64_t n, uint16_t *to, const void **factor)
{
    const ps_factors kind = ps_gpu_factors(r->plan->gpu);
    *factor = x;
    if (kind == PS_FACTORS_FP32) return PS_OK;
    *factor = to;
    return PS_LAUNCH(r->plan->gpu, narrow, n, NAME(s), .x = x, .y = to, .kind = kind);
}

static const void *skip_elements(const ps_cuda_pass *r, const void *factor, size_t n)
{
    bool wide = ps_gpu_factors(r->plan->gpu) == PS_FACTORS_FP32;
    return (const char *)factor + n * (wide ? sizeof(float) : sizeof(uint16_t));
}

/* The layer's weights as they were narrowed by its forward pass. */
static const void *weight(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    int tensor = s->node->layer->weight;
    if (ps_gpu_factors(r->plan->gpu) == PS_FACTORS_FP32)
        return ps_cuda_param(r->plan, tensor);
    return r->plan->weights16 + r->plan->options->spec->tensors[tensor].offset;
}

static ps_err narrow_weight(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_tensor *t = &r->plan->options->spec->tensors[s->node->layer->weight];
    const void *same;
    if (ps_gpu_factors(r->plan->gpu) == PS_FACTORS_FP32) return PS_OK;
    return narrow(r, s, ps_cuda_param(r->plan, s->node->layer->weight), (int64_t)t->count,
                  r->plan->weights16 + t->offset, &same);
}

static ps_err add_bias(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t inner,
                       int64_t channels)
{
    const ps_cuda_value *out = output(r, s);
    const float *bias = ps_cuda_param(r->plan, s->node->layer->bias);
    if (!bias && !s->node->relu) return PS_OK;
    return PS_LAUNCH(r->plan->gpu, bias, count(r, out), NAME(s), .bias = bias,
                     .y = out->at, .inner = ps_divisor_of(inner),
                     .channels = ps_divisor_of(channels), .relu = s->node->relu);
}

/* ------------------------------------------------------------------------- conv2d */

/* The shapes of a convolution as a product: y (out, n P) = weight (out, window) columns
 * (window, n P), for `samples` of the n at a time. */
typedef struct conv_slice {
    int64_t first, samples;
    int64_t columns;     // samples * P
    int64_t ld;          // n * P
    int64_t window, out; // rows
    size_t at;           // of the first sample in a row of y
} conv_slice;

static conv_slice slice_at(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t first)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *out = output(r, s);
    int64_t left = r->n - first;
    conv_slice c = {.first = first, .samples = left < s->slice ? left : s->slice};
    c.columns = c.samples * out->plane;
    c.ld = r->n * out->plane;
    c.window = l->in.d[0] * l->kernel[0] * l->kernel[1];
    c.out = out->channels;
    c.at = (size_t)(first * out->plane);
    return c;
}

/* Where the columns lie: made now, or the input itself. */
static ps_err make_columns(const ps_cuda_pass *r, const ps_cuda_step *s,
                           const conv_slice *c, const void **columns)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *in = input(r, s, 0);
    if (s->direct) return narrow(r, s, in->at, count(r, in), p->input16, columns);
    *columns = p->columns;
    return PS_LAUNCH(p->gpu, im2col, in->channels * c->columns, NAME(s), .x = in->at,
                     .col = p->columns, .narrow = (uint16_t *)(void *)p->columns,
                     .n = (uint32_t)r->n, .n_first = (uint32_t)c->first,
                     .columns = ps_divisor_of(c->columns), .at = s->planes,
                     .kind = ps_gpu_factors(p->gpu));
}

static ps_err conv_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = output(r, s);
    PS_TRY(narrow_weight(r, s));
    for (int64_t first = 0; first < r->n; first += s->slice) {
        conv_slice c = slice_at(r, s, first);
        const void *columns;
        PS_TRY(make_columns(r, s, &c, &columns));
        PS_TRY(row_gemm(r, NAME(s),
                        (ps_gpu_gemm){.m = c.out,
                                      .n = c.columns,
                                      .k = c.window,
                                      .a = weight(r, s),
                                      .lda = c.window,
                                      .b = columns,
                                      .ldb = c.columns,
                                      .c = out->at + c.at,
                                      .ldc = c.ld}));
    }
    return add_bias(r, s, r->n * out->plane, out->channels);
}

static ps_err conv_backward_weight(const ps_cuda_pass *r, const ps_cuda_step *s,
                                   const void *dy)
{
    for (int64_t first = 0; first < r->n; first += s->slice) {
        conv_slice c = slice_at(r, s, first);
        const void *columns;
        PS_TRY(make_columns(r, s, &c, &columns));
        PS_TRY(row_gemm(r, NAME(s),
                        (ps_gpu_gemm){.tb = true,
                                      .m = c.out,
                                      .n = c.window,
                                      .k = c.columns,
                                      .a = skip_elements(r, dy, c.at),
                                      .lda = c.ld,
                                      .b = columns,
                                      .ldb = c.columns,
                                      .beta = r->accumulate || first > 0 ? 1.0f : 0.0f,
                                      .c = ps_cuda_grad(r->plan, s->node->layer->weight),
                                      .ldc = c.window}));
    }
    return PS_OK;
}

static ps_err conv_backward_bias(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = output(r, s);
    float *db = ps_cuda_grad(r->plan, s->node->layer->bias);
    if (!db) return PS_OK;
    ps_rows rows = ps_rows_of(r->n * out->plane);
    PS_TRY(PS_LAUNCH(r->plan->gpu, row_sums, out->channels * rows.parts.by, NAME(s),
                     .x = out->grad, .parts = r->plan->parts, .rows = rows));
    return PS_LAUNCH(r->plan->gpu, row_total, out->channels, NAME(s),
                     .parts = r->plan->parts, .y = db, .rows = rows,
                     .add = r->accumulate);
}

static ps_err conv_backward_input(const ps_cuda_pass *r, const ps_cuda_step *s,
                                  const void *dy)
{
    const ps_cuda_value *in = input(r, s, 0);
    for (int64_t first = 0; in->grad && first < r->n; first += s->slice) {
        conv_slice c = slice_at(r, s, first);
        PS_TRY(row_gemm(r, NAME(s),
                        (ps_gpu_gemm){.ta = true,
                                      .m = c.window,
                                      .n = c.columns,
                                      .k = c.out,
                                      .a = weight(r, s),
                                      .lda = c.window,
                                      .b = skip_elements(r, dy, c.at),
                                      .ldb = c.ld,
                                      .beta = s->direct && s->add[0] ? 1.0f : 0.0f,
                                      .c = s->direct ? in->grad : r->plan->columns,
                                      .ldc = c.columns}));
        if (s->direct) continue;
        int64_t inputs = c.samples * in->plane;
        PS_TRY(PS_LAUNCH(r->plan->gpu, col2im, in->channels * inputs, NAME(s),
                         .col = r->plan->columns, .dx = in->grad, .n = (uint32_t)r->n,
                         .n_first = (uint32_t)first, .inputs = ps_divisor_of(inputs),
                         .columns = (uint32_t)c.columns, .at = s->planes,
                         .add = s->add[0]));
    }
    return PS_OK;
}

static ps_err conv_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = output(r, s);
    const void *dy;
    PS_TRY(narrow(r, s, out->grad, count(r, out), r->plan->grad16, &dy));
    PS_TRY(conv_backward_weight(r, s, dy));
    PS_TRY(conv_backward_bias(r, s));
    return conv_backward_input(r, s, dy);
}

/* ------------------------------------------------------------------------- linear */

/* y (n, out) = x (n, in) weight (out, in)^T. */
static ps_err linear_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *in = input(r, s, 0), *out = output(r, s);
    const void *x;
    PS_TRY(narrow_weight(r, s));
    PS_TRY(narrow(r, s, in->at, count(r, in), r->plan->input16, &x));
    PS_TRY(row_gemm(r, NAME(s),
                    (ps_gpu_gemm){.tb = true,
                                  .m = r->n,
                                  .n = out->features,
                                  .k = in->features,
                                  .a = x,
                                  .lda = in->features,
                                  .b = weight(r, s),
                                  .ldb = in->features,
                                  .c = out->at,
                                  .ldc = out->features}));
    return add_bias(r, s, 1, out->features);
}

/* dweight (out, in) = dy (n, out)^T x (n, in). */
static ps_err linear_backward_params(const ps_cuda_pass *r, const ps_cuda_step *s,
                                     const void *dy)
{
    const ps_cuda_value *in = input(r, s, 0), *out = output(r, s);
    const ps_layer *l = s->node->layer;
    const void *x;
    PS_TRY(narrow(r, s, in->at, count(r, in), r->plan->input16, &x));
    bool add = r->accumulate;
    PS_TRY(row_gemm(r, NAME(s),
                    (ps_gpu_gemm){.ta = true,
                                  .m = out->features,
                                  .n = in->features,
                                  .k = r->n,
                                  .a = dy,
                                  .lda = out->features,
                                  .b = x,
                                  .ldb = in->features,
                                  .beta = add ? 1.0f : 0.0f,
                                  .c = ps_cuda_grad(r->plan, l->weight),
                                  .ldc = in->features}));
    if (l->bias == PS_NONE) return PS_OK;
    return PS_LAUNCH(r->plan->gpu, column_total, out->features, NAME(s), .x = out->grad,
                     .y = ps_cuda_grad(r->plan, l->bias), .n = (uint32_t)r->n,
                     .columns = (uint32_t)out->features, .add = add);
}

/* dx (n, in) = dy (n, out) weight (out, in). */
static ps_err linear_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *in = input(r, s, 0), *out = output(r, s);
    const void *dy;
    PS_TRY(narrow(r, s, out->grad, count(r, out), r->plan->grad16, &dy));
    PS_TRY(linear_backward_params(r, s, dy));
    if (!in->grad) return PS_OK;
    return row_gemm(r, NAME(s),
                    (ps_gpu_gemm){.m = r->n,
                                  .n = in->features,
                                  .k = out->features,
                                  .a = dy,
                                  .lda = out->features,
                                  .b = weight(r, s),
                                  .ldb = in->features,
                                  .beta = s->add[0] ? 1.0f : 0.0f,
                                  .c = in->grad,
                                  .ldc = in->features});
}

/* ------------------------------------------------------------------- batch_norm2d */

static ps_err norm_stats(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = input(r, s, 0);
    ps_rows rows = ps_rows_of(r->n * in->plane);
    bool training = r->training;
    if (training && rows.length == 1)
        return ps_err_set(PS_ERR_SHAPE,
                          "%s: one value per channel has no variance to train with; use "
                          "a larger batch or data.drop_last",
                          l->name);
    if (training)
        PS_TRY(PS_LAUNCH(p->gpu, norm_sums, in->channels * rows.parts.by, NAME(s),
                         .x = in->at, .parts = p->parts, .rows = rows));
    return PS_LAUNCH(p->gpu, norm_stats, in->channels, NAME(s), .x = in->at,
                     .parts = training ? p->parts : NULL, .mean = s->mean, .inv = s->inv,
                     .running_mean = ps_cuda_buffer(p, l->running_mean),
                     .running_var = ps_cuda_buffer(p, l->running_var), .rows = rows,
                     .momentum = (float)l->momentum, .eps = l->eps);
}

static ps_err norm_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = input(r, s, 0), *out = output(r, s);
    PS_TRY(norm_stats(r, s));
    return PS_LAUNCH(p->gpu, norm, count(r, in), NAME(s), .x = in->at, .mean = s->mean,
                     .inv = s->inv, .weight = ps_cuda_param(p, l->weight),
                     .bias = ps_cuda_param(p, l->bias), .y = out->at,
                     .row = ps_divisor_of(r->n * in->plane), .relu = s->node->relu);
}

static ps_err norm_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = input(r, s, 0), *out = output(r, s);
    const float *y = s->node->relu ? out->at : NULL;
    ps_rows rows = ps_rows_of(r->n * in->plane);
    PS_TRY(PS_LAUNCH(p->gpu, norm_dots, in->channels * rows.parts.by, NAME(s),
                     .x = in->at, .dy = out->grad, .y = y, .mean = s->mean, .inv = s->inv,
                     .parts = p->parts, .rows = rows));
    PS_TRY(PS_LAUNCH(p->gpu, norm_grad_sums, in->channels, NAME(s), .parts = p->parts,
                     .dweight = ps_cuda_grad(p, l->weight),
                     .dbias = ps_cuda_grad(p, l->bias), .mean_dy = p->mean_dy,
                     .mean_dot = p->mean_dot, .rows = rows, .add = r->accumulate));
    if (!in->grad) return PS_OK;
    return PS_LAUNCH(p->gpu, norm_grad, count(r, in), NAME(s), .x = in->at,
                     .dy = out->grad, .y = y, .mean = s->mean, .inv = s->inv,
                     .weight = ps_cuda_param(p, l->weight), .mean_dy = p->mean_dy,
                     .mean_dot = p->mean_dot, .dx = in->grad,
                     .row = ps_divisor_of(r->n * in->plane), .add = s->add[0]);
}

/* ----------------------------------------------------------- layers without weights */

static ps_act_kind act_kind(ps_layer_kind kind)
{
    if (kind == PS_LAYER_RELU) return PS_ACT_RELU;
    return kind == PS_LAYER_TANH ? PS_ACT_TANH : PS_ACT_SIGMOID;
}

static ps_err move(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t n,
                   const float *x, float *y, bool add)
{
    return PS_LAUNCH(r->plan->gpu, pass, n, NAME(s), .x = x, .y = y, .add = add);
}

static ps_err drop(const ps_cuda_pass *r, const ps_cuda_step *s, const float *x, float *y,
                   bool add)
{
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = input(r, s, 0);
    int64_t groups = (in->features + 7) / 8;
    return PS_LAUNCH(r->plan->gpu, dropout, r->n * groups, NAME(s), .x = x, .y = y,
                     .positions = r->positions, .key = r->key, .n = (uint32_t)r->n,
                     .features = (uint32_t)in->features, .groups = ps_divisor_of(groups),
                     .plane = ps_divisor_of(in->image ? in->plane : in->features),
                     .id = (uint32_t)l->dropout_id,
                     .threshold = ps_dropout_threshold(l->p),
                     .scale = ps_dropout_scale(l->p), .add = add);
}

/* Images to features; back: features to images. */
static ps_err flatten(const ps_cuda_pass *r, const ps_cuda_step *s, bool back,
                      const float *x, float *y, bool add)
{
    const ps_cuda_value *in = input(r, s, 0);
    if (!in->image) return move(r, s, count(r, in), x, y, add);
    int64_t a = back ? r->n : in->channels, b = back ? in->channels : r->n;
    return PS_LAUNCH(r->plan->gpu, swap, count(r, in), NAME(s), .x = x, .y = y,
                     .b = (uint32_t)b, .a = ps_divisor_of(a),
                     .inner = ps_divisor_of(in->plane), .add = add);
}

ps_err ps_cuda_layer_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    ps_gpu *gpu = r->plan->gpu;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = input(r, s, 0), *out = output(r, s);
    switch (l->kind) {
    case PS_LAYER_CONV2D:
        return conv_forward(r, s);
    case PS_LAYER_LINEAR:
        return linear_forward(r, s);
    case PS_LAYER_BATCH_NORM2D:
        return norm_forward(r, s);
    case PS_LAYER_RELU:
    case PS_LAYER_TANH:
    case PS_LAYER_SIGMOID:
        return PS_LAUNCH(gpu, act, count(r, in), NAME(s), .x = in->at, .y = out->at,
                         .kind = act_kind(l->kind));
    case PS_LAYER_MAX_POOL2D:
        return PS_LAUNCH(gpu, max_pool, count(r, out), NAME(s), .x = in->at, .y = out->at,
                         .place = s->place, .at = s->planes);
    case PS_LAYER_AVG_POOL2D:
        return PS_LAUNCH(gpu, avg_pool, count(r, out), NAME(s), .x = in->at, .y = out->at,
                         .at = s->planes);
    case PS_LAYER_DROPOUT:
        if (r->training) return drop(r, s, in->at, out->at, false);
        return move(r, s, count(r, in), in->at, out->at, false);
    case PS_LAYER_FLATTEN:
        return flatten(r, s, false, in->at, out->at, false);
    case PS_LAYER_ADD:
        return PS_LAUNCH(gpu, sum, count(r, out), NAME(s), .a = in->at,
                         .b = input(r, s, 1)->at, .y = out->at, .relu = s->node->relu);
    case PS_LAYER_LOG_SOFTMAX:
        return PS_LAUNCH(gpu, log_softmax, r->n, NAME(s), .x = in->at, .y = out->at,
                         .classes = (uint32_t)in->features);
    case PS_LAYER_KIND_COUNT:
        break;
    }
    return ps_err_set(PS_ERR_INTERNAL, "%s: no such layer", l->name);
}

static ps_err add_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = output(r, s);
    for (int k = 0; k < s->node->n_in; k++) {
        const ps_cuda_value *in = input(r, s, k);
        if (in->grad) PS_TRY(move(r, s, count(r, out), out->grad, in->grad, s->add[k]));
    }
    return PS_OK;
}

/* A folded relu before this pooling whose gradient the pooling takes. */
static bool takes_relu(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_model_graph *g = r->plan->graph;
    int producer = g->edges[s->node->in[0]].producer;
    return producer != PS_NONE && g->nodes[producer].relu_by_pool;
}

/* Layers without parameters; their input needs a gradient. */
static ps_err plain_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    ps_gpu *gpu = r->plan->gpu;
    const ps_layer *l = s->node->layer;
    const ps_cuda_value *in = input(r, s, 0), *out = output(r, s);
    switch (l->kind) {
    case PS_LAYER_RELU:
    case PS_LAYER_TANH:
    case PS_LAYER_SIGMOID:
        return PS_LAUNCH(gpu, act_grad, count(r, in), NAME(s), .y = out->at,
                         .dy = out->grad, .dx = in->grad, .kind = act_kind(l->kind),
                         .add = s->add[0]);
    case PS_LAYER_MAX_POOL2D:
        return PS_LAUNCH(gpu, max_pool_grad, count(r, in), NAME(s), .dy = out->grad,
                         .y = takes_relu(r, s) ? out->at : NULL, .place = s->place,
                         .dx = in->grad, .at = s->planes, .add = s->add[0]);
    case PS_LAYER_AVG_POOL2D:
        return PS_LAUNCH(gpu, avg_pool_grad, count(r, in), NAME(s), .dy = out->grad,
                         .dx = in->grad, .at = s->planes, .add = s->add[0]);
    case PS_LAYER_DROPOUT:
        return drop(r, s, out->grad, in->grad, s->add[0]);
    case PS_LAYER_FLATTEN:
        return flatten(r, s, true, out->grad, in->grad, s->add[0]);
    case PS_LAYER_LOG_SOFTMAX:
        return PS_LAUNCH(gpu, log_softmax_grad, r->n, NAME(s), .y = out->at,
                         .dy = out->grad, .dx = in->grad,
                         .classes = (uint32_t)in->features, .add = s->add[0]);
    default:
        return ps_err_set(PS_ERR_INTERNAL, "%s: no such layer", l->name);
    }
}

ps_err ps_cuda_layer_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = output(r, s);
    ps_layer_kind kind = s->node->layer->kind;
    // batch norm takes its relu's gradient itself
    if (s->node->relu && !s->node->relu_by_pool && kind != PS_LAYER_BATCH_NORM2D)
        PS_TRY(PS_LAUNCH(r->plan->gpu, act_grad, count(r, out), NAME(s), .y = out->at,
                         .dy = out->grad, .dx = out->grad, .kind = PS_ACT_RELU));
    if (kind == PS_LAYER_CONV2D) return conv_backward(r, s);
    if (kind == PS_LAYER_LINEAR) return linear_backward(r, s);
    if (kind == PS_LAYER_BATCH_NORM2D) return norm_backward(r, s);
    if (kind == PS_LAYER_ADD) return add_backward(r, s);
    return plain_backward(r, s);
}

/* --------------------------------------------------------------------------- loss */

static ps_cuda_loss loss_kind(ps_loss_kind kind)
{
    if (kind == PS_LOSS_NLL) return PS_CUDA_NLL;
    return kind == PS_LOSS_MSE ? PS_CUDA_MSE : PS_CUDA_CROSS_ENTROPY;
}

ps_err ps_cuda_loss_forward(const ps_cuda_pass *r)
{
    const ps_cuda_plan *p = r->plan;
    const ps_cuda_value *out = &p->values[p->graph->output];
    PS_TRY(PS_LAUNCH(p->gpu, loss, r->n, "loss", .x = out->at, .labels = r->labels,
                     .samples = p->samples, .classes = (uint32_t)out->features,
                     .kind = loss_kind(p->options->spec->loss)));
    return PS_LAUNCH(p->gpu, loss_total, 1, "loss", .samples = p->samples,
                     .total = p->total, .n = (uint32_t)r->n);
}

ps_err ps_cuda_loss_backward(const ps_cuda_pass *r, float grad_scale)
{
    const ps_cuda_plan *p = r->plan;
    const ps_model_graph *g = p->graph;
    const ps_cuda_value *out = &p->values[g->output];
    int producer = g->edges[g->output].producer;
    bool folded = producer != PS_NONE && g->nodes[producer].with_loss;
    float *dx = folded ? p->values[g->nodes[producer].in[0]].grad : out->grad;
    if (!dx) return PS_OK;
    return PS_LAUNCH(p->gpu, loss_grad, r->n, "loss", .x = out->at, .labels = r->labels,
                     .dx = dx, .classes = (uint32_t)out->features,
                     .kind =
                         folded ? PS_CUDA_NLL_LOGITS : loss_kind(p->options->spec->loss),
                     .share = grad_scale / (float)r->n);
}
