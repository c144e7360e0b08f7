#include "exchange_none.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "finite.h"
#include "grad_norm.h"
#include "mem.h"
#include "stream_step.h"

typedef struct exchange_none {
    ps_exchange base;
    ps_exchange_options o;
    float *states[PS_OPTIMIZER_MAX_STATES]; // arenas of optimizer state
    double *block_sums;                     // with clipping: of the whole arena
    ps_chunk whole;                         // the arena as one chunk, for the norm
    ps_optimizer_step step;
    ps_loss_scale scale;
    uint64_t at; // the step that was begun
    ps_stream_step on_stream;
    bool check, waits; // a step is applied when all of its gradients are here
} exchange_none;

static exchange_none *self(ps_exchange *x)
{
    return (exchange_none *)x;
}

static void none_destroy(ps_exchange **x)
{
    exchange_none *e = self(*x);
    for (int i = 0; i < PS_OPTIMIZER_MAX_STATES; i++)
        free(e->states[i]);
    free(e->block_sums);
    free(e);
    *x = NULL;
}

static ps_err alloc_states(exchange_none *e)
{
    const ps_model_spec *spec = e->o.spec;
    size_t bytes = spec->arena_count * sizeof(float);
    for (int i = 0; i < e->o.optimizer->n_states && !e->o.stream; i++)
        PS_TRY(ps_mem_zalloc_large(&e->states[i], bytes, "optimizer state"));
    if (e->o.config->optimizer.clip_norm <= 0 || e->o.stream) return PS_OK;
    return ps_mem_zalloc(&e->block_sums, ps_grad_norm_blocks(spec), sizeof(double),
                         "norm sums");
}

static ps_err none_create(const ps_exchange_options *options, ps_exchange **out)
{
    *out = NULL;
    // Each would train weights of its own.
    if (options->world_size > 1)
        return ps_err_set(PS_ERR_CONFIG,
                          "exchange.name: none is for one worker, the job has %d",
                          options->world_size);
    exchange_none *e;
    PS_TRY(ps_mem_zalloc(&e, 1, sizeof *e, "the exchange"));
    e->base.ops = &ps_exchange_none_ops;
    e->o = *options;
    e->on_stream = ps_stream_step_of(&e->o, options->stream, &e->scale);
    e->whole = (ps_chunk){.count = options->spec->arena_count,
                          .last_tensor = options->spec->n_tensors - 1};
    ps_exchange *x = &e->base;
    ps_err err = ps_loss_scale_init(&e->scale, options->config);
    if (err == PS_OK) err = alloc_states(e);
    e->check = !e->scale.on && strcmp(options->config->exchange.nan, "allow") != 0;
    e->waits = e->scale.on || e->block_sums;
    if (err == PS_OK)
        *out = x;
    else
        none_destroy(&x);
    return err;
}

static ps_err none_ok(ps_exchange *x)
{
    return PS_OK;
}

static ps_err nan_error(const exchange_none *e, int tensor, uint64_t t)
{
    return ps_err_set(PS_ERR_NUMERIC,
                      "the gradient of worker %d for %s in step %" PRIu64
                      " has a number that is not finite (a lower optimizer.lr or "
                      "optimizer.clip_norm may help; exchange.nan=allow goes on)",
                      e->o.rank, e->o.spec->tensors[tensor].name, t - 1);
}

/* Whether the stream has refused a step: of those that it is done with, or of all. */
static ps_err look_back(exchange_none *e, bool wait)
{
    uint64_t t;
    int tensor;
    PS_TRY(ps_stream_step_refused(&e->on_stream, wait, &t, &tensor));
    return t ? nan_error(e, tensor, t) : PS_OK;
}

static ps_err none_start(ps_exchange *x)
{
    ps_device_stream *s = self(x)->o.stream;
    return s ? s->ops->from_host(s, PS_STREAM_PARAMS) : PS_OK;
}

static ps_err none_begin(ps_exchange *x, uint64_t step)
{
    exchange_none *e = self(x);
    e->at = step;
    e->step = (ps_optimizer_step){.lr = ps_schedule_lr(e->o.schedule, step),
                                  .t = step + 1 - e->scale.skipped,
                                  .grad_scale = 1};
    return PS_OK;
}

static ps_err none_loss_scale(ps_exchange *x, float *scale)
{
    PS_TRY(ps_stream_step_learn(&self(x)->on_stream));
    *scale = self(x)->scale.scale;
    return PS_OK;
}

static ps_err none_drain(ps_exchange *x)
{
    ps_device_stream *s = self(x)->o.stream;
    if (!s) return PS_OK;
    PS_TRY(ps_stream_step_learn(&self(x)->on_stream));
    PS_TRY(look_back(self(x), true));
    return s->ops->to_host(s, PS_STREAM_PARAMS);
}

static ps_err none_params_needed(ps_exchange *x, int first, int n)
{
    return PS_OK;
}

static const float *grad_of(const exchange_none *e, int tensor)
{
    return (const float *)e->o.grads->base + e->o.spec->tensors[tensor].offset;
}

static ps_err check_tensor(const exchange_none *e, int tensor)
{
    bool finite = true;
    if (e->check)
        finite = ps_finite_all(grad_of(e, tensor), e->o.spec->tensors[tensor].count);
    return finite ? PS_OK : nan_error(e, tensor, e->step.t);
}

static void apply_tensor(exchange_none *e, int tensor)
{
    const ps_tensor *t = &e->o.spec->tensors[tensor];
    float *states[PS_OPTIMIZER_MAX_STATES] = {0};
    for (int i = 0; i < e->o.optimizer->n_states; i++)
        states[i] = e->states[i] + t->offset;
    ps_optimizer_apply(
        e->o.optimizer, &e->step, ps_optimizer_decay(e->o.optimizer, t->role), t->count,
        (float *)e->o.params->base + t->offset, grad_of(e, tensor), states);
}

/* Without clipping and loss scaling a tensor is stepped while its gradient is still in
 * the caches. */
static ps_err none_grads_ready(ps_exchange *x, int first, int n)
{
    exchange_none *e = self(x);
    if (e->o.stream) return PS_OK; // all at once, in finish
    for (int t = first; t < first + n; t++) {
        PS_TRY(check_tensor(e, t));
        if (!e->waits) apply_tensor(e, t);
    }
    return PS_OK;
}

static ps_err unscale(exchange_none *e, bool *make)
{
    float *restrict grads = e->o.grads->base;
    const float inverse = ps_loss_scale_inverse(&e->scale);
    *make = true;
    if (!e->scale.on) return PS_OK;
    for (int i = 0; i < e->o.spec->n_tensors; i++) {
        const ps_tensor *t = &e->o.spec->tensors[i];
#pragma omp simd
        for (uint64_t k = t->offset; k < t->offset + t->count; k++)
            grads[k] *= inverse;
        *make = *make && ps_finite_all(grads + t->offset, t->count);
    }
    return ps_loss_scale_update(&e->scale, *make);
}

static void clip(exchange_none *e)
{
    double norm = ps_grad_norm_total(e->block_sums, ps_grad_norm_blocks(e->o.spec));
    e->step.grad_scale = ps_grad_norm_clip(norm, e->o.config->optimizer.clip_norm);
}

/* What the last steps' gradients were like is asked for without waiting. */
static ps_err finish_on_stream(exchange_none *e)
{
    PS_TRY(look_back(e, false));
    return ps_stream_step_queue(&e->on_stream, e->at);
}

static ps_err none_finish(ps_exchange *x)
{
    exchange_none *e = self(x);
    if (e->o.stream) return finish_on_stream(e);
    if (!e->waits) return PS_OK;
    bool make;
    PS_TRY(unscale(e, &make));
    if (make && e->block_sums) {
        ps_grad_norm_chunk(e->o.spec, &e->whole, e->o.grads->base, e->block_sums);
        clip(e);
    }
    for (int t = 0; make && t < e->o.spec->n_tensors; t++)
        apply_tensor(e, t);
    return PS_OK;
}

static void none_stats(const ps_exchange *x, ps_exchange_stats *out)
{
    *out = (ps_exchange_stats){0};
}

const ps_exchange_ops ps_exchange_none_ops = {
    .name = "none",
    .create = none_create,
    .start = none_start,
    .begin = none_begin,
    .params_needed = none_params_needed,
    .grads_ready = none_grads_ready,
    .finish = none_finish,
    .drain = none_drain,
    .loss_scale = none_loss_scale,
    .sync_buffers = none_ok,
    .stats = none_stats,
    .stop = none_ok,
    .destroy = none_destroy,
};
