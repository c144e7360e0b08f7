/* Epochs in which all ranks make as many steps: each step together (bsp), or the steps of
 * a round each by itself (local, local_steps.h). */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "balance.h"
#include "fault_point.h"
#include "interrupt.h"
#include "local_steps.h"
#include "log.h"
#include "trace.h"
#include "trainer_state.h"

/* With data.batch auto the workers' batches follow their speeds after each epoch. */
struct ps_trainer_bsp {
    int64_t *batches;           // (ranks) of the epoch; NULL: they stay
    ps_sampler_options sampler; // the trainer's, with these
    double busy_seconds;        // of the epoch's steps, without waiting for others
    bool warned;                // that an evaluation came within a round
};

/* --- batches that follow the speeds ------------------------------------------------ */

static int64_t global_batch(const ps_trainer *t)
{
    int64_t sum = 0;
    for (int r = 0; r < t->o.sampler->world_size; r++)
        sum += t->o.sampler->batch[r];
    return sum;
}

/* The largest batch that a rank may get. */
static int64_t largest_batch(const ps_trainer *t)
{
    const ps_sampler_options *s = t->o.sampler;
    const int64_t most = PS_BALANCE_MOST * ((global_batch(t) - 1) / s->world_size + 1);
    const int64_t all_but_one_each = global_batch(t) - s->world_size + 1;
    return most < all_but_one_each ? most : all_but_one_each;
}

static ps_err bsp_create(ps_trainer *t)
{
    const ps_sampler_options *given = t->o.sampler;
    const size_t n = (size_t)given->world_size;
    PS_TRY(PS_NEW(&t->bsp, 1, "the trainer"));
    struct ps_trainer_bsp *b = t->bsp;
    if (!ps_config_balances(t->o.config) || n < 2) return PS_OK;
    PS_TRY(PS_NEW(&b->batches, n, "the batch sizes"));
    memcpy(b->batches, given->batch, n * sizeof *b->batches);
    b->sampler = *given;
    b->sampler.batch = b->batches;
    t->o.sampler = &b->sampler;
    t->max_batch = largest_batch(t);
    return PS_OK;
}

static void bsp_destroy(ps_trainer *t)
{
    if (t->bsp) free(t->bsp->batches);
    free(t->bsp);
}

static ps_err bsp_next_epoch(ps_trainer *t)
{
    struct ps_trainer_bsp *b = t->bsp;
    char text[PS_BALANCE_TEXT_BYTES];
    double speeds[PS_MAX_RANKS] = {0};
    const int n = t->o.sampler->world_size;
    if (!b->batches) return PS_OK;
    const int64_t own = ps_trainer_samples(t->own_n, 0, t->n_batches);
    speeds[t->rank] = (double)own / (b->busy_seconds > 1e-6 ? b->busy_seconds : 1e-6);
    b->busy_seconds = 0;
    PS_TRY(ps_trainer_reduce(t, "balance", (uint64_t)t->epoch, speeds, (size_t)n));
    // A job that goes on near an epoch's end has measured too little.
    if (2 * t->n_batches >= ps_sampler_n_batches(t->o.sampler))
        ps_balance(speeds, n, global_batch(t), largest_batch(t), b->batches);
    t->sized_for = PS_TRAINER_NOT_SIZED;
    if (t->rank == 0)
        PS_INFO("batches", "epoch=%" PRId64 " sizes=%s", t->epoch + 2,
                ps_balance_text(b->batches, n, text));
    return PS_OK;
}

static const int64_t *bsp_shares(const ps_trainer *t)
{
    return t->bsp->batches;
}

/* --- steps -------------------------------------------------------------------------- */

static bool record_due(const ps_trainer *t, bool epoch_ends)
{
    return epoch_ends || t->step == t->total_steps ||
           t->step % (uint64_t)t->o.config->train.log_every == 0;
}

static bool save_due(const ps_trainer *t)
{
    uint64_t every = (uint64_t)t->o.config->train.save_every;
    return every > 0 && t->step % every == 0;
}

static ps_err save_weights(ps_trainer *t)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%" PRIu64 ".safetensors", t->step);
    PS_TRY(ps_trainer_drain(t));
    return ps_trainer_save(t, name);
}

/* One optimizer step with all that follows it. */
static ps_err step_once(ps_trainer *t, int64_t first, int64_t count, bool *stop)
{
    t->late = PS_CHECKPOINT_NOWHERE;
    t->clock = t->step;
    t->pass = (uint64_t)t->epoch;
    if (t->member) PS_TRY(ps_member_check(t->member));
    const int64_t group_n = ps_trainer_samples(t->global_n, first, count);
    uint64_t begin = ps_trace_begin(PS_TRACE_STEP);
    PS_TRY(ps_trainer_run_group(t, first, count, group_n));
    ps_trace_add(PS_TRACE_STEP, begin, t->step);
    PS_FAULT_POINT("step.made");
    t->step++;
    t->position += group_n;
    const bool epoch_ends = first + count == t->n_batches;
    const bool last =
        t->step == t->total_steps || (epoch_ends && ps_trainer_evaluation_due(t));
    // The last step before an evaluation is done when its weights are here.
    if (last) PS_TRY(ps_session_drain(t->o.session));
    const double seconds = ps_clock_seconds_since(begin), owed = t->owed_seconds;
    t->bsp->busy_seconds += seconds - ps_trainer_book_step(t, seconds + owed, group_n);
    if (t->rank == 0)
        ps_straggler_log_step(&t->result->stragglers, t->member, t->step - 1);
    t->owed_seconds = 0;
    bool record = record_due(t, epoch_ends);
    if (record) PS_TRY(ps_trainer_take_losses(t, 0));
    *stop = (!t->member && ps_interrupted()) ||
            t->step == (uint64_t)t->o.config->train.stop_after;
    const bool kept =
        save_due(t) || ps_checkpointer_due(t->o.checkpointer, t->step - 1, t->step);
    if (record || t->step >= t->next_check || *stop || kept)
        PS_TRY(ps_trainer_record(t, record, last || kept, stop));
    ps_trainer_show_progress(t, t->step_loss, epoch_ends || last);
    // The same as in a job that is not interrupted: with a codec, saving changes weights.
    if (save_due(t) && (!*stop || t->o.checkpointer)) PS_TRY(save_weights(t));
    return ps_trainer_checkpoint_if_due(t, *stop);
}

static ps_err bsp_epoch(ps_trainer *t, bool *stop)
{
    const int64_t accumulate = t->o.accumulate;
    PS_TRY(ps_trainer_find_sizes(t));
    PS_TRY(ps_loader_epoch(t->loader, (uint64_t)t->epoch, 0));
    if (!t->goes_on) t->position = 0;
    t->goes_on = false;
    for (int64_t i = 0; i < t->n_batches && t->step < t->total_steps && !*stop;
         i += accumulate) {
        int64_t left = t->n_batches - i;
        PS_TRY(step_once(t, i, left < accumulate ? left : accumulate, stop));
    }
    return PS_OK;
}

static uint64_t bsp_checked(const ps_trainer *t)
{
    return t->step - 1;
}

static void bsp_fill(const ps_trainer *t, ps_trainer_snapshot *s)
{
    const int64_t *batches = t->bsp->batches;
    if (batches) s->batches[t->rank] = (double)batches[t->rank];
}

static void bsp_report(const ps_trainer *t)
{
    t->result->batches = t->bsp->batches;
}

/* --- the policy local --------------------------------------------------------------- */

static bool all_fresh(const ps_trainer *t)
{
    const ps_config *c = t->o.config;
    for (uint32_t f = 0; f < (uint32_t)c->sync.fragments; f++)
        if (!ps_local_steps_fresh(c, f, t->step, t->total_steps)) return false;
    return true;
}

/* Once: the newest weights are every worker's own. */
static void local_warn_of_older(ps_trainer *t)
{
    const ps_config_sync *s = &t->o.config->sync;
    struct ps_trainer_bsp *b = t->bsp;
    if (t->rank != 0 || b->warned || all_fresh(t)) return;
    b->warned = true;
    PS_WARN("evaluation", "step=%" PRIu64 " note=\"within a round: %s\"", t->step,
            s->fragments > 1 || s->overlap > 0
                ? "each fragment has the weights of its last synchronisation"
                : "the weights are those of the last synchronisation; a "
                  "sync.local_steps that divides an epoch's steps, or another "
                  "train.eval_every, would evaluate the newest");
}

#define ALL_ALIKE                                                                        \
    .create = bsp_create, .destroy = bsp_destroy, .epoch = bsp_epoch,                    \
    .next_epoch = bsp_next_epoch, .checked = bsp_checked, .shares = bsp_shares,          \
    .fill = bsp_fill, .report = bsp_report

static const ps_trainer_pace_ops pace_bsp = {ALL_ALIKE};
static const ps_trainer_pace_ops pace_local = {ALL_ALIKE,
                                               .warn_of_older = local_warn_of_older};

/* --- all paces ---------------------------------------------------------------------- */

const ps_trainer_pace_ops *ps_trainer_pace_of(const ps_config *c)
{
    return ps_config_own_pace(c)  ? &ps_trainer_pace_own
           : ps_local_steps_on(c) ? &pace_local
                                  : &pace_bsp;
}

bool ps_trainer_reentrys_are_own(const ps_config *config)
{
    return ps_trainer_pace_of(config) == &ps_trainer_pace_own;
}
