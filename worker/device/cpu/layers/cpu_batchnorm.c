#include "cpu_batchnorm.h"

#include <string.h>

#include "cpu_batchnorm_loops.h"
#include "cpu_pointwise.h"

static unsigned batchnorm_flags_of(const ps_cpu_batchnorm *n, bool training)
{
    unsigned flags = n->relu ? dnnl_fuse_norm_relu : dnnl_normalization_flags_none;
    if (n->affine) flags |= PS_DNNL_USE_SCALE_SHIFT;
    if (!training) flags |= dnnl_use_global_stats;
    return flags;
}

/* The library's primitives for the layer, before they are created. */
typedef struct offer {
    dnnl_primitive_desc_t evaluate, train, backward; // NULL: not needed
} offer;

static void offer_fini(offer *o)
{
    ps_dnnl_pd_destroy(&o->evaluate);
    ps_dnnl_pd_destroy(&o->train);
    ps_dnnl_pd_destroy(&o->backward);
}

static ps_err batchnorm_ask(const ps_cpu_batchnorm *n, ps_dnnl_batchnorm *desc,
                            bool training, offer *o)
{
    desc->flags = batchnorm_flags_of(n, false);
    PS_TRY(ps_dnnl_batchnorm_forward(desc, false, &o->evaluate));
    if (!training) return PS_OK;
    desc->flags = batchnorm_flags_of(n, true);
    PS_TRY(ps_dnnl_batchnorm_forward(desc, true, &o->train));
    return ps_dnnl_batchnorm_backward(desc, o->train, &o->backward);
}

/* Whether the library has vector code: its plain code, for other layouts and numbers of
 * channels, takes five times as long as our loops. */
static bool has_vectors(dnnl_primitive_desc_t pd)
{
    return !pd || strstr(ps_dnnl_pd_name(pd), "jit");
}

static ps_err batchnorm_make(ps_cpu_batchnorm *n, ps_dnnl_batchnorm *desc, bool training)
{
    offer o = {0};
    ps_err err = batchnorm_ask(n, desc, training, &o);
    n->own = err == PS_ERR_UNSUPPORTED || !has_vectors(o.evaluate) ||
             !has_vectors(o.train) || !has_vectors(o.backward);
    if (err == PS_ERR_UNSUPPORTED) err = PS_OK;
    if (err != PS_OK || n->own) goto out;
    PS_TRY_GOTO(ps_cpu_op_create(&n->evaluate, desc->who, &o.evaluate), err, out);
    if (!training) goto out;
    PS_TRY_GOTO(ps_cpu_op_create(&n->backward, desc->who, &o.backward), err, out);
    err = ps_cpu_op_create(&n->train, desc->who, &o.train);
out:
    offer_fini(&o);
    return err;
}

ps_err ps_cpu_batchnorm_init(ps_cpu_batchnorm *n, dnnl_engine_t engine,
                             const ps_layer *layer, const ps_cpu_shape *shape,
                             const ps_cpu_batchnorm_use *use)
{
    const dnnl_data_type_t type = ps_cpu_factor_type(use->type);
    *n = (ps_cpu_batchnorm){.layer = layer, .shape = *shape, .relu = use->relu};
    n->affine = layer->weight != PS_NONE && layer->bias != PS_NONE;
    ps_dnnl_batchnorm desc = {
        .engine = engine, .who = layer->name, .eps = (float)layer->eps};
    ps_dnnl_md *md = NULL;
    ps_err err;
    PS_TRY_GOTO(ps_cpu_shape_md(shape, layer->name, type, &md), err, out);
    PS_TRY_GOTO(ps_dnnl_attr_create(layer->name, false,
                                    (dnnl_primitive_attr_t *)(void *)&desc.attr),
                err, out);
    desc.src = md;
    err = batchnorm_make(n, &desc, use->training);
out:
    ps_dnnl_md_destroy(&md);
    if (desc.attr)
        dnnl_primitive_attr_destroy((dnnl_primitive_attr_t)(uintptr_t)desc.attr);
    return err;
}

void ps_cpu_batchnorm_fini(ps_cpu_batchnorm *n)
{
    ps_cpu_op_fini(&n->train);
    ps_cpu_op_fini(&n->evaluate);
    ps_cpu_op_fini(&n->backward);
}

/* oneDNN's vector code reads and writes whole blocks of channels. */
static size_t channel_bytes(const ps_cpu_batchnorm *n)
{
    return sizeof(float) * (size_t)((n->shape.c + 15) / 16 * 16);
}

static ps_err plan_own_forward(ps_cpu_batchnorm *n, ps_memory_plan *memory, bool training)
{
    const size_t bytes = channel_bytes(n);
    n->slot.mean = n->slot.variance = n->slot.scratch = PS_NO_SLOT;
    PS_TRY(ps_memory_plan_take(memory, bytes, &n->slot.workspace));
    if (training) {
        PS_TRY(ps_memory_plan_take(memory, bytes, &n->slot.mean));
        PS_TRY(ps_memory_plan_take(memory, bytes, &n->slot.variance));
        PS_TRY(ps_memory_plan_take(memory, ps_cpu_batchnorm_scratch_bytes(&n->shape),
                                   &n->slot.scratch));
        ps_memory_plan_give(memory, n->slot.scratch);
    } else {
        ps_memory_plan_give(memory, n->slot.workspace);
    }
    return PS_OK;
}

ps_err ps_cpu_batchnorm_plan_forward(ps_cpu_batchnorm *n, ps_memory_plan *memory,
                                     bool training)
{
    if (n->own) return plan_own_forward(n, memory, training);
    size_t scratch = ps_cpu_op_scratch_bytes(&n->evaluate);
    if (training) {
        size_t other = ps_cpu_op_scratch_bytes(&n->train);
        scratch = other > scratch ? other : scratch;
        PS_TRY(ps_memory_plan_take(memory, channel_bytes(n), &n->slot.mean));
        PS_TRY(ps_memory_plan_take(memory, channel_bytes(n), &n->slot.variance));
        PS_TRY(ps_memory_plan_take(memory,
                                   ps_cpu_op_bytes(&n->train, dnnl_query_workspace_md),
                                   &n->slot.workspace));
    }
    size_t copies = n->affine && PS_DNNL_SCALE_SHIFT_IS_ONE ? 2 * channel_bytes(n) : 0;
    PS_TRY(ps_memory_plan_take(memory, copies, &n->slot.scale_shift));
    PS_TRY(ps_memory_plan_take(memory, scratch, &n->slot.scratch));
    ps_memory_plan_give(memory, n->slot.scratch);
    if (!training) ps_memory_plan_give(memory, n->slot.scale_shift);
    return PS_OK;
}

ps_err ps_cpu_batchnorm_plan_backward(ps_cpu_batchnorm *n, ps_memory_plan *memory)
{
    PS_TRY(ps_memory_plan_take(memory, 2 * channel_bytes(n), &n->slot.gradients));
    PS_TRY(ps_memory_plan_take(memory,
                               n->own ? ps_cpu_batchnorm_scratch_bytes(&n->shape)
                                      : ps_cpu_op_scratch_bytes(&n->backward),
                               &n->slot.scratch_back));
    ps_memory_plan_give(memory, n->slot.scratch_back);
    ps_memory_plan_give(memory, n->slot.gradients);
    if (!n->own) ps_memory_plan_give(memory, n->slot.scale_shift);
    ps_memory_plan_give(memory, n->slot.workspace);
    ps_memory_plan_give(memory, n->slot.mean);
    ps_memory_plan_give(memory, n->slot.variance);
    return PS_OK;
}

/* Binds both rows of one array of (2, C). */
static ps_err bind_rows(const ps_cpu_batchnorm *n, ps_cpu_op *op, int arg, float *rows)
{
    const dnnl_dims_t dims = {2, n->shape.c};
    ps_dnnl_md *md = NULL;
    PS_TRY(ps_dnnl_md_create(n->layer->name, 2, dims, dnnl_nc, &md));
    ps_err err = ps_cpu_op_bind(op, n->layer->name, arg, md, rows);
    ps_dnnl_md_destroy(&md);
    return err;
}

static ps_err bind_scale_shift(const ps_cpu_batchnorm *n, ps_cpu_op *op,
                               const ps_cpu_batchnorm_arrays *p,
                               const ps_dnnl_md *channels, bool shift)
{
    const char *who = n->layer->name;
    if (!n->affine) return PS_OK;
    if (PS_DNNL_SCALE_SHIFT_IS_ONE)
        return bind_rows(n, op, DNNL_ARG_SCALE, n->scale_shift);
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_SCALE, channels, p->weight));
    if (!shift) return PS_OK;
    return ps_cpu_op_bind(op, who, DNNL_ARG_SHIFT, channels, p->bias);
}

static ps_err bind_gradients(const ps_cpu_batchnorm *n, ps_cpu_op *op,
                             const ps_dnnl_md *channels)
{
    const char *who = n->layer->name;
    if (!n->affine) return PS_OK;
    if (PS_DNNL_SCALE_SHIFT_IS_ONE)
        return bind_rows(n, op, DNNL_ARG_DIFF_SCALE, n->scale_gradient);
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_SCALE, channels, n->scale_gradient));
    return ps_cpu_op_bind(op, who, DNNL_ARG_DIFF_SHIFT, channels, n->shift_gradient);
}

/* Binds the arguments that both forward primitives have. channels: the descriptor of (C).
 */
static ps_err batchnorm_bind_forward(ps_cpu_batchnorm *n, ps_cpu_op *op,
                                     const ps_memory_plan *memory,
                                     const ps_cpu_batchnorm_arrays *p,
                                     const ps_dnnl_md *channels, float *mean,
                                     float *variance)
{
    const char *who = n->layer->name;
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_SRC, dnnl_query_src_md, p->x));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DST, dnnl_query_dst_md, p->y));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_MEAN, channels, mean));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_VARIANCE, channels, variance));
    PS_TRY(bind_scale_shift(n, op, p, channels, true));
    return ps_cpu_op_bind_scratch(op, who, ps_memory_plan_at(memory, n->slot.scratch));
}

static ps_err bind_workspace(ps_cpu_batchnorm *n, ps_cpu_op *op,
                             const ps_memory_plan *memory)
{
    if (ps_cpu_op_bytes(op, dnnl_query_workspace_md) == 0) return PS_OK;
    return ps_cpu_op_bind_own(op, n->layer->name, DNNL_ARG_WORKSPACE,
                              dnnl_query_workspace_md,
                              ps_memory_plan_at(memory, n->slot.workspace));
}

static ps_err bind_backward(ps_cpu_batchnorm *n, const ps_memory_plan *memory,
                            const ps_cpu_batchnorm_arrays *p, const ps_dnnl_md *channels)
{
    const char *who = n->layer->name;
    ps_cpu_op *op = &n->backward;
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_SRC, dnnl_query_src_md, p->x));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DIFF_DST, dnnl_query_diff_dst_md, p->dy));
    PS_TRY(ps_cpu_op_bind_own(op, who, DNNL_ARG_DIFF_SRC, dnnl_query_diff_src_md, p->dx));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_MEAN, channels, n->mean));
    PS_TRY(ps_cpu_op_bind(op, who, DNNL_ARG_VARIANCE, channels, n->variance));
    PS_TRY(bind_scale_shift(n, op, p, channels, PS_DNNL_NORM_BACKWARD_TAKES_SHIFT));
    PS_TRY(bind_gradients(n, op, channels));
    PS_TRY(bind_workspace(n, op, memory));
    return ps_cpu_op_bind_scratch(op, who,
                                  ps_memory_plan_at(memory, n->slot.scratch_back));
}

static void bind_own(ps_cpu_batchnorm *n, const ps_memory_plan *memory)
{
    n->inv = ps_memory_plan_at(memory, n->slot.workspace);
    n->mean = ps_memory_plan_at(memory, n->slot.mean);
    n->variance = ps_memory_plan_at(memory, n->slot.variance);
    n->scratch = ps_memory_plan_at(memory, n->slot.scratch);
    if (!n->arrays->dy) return;
    n->scratch_back = ps_memory_plan_at(memory, n->slot.scratch_back);
    n->scale_gradient = ps_memory_plan_at(memory, n->slot.gradients);
    n->shift_gradient = n->scale_gradient + channel_bytes(n) / sizeof(float);
}

ps_err ps_cpu_batchnorm_bind(ps_cpu_batchnorm *n, const ps_memory_plan *memory,
                             const ps_cpu_batchnorm_arrays *p)
{
    n->arrays = p;
    if (n->own) {
        bind_own(n, memory);
        return PS_OK;
    }
    const dnnl_dims_t dims = {n->shape.c};
    ps_dnnl_md *channels = NULL;
    ps_err err;
    n->scale_shift = ps_memory_plan_at(memory, n->slot.scale_shift);
    PS_TRY(ps_dnnl_md_create(n->layer->name, 1, dims, dnnl_x, &channels));
    PS_TRY_GOTO(batchnorm_bind_forward(n, &n->evaluate, memory, p, channels,
                                       p->running_mean, p->running_variance),
                err, out);
    if (!n->train.primitive) goto out;
    n->mean = ps_memory_plan_at(memory, n->slot.mean);
    n->variance = ps_memory_plan_at(memory, n->slot.variance);
    n->scale_gradient = ps_memory_plan_at(memory, n->slot.gradients);
    n->shift_gradient = n->scale_gradient + (PS_DNNL_SCALE_SHIFT_IS_ONE
                                                 ? (size_t)n->shape.c
                                                 : channel_bytes(n) / sizeof(float));
    PS_TRY_GOTO(
        batchnorm_bind_forward(n, &n->train, memory, p, channels, n->mean, n->variance),
        err, out);
    PS_TRY_GOTO(bind_workspace(n, &n->train, memory), err, out);
    if (p->dy) err = bind_backward(n, memory, p, channels);
out:
    ps_dnnl_md_destroy(&channels);
    return err;
}

static void copy_scale_shift(const ps_cpu_batchnorm *n)
{
    const ps_cpu_batchnorm_arrays *p = n->arrays;
    if (!n->scale_shift) return;
    const size_t row = (size_t)n->shape.c;
    memcpy(n->scale_shift, p->weight, row * sizeof(float));
    memcpy(n->scale_shift + row, p->bias, row * sizeof(float));
}

static void update_running(const ps_cpu_batchnorm *n)
{
    const ps_cpu_batchnorm_arrays *p = n->arrays;
    double values = (double)(n->shape.n * n->shape.h * n->shape.w);
    float unbiased = (float)(values / (values - 1.0)), m = (float)n->layer->momentum;
    for (int64_t c = 0; c < n->shape.c; c++) {
        p->running_mean[c] = (1.0f - m) * p->running_mean[c] + m * n->mean[c];
        p->running_variance[c] =
            (1.0f - m) * p->running_variance[c] + m * (n->variance[c] * unbiased);
    }
}

static ps_cpu_batchnorm_channels batchnorm_channels_of(const ps_cpu_batchnorm *n,
                                                       const float *mean)
{
    const ps_cpu_batchnorm_arrays *p = n->arrays;
    return (ps_cpu_batchnorm_channels){mean, n->inv, n->affine ? p->weight : NULL,
                                       n->affine ? p->bias : NULL};
}

static void forward_own(ps_cpu_batchnorm *n, const float *x, bool training)
{
    const ps_cpu_batchnorm_arrays *p = n->arrays;
    if (training)
        ps_cpu_batchnorm_moments(&n->shape, x, n->scratch, n->mean, n->variance);
    ps_cpu_batchnorm_invert(n->shape.c, training ? n->variance : p->running_variance,
                            (float)n->layer->eps, n->inv);
    const ps_cpu_batchnorm_channels channels =
        batchnorm_channels_of(n, training ? n->mean : p->running_mean);
    ps_cpu_batchnorm_values(&n->shape, &channels, x, n->relu, p->y);
}

ps_err ps_cpu_batchnorm_forward(ps_cpu_batchnorm *n, dnnl_stream_t stream, const void *x,
                                bool training, int64_t *batches)
{
    const char *who = n->layer->name;
    ps_cpu_op *op = training ? &n->train : &n->evaluate;
    if (training && n->shape.n * n->shape.h * n->shape.w == 1)
        return ps_err_set(PS_ERR_SHAPE,
                          "%s: one value per channel has no variance to train with; use "
                          "a larger batch or data.drop_last_batch",
                          who);
    if (n->own) {
        forward_own(n, x, training);
    } else {
        PS_TRY(ps_cpu_op_rebind(op, who, DNNL_ARG_SRC, x));
        copy_scale_shift(n);
        PS_TRY(ps_cpu_op_run(op, who, stream));
    }
    if (!training) return PS_OK;
    update_running(n);
    if (batches) ++*batches;
    return PS_OK;
}

static void batchnorm_put_gradients(const ps_cpu_batchnorm *n, float *dweight,
                                    float *dbias, bool accumulate)
{
    if (!n->affine) return;
    if (dweight) ps_cpu_pass(n->shape.c, n->scale_gradient, dweight, accumulate);
    if (dbias) ps_cpu_pass(n->shape.c, n->shift_gradient, dbias, accumulate);
}

static void backward_own(ps_cpu_batchnorm *n, const float *x, float *dweight,
                         float *dbias, bool accumulate, bool add)
{
    const ps_cpu_batchnorm_arrays *p = n->arrays;
    const ps_cpu_batchnorm_channels channels = batchnorm_channels_of(n, n->mean);
    const ps_cpu_batchnorm_passed passed = {x, p->dy, n->relu ? p->y : NULL};
    const float values = (float)(n->shape.n * n->shape.h * n->shape.w);
    ps_cpu_batchnorm_sums(&n->shape, &channels, &passed, n->scratch_back,
                          n->shift_gradient, n->scale_gradient);
    batchnorm_put_gradients(n, dweight, dbias, accumulate);
    if (!p->dx) return;
    for (int64_t c = 0; c < n->shape.c; c++) {
        n->shift_gradient[c] /= values;
        n->scale_gradient[c] /= values;
    }
    ps_cpu_batchnorm_gradient(&n->shape, &channels, &passed, n->shift_gradient,
                              n->scale_gradient, p->dx, add);
}

ps_err ps_cpu_batchnorm_backward(ps_cpu_batchnorm *n, dnnl_stream_t stream, const void *x,
                                 float *dweight, float *dbias, bool accumulate, bool add)
{
    const char *who = n->layer->name;
    if (n->own) {
        backward_own(n, x, dweight, dbias, accumulate, add);
        return PS_OK;
    }
    PS_TRY(ps_cpu_op_rebind(&n->backward, who, DNNL_ARG_SRC, x));
    PS_TRY(ps_cpu_op_run(&n->backward, who, stream));
    batchnorm_put_gradients(n, dweight, dbias, accumulate);
    return PS_OK;
}
