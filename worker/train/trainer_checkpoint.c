#include "trainer_state.h"

#include "fault_point.h"
#include "trace.h"

void ps_trainer_start_from(ps_trainer *t, const ps_trainer_snapshot *s)
{
    if (!s) return;
    ps_trainer_window *w = &t->since_record;
    t->goes_on = true;
    t->step = s->step;
    if (t->o.start_is_saved) t->kept = s->step;
    t->epoch = s->epoch;
    t->position = s->position;
    t->step_loss = s->step_loss;
    t->sums_epoch = s->epoch;
    t->epoch_loss_sum = s->epoch_loss_sum;
    t->epoch_samples = s->epoch_samples;
    t->best = t->best_before = s->best;
    t->patience = (ps_patience){s->patience_best, s->patience_in_row};
    t->plateau = (ps_plateau){s->plateau_best, s->plateau_bad, s->plateau_cooldown,
                              s->plateau_cuts};
    ps_session_set_cuts(t->o.session, t->plateau.cuts);
    *w = (ps_trainer_window){.global_samples = s->window_samples,
                             .steps = s->window_steps,
                             .seconds = s->window_seconds,
                             .wait_seconds = s->window_wait_seconds};
    ps_trainer_snapshot_share(s, t->rank, ps_session_world_size(t->o.session),
                              &w->loss_sum, &w->samples);
}

void ps_trainer_fill_state(const ps_trainer *t, ps_trainer_snapshot *s)
{
    const ps_trainer_window *w = &t->since_record;
    const ps_trainer_result *r = t->result;
    const bool summed = t->sums_epoch == t->epoch; // has the epoch a record yet?
    double *sums = s->loss_sums, *samples = s->loss_samples, *own_steps = s->own_steps,
           *batches = s->batches;
    sums[t->rank] = w->loss_sum;
    samples[t->rank] = (double)w->samples;
    *s = (ps_trainer_snapshot){.step = t->step,
                               .epoch = t->epoch,
                               .position = t->position,
                               .samples = r->samples,
                               .skipped_steps = r->skipped_steps,
                               .seconds = r->seconds,
                               .epoch_loss_sum = summed ? t->epoch_loss_sum : 0,
                               .epoch_samples = summed ? t->epoch_samples : 0,
                               .step_loss = t->step_loss,
                               .window_steps = w->steps,
                               .window_samples = w->global_samples,
                               .window_seconds = w->seconds,
                               .window_wait_seconds = w->wait_seconds,
                               .n_ranks = s->n_ranks,
                               .loss_sums = sums,
                               .loss_samples = samples,
                               .own_steps = own_steps,
                               .batches = batches,
                               .metrics_bytes = ps_metrics_bytes(t->o.metrics),
                               .best = t->best,
                               .patience_best = t->patience.best,
                               .patience_in_row = t->patience.in_row,
                               .plateau_best = t->plateau.best,
                               .plateau_bad = t->plateau.bad,
                               .plateau_cooldown = t->plateau.cooldown,
                               .plateau_cuts = t->plateau.cuts};
    t->pace->fill(t, s);
}

/* All ranks, between two steps. */
static ps_err take_checkpoint(ps_trainer *t, ps_checkpoint_place place, bool must)
{
    ps_trainer_snapshot state;
    uint64_t begin_ns = ps_clock_ns();
    PS_TRY(ps_trainer_take_losses(t, 0));
    if (t->program) PS_TRY(ps_program_fetch_buffers(t->program));
    PS_TRY(ps_session_drain(t->o.session));
    if (t->pace->settle) PS_TRY(t->pace->settle(t));
    PS_TRY(ps_trainer_renew_loss_scale(
        t)); // learns of the last step: whether it was skipped
    ps_err err = ps_trainer_snapshot_init(&state, ps_session_world_size(t->o.session));
    if (err == PS_OK) {
        ps_trainer_fill_state(t, &state);
        err = ps_checkpointer_take(t->o.checkpointer, &state, place, must, begin_ns);
    }
    ps_trainer_snapshot_fini(&state);
    PS_FAULT_POINT("checkpoint.taken");
    if (place == PS_CHECKPOINT_DISK) t->kept = t->step;
    t->late = PS_CHECKPOINT_NOWHERE;
    t->owed_seconds += ps_clock_seconds_since(begin_ns);
    ps_trace_add(PS_TRACE_CHECKPOINT, begin_ns, t->step);
    return err;
}

ps_err ps_trainer_checkpoint_if_due(ps_trainer *t, bool stop)
{
    const bool must = stop || t->step == t->total_steps;
    if (!t->o.checkpointer) return PS_OK;
    if (must || ps_checkpointer_due(t->o.checkpointer, t->pace->checked(t), t->step))
        t->late = PS_CHECKPOINT_DISK;
    return t->late == PS_CHECKPOINT_NOWHERE ? PS_OK : take_checkpoint(t, t->late, must);
}

ps_err ps_trainer_checkpoint_once(ps_trainer *t)
{
    return t->o.checkpointer && t->kept != t->step
               ? take_checkpoint(t, PS_CHECKPOINT_DISK, true)
               : PS_OK;
}

bool ps_trainer_is_best(const ps_trainer *t, double *value)
{
    const ps_evaluation *e = &t->result->evaluation;
    return !t->result->interrupted && e->samples > 0 && t->kept == t->step &&
           ps_checkpointer_is_best(t->o.checkpointer, t->best, e->loss, e->accuracy,
                                   value);
}

void ps_trainer_mark_if_best(ps_trainer *t)
{
    double value;
    if (!ps_trainer_is_best(t, &value)) return;
    t->best_before = t->best;
    t->best = value;
    ps_checkpointer_mark_best(t->o.checkpointer, t->step);
}

ps_err ps_trainer_finish_checkpoints(ps_trainer *t)
{
    bool saved;
    if (!t->o.checkpointer) return PS_OK;
    PS_TRY(ps_checkpointer_finish(t->o.checkpointer, &saved));
    t->result->resumable = saved && t->kept == t->step;
    return PS_OK;
}
