#include "trainer_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "trace.h"

static const double CHECK_SECONDS = 0.5, RECORD_SECONDS = 0.05;

/* By rank 0's clock. */
static double steps_in(const ps_trainer *t, double seconds)
{
    double steps = seconds / (t->seconds_a_step > 1e-6 ? t->seconds_a_step : 1e-6);
    return steps < 1 ? 1 : ceil(steps < 1e5 ? steps : 1e5);
}

/* Steps until the ranks agree again on whether one of them was interrupted, and on a
 * checkpoint in memory. */
static double steps_until_check(const ps_trainer *t)
{
    return steps_in(t,
                    fmin(CHECK_SECONDS, ps_checkpointer_seconds_left(t->o.checkpointer)));
}

/* The job regroups after this step if workers leave or others wait to join. If too few
 * workers would remain, it ends instead. leaves: whether this worker leaves. */
static void agree_on_workers(ps_trainer *t, int leaving, int newcomers, bool leaves,
                             bool *stop)
{
    const ps_config_job *job = &t->o.config->job;
    const int most = (int)job->most_workers, now = ps_session_world_size(t->o.session);
    int next = now - leaving;
    if (leaving > 0 && next < job->workers) *stop = true;
    if (*stop || t->step == t->total_steps) return;
    next = next + newcomers < most ? next + newcomers : most;
    if (leaving == 0 && next <= now) return;
    t->result->next_workers = next;
    t->result->leaves = leaves;
    *stop = true;
}

/* The notes' losses, summed over all ranks, become records. */
static ps_err write_notes(ps_trainer *t, const double *sums)
{
    for (int i = 0; i < t->n_notes; i++, sums += 2) {
        // a worker that has just come back may have seen none of the samples
        ps_step_record *record = &t->notes[i].record;
        if (!t->notes[i].measured) continue;
        if (t->sums_epoch != record->epoch) t->epoch_loss_sum = t->epoch_samples = 0;
        t->sums_epoch = record->epoch;
        t->epoch_loss_sum += sums[0];
        t->epoch_samples += sums[1];
        t->result->train_loss = t->epoch_loss_sum / t->epoch_samples;
        record->loss_mean = sums[0] / sums[1];
        PS_TRY(ps_trainer_write_record(t, record));
    }
    t->n_notes = 0;
    return PS_OK;
}

/* Notes what has been measured since the last record, for when the ranks agree next. */
static void trainer_agree_note(ps_trainer *t)
{
    ps_trainer_window *w = &t->since_record;
    const bool measured = w->global_samples > 0;
    t->notes[t->n_notes++] = (ps_trainer_note){ps_trainer_measured(t), measured,
                                               w->loss_sum, (double)w->samples};
    if (measured) *w = (ps_trainer_window){0};
}

/* What is summed over the ranks; only rank 0 adds to those with FIRST. Two values of each
 * note follow. */
enum { STOP, FIRST_CHECK, FIRST_RECORDS, FIRST_LATE, LEAVING, FIRST_NEWCOMERS, COMMON };

ps_err ps_trainer_agree(ps_trainer *t, bool record, bool *stop)
{
    const bool leaves = ps_session_told_to_leave(t->o.session);
    double values[COMMON + 2 * PS_TRAINER_NOTES] = {
        [STOP] = *stop || ps_session_told_to_end(t->o.session), [LEAVING] = leaves};
    if (t->rank == 0) {
        values[FIRST_CHECK] = steps_until_check(t);
        values[FIRST_RECORDS] = steps_in(t, RECORD_SECONDS);
        values[FIRST_LATE] = ps_checkpointer_late(t->o.checkpointer);
        values[FIRST_NEWCOMERS] = ps_member_newcomers(t->member);
    }
    if (record) trainer_agree_note(t);
    for (int i = 0; i < t->n_notes; i++) {
        values[COMMON + 2 * i] = t->notes[i].loss_sum;
        values[COMMON + 2 * i + 1] = t->notes[i].samples;
    }
    uint64_t begin = ps_clock_ns();
    if (t->member) {
        char name[48];
        snprintf(name, sizeof name, "step/%" PRIu64, t->step);
        PS_TRY(ps_member_reduce(t->member, name, values, COMMON + 2 * (size_t)t->n_notes,
                                ps_trainer_step_deadline(t)));
    }
    ps_trace_add(PS_TRACE_AGREE, begin, t->step);
    t->owed_seconds = ps_clock_seconds_since(begin);
    t->agreed += t->owed_seconds;
    *stop = values[STOP] > 0;
    t->next_check = t->step + (uint64_t)values[FIRST_CHECK];
    t->next_records = t->step + (uint64_t)values[FIRST_RECORDS];
    t->late = (ps_checkpoint_place)values[FIRST_LATE];
    agree_on_workers(t, (int)values[LEAVING], (int)values[FIRST_NEWCOMERS], leaves, stop);
    return write_notes(t, values + COMMON);
}

ps_err ps_trainer_record(ps_trainer *t, bool record, bool now, bool *stop)
{
    const bool check = t->step >= t->next_check || t->step == t->total_steps || *stop;
    const bool room = t->n_notes + record < PS_TRAINER_NOTES && t->member;
    const bool due = (record && (t->step >= t->next_records || !room)) ||
                     (now && (record || t->n_notes > 0));
    if (check || due) return ps_trainer_agree(t, record, stop);
    if (record) trainer_agree_note(t);
    return PS_OK;
}
