#include "trainer_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "fault_point.h"
#include "file_wait.h"
#include "log.h"
#include "model_file.h"
#include "readable.h"
#include "safetensors.h"
#include "snapshot.h"
#include "trace.h"

/* Ranks tell each other steps as doubles. */
static const uint64_t MOST_STEPS = 1000000000000000;

static int64_t groups_per_epoch(int64_t n_batches, int64_t accumulate)
{
    return (n_batches + accumulate - 1) / accumulate;
}

/* The steps in the rest of the epoch that the job goes on with, and in the whole epochs
 * after it. */
static uint64_t steps_left(const ps_config *config, const ps_sampler_options *sampler,
                           int64_t accumulate)
{
    const int64_t epochs = config->train.epochs;
    const int64_t whole = groups_per_epoch(ps_sampler_n_batches(sampler), accumulate);
    const int64_t first = (int64_t)sampler->start.epoch;
    uint64_t all;
    if (first >= epochs) return 0;
    const int64_t rest = groups_per_epoch(
        ps_sampler_epoch_batches(sampler, sampler->start.epoch), accumulate);
    if (__builtin_mul_overflow((uint64_t)whole, (uint64_t)(epochs - first - 1), &all) ||
        all > MOST_STEPS)
        return MOST_STEPS;
    return all + (uint64_t)rest;
}

uint64_t ps_trainer_total_steps(const ps_config *config,
                                const ps_sampler_options *sampler, int64_t accumulate,
                                uint64_t done)
{
    if (config->train.epochs == 0) return 0;
    uint64_t all = done + steps_left(config, sampler, accumulate);
    uint64_t limit = (uint64_t)config->train.steps;
    if (limit > 0 && limit < all) all = limit;
    return all > done ? all : done;
}

/* The sizes of the epoch's global micro-batches. They are the same in every epoch, except
 * the one that the job goes on with: of that only the rest is left. */
ps_err ps_trainer_find_sizes(ps_trainer *t)
{
    const ps_sampler_start *start = &t->o.sampler->start;
    const bool rest = start->position > 0 && t->epoch == (int64_t)start->epoch;
    const int64_t of = rest ? t->epoch : -1;
    ps_epoch epoch;
    if (t->global_n && t->sized_for == of) return PS_OK;
    free(t->global_n);
    free(t->own_n);
    t->global_n = t->own_n = NULL;
    t->sized_for = of;
    PS_TRY(ps_epoch_init(&epoch, t->o.sampler, (uint64_t)t->epoch));
    t->n_batches = epoch.n_batches;
    ps_err err = PS_NEW(&t->global_n, (size_t)epoch.n_batches, "the batch sizes");
    if (err == PS_OK) err = PS_NEW(&t->own_n, (size_t)epoch.n_batches, "the batch sizes");
    for (int64_t i = 0; err == PS_OK && i < epoch.n_batches; i++) {
        t->global_n[i] = epoch.batches[i].global_n;
        t->own_n[i] = epoch.batches[i].n;
    }
    ps_epoch_fini(&epoch);
    return err;
}

/* The number of epochs that the job's steps begin. */
static int64_t count_epochs(const ps_trainer *t)
{
    const ps_sampler_options *sampler = t->o.sampler;
    const uint64_t whole =
        (uint64_t)groups_per_epoch(ps_sampler_n_batches(sampler), t->o.accumulate);
    const uint64_t rest = (uint64_t)groups_per_epoch(
        ps_sampler_epoch_batches(sampler, sampler->start.epoch), t->o.accumulate);
    const bool begins = sampler->start.epoch == 0 && sampler->start.position == 0;
    const uint64_t steps = t->total_steps - (begins ? 0 : t->step);
    const uint64_t behind = steps > rest ? steps - rest : 0;
    return (int64_t)(sampler->start.epoch + 1 + (behind + whole - 1) / whole);
}

/* --- what is measured, shown and recorded --------------------------------------- */

static bool past_warmup(const ps_trainer *t)
{
    return t->step > (uint64_t)t->o.config->train.warmup_steps;
}

void ps_trainer_show_values(const ps_trainer *t, const ps_exchange_stats *e,
                            double seconds)
{
    const ps_trainer_result *r = t->result;
    ps_metric_values *v = t->o.values;
    if (!v) return;
    ps_metric_set(v, PS_METRIC_STEP, (double)(t->step + t->shown));
    ps_metric_set(v, PS_METRIC_STEPS, (double)t->total_steps);
    ps_metric_set(v, PS_METRIC_EPOCH, (double)t->epoch);
    ps_metric_set(v, PS_METRIC_EPOCHS, (double)t->epochs);
    ps_metric_set(v, PS_METRIC_LOSS, t->step_loss);
    ps_metric_set(v, PS_METRIC_SAMPLES_PER_SECOND, t->samples_a_step / t->seconds_a_step);
    ps_metric_set(v, PS_METRIC_SAMPLES, (double)r->samples);
    ps_metric_set(v, PS_METRIC_SKIPPED_STEPS, (double)r->skipped_steps);
    ps_metric_set(v, PS_METRIC_STEP_SECONDS, seconds);
    ps_metric_set(v, PS_METRIC_LOAD_SECONDS, t->loaded);
    // Long steps end with an agreement: the fast ranks wait for the slow ones there.
    ps_metric_set(v, PS_METRIC_WAIT_SECONDS, e->wait_seconds + t->agreed);
    ps_metric_set(v, PS_METRIC_ENCODE_SECONDS, e->encode_seconds);
    ps_metric_set(v, PS_METRIC_SEND_SECONDS, e->send_seconds);
    ps_metric_set(v, PS_METRIC_BYTES_SENT, (double)e->bytes_sent);
    ps_metric_set(v, PS_METRIC_BYTES_RECEIVED, (double)e->bytes_received);
    ps_metric_set(v, PS_METRIC_SHM_BYTES_SENT, (double)e->shm_sent);
    ps_metric_set(v, PS_METRIC_SHM_BYTES_RECEIVED, (double)e->shm_received);
}

double ps_trainer_book_step(ps_trainer *t, double seconds, int64_t group_n)
{
    ps_exchange_stats stats;
    ps_session_stats(t->o.session, &stats);
    double waited = stats.wait_seconds - t->waited;
    t->waited = stats.wait_seconds;
    ps_trainer_result *r = t->result;
    r->steps = t->step;
    r->samples += (uint64_t)group_n;
    r->seconds += seconds;
    ps_trainer_window *w = &t->since_record;
    w->steps++;
    w->global_samples += group_n;
    w->seconds += seconds;
    w->wait_seconds += waited;
    if (past_warmup(t)) {
        ps_duration_add(&r->step_time, seconds);
        ps_duration_add(&r->wait_time, waited);
        t->warm_seconds += seconds;
        t->warm_samples += (uint64_t)group_n;
    }
    // The first step, in which everything warms up, counts only until there is another.
    const uint64_t made = t->step - r->first_step;
    double weight = made < 2 ? 1 : made < 21 ? 1 / (double)(made - 1) : 0.05;
    t->seconds_a_step += weight * (seconds - t->seconds_a_step);
    t->samples_a_step += weight * ((double)group_n - t->samples_a_step);
    ps_trainer_show_values(t, &stats, r->seconds);
    return waited;
}

void ps_trainer_show_progress(ps_trainer *t, double loss, bool now)
{
    char waits_for[64];
    ps_progress_state state = {
        .waits_for =
            ps_straggler_text(&t->result->stragglers.now, waits_for, sizeof waits_for),
        .epoch = t->epoch + 1,
        .epochs = t->epochs,
        .step = t->step + t->shown,
        .steps = t->total_steps,
        .loss = loss,
        .samples_per_second = t->samples_a_step / t->seconds_a_step,
        .seconds_left =
            t->step > 1 ? (double)(t->total_steps - t->step) * t->seconds_a_step : NAN};
    ps_progress_show(t->o.progress, &state, now);
}

static void show_record(const ps_trainer *t, const ps_step_record *r)
{
    ps_metric_set(t->o.values, PS_METRIC_LOSS_MEAN, r->loss_mean);
    ps_metric_set(t->o.values, PS_METRIC_TRAIN_ACCURACY, r->accuracy);
    ps_metric_set(t->o.values, PS_METRIC_LR, r->lr);
    ps_metric_set(t->o.values, PS_METRIC_LOSS_SCALE, r->loss_scale);
    ps_metric_set(t->o.values, PS_METRIC_STEP_MS, r->step_ms);
    ps_metric_set(t->o.values, PS_METRIC_EXCHANGE_WAIT_MS, r->exchange_wait_ms);
}

static void show_device_memory(const ps_trainer *t)
{
    uint64_t used, total;
    if (!t->o.values || !ps_device_memory(t->o.device, &used, &total)) return;
    ps_metric_set(t->o.values, PS_METRIC_DEVICE_BYTES, (double)used);
    ps_metric_set(t->o.values, PS_METRIC_DEVICE_TOTAL_BYTES, (double)total);
}

static ps_step_record trainer_measured(const ps_trainer *t)
{
    const ps_trainer_window *w = &t->since_record;
    return (ps_step_record){.step = t->step,
                            .epoch = t->epoch,
                            .loss = t->step_loss,
                            .loss_mean = NAN,
                            .accuracy = NAN,
                            .lr = ps_session_lr(t->o.session, t->step - 1),
                            .loss_scale = t->loss_scale,
                            .samples_per_second = (double)w->global_samples / w->seconds,
                            .step_ms = w->seconds * 1e3 / (double)w->steps,
                            .exchange_wait_ms = w->wait_seconds * 1e3 / (double)w->steps};
}

static ps_err trainer_write_record(ps_trainer *t, const ps_step_record *record)
{
    show_record(t, record);
    show_device_memory(t);
    return ps_metrics_step(t->o.metrics, record);
}

static void trainer_book_traffic(ps_trainer *t, const ps_exchange_stats *before)
{
    ps_exchange_stats *now = &t->result->traffic;
    ps_session_stats(t->o.session, now);
    now->bytes_sent -= before->bytes_sent;
    now->bytes_received -= before->bytes_received;
    now->raw_bytes -= before->raw_bytes;
    now->shm_sent -= before->shm_sent;
    now->shm_received -= before->shm_received;
    now->wait_seconds -= before->wait_seconds;
}

static void trainer_book_speed(ps_trainer *t)
{
    ps_trainer_result *r = t->result;
    if (t->warm_seconds > 0)
        r->samples_per_second = (double)t->warm_samples / t->warm_seconds;
    else if (r->seconds > 0)
        r->samples_per_second = (double)r->samples / r->seconds;
}

/* --- what the ranks agree on ---------------------------------------------------- */

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

enum { LOSS, SAMPLES, CORRECT, COUNTED, NOTE }; // a note's values

/* The notes' values, summed over all ranks, become records. */
static ps_err write_notes(ps_trainer *t, const double *sums)
{
    for (int i = 0; i < t->n_notes; i++, sums += NOTE) {
        // a worker that has just come back may have seen none of the samples
        ps_step_record *record = &t->notes[i].record;
        if (!t->notes[i].measured) continue;
        if (t->sums_epoch != record->epoch)
            t->epoch_loss_sum = t->epoch_samples = t->epoch_correct = t->epoch_counted =
                0;
        t->sums_epoch = record->epoch;
        t->epoch_loss_sum += sums[LOSS];
        t->epoch_samples += sums[SAMPLES];
        t->epoch_correct += sums[CORRECT];
        t->epoch_counted += sums[COUNTED];
        t->result->train_loss = t->epoch_loss_sum / t->epoch_samples;
        t->result->train_accuracy = t->epoch_correct / t->epoch_counted;
        record->loss_mean = sums[LOSS] / sums[SAMPLES];
        record->accuracy = sums[CORRECT] / sums[COUNTED];
        PS_TRY(trainer_write_record(t, record));
    }
    t->n_notes = 0;
    return PS_OK;
}

/* Notes what has been measured since the last record, for when the ranks agree next. */
static void trainer_agree_note(ps_trainer *t)
{
    ps_trainer_window *w = &t->since_record;
    const bool measured = w->global_samples > 0;
    t->notes[t->n_notes++] =
        (ps_trainer_note){trainer_measured(t), measured,           w->loss_sum,
                          (double)w->samples,  (double)w->correct, (double)w->counted};
    if (measured) *w = (ps_trainer_window){0};
}

/* What is summed over the ranks; only rank 0 adds to those with FIRST. The notes'
 * values follow. */
enum { STOP, FIRST_CHECK, FIRST_RECORDS, FIRST_LATE, LEAVING, FIRST_NEWCOMERS, COMMON };

ps_err ps_trainer_agree(ps_trainer *t, bool record, bool *stop)
{
    const bool leaves = ps_session_told_to_leave(t->o.session);
    double values[COMMON + NOTE * PS_TRAINER_NOTES] = {
        [STOP] = *stop || ps_session_told_to_end(t->o.session), [LEAVING] = leaves};
    if (t->rank == 0) {
        values[FIRST_CHECK] = steps_until_check(t);
        values[FIRST_RECORDS] = steps_in(t, RECORD_SECONDS);
        values[FIRST_LATE] = ps_checkpointer_late(t->o.checkpointer);
        values[FIRST_NEWCOMERS] = ps_member_newcomers(t->member);
    }
    if (record) trainer_agree_note(t);
    for (int i = 0; i < t->n_notes; i++) {
        double *note = values + COMMON + NOTE * i;
        note[LOSS] = t->notes[i].loss_sum;
        note[SAMPLES] = t->notes[i].samples;
        note[CORRECT] = t->notes[i].correct;
        note[COUNTED] = t->notes[i].counted;
    }
    uint64_t begin = ps_trace_begin(PS_TRACE_AGREE);
    if (t->member)
        PS_TRY(ps_trainer_reduce(t, "step", t->step, values,
                                 COMMON + NOTE * (size_t)t->n_notes));
    ps_trace_add(PS_TRACE_AGREE, begin, t->step);
    t->owed_seconds = ps_clock_seconds_since(begin);
    t->agreed += t->owed_seconds;
    *stop = values[STOP] > 0;
    t->next_check = t->step + (uint64_t)values[FIRST_CHECK];
    t->next_records = t->step + (uint64_t)values[FIRST_RECORDS];
    t->late = (ps_checkpoint_target)values[FIRST_LATE];
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

/* --- checkpoints ---------------------------------------------------------------- */

static void trainer_start_from(ps_trainer *t, const ps_trainer_snapshot *s)
{
    if (!s) return;
    ps_trainer_window *w = &t->since_record;
    t->goes_on = true;
    t->step = s->step;
    t->epoch = s->epoch;
    t->position = s->position;
    t->step_loss = s->step_loss;
    t->sums_epoch = s->epoch;
    t->epoch_loss_sum = s->epoch_loss_sum;
    t->epoch_samples = s->epoch_samples;
    t->epoch_correct = s->epoch_correct;
    t->epoch_counted = s->epoch_counted;
    t->best = t->best_before = s->best;
    t->best_epoch = s->best_epoch;
    t->patience = (ps_patience){s->patience_best, s->patience_in_row};
    t->plateau = (ps_plateau){s->plateau_best, s->plateau_bad, s->plateau_cooldown,
                              s->plateau_cuts};
    ps_session_set_cuts(t->o.session, t->plateau.cuts);
    *w = (ps_trainer_window){.global_samples = s->window_samples,
                             .steps = s->window_steps,
                             .seconds = s->window_seconds,
                             .wait_seconds = s->window_wait_seconds};
    const int n = ps_session_world_size(t->o.session);
    w->loss_sum = ps_trainer_snapshot_share(s, s->loss_sums, t->rank, n);
    w->samples = (int64_t)ps_trainer_snapshot_share(s, s->loss_samples, t->rank, n);
    w->correct = (int64_t)ps_trainer_snapshot_share(s, s->correct, t->rank, n);
    w->counted = (int64_t)ps_trainer_snapshot_share(s, s->counted, t->rank, n);
}

void ps_trainer_fill_state(const ps_trainer *t, ps_trainer_snapshot *s)
{
    const ps_trainer_window *w = &t->since_record;
    const ps_trainer_result *r = t->result;
    const bool summed = t->sums_epoch == t->epoch; // has the epoch a record yet?
    s->loss_sums[t->rank] = w->loss_sum;
    s->loss_samples[t->rank] = (double)w->samples;
    s->correct[t->rank] = (double)w->correct;
    s->counted[t->rank] = (double)w->counted;
    s->step = t->step;
    s->epoch = t->epoch;
    s->position = t->position;
    s->samples = r->samples;
    s->skipped_steps = r->skipped_steps;
    s->seconds = r->seconds;
    s->epoch_loss_sum = summed ? t->epoch_loss_sum : 0;
    s->epoch_samples = summed ? t->epoch_samples : 0;
    s->epoch_correct = summed ? t->epoch_correct : 0;
    s->epoch_counted = summed ? t->epoch_counted : 0;
    s->step_loss = t->step_loss;
    s->window_steps = w->steps;
    s->window_samples = w->global_samples;
    s->window_seconds = w->seconds;
    s->window_wait_seconds = w->wait_seconds;
    s->metrics_bytes =
        t->metrics_bytes > 0 ? t->metrics_bytes : ps_metrics_bytes(t->o.metrics);
    s->best = t->best;
    s->best_epoch = t->best_epoch;
    s->patience_best = t->patience.best;
    s->patience_in_row = t->patience.in_row;
    s->plateau_best = t->plateau.best;
    s->plateau_bad = t->plateau.bad;
    s->plateau_cooldown = t->plateau.cooldown;
    s->plateau_cuts = t->plateau.cuts;
    s->train_samples = (uint64_t)t->o.train->n;
    s->train_mark = t->o.train_mark;
    s->test_samples = (uint64_t)t->o.evaluator->n_samples;
    s->test_mark = t->o.test_mark;
    t->pace->fill(t, s);
}

/* All ranks, between two steps. */
static ps_err take_checkpoint(ps_trainer *t, ps_checkpoint_target target, bool must)
{
    ps_trainer_snapshot state;
    bool taken = false;
    uint64_t begin_ns = ps_trace_begin(PS_TRACE_CHECKPOINT);
    PS_TRY(ps_trainer_take_losses(t, 0));
    if (t->program) PS_TRY(ps_program_fetch_buffers(t->program));
    PS_TRY(ps_session_drain(t->o.session));
    if (t->pace->settle) PS_TRY(t->pace->settle(t));
    PS_TRY(ps_trainer_renew_loss_scale(
        t)); // learns of the last step: whether it was skipped
    ps_err err = ps_trainer_snapshot_init(&state, ps_session_world_size(t->o.session));
    if (err == PS_OK) {
        ps_trainer_fill_state(t, &state);
        err = ps_checkpointer_take(t->o.checkpointer, &state, target, must, begin_ns,
                                   &taken);
    }
    ps_trainer_snapshot_fini(&state);
    PS_FAULT_POINT("checkpoint.taken");
    if (taken && target == PS_CHECKPOINT_DISK) t->kept = t->step;
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

static ps_err trainer_checkpoint_once(ps_trainer *t)
{
    return t->o.checkpointer && t->kept != t->step
               ? take_checkpoint(t, PS_CHECKPOINT_DISK, true)
               : PS_OK;
}

static ps_err trainer_finish_checkpoints(ps_trainer *t)
{
    bool saved;
    if (!t->o.checkpointer) return PS_OK;
    PS_TRY(ps_checkpointer_finish(t->o.checkpointer, &saved));
    t->result->resumable = saved && t->kept == t->step;
    return PS_OK;
}

/* --- weights and evaluation ------------------------------------------------------ */

ps_err ps_trainer_drain(ps_trainer *t)
{
    uint64_t begin = ps_trace_begin(PS_TRACE_DRAIN);
    if (t->program) PS_TRY(ps_program_fetch_buffers(t->program));
    PS_TRY(ps_session_drain(t->o.session));
    PS_TRY(ps_session_sync_buffers(t->o.session));
    ps_trace_add(PS_TRACE_DRAIN, begin, t->step);
    return PS_OK;
}

/* Its metadata name the epoch that the job is in, from 0, as ps_trainer_snapshot does;
 * after the last one, their number. */
static ps_err trainer_write_weights(ps_trainer *t, const char *name)
{
    if (!t->o.run_dir) return PS_OK;
    char path[PATH_MAX], step[24], epoch[24], seed[24];
    PS_TRY(ps_run_dir_path(t->o.run_dir, name, path));
    snprintf(step, sizeof step, "%" PRIu64, t->step);
    snprintf(epoch, sizeof epoch, "%" PRId64, t->epoch);
    snprintf(seed, sizeof seed, "%" PRIu64, t->o.config->train.seed);
    const char *metadata[] = {"format", "pt",    "pstrain", PS_VERSION, "step",
                              step,     "epoch", epoch,     "seed",     seed};
    uint64_t begin = ps_trace_begin(PS_TRACE_SAVE);
    PS_TRY(ps_model_file_save(path, &t->o.spec->table, ps_session_params(t->o.session),
                              ps_session_buffers(t->o.session), metadata, 5));
    if (t->o.rows) PS_TRY(ps_row_values_save(path, step, t->o.rows, t->o.spec));
    ps_trace_add(PS_TRACE_SAVE, begin, t->step);
    PS_DEBUG("saved", "path=%s", path);
    return PS_OK;
}

/* Fetches the weights' average into a snapshot, and writes it with the buffers. */
static ps_err write_average(ps_trainer *t, const ps_optimizer *optimizer,
                            const char *name)
{
    ps_snapshot s;
    char path[PATH_MAX];
    const ps_snapshot_shape shape = ps_snapshot_shape_of(
        t->o.config, &t->o.spec->table, optimizer, ps_session_world_size(t->o.session));
    ps_err err = ps_snapshot_init(&s, &shape, t->rank, t->rank == 0);
    if (err == PS_OK) err = ps_session_save(t->o.session, &s.exchange);
    if (err == PS_OK && t->o.run_dir) {
        static const char *const metadata[] = {"format", "pt", "pstrain", PS_VERSION};
        err = ps_run_dir_path(t->o.run_dir, name, path);
        if (err == PS_OK)
            err = ps_model_file_save(path, &t->o.spec->table,
                                     s.exchange.states[optimizer->n_states - 1],
                                     ps_session_buffers(t->o.session), metadata, 2);
    }
    ps_snapshot_fini(&s);
    return err;
}

/* All ranks, at the end. Before the first step there is no average. A job that goes on
 * without one has that of other weights in its folder. */
static ps_err save_average(ps_trainer *t)
{
    static const char name[] = "ema.safetensors";
    const ps_optimizer *optimizer = ps_session_optimizer(t->o.session);
    char path[PATH_MAX];
    if (optimizer->ema == 0 && t->o.run_dir &&
        ps_run_dir_path(t->o.run_dir, name, path) == PS_OK)
        unlink(path);
    if (optimizer->ema == 0 || t->step == t->result->skipped_steps) return PS_OK;
    PS_TRY(write_average(t, optimizer, name));
    return ps_file_wait_written(t->member, t->o.config, name);
}

ps_err ps_trainer_save(ps_trainer *t, const char *name)
{
    PS_TRY(trainer_write_weights(t, name));
    return ps_file_wait_written(t->member, t->o.config, name);
}

/* "  train 0.0790 97.77%": a loss, and the accuracy, if there is one, beside it. */
static const char *trainer_loss_text(const char *of, double loss, double accuracy,
                                     char *out, size_t bytes)
{
    char text[PS_READABLE_BYTES], more[32] = "";
    if (!isnan(accuracy)) snprintf(more, sizeof more, " %.2f%%", accuracy * 100);
    snprintf(out, bytes, "  %s %s%s", of, ps_readable_figure(loss, text), more);
    return out;
}

/* The same of the tests; behind it the figure that says more. */
static void trainer_test_text(const ps_evaluation *e, ps_quality quality, char *out,
                              size_t bytes)
{
    const ps_measures *m = &e->measures;
    char figure[PS_READABLE_BYTES];
    trainer_loss_text("test loss", e->loss, m->accuracy, out, bytes);
    const size_t used = strlen(out);
    if (quality != PS_QUALITY_ACCURACY)
        snprintf(out + used, bytes - used, " %s %s", ps_quality_table[quality].name,
                 ps_readable_figure(quality == PS_QUALITY_AUC ? m->auc : m->r2, figure));
}

/* Of the best evaluation it is the largest. */
static double trainer_quality(const ps_config *config, const ps_evaluation *e)
{
    switch (config->checkpoint.best) {
    case PS_BEST_ACCURACY:
        return e->measures.accuracy;
    case PS_BEST_AUC:
        return e->measures.auc;
    default:
        return -e->loss;
    }
}

/* Whether the last evaluation is the best so far; then it is the one to compare with. */
static bool trainer_take_best(ps_trainer *t, int64_t epochs_done)
{
    const double value = trainer_quality(t->o.config, &t->result->evaluation);
    if (!isfinite(value) || t->best >= value) return false; // a best that is NAN is none
    t->best_before = t->best;
    t->best = value;
    t->best_epoch = epochs_done;
    return true;
}

static const char BEST[] = "best.safetensors";

/* The weights are those that were just evaluated as the best. Those of the last epoch are
 * in model.safetensors. */
static ps_err trainer_keep_best(ps_trainer *t, bool last)
{
    char path[PATH_MAX], rows[PATH_MAX];
    if (ps_checkpointer_keeps_best(t->o.checkpointer) && t->kept == t->step)
        ps_checkpointer_mark_best(t->o.checkpointer, t->step);
    if (!last) return ps_trainer_save(t, BEST);
    if (!t->o.run_dir || ps_run_dir_path(t->o.run_dir, BEST, path) != PS_OK) return PS_OK;
    unlink(path);
    ps_row_values_path(path, rows);
    unlink(rows);
    return PS_OK;
}

/* Warns where this folder does not have the weights of the best epoch, which was before
 * the job went on. last: the epochs at the last evaluation, whose weights are the
 * model's. */
static void tell_of_best(const ps_trainer *t, int64_t last)
{
    char path[PATH_MAX], *epoch = NULL;
    if (!t->o.run_dir || !t->o.start || t->best_epoch == 0 || t->best_epoch == last ||
        ps_run_dir_path(t->o.run_dir, BEST, path) != PS_OK)
        return;
    const bool there =
        ps_st_read_metadata(path, "epoch", &epoch) == PS_OK && epoch != NULL;
    if (!there || strtoll(epoch, NULL, 10) != t->best_epoch - 1)
        PS_WARN("best", "epoch=%" PRId64 " note=\"%s\"", t->best_epoch,
                there ? "best.safetensors has other weights: the job went on from a "
                        "checkpoint before them"
                      : "its weights are in the folder that the job went on from");
    free(epoch);
}

static void show_evaluation(ps_trainer *t, int64_t epochs_done, bool best)
{
    const ps_trainer_result *r = t->result;
    const ps_measures *m = &r->evaluation.measures;
    char test[80], train[80] = "";
    const struct {
        ps_metric metric;
        double value;
    } shown[] = {{PS_METRIC_EPOCH_LOSS, r->train_loss},
                 {PS_METRIC_EPOCH_ACCURACY, r->train_accuracy},
                 {PS_METRIC_TEST_LOSS, r->evaluation.loss},
                 {PS_METRIC_TEST_ACCURACY, m->accuracy},
                 {PS_METRIC_TEST_TOP5_ACCURACY, m->top5},
                 {PS_METRIC_TEST_F1, m->f1},
                 {PS_METRIC_TEST_AUC, m->auc},
                 {PS_METRIC_TEST_R2, m->r2},
                 {PS_METRIC_TEST_MAE, m->mae},
                 {PS_METRIC_TEST_RMSE, m->rmse},
                 {PS_METRIC_TEST_QUALITY, r->quality},
                 {PS_METRIC_TEST_SAMPLES, (double)r->evaluation.samples}};
    for (size_t i = 0; i < sizeof shown / sizeof *shown; i++)
        ps_metric_set(t->o.values, shown[i].metric, shown[i].value);
    if (!isnan(r->train_loss))
        trainer_loss_text("train", r->train_loss, r->train_accuracy, train, sizeof train);
    trainer_test_text(&r->evaluation, r->quality, test, sizeof test);
    const char *all = PS_COUNTED(t->epochs);
    ps_progress_line(t->o.progress, "epoch %*s/%s%s%s%s", (int)strlen(all),
                     PS_COUNTED(epochs_done), all, test, train, best ? "  best" : "");
}

/* Evaluates the weights after all steps so far; with the policy local, those of the last
 * synchronisation. */
static ps_err trainer_evaluate(ps_trainer *t, int64_t epochs_done, bool last)
{
    if (t->o.evaluator->n_samples == 0) return PS_OK;
    char name[48];
    snprintf(name, sizeof name, "evaluate/%" PRIu64, t->step);
    ps_evaluation *e = &t->result->evaluation, made;
    if (t->pace->warn_of_older) t->pace->warn_of_older(t);
    // Of unequal workers each gets as many samples as it is fast.
    PS_TRY(ps_evaluator_share(t->o.evaluator, t->pace->shares(t)));
    uint64_t begin = ps_trace_begin(PS_TRACE_EVALUATE);
    PS_TRY(ps_evaluate(t->o.evaluator, name, &made));
    ps_trace_add(PS_TRACE_EVALUATE, begin, t->step);
    if (made.interrupted) {
        t->result->interrupted = true;
        return PS_OK;
    }
    *e = made;
    const bool best = trainer_take_best(t, epochs_done);
    t->result->quality = ps_figures_quality(&t->o.evaluator->figures);
    show_evaluation(t, epochs_done, best);
    if (best) PS_TRY(trainer_keep_best(t, last));
    const ps_measures *m = &e->measures;
    const ps_eval_record record = {.step = t->step,
                                   .epoch = epochs_done,
                                   .loss = e->loss,
                                   .accuracy = m->accuracy,
                                   .top5 = m->top5,
                                   .f1 = m->f1,
                                   .auc = m->auc,
                                   .r2 = m->r2,
                                   .mae = m->mae,
                                   .rmse = m->rmse,
                                   .train_loss = t->result->train_loss,
                                   .train_accuracy = t->result->train_accuracy,
                                   .best = best,
                                   .quality = t->result->quality,
                                   .samples = e->samples};
    return ps_metrics_eval(t->o.metrics, &record);
}

/* --- loops ----------------------------------------------------------------------- */

bool ps_trainer_evaluation_due(const ps_trainer *t)
{
    const int64_t every = t->o.config->train.eval_every;
    return every > 0 && (t->epoch + 1) % every == 0;
}

/* Takes one evaluation into account. Returns whether training ends (train.patience). A
 * result that is not finite is not better. */
static bool patience_is_over(ps_patience *p, const ps_config *config,
                             const ps_evaluation *e)
{
    const int64_t patience = config->train.patience;
    const double value = trainer_quality(config, e);
    if (patience == 0 || e->samples == 0) return false;
    if (isfinite(value) && !(p->best >= value)) {
        *p = (ps_patience){.best = value};
        return false;
    }
    p->in_row++;
    return p->in_row >= patience;
}

/* All ranks have the same figures, so all end, or none. A job that goes on from a
 * checkpoint of this step evaluates again, so that this result is not in it. */
static void stop_early(ps_trainer *t)
{
    ps_patience patience = t->patience;
    if (t->result->interrupted) return;
    t->result->stopped_early =
        patience_is_over(&patience, t->o.config, &t->result->evaluation);
    if (!t->result->stopped_early) t->patience = patience;
    if (t->result->stopped_early && t->rank == 0)
        PS_INFO("early-stop", "epoch=%" PRId64 " evaluations_without_a_better=%" PRId64,
                t->epoch + 1, patience.in_row);
}

/* All ranks have the same figures. As with stop_early, this result is in no checkpoint of
 * this step. */
static ps_err follow_plateau(ps_trainer *t)
{
    const ps_config_schedule *c = &t->o.config->schedule;
    const ps_evaluation *e = &t->result->evaluation;
    const bool accuracy = c->metric == PS_PLATEAU_ACCURACY;
    if (!ps_plateau_on(t->o.config) || t->result->interrupted || t->result->stopped_early)
        return PS_OK;
    if (accuracy && isnan(e->measures.accuracy))
        return ps_err_set(PS_ERR_CONFIG,
                          "schedule.metric: the test split has no classes, so there is "
                          "no accuracy: set it to loss");
    if (!ps_plateau_step(&t->plateau, c, accuracy ? e->measures.accuracy : e->loss))
        return PS_OK;
    ps_session_set_cuts(t->o.session, t->plateau.cuts);
    if (t->rank == 0)
        PS_INFO("plateau", "epoch=%" PRId64 " lr=%.9g", t->epoch + 1,
                ps_plateau_rate(c, t->o.config->optimizer.lr, t->plateau.cuts));
    return PS_OK;
}

/* After an epoch that is not the last. */
static ps_err evaluate_epoch(ps_trainer *t)
{
    // A job that goes on from this checkpoint evaluates again.
    if (ps_checkpointer_keeps_best(t->o.checkpointer)) PS_TRY(trainer_checkpoint_once(t));
    PS_TRY(ps_trainer_drain(t));
    const int64_t before = ps_metrics_bytes(t->o.metrics);
    PS_TRY(trainer_evaluate(t, t->epoch + 1, false));
    stop_early(t);
    PS_TRY(follow_plateau(t));
    if (!t->result->interrupted && !t->result->stopped_early) return PS_OK;
    t->metrics_bytes = before; // it writes the line of this result, too
    return trainer_checkpoint_once(t);
}

static ps_err trainer_train_epochs(ps_trainer *t)
{
    bool stop = false;
    while ((t->step < t->total_steps || t->goes_on) && !stop) {
        t->result->epochs = t->epoch + 1;
        PS_TRY(t->pace->epoch(t, &stop));
        if (stop) break;
        const bool last = t->step == t->total_steps;
        // A job that goes on from memory may have no step left to make.
        if (last) PS_TRY(trainer_checkpoint_once(t));
        if (!last && ps_trainer_evaluation_due(t)) PS_TRY(evaluate_epoch(t));
        // Wherever it is stopped after an epoch's last step, it is still in that epoch.
        stop = t->result->interrupted || t->result->stopped_early;
        if (stop) break;
        if (!last && t->pace->next_epoch) PS_TRY(t->pace->next_epoch(t));
        t->epoch++;
    }
    t->result->interrupted =
        stop && !t->result->stopped_early && t->result->next_workers == 0;
    return PS_OK;
}

/* --- from create to destroy ----------------------------------------------------- */

/* Bytes of the tensors that travel together, and that are one graph of launches on a GPU:
 * about a chunk or a bucket, or all when nothing travels. */
static size_t group_bytes(const ps_session *session, const ps_config *config)
{
    const ps_exchange_ops *ops = ps_session_ops(session);
    if (ops->servers)
        return (size_t)ps_session_plan(session)->max_chunk_count * sizeof(float);
    return ops->alone ? SIZE_MAX : (size_t)config->exchange.bucket;
}

/* Bytes of a layer's rows that go to the servers while its next ones are computed:
 * several chunks, as each block costs sgemm some time. On one host they travel faster
 * than they are computed, and fewer blocks are faster (bench/results/README.md). Buckets
 * hold whole tensors. */
static size_t row_bytes(const ps_session *session, const ps_config *config)
{
    enum { LEAST = 512 << 10, ONE_HOST_LEAST = 8 << 20 };
    if (!ps_session_ops(session)->servers || ps_session_counts(session)) return 0;
    const size_t chunk = group_bytes(session, config);
    const size_t least = ps_session_plan(session)->size.one_host ? ONE_HOST_LEAST : LEAST;
    return chunk > least ? chunk : least;
}

ps_program_options ps_trainer_program(const ps_session *session, const ps_config *config,
                                      const ps_model_spec *spec)
{
    return (ps_program_options){.spec = spec,
                                .training = true,
                                .soft_targets = config->data.mixup > 0,
                                .group_bytes = group_bytes(session, config),
                                .row_bytes = row_bytes(session, config)};
}

static ps_err prepare_training(ps_trainer *t)
{
    const ps_trainer_options *o = &t->o;
    PS_TRY(ps_trainer_find_sizes(t));
    t->epochs = count_epochs(t);
    ps_loader_options loader = {.config = o->config,
                                .dataset = o->train,
                                .input = &o->spec->input,
                                .sampler = o->sampler,
                                .max_batch = t->max_batch,
                                .classes = o->spec->n_outputs,
                                .columns = o->spec->n_columns,
                                .bytes = o->device->ops->takes_bytes};
    const ps_err err = ps_loader_create(&loader, &t->loader);
    if (err == PS_ERR_SHAPE) ps_err_prefix(err, "data.train");
    PS_TRY(err);
    PS_TRY(ps_batch_rows_init(&t->rows, o->rows, NULL, o->spec, t->max_batch, true));
    ps_program_options program = ps_trainer_program(o->session, o->config, o->spec);
    program.max_batch = (int)t->max_batch;
    program.byte_values = ps_loader_byte_values(t->loader, &program.channels);
    program.params = ps_session_params(o->session);
    program.grads = ps_session_grads(o->session);
    program.buffers = ps_session_buffers(o->session);
    return ps_program_create(o->device, &program, &t->program);
}

ps_err ps_trainer_create(const ps_trainer_options *options, ps_trainer **out)
{
    ps_trainer *t;
    PS_TRY(PS_NEW(&t, 1, "the trainer"));
    t->o = *options;
    t->pace = ps_trainer_pace_of(options->config);
    t->member = ps_session_member(options->session);
    t->rank = ps_session_rank(options->session);
    t->total_steps = ps_session_total_steps(options->session);
    t->sums_epoch = -1;
    t->best = t->best_before = t->patience.best = t->plateau.best = NAN;
    trainer_start_from(t, options->start);
    t->next_check = t->step + 1;
    t->max_batch = options->sampler->batch[t->rank];
    ps_err err = t->pace->create(t);
    if (err == PS_OK && t->total_steps > 0) err = prepare_training(t);
    if (err != PS_OK) ps_trainer_destroy(&t);
    *out = t;
    return err;
}

void ps_trainer_destroy(ps_trainer **trainer)
{
    ps_trainer *t = *trainer;
    if (!t) return;
    ps_loader_destroy(&t->loader);
    ps_program_destroy(&t->program);
    ps_batch_rows_fini(&t->rows);
    free(t->global_n);
    free(t->own_n);
    t->pace->destroy(t);
    free(t);
    *trainer = NULL;
}

static void begin_result(ps_trainer_result *r, const ps_trainer_snapshot *s)
{
    r->first_step = r->steps = s->step;
    r->samples = s->samples;
    r->skipped_steps = s->skipped_steps;
    r->seconds = s->seconds;
}

ps_err ps_trainer_run(ps_trainer *trainer, ps_trainer_result *result)
{
    ps_trainer *t = trainer;
    *result =
        (ps_trainer_result){.train_loss = NAN, .train_accuracy = NAN, .loss_scale = 1};
    t->result = result;
    if (t->o.start) begin_result(result, t->o.start);
    if (t->epoch_samples > 0) result->train_loss = t->epoch_loss_sum / t->epoch_samples;
    result->train_accuracy = t->epoch_correct / t->epoch_counted; // NAN: none is counted
    ps_exchange_stats before;
    ps_session_stats(t->o.session, &before);
    t->waited = before.wait_seconds;
    if (t->pace->start) PS_TRY(t->pace->start(t));
    if (t->total_steps > 0) {
        PS_TRY(trainer_train_epochs(t));
        trainer_book_traffic(t, &before);
    }
    if (result->next_workers > 0) return PS_OK;
    t->pace->report(t);
    trainer_book_speed(t);
    PS_TRY(ps_trainer_drain(t));
    PS_TRY(ps_trainer_renew_loss_scale(t));
    // The weights first: an evaluation may take long, and may be what is interrupted.
    PS_FAULT_POINT("model.due");
    PS_TRY(ps_trainer_save(t, "model.safetensors"));
    if (t->total_steps > 0) PS_TRY(save_average(t));
    const bool ended = !result->interrupted && !result->stopped_early;
    if (ended) PS_TRY(trainer_evaluate(t, t->epoch, true));
    tell_of_best(t, ended ? t->epoch : 0);
    result->best_epoch = t->best_epoch;
    PS_TRY(trainer_finish_checkpoints(t));
    ps_progress_end(t->o.progress);
    return PS_OK;
}
