/* No exchange: every worker steps its own weights with its own gradients. For one worker,
 * and as the measure of what an exchange costs. */
#include "exchange_none.h"

#include <stdlib.h>

#include "gradnorm.h"
#include "lamb.h"
#include "mem.h"
#include "stream_step.h"

/* One worker alone: its gradient is the sum. */
typedef struct exchange_none {
    ps_exchange base;
    ps_exchange_options o;
    ps_device_stream *stream;
    bool owns_stream;
    ps_step_rule rule;
    uint64_t at; // the step that was begun
    bool queues; // the stream makes whole steps, behind the gradients
    bool waits;  // otherwise: a step is applied when all of its gradients are here
    ps_ready_ranges ready;    // this step's gradients, by tensor, the last one first
    uint32_t *complete;       // scratch: tensors of a range
    ps_chunk whole;           // the arena as one chunk
    double *gradnorm_sums;    // of its blocks; NULL without clipping
    double *lamb_sums;        // (ps_lamb_sums); NULL: another optimizer
    ps_stream_step on_stream; // of a stream that queues
} exchange_none;

static exchange_none *none_self(ps_exchange *x)
{
    return (exchange_none *)x;
}

static void none_destroy(ps_exchange **x)
{
    exchange_none *e = none_self(*x);
    if (e->owns_stream && e->stream) e->stream->ops->destroy(&e->stream);
    ps_ready_ranges_fini(&e->ready);
    free(e->complete);
    free(e->gradnorm_sums);
    free(e->lamb_sums);
    free(e);
    *x = NULL;
}

static ps_err none_open_stream(exchange_none *e)
{
    const ps_host_stream_options options = {
        .table = e->o.table,
        .optimizer = &e->rule.optimizer,
        .params = e->o.params->base,
        .grads = e->o.grads->base,
        .buffers = e->o.buffers,
        .whole = true,
    };
    e->stream = e->o.stream;
    e->owns_stream = !e->stream;
    return e->stream ? PS_OK : ps_host_stream_create(&options, &e->stream);
}

static ps_err map_tensors(exchange_none *e)
{
    const ps_tensor_table *table = e->o.table;
    const size_t n = (size_t)table->n_tensors;
    uint64_t *begins = NULL;
    PS_TRY(PS_NEW(&e->complete, n, "tensors"));
    PS_TRY(PS_NEW(&begins, n, "tensors"));
    for (size_t i = 0; i < n; i++)
        begins[i] = table->tensors[n - 1 - i].offset;
    const ps_err err = ps_ready_ranges_init(&e->ready, table, begins, (uint32_t)n);
    free(begins);
    return err;
}

static ps_err none_prepare_lamb(exchange_none *e)
{
    PS_TRY(ps_stream_step_lamb(e->stream));
    return PS_NEW(&e->lamb_sums, ps_lamb_sums(e->o.table), "norm sums");
}

static ps_err none_prepare(exchange_none *e)
{
    const ps_tensor_table *table = e->o.table;
    e->rule = *e->o.rule;
    e->whole =
        (ps_chunk){.count = table->arena_count, .last_tensor = table->n_tensors - 1};
    PS_TRY(none_open_stream(e));
    PS_TRY(map_tensors(e));
    e->queues = e->stream->ops->step != NULL;
    e->waits = ps_step_rule_waits(&e->rule);
    e->on_stream = ps_stream_step_of(&e->rule, e->stream);
    if (ps_lamb_on(&e->rule.optimizer) && !e->queues) PS_TRY(none_prepare_lamb(e));
    if (e->queues || e->rule.clip_norm <= 0) return PS_OK;
    return PS_NEW(&e->gradnorm_sums, ps_gradnorm_blocks(table), "norm sums");
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
    PS_TRY(PS_NEW(&e, 1, "the exchange"));
    e->base = (ps_exchange){.ops = &ps_exchange_none_ops, .ready = &e->ready};
    e->o = *options;
    ps_exchange *x = &e->base;
    ps_err err = none_prepare(e);
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

static ps_err none_refuse(const exchange_none *e, int tensor, uint64_t step)
{
    return ps_step_rule_not_finite(e->o.rank, e->o.table->tensors[tensor].name, step);
}

/* Fails when the stream has refused a step. wait: waits for all steps; otherwise looks at
 * those that are done. */
static ps_err look_back(exchange_none *e, bool wait)
{
    uint64_t t;
    int tensor;
    PS_TRY(ps_stream_step_refused(&e->on_stream, wait, &t, &tensor));
    return t ? none_refuse(e, tensor, t - 1) : PS_OK;
}

static ps_err none_start(ps_exchange *x)
{
    ps_device_stream *s = none_self(x)->stream;
    return s->ops->from_host(s, PS_STREAM_PARAMS);
}

static ps_err none_begin(ps_exchange *x, uint64_t step)
{
    none_self(x)->at = step;
    ps_ready_ranges_restart(&none_self(x)->ready);
    return PS_OK;
}

static ps_err none_loss_scale(ps_exchange *x, float *scale)
{
    PS_TRY(ps_stream_step_learn(&none_self(x)->on_stream));
    *scale = none_self(x)->rule.scale.scale;
    return PS_OK;
}

ps_device_stream *ps_exchange_none_stream(ps_exchange *x)
{
    return none_self(x)->stream;
}

ps_err ps_exchange_none_settle(ps_exchange *x)
{
    exchange_none *e = none_self(x);
    if (!e->queues) return PS_OK;
    PS_TRY(ps_stream_step_learn(&e->on_stream));
    return look_back(e, true);
}

static ps_err none_drain(ps_exchange *x)
{
    ps_device_stream *s = none_self(x)->stream;
    PS_TRY(ps_exchange_none_settle(x));
    return s->ops->to_host(s, PS_STREAM_PARAMS);
}

static ps_err none_params_needed(ps_exchange *x, uint64_t begin, uint64_t end)
{
    return PS_OK;
}

static ps_err none_params_ready(ps_exchange *x, uint64_t begin, uint64_t end, bool *ready)
{
    *ready = true;
    return PS_OK;
}

static ps_err none_check_tensor(exchange_none *e, int tensor)
{
    const ps_tensor *t = &e->o.table->tensors[tensor];
    bool finite = true;
    if (e->rule.refuses)
        PS_TRY(e->stream->ops->check_finite(e->stream, t->offset, t->count, &finite));
    return finite ? PS_OK : none_refuse(e, tensor, e->at);
}

static ps_err none_apply(exchange_none *e, const ps_chunk *chunk)
{
    const ps_optimizer_step now = ps_step_rule_optimizer_step(&e->rule, e->at, 1);
    return e->stream->ops->apply(e->stream, &now, chunk);
}

static ps_err apply_whole(exchange_none *e, double grad_scale)
{
    const ps_device_stream_ops *ops = e->stream->ops;
    const ps_optimizer_step now =
        ps_step_rule_optimizer_step(&e->rule, e->at, grad_scale);
    if (!e->lamb_sums) return ops->apply(e->stream, &now, &e->whole);
    PS_TRY(ops->lamb_update(e->stream, &now, &e->whole, e->lamb_sums,
                            e->lamb_sums + ps_gradnorm_blocks(e->o.table)));
    return ops->lamb_apply(e->stream, &now, &e->whole, e->lamb_sums);
}

/* Where a step does not wait for its whole gradient, a tensor is stepped while its
 * gradient is still in the caches. */
static ps_err none_grads_ready(ps_exchange *x, uint64_t begin, uint64_t end)
{
    exchange_none *e = none_self(x);
    const int n_tensors = e->o.table->n_tensors;
    uint32_t n = 0;
    PS_TRY(ps_ready_ranges_add(&e->ready, begin, end, e->complete, &n));
    if (e->queues) return PS_OK; // all at once, in finish
    while (n-- > 0) {            // from the first tensor to the last
        const int i = n_tensors - 1 - (int)e->complete[n];
        const ps_tensor *t = &e->o.table->tensors[i];
        const ps_chunk chunk = {
            .offset = t->offset, .count = t->count, .first_tensor = i, .last_tensor = i};
        if (e->o.table->optional) PS_TRY(e->stream->ops->note_absent(e->stream, &chunk));
        PS_TRY(none_check_tensor(e, i));
        if (!e->waits) PS_TRY(none_apply(e, &chunk));
    }
    return PS_OK;
}

/* Checks the last steps' gradients without waiting. */
static ps_err finish_on_stream(exchange_none *e)
{
    PS_TRY(look_back(e, false));
    return ps_stream_step_queue(&e->on_stream, e->at);
}

static ps_err none_finish(ps_exchange *x)
{
    exchange_none *e = none_self(x);
    const ps_device_stream_ops *ops = e->stream->ops;
    ps_step_decision decision;
    bool finite = true;
    double norm = 0;
    if (e->queues) return finish_on_stream(e);
    if (!e->waits) return PS_OK;
    if (e->rule.scale.on)
        PS_TRY(ops->unscale(e->stream, 0, e->whole.count,
                            ps_loss_scale_inverse(&e->rule.scale), &finite));
    if (e->gradnorm_sums) {
        PS_TRY(ops->gradnorm_sums(e->stream, &e->whole, e->gradnorm_sums));
        norm = ps_gradnorm_total(e->gradnorm_sums, ps_gradnorm_blocks(e->o.table));
    }
    PS_TRY(ps_step_rule_decide(&e->rule, finite, norm, &decision));
    return decision.make ? apply_whole(e, decision.grad_scale) : PS_OK;
}

static ps_err none_save(ps_exchange *x, ps_exchange_state *out)
{
    exchange_none *e = none_self(x);
    PS_TRY(ps_stream_step_learn(&e->on_stream));
    for (int i = 0; i < e->rule.optimizer.n_states; i++)
        PS_TRY(
            e->stream->ops->save_state(e->stream, i, 0, e->whole.count, out->states[i]));
    if (out->missed)
        PS_TRY(e->stream->ops->save_state(e->stream, PS_STREAM_MISSED, 0, e->whole.count,
                                          out->missed));
    return ps_step_rule_save(&e->rule, out->rule, &out->rule_bytes);
}

static ps_err none_load(ps_exchange *x, const ps_exchange_state *in)
{
    exchange_none *e = none_self(x);
    for (int i = 0; i < e->rule.optimizer.n_states; i++)
        PS_TRY(
            e->stream->ops->load_state(e->stream, i, 0, e->whole.count, in->states[i]));
    if (in->missed)
        PS_TRY(e->stream->ops->load_state(e->stream, PS_STREAM_MISSED, 0, e->whole.count,
                                          in->missed));
    return PS_OK;
}

static void none_stats(const ps_exchange *x, ps_exchange_stats *out)
{
    *out = (ps_exchange_stats){0};
}

const ps_exchange_ops ps_exchange_none_ops = {
    .name = "none",
    .mode = "single",
    .alone = true,
    .on_device = true,
    .create = none_create,
    .start = none_start,
    .begin = none_begin,
    .params_needed = none_params_needed,
    .params_ready = none_params_ready,
    .grads_ready = none_grads_ready,
    .finish = none_finish,
    .drain = none_drain,
    .loss_scale = none_loss_scale,
    .sync_buffers = none_ok,
    .save = none_save,
    .load = none_load,
    .stats = none_stats,
    .stop = none_ok,
    .destroy = none_destroy,
};
