#include "cuda_products.h"

/* BLAS is column-major, so it sees every matrix transposed: it computes C^T = op(B)^T
 * op(A)^T. */
ps_err ps_cuda_multiply(const ps_cuda_pass *r, const char *who, ps_gpu_gemm g)
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

/* *factor: x in the format of products: x itself, or a converted copy of its n values in
 * scratch. */
static ps_err cuda_factor(const ps_cuda_pass *r, const ps_cuda_step *s, ps_values x,
                          int64_t n, ps_values scratch, ps_values *factor)
{
    *factor = x;
    if (x.format == ps_gpu_format(r->plan->gpu)) return PS_OK;
    *factor = scratch;
    return PS_LAUNCH_WIDE(r->plan->gpu, pass, n, PS_CUDA_NAME(s), .x = x, .y = scratch);
}

ps_values ps_cuda_weight(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_plan *p = r->plan;
    const int weight = s->node->layer->weight;
    if (!p->weights16.at) return ps_floats(ps_cuda_param(p, weight));
    return ps_values_from(p->weights16, ps_cuda_weight16_at(p, weight));
}

bool ps_cuda_turns_weight(const ps_cuda_plan *p, const ps_layer *l)
{
    return p->channels_last && l->kind == PS_LAYER_CONV2D && l->in.d[0] > l->groups &&
           l->kernel[0] * l->kernel[1] > 1;
}

ps_err ps_cuda_narrow_weight(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_layer *l = s->node->layer;
    const ps_tensor *t = ps_tensor_table_at(&r->plan->options->spec->table, l->weight);
    ps_values master = ps_floats(ps_cuda_param(r->plan, l->weight)), same;
    if (ps_cuda_turns_weight(r->plan, l))
        return PS_LAUNCH(r->plan->gpu, turn, (int64_t)t->count, PS_CUDA_NAME(s),
                         .x = master, .y = ps_cuda_weight(r, s),
                         .a = ps_divisor_of(l->in.d[0] / l->groups),
                         .b = ps_divisor_of(l->kernel[0] * l->kernel[1]));
    return cuda_factor(r, s, master, (int64_t)t->count, ps_cuda_weight(r, s), &same);
}

ps_err ps_cuda_add_bias(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t inner,
                        int64_t channels)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    const float *bias = ps_cuda_param(r->plan, s->node->layer->bias);
    if (!bias && !s->node->relu) return PS_OK;
    return PS_LAUNCH_WIDE(r->plan->gpu, bias, ps_cuda_count(r, out), PS_CUDA_NAME(s),
                          .bias = bias, .y = out->at, .inner = ps_divisor_of(inner),
                          .channels = ps_divisor_of(channels), .relu = s->node->relu);
}

/* ------------------------------------------------------------------------- linear */

/* y (n, out) = x (n, in) weight (out, in)^T. */
ps_err ps_cuda_linear_forward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    ps_values x;
    PS_TRY(ps_cuda_narrow_weight(r, s));
    PS_TRY(cuda_factor(r, s, in->at, ps_cuda_count(r, in), r->plan->input16, &x));
    PS_TRY(ps_cuda_multiply(r, PS_CUDA_NAME(s),
                            (ps_gpu_gemm){.tb = true,
                                          .m = r->n,
                                          .n = out->features,
                                          .k = in->features,
                                          .a = x,
                                          .lda = in->features,
                                          .b = ps_cuda_weight(r, s),
                                          .ldb = in->features,
                                          .c = out->at,
                                          .ldc = out->features}));
    return ps_cuda_add_bias(r, s, 1, out->features);
}

/* dweight (out, in) = dy (n, out)^T x (n, in). */
static ps_err linear_backward_weight(const ps_cuda_pass *r, const ps_cuda_step *s,
                                     ps_values dy)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    float *dw = ps_cuda_grad(r->plan, s->node->layer->weight);
    ps_values x;
    if (!dw) return PS_OK;
    PS_TRY(cuda_factor(r, s, in->at, ps_cuda_count(r, in), r->plan->input16, &x));
    return ps_cuda_multiply(r, PS_CUDA_NAME(s),
                            (ps_gpu_gemm){.ta = true,
                                          .m = out->features,
                                          .n = in->features,
                                          .k = r->n,
                                          .a = dy,
                                          .lda = out->features,
                                          .b = x,
                                          .ldb = in->features,
                                          .beta = r->accumulate ? 1.0f : 0.0f,
                                          .c = ps_floats(dw),
                                          .ldc = in->features});
}

ps_err ps_cuda_bias_by_blocks(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t rows)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    const ps_columns columns = ps_columns_of(rows, out->channels);
    PS_TRY(PS_LAUNCH_ON(r->plan->gpu, PS_GPU_SIDE, channel_dots,
                        ps_columns_blocks(&columns, 1), PS_CUDA_NAME(s), .dy = out->grad,
                        .parts = r->plan->parts, .columns = columns));
    return PS_LAUNCH_ON(r->plan->gpu, PS_GPU_SIDE, row_total, out->channels,
                        PS_CUDA_NAME(s), .parts = r->plan->parts,
                        .y = ps_cuda_grad(r->plan, s->node->layer->bias),
                        .rows = {.parts = columns.parts}, .add = r->accumulate);
}

static ps_err linear_backward_bias(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    if (r->n > PS_COLUMN_ROWS) return ps_cuda_bias_by_blocks(r, s, r->n);
    return PS_LAUNCH_ON(
        r->plan->gpu, PS_GPU_SIDE, column_total, out->features, PS_CUDA_NAME(s),
        .x = out->grad, .y = ps_cuda_grad(r->plan, s->node->layer->bias),
        .n = (uint32_t)r->n, .columns = (uint32_t)out->features, .add = r->accumulate);
}

/* dx (n, in) = dy (n, out) weight (out, in). */
static ps_err linear_backward_input(const ps_cuda_pass *r, const ps_cuda_step *s,
                                    ps_values dy)
{
    const ps_cuda_value *in = ps_cuda_input_of(r, s, 0), *out = ps_cuda_output_of(r, s);
    if (!in->grad.at) return PS_OK;
    return ps_cuda_multiply(r, PS_CUDA_NAME(s),
                            (ps_gpu_gemm){.m = r->n,
                                          .n = in->features,
                                          .k = out->features,
                                          .a = dy,
                                          .lda = out->features,
                                          .b = ps_cuda_weight(r, s),
                                          .ldb = in->features,
                                          .beta = s->add[0] ? 1.0f : 0.0f,
                                          .c = in->grad,
                                          .ldc = in->features});
}

ps_err ps_cuda_linear_backward(const ps_cuda_pass *r, const ps_cuda_step *s)
{
    const ps_cuda_value *out = ps_cuda_output_of(r, s);
    bool bias = ps_cuda_grad(r->plan, s->node->layer->bias) != NULL;
    ps_values dy;
    if (bias) PS_TRY(ps_gpu_fork(r->plan->gpu));
    if (bias) PS_TRY(linear_backward_bias(r, s));
    PS_TRY(cuda_factor(r, s, out->grad, ps_cuda_count(r, out), r->plan->grad16, &dy));
    PS_TRY(linear_backward_weight(r, s, dy));
    PS_TRY(linear_backward_input(r, s, dy));
    return bias ? ps_gpu_join(r->plan->gpu) : PS_OK;
}
