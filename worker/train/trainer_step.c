#include "trainer_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "fault_point.h"
#include "log.h"
#include "trace.h"

ps_err ps_trainer_reduce(const ps_trainer *t, const char *kind, uint64_t number,
                         double *values, size_t n)
{
    char name[48];
    snprintf(name, sizeof name, "%s/%" PRIu64, kind, number);
    return ps_member_reduce(t->member, name, values, n,
                            ps_config_step_deadline(t->o.config));
}

static ps_err on_params_needed(void *ctx, uint64_t begin, uint64_t end)
{
    ps_trainer *t = ctx;
    return ps_session_wait_range(t->o.session, begin, end);
}

static ps_err on_grads_ready(void *ctx, uint64_t begin, uint64_t end)
{
    ps_trainer *t = ctx;
    return ps_session_push_range(t->o.session, begin, end);
}

ps_err ps_trainer_renew_loss_scale(ps_trainer *t)
{
    float before = t->loss_scale;
    PS_TRY(ps_session_loss_scale(t->o.session, &t->loss_scale));
    t->result->loss_scale = t->loss_scale;
    if (t->loss_scale >= before) return PS_OK;
    t->result->skipped_steps++;
    if (t->rank == 0)
        PS_INFO("step-skipped", "step=%" PRIu64 " loss_scale=%g", t->step - 1,
                (double)t->loss_scale);
    return PS_OK;
}

/* The micro-batch's loss times its samples: so ranks and micro-batches count by their
 * samples, as their gradients do. */
static double as_samples(double loss_sum, const ps_trainer_owed_loss *owed)
{
    const double weight = owed->weight.weight;
    return weight > 0 ? loss_sum * ((double)owed->samples / weight) : 0;
}

ps_err ps_trainer_take_losses(ps_trainer *t, int keep)
{
    while (t->n_owed > keep) {
        ps_pass_result result;
        PS_TRY(ps_program_result(t->program, &result));
        ps_trainer_owed_loss owed = t->owed[0];
        memmove(t->owed, t->owed + 1, sizeof *t->owed * (size_t)--t->n_owed);
        const double loss_sum = as_samples(result.loss_sum, &owed);
        t->since_record.loss_sum += loss_sum;
        t->since_record.samples += owed.samples;
        t->since_record.correct += result.correct;
        t->since_record.counted += owed.weight.counted;
        t->group.loss_sum += loss_sum;
        t->group.samples += owed.samples;
        if (!owed.last) continue;
        t->step_loss = t->group.loss_sum / (double)t->group.samples;
        t->group = (ps_trainer_window){0};
    }
    return PS_OK;
}

/* For tests that count how often a sample is seen. positions: in the permutation. */
static void log_samples(const ps_trainer *t, const ps_loaded *b)
{
    char text[1600] = "";
    if (!ps_log_shows(PS_LOG_DEBUG)) return;
    for (int64_t i = 0, used = 0; i < b->n && used < (int64_t)sizeof text - 16; i++)
        used += snprintf(text + used, sizeof text - (size_t)used, "%s%u", i ? "," : "",
                         b->positions[i]);
    PS_DEBUG("samples",
             "job=%016" PRIx64 " step=%" PRIu64 " epoch=%" PRId64 " positions=%s",
             t->member ? ps_member_roster(t->member)->nonce : UINT64_C(0), t->step,
             t->epoch, text);
}

static ps_err next_micro_batch(ps_trainer *t, ps_loaded **out)
{
    uint64_t begin = ps_trace_begin(PS_TRACE_BATCH);
    *out = t->next;
    t->next = NULL;
    if (!*out)
        PS_TRY(ps_loader_next(t->loader, ps_config_step_deadline(t->o.config), out));
    t->loaded += ps_clock_seconds_since(begin);
    ps_trace_add(PS_TRACE_BATCH, begin, t->step);
    if (!*out)
        return ps_err_set(PS_ERR_INTERNAL, "the epoch ended before its last batch");
    log_samples(t, *out);
    return PS_OK;
}

/* Whether the next step's rows are looked up in this one. It hides the network, and costs
 * processor time: on one host it makes steps slower (bench/results/README.md). */
static bool trainer_step_looks_ahead(const ps_trainer *t)
{
    return t->rows.client && t->step + 1 < t->total_steps &&
           !ps_session_plan(t->o.session)->size.one_host;
}

/* Starts copying the next batch to the device, or looking up its rows, if it is ready.
 * Waits for nothing. */
static ps_err trainer_step_prefetch(ps_trainer *t, bool rows)
{
    if (!ps_loader_ready(t->loader)) return PS_OK;
    uint64_t begin = ps_trace_begin(PS_TRACE_PREFETCH);
    PS_TRY(ps_loader_next(t->loader, ps_config_step_deadline(t->o.config), &t->next));
    ps_batch batch = ps_batch_of(t->next);
    PS_TRY(rows ? ps_batch_rows_prefetch(&t->rows, t->next->ids, t->next->n)
                : ps_program_prefetch(t->program, &batch));
    ps_trace_add(PS_TRACE_PREFETCH, begin, t->step);
    return PS_OK;
}

/* Forward and backward of a micro-batch; first and last of its group. The first forward
 * pass has waited for every weight. So the loss scale, which the backward pass needs, is
 * known without another wait. */
static ps_err run_micro_batch(ps_trainer *t, const ps_loaded *loaded, int64_t group_n,
                              bool first, bool last)
{
    ps_batch batch = ps_batch_of(loaded);
    ps_pass_hooks hooks = {.ctx = t,
                           .params_needed = first ? on_params_needed : NULL,
                           .grads_ready = last ? on_grads_ready : NULL};
    ps_pass pass = {
        .training = true,
        .accumulate = !first,
        .loss_later = true,
        .dropout = {.seed = t->o.config->train.seed, .epoch = (uint32_t)t->pass},
        .hooks = &hooks};
    PS_TRY(ps_batch_rows_pull(&t->rows, loaded->ids, &batch));
    if (last && trainer_step_looks_ahead(t)) PS_TRY(trainer_step_prefetch(t, true));
    uint64_t begin = ps_trace_begin(PS_TRACE_FORWARD);
    PS_TRY(ps_program_forward(t->program, &batch, &pass, NULL));
    t->owed[t->n_owed++] = (ps_trainer_owed_loss){
        .samples = loaded->n, .weight = ps_batch_weigh(t->o.spec, &batch), .last = last};
    ps_trace_add(PS_TRACE_FORWARD, begin, t->step);
    if (ps_program_prefetches(t->program)) PS_TRY(trainer_step_prefetch(t, false));
    if (first) PS_TRY(ps_trainer_renew_loss_scale(t));
    pass.grad_scale =
        (float)((double)loaded->n / (double)group_n * (double)t->loss_scale);
    begin = ps_trace_begin(PS_TRACE_BACKWARD);
    PS_TRY(ps_program_backward(t->program, &batch, &pass));
    ps_trace_add(PS_TRACE_BACKWARD, begin, t->step);
    return ps_batch_rows_add_gradients(&t->rows);
}

int64_t ps_trainer_samples(const int64_t *n, int64_t first, int64_t count)
{
    int64_t sum = 0;
    for (int64_t i = first; i < first + count; i++)
        sum += n[i];
    return sum;
}

/* A kernel that hangs: the error names the step, counted from 1. */
static ps_err trainer_step_named(const ps_trainer *t, ps_err err)
{
    if (err != PS_ERR_TIMEOUT || !ps_device_lost(t->o.device)) return err;
    return ps_err_prefix(err, "step %" PRIu64, t->step + 1);
}

ps_err ps_trainer_run_group(ps_trainer *t, int64_t first, int64_t count, int64_t group_n)
{
    PS_FAULT_POINT("step.begun");
    const int64_t own_n = ps_trainer_samples(t->own_n, first, count);
    const int64_t mean_of = ps_session_counts(t->o.session) ? own_n : group_n;
    // the first step's loss is shown at once, so it does not stay behind
    int behind = ps_program_prefetches(t->program) && t->step > 0 ? 1 : 0;
    PS_TRY(ps_session_begin(t->o.session, t->clock));
    for (int64_t m = 0; m < count; m++) {
        ps_loaded *loaded;
        PS_TRY(next_micro_batch(t, &loaded));
        ps_err err = run_micro_batch(t, loaded, mean_of, m == 0, m == count - 1);
        ps_loader_release(t->loader, loaded);
        if (err == PS_OK) err = ps_trainer_take_losses(t, behind);
        PS_TRY(trainer_step_named(t, err));
    }
    PS_TRY(ps_batch_rows_push(&t->rows, ps_session_lr_factor(t->o.session, t->step)));
    PS_TRY(ps_session_count(t->o.session, (uint64_t)own_n, (uint64_t)group_n));
    return ps_session_finish(t->o.session);
}
