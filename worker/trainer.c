#include "trainer.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "file_wait.h"
#include "interrupt.h"
#include "log.h"
#include "safetensors.h"
#include "trace.h"

/* Sums since the last record, this rank's. */
typedef struct window {
    double loss_sum;
    int64_t samples, global_samples;
    uint64_t steps;
    double seconds, wait_seconds;
} window;

/* A micro-batch whose loss the device owes. */
typedef struct owed_loss {
    int64_t samples;
    bool last; // of its step
} owed_loss;

struct ps_trainer {
    ps_trainer_options o;
    ps_member *member; // the session's; NULL: alone
    int rank;
    uint64_t total_steps;
    ps_program *program;
    ps_loader *loader;
    ps_loaded *next; // taken before its turn, for ps_program_prefetch; NULL: none
    int64_t n_batches;
    int64_t epochs;           // as many as total_steps begin
    int64_t *global_n;        // (n_batches) samples of each micro-batch over all ranks
    int64_t sized_for;        // the epoch that they are of; -1: of every whole one
    int64_t position;         // samples of the epoch's permutation that have been seen
    bool goes_on;             // in the first epoch of a job that does
    double best;              // of the evaluations, as checkpoint.best means it
    uint64_t kept;            // the step of the last checkpoint
    ps_checkpoint_place late; // which one is due by time, as the ranks have agreed
    uint64_t step;            // optimizer steps done
    int64_t epoch;
    uint64_t next_check; // the step after which the ranks agree on whether to go on
    window since_record;
    owed_loss owed[PS_RESULTS_KEPT]; // in order
    int n_owed;
    window group;          // losses known of the step that is not known whole
    double step_loss;      // mean of the last known step's samples, this rank's
    double epoch_loss_sum; // over all ranks, as far as reduced
    double epoch_samples;  // likewise
    double warm_seconds;   // after train.warmup_steps
    uint64_t warm_samples; // likewise
    double samples_a_step; // of all ranks, smoothed, for the progress
    double seconds_a_step; // smoothed, for progress and time left
    double waited;         // of the exchange, at the last step's end
    double loaded;         // seconds that it has waited for batches
    double agreed;         // seconds that it has waited for all ranks to agree
    double owed_seconds;   // of agreeing after a step: booked with the next
    float loss_scale;      // of the step; 1 without; 0: not known yet
    ps_trainer_result *result;
};

static int64_t groups_per_epoch(int64_t n_batches, int64_t accumulate)
{
    return (n_batches + accumulate - 1) / accumulate;
}

/* Of the whole epochs behind the one that the job goes on with, and the rest of that. */
static uint64_t steps_left(const ps_config *config, const ps_sampler_options *sampler,
                           int64_t accumulate)
{
    const int64_t epochs = config->train.epochs;
    const int64_t whole = groups_per_epoch(ps_sampler_n_batches(sampler), accumulate);
    const int64_t first = (int64_t)sampler->start.epoch;
    if (first >= epochs) return 0;
    const int64_t rest = groups_per_epoch(
        ps_sampler_epoch_batches(sampler, sampler->start.epoch), accumulate);
    return (uint64_t)(rest + whole * (epochs - first - 1));
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

/* The sizes of the epoch's global micro-batches: the same in every epoch, except of the
 * one that the job goes on with. */
static ps_err find_batch_sizes(ps_trainer *t)
{
    const ps_sampler_start *start = &t->o.sampler->start;
    const bool rest = start->position > 0 && t->epoch == (int64_t)start->epoch;
    const int64_t of = rest ? t->epoch : -1;
    ps_epoch epoch;
    if (t->global_n && t->sized_for == of) return PS_OK;
    free(t->global_n);
    t->global_n = NULL;
    t->sized_for = of;
    PS_TRY(ps_epoch_init(&epoch, t->o.sampler, (uint64_t)t->epoch));
    t->n_batches = epoch.n_batches;
    ps_err err = ps_mem_zalloc(&t->global_n, (size_t)epoch.n_batches, sizeof *t->global_n,
                               "the batch sizes");
    for (int64_t i = 0; err == PS_OK && i < epoch.n_batches; i++)
        t->global_n[i] = epoch.batches[i].global_n;
    ps_epoch_fini(&epoch);
    return err;
}

/* As many epochs as the job's steps begin. */
static int64_t count_epochs(const ps_trainer *t)
{
    const ps_sampler_options *sampler = t->o.sampler;
    const uint64_t whole =
        (uint64_t)groups_per_epoch(ps_sampler_n_batches(sampler), t->o.accumulate);
    const uint64_t rest = (uint64_t)groups_per_epoch(
        ps_sampler_epoch_batches(sampler, sampler->start.epoch), t->o.accumulate);
    const uint64_t steps = t->total_steps - t->step;
    const uint64_t behind = steps > rest ? steps - rest : 0;
    return (int64_t)(sampler->start.epoch + 1 + (behind + whole - 1) / whole);
}

static ps_err prepare_training(ps_trainer *t)
{
    const ps_trainer_options *o = &t->o;
    PS_TRY(find_batch_sizes(t));
    t->epochs = count_epochs(t);
    int64_t max_batch = o->sampler->batch[t->rank];
    ps_loader_options loader = {.config = o->config,
                                .dataset = o->train,
                                .input = &o->spec->input,
                                .sampler = o->sampler,
                                .max_batch = max_batch};
    PS_TRY(ps_loader_create(&loader, &t->loader));
    ps_program_options program = {.spec = o->spec,
                                  .max_batch = (int)max_batch,
                                  .training = true,
                                  .params = ps_session_params(o->session),
                                  .grads = ps_session_grads(o->session),
                                  .buffers = ps_session_buffers(o->session),
                                  .group_bytes = o->group_bytes};
    return ps_program_create(o->device, &program, &t->program);
}

/* Where a job goes on, or a new one begins. */
static void start_from(ps_trainer *t, const ps_trainer_snapshot *s)
{
    if (!s) return;
    window *w = &t->since_record;
    t->goes_on = true;
    t->step = s->step;
    if (t->o.start_is_saved) t->kept = s->step;
    t->epoch = s->epoch;
    t->position = s->position;
    t->step_loss = s->step_loss;
    t->epoch_loss_sum = s->epoch_loss_sum;
    t->epoch_samples = s->epoch_samples;
    t->best = s->best;
    *w = (window){.global_samples = s->window_samples,
                  .steps = s->window_steps,
                  .seconds = s->window_seconds,
                  .wait_seconds = s->window_wait_seconds};
    ps_trainer_snapshot_share(s, t->rank, ps_session_world_size(t->o.session),
                              &w->loss_sum, &w->samples);
}

ps_err ps_trainer_create(const ps_trainer_options *options, ps_trainer **out)
{
    ps_trainer *t;
    PS_TRY(ps_mem_zalloc(&t, 1, sizeof *t, "the trainer"));
    t->o = *options;
    t->member = ps_session_member(options->session);
    t->rank = ps_session_rank(options->session);
    t->total_steps = ps_session_total_steps(options->session);
    t->best = NAN;
    start_from(t, options->start);
    t->next_check = t->step + 1;
    ps_err err = t->total_steps > 0 ? prepare_training(t) : PS_OK;
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
    free(t->global_n);
    free(t);
    *trainer = NULL;
}

static double seconds_since(uint64_t begin_ns)
{
    return (double)(ps_clock_ns() - begin_ns) * 1e-9;
}

static ps_deadline step_deadline(const ps_trainer *t)
{
    return ps_deadline_in_ms((uint64_t)t->o.config->net.step_timeout_ms);
}

/* --- one optimizer step --------------------------------------------------------- */

static ps_err on_params_needed(void *ctx, int first, int n)
{
    ps_trainer *t = ctx;
    return ps_session_wait(t->o.session, first, n);
}

static ps_err on_grads_ready(void *ctx, int first, int n)
{
    ps_trainer *t = ctx;
    return ps_session_push(t->o.session, first, n);
}

/* The loss scale after the last step. It falls where that step was skipped, and only
 * there. */
static ps_err renew_loss_scale(ps_trainer *t)
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

/* Losses that the device owes, except the newest `keep`. Where it computes behind the
 * caller, asking for the newest would leave it without work until the next step is
 * queued: it is asked when the next micro-batch is. */
static ps_err take_losses(ps_trainer *t, int keep)
{
    while (t->n_owed > keep) {
        ps_pass_result result;
        PS_TRY(ps_program_result(t->program, &result));
        owed_loss owed = t->owed[0];
        memmove(t->owed, t->owed + 1, sizeof *t->owed * (size_t)--t->n_owed);
        t->since_record.loss_sum += result.loss_sum;
        t->since_record.samples += owed.samples;
        t->group.loss_sum += result.loss_sum;
        t->group.samples += owed.samples;
        if (!owed.last) continue;
        t->step_loss = t->group.loss_sum / (double)t->group.samples;
        t->group = (window){0};
    }
    return PS_OK;
}

static ps_batch batch_of(const ps_loaded *loaded)
{
    return (ps_batch){.n = (int)loaded->n,
                      .x = loaded->x,
                      .labels = loaded->labels,
                      .positions = loaded->positions};
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
    uint64_t begin = ps_clock_ns();
    *out = t->next;
    t->next = NULL;
    if (!*out) PS_TRY(ps_loader_next(t->loader, step_deadline(t), out));
    t->loaded += seconds_since(begin);
    ps_trace_add(PS_TRACE_BATCH, begin, t->step);
    if (!*out)
        return ps_err_set(PS_ERR_INTERNAL, "the epoch ended before its last batch");
    log_samples(t, *out);
    return PS_OK;
}

/* Sends the batch after this one on its way, if it is prepared: nothing waits for it. */
static ps_err prefetch(ps_trainer *t)
{
    if (!ps_program_prefetches(t->program) || !ps_loader_ready(t->loader)) return PS_OK;
    uint64_t begin = ps_clock_ns();
    PS_TRY(ps_loader_next(t->loader, step_deadline(t), &t->next));
    ps_batch batch = batch_of(t->next);
    PS_TRY(ps_program_prefetch(t->program, &batch));
    ps_trace_add(PS_TRACE_PREFETCH, begin, t->step);
    return PS_OK;
}

/* Forward and backward of a micro-batch; first and last of its group. The first forward
 * pass has waited for every weight, so that the loss scale is known before the backward
 * pass needs it, at no further wait. */
static ps_err run_micro_batch(ps_trainer *t, const ps_loaded *loaded, int64_t group_n,
                              bool first, bool last)
{
    ps_batch batch = batch_of(loaded);
    ps_pass_hooks hooks = {.ctx = t,
                           .params_needed = first ? on_params_needed : NULL,
                           .grads_ready = last ? on_grads_ready : NULL};
    ps_pass pass = {
        .training = true,
        .accumulate = !first,
        .loss_later = true,
        .dropout = {.seed = t->o.config->train.seed, .epoch = (uint32_t)t->epoch},
        .hooks = &hooks};
    uint64_t begin = ps_clock_ns();
    PS_TRY(ps_program_forward(t->program, &batch, &pass, NULL));
    t->owed[t->n_owed++] = (owed_loss){.samples = loaded->n, .last = last};
    ps_trace_add(PS_TRACE_FORWARD, begin, t->step);
    PS_TRY(prefetch(t));
    if (first) PS_TRY(renew_loss_scale(t));
    pass.grad_scale =
        (float)((double)loaded->n / (double)group_n * (double)t->loss_scale);
    begin = ps_clock_ns();
    PS_TRY(ps_program_backward(t->program, &batch, &pass));
    ps_trace_add(PS_TRACE_BACKWARD, begin, t->step);
    return PS_OK;
}

/* The group of micro-batches [first, first + count). */
static ps_err run_group(ps_trainer *t, int64_t first, int64_t count, int64_t group_n)
{
    // the first loss is there when it is shown
    int behind = ps_program_prefetches(t->program) && t->step > 0 ? 1 : 0;
    PS_TRY(ps_session_begin(t->o.session, t->step));
    for (int64_t m = 0; m < count; m++) {
        ps_loaded *loaded;
        PS_TRY(next_micro_batch(t, &loaded));
        ps_err err = run_micro_batch(t, loaded, group_n, m == 0, m == count - 1);
        ps_loader_release(t->loader, loaded);
        PS_TRY(err);
        PS_TRY(take_losses(t, behind));
    }
    return ps_session_finish(t->o.session);
}

/* --- figures -------------------------------------------------------------------- */

static bool past_warmup(const ps_trainer *t)
{
    return t->step > (uint64_t)t->o.config->train.warmup_steps;
}

/* For those who watch. */
static void show_values(const ps_trainer *t, const ps_exchange_stats *e)
{
    const ps_trainer_result *r = t->result;
    ps_metric_values *v = t->o.values;
    if (!v) return;
    ps_metric_set(v, PS_METRIC_STEP, (double)t->step);
    ps_metric_set(v, PS_METRIC_STEPS, (double)t->total_steps);
    ps_metric_set(v, PS_METRIC_EPOCH, (double)t->epoch);
    ps_metric_set(v, PS_METRIC_EPOCHS, (double)t->epochs);
    ps_metric_set(v, PS_METRIC_LOSS, t->step_loss);
    ps_metric_set(v, PS_METRIC_SAMPLES_PER_SECOND, t->samples_a_step / t->seconds_a_step);
    ps_metric_set(v, PS_METRIC_SAMPLES, (double)r->samples);
    ps_metric_set(v, PS_METRIC_SKIPPED_STEPS, (double)r->skipped_steps);
    ps_metric_set(v, PS_METRIC_STEP_SECONDS, r->seconds);
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

/* Books a step that took `seconds`, t->step counted up already. */
static void book_step(ps_trainer *t, double seconds, int64_t group_n)
{
    ps_exchange_stats stats;
    ps_session_stats(t->o.session, &stats);
    double waited = stats.wait_seconds - t->waited;
    t->waited = stats.wait_seconds;
    ps_trainer_result *r = t->result;
    r->steps = t->step;
    r->samples += (uint64_t)group_n;
    r->seconds += seconds;
    window *w = &t->since_record;
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
    // The first step, in which everything warms up, counts as long as it is the only one.
    double weight = t->step < 2 ? 1 : t->step < 21 ? 1 / (double)(t->step - 1) : 0.05;
    t->seconds_a_step += weight * (seconds - t->seconds_a_step);
    t->samples_a_step += weight * ((double)group_n - t->samples_a_step);
    show_values(t, &stats);
}

static void show_progress(ps_trainer *t, double loss, bool now)
{
    char waits_for[64];
    ps_progress_state state = {
        .waits_for =
            ps_straggler_text(&t->result->stragglers.now, waits_for, sizeof waits_for),
        .epoch = t->epoch + 1,
        .epochs = t->epochs,
        .step = t->step,
        .steps = t->total_steps,
        .loss = loss,
        .samples_per_second = t->samples_a_step / t->seconds_a_step,
        .seconds_left =
            t->step > 1 ? (double)(t->total_steps - t->step) * t->seconds_a_step : NAN};
    ps_progress_show(t->o.progress, &state, now);
}

static void show_record(const ps_trainer *t, const ps_step_record *r)
{
    ps_metric_set(t->o.values, PS_METRIC_LOSS, r->loss);
    ps_metric_set(t->o.values, PS_METRIC_LOSS_MEAN, r->loss_mean);
    ps_metric_set(t->o.values, PS_METRIC_LR, r->lr);
    ps_metric_set(t->o.values, PS_METRIC_LOSS_SCALE, r->loss_scale);
    ps_metric_set(t->o.values, PS_METRIC_STEP_MS, r->step_ms);
    ps_metric_set(t->o.values, PS_METRIC_EXCHANGE_WAIT_MS, r->exchange_wait_ms);
}

static ps_err write_record(ps_trainer *t, double loss_mean)
{
    const window *w = &t->since_record;
    ps_step_record record = {.step = t->step,
                             .epoch = t->epoch,
                             .loss = t->step_loss,
                             .loss_mean = loss_mean,
                             .lr = ps_session_lr(t->o.session, t->step - 1),
                             .loss_scale = t->loss_scale,
                             .samples_per_second = (double)w->global_samples / w->seconds,
                             .step_ms = w->seconds * 1e3 / (double)w->steps,
                             .exchange_wait_ms =
                                 w->wait_seconds * 1e3 / (double)w->steps};
    show_record(t, &record);
    return ps_metrics_step(t->o.metrics, &record);
}

/* --- agreeing ------------------------------------------------------------------- */

/* Steps until the ranks agree again on whether somebody was interrupted: about half a
 * second's, as rank 0 sees it. */
static double steps_until_check(const ps_trainer *t)
{
    double steps = 0.5 / (t->seconds_a_step > 1e-6 ? t->seconds_a_step : 1e-6);
    return steps < 1 ? 1 : floor(steps < 1e5 ? steps : 1e5);
}

/* The job regroups after this step where workers leave, or others wait to join. Below
 * the fewest workers it ends instead. leaves: this one does. */
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

/* All ranks call it after the same steps: at records, at an epoch's end, and where a
 * former call said so. Sums the losses; *stop when any rank was interrupted, or the job
 * regroups. */
static ps_err agree(ps_trainer *t, bool record, bool *stop)
{
    window *w = &t->since_record;
    const bool first = t->rank == 0;
    const bool leaves = ps_session_told_to_leave(t->o.session);
    double values[7] = {record ? w->loss_sum : 0,
                        record ? (double)w->samples : 0,
                        *stop || ps_session_told_to_end(t->o.session) ? 1 : 0,
                        first ? steps_until_check(t) : 0,
                        first ? ps_checkpointer_late(t->o.checkpointer) : 0,
                        leaves ? 1 : 0,
                        first ? ps_member_newcomers(t->member) : 0};
    uint64_t begin = ps_clock_ns();
    if (t->member) {
        char name[48];
        snprintf(name, sizeof name, "step/%" PRIu64, t->step);
        PS_TRY(ps_member_reduce(t->member, name, values, 7, step_deadline(t)));
    }
    ps_trace_add(PS_TRACE_AGREE, begin, t->step);
    t->owed_seconds = seconds_since(begin);
    t->agreed += t->owed_seconds;
    t->next_check = t->step + (uint64_t)values[3];
    *stop = values[2] > 0;
    t->late = (ps_checkpoint_place)values[4];
    agree_on_workers(t, (int)values[5], (int)values[6], leaves, stop);
    if (!record) return PS_OK;
    t->epoch_loss_sum += values[0];
    t->epoch_samples += values[1];
    double loss_mean = values[0] / values[1];
    PS_TRY(write_record(t, loss_mean));
    *w = (window){0};
    return PS_OK;
}

/* --- weights and evaluation ------------------------------------------------------ */

/* After it the arenas hold the newest weights and rank 0's buffers on every rank. */
static ps_err drain(ps_trainer *t)
{
    uint64_t begin = ps_clock_ns();
    if (t->program) PS_TRY(ps_program_fetch_buffers(t->program));
    PS_TRY(ps_session_drain(t->o.session));
    PS_TRY(ps_session_sync_buffers(t->o.session));
    ps_trace_add(PS_TRACE_DRAIN, begin, t->step);
    return PS_OK;
}

static ps_err write_weights(ps_trainer *t, const char *name)
{
    if (!t->o.run_dir) return PS_OK;
    char path[PATH_MAX], step[24], epoch[24], seed[24];
    PS_TRY(ps_run_dir_path(t->o.run_dir, name, path));
    snprintf(step, sizeof step, "%" PRIu64, t->step);
    snprintf(epoch, sizeof epoch, "%" PRId64, t->epoch);
    snprintf(seed, sizeof seed, "%" PRIu64, t->o.config->train.seed);
    const char *metadata[] = {"format", "pt",    "pstrain", PS_VERSION, "step",
                              step,     "epoch", epoch,     "seed",     seed};
    uint64_t begin = ps_clock_ns();
    PS_TRY(ps_st_save_model(path, &t->o.spec->table, ps_session_params(t->o.session),
                            ps_session_buffers(t->o.session), metadata, 5));
    ps_trace_add(PS_TRACE_SAVE, begin, t->step);
    PS_DEBUG("saved", "path=%s", path);
    return PS_OK;
}

/* All ranks; the file is there when it returns. */
static ps_err save(ps_trainer *t, const char *name)
{
    PS_TRY(write_weights(t, name));
    return ps_file_wait_written(t->member, t->o.config, name);
}

/* --- checkpoints ------------------------------------------------------------------ */

static void fill_state(const ps_trainer *t, ps_trainer_snapshot *s)
{
    const window *w = &t->since_record;
    const ps_trainer_result *r = t->result;
    double *sums = s->loss_sums, *samples = s->loss_samples;
    sums[t->rank] = w->loss_sum;
    samples[t->rank] = (double)w->samples;
    *s = (ps_trainer_snapshot){.step = t->step,
                               .epoch = t->epoch,
                               .position = t->position,
                               .samples = r->samples,
                               .skipped_steps = r->skipped_steps,
                               .seconds = r->seconds,
                               .epoch_loss_sum = t->epoch_loss_sum,
                               .epoch_samples = t->epoch_samples,
                               .step_loss = t->step_loss,
                               .window_steps = w->steps,
                               .window_samples = w->global_samples,
                               .window_seconds = w->seconds,
                               .window_wait_seconds = w->wait_seconds,
                               .n_ranks = s->n_ranks,
                               .loss_sums = sums,
                               .loss_samples = samples,
                               .metrics_bytes = ps_metrics_bytes(t->o.metrics),
                               .best = t->best};
}

/* All ranks, between two steps. */
static ps_err keep(ps_trainer *t, ps_checkpoint_place place, bool must)
{
    ps_trainer_snapshot state;
    uint64_t begin_ns = ps_clock_ns();
    PS_TRY(take_losses(t, 0));
    if (t->program) PS_TRY(ps_program_fetch_buffers(t->program));
    PS_TRY(ps_session_drain(t->o.session));
    PS_TRY(renew_loss_scale(t)); // learns of the last step: whether it was skipped
    ps_err err = ps_trainer_snapshot_init(&state, ps_session_world_size(t->o.session));
    if (err == PS_OK) {
        fill_state(t, &state);
        err = ps_checkpointer_take(t->o.checkpointer, &state, place, must, begin_ns);
    }
    ps_trainer_snapshot_fini(&state);
    if (place == PS_CHECKPOINT_DISK) t->kept = t->step;
    t->late = PS_CHECKPOINT_NOWHERE;
    t->owed_seconds += seconds_since(begin_ns);
    ps_trace_add(PS_TRACE_CHECKPOINT, begin_ns, t->step);
    return err;
}

/* After a step with all that follows it, except an evaluation. */
static ps_err keep_if_due(ps_trainer *t, bool stop)
{
    const bool must = stop || t->step == t->total_steps;
    if (!t->o.checkpointer) return PS_OK;
    if (must || ps_checkpointer_due(t->o.checkpointer, t->step))
        t->late = PS_CHECKPOINT_DISK;
    return t->late == PS_CHECKPOINT_NOWHERE ? PS_OK : keep(t, t->late, must);
}

/* Evaluates the weights after all steps so far. */
static ps_err evaluate(ps_trainer *t, int64_t epochs_done)
{
    if (t->o.evaluator->n_samples == 0) return PS_OK;
    char name[48];
    snprintf(name, sizeof name, "evaluate/%" PRIu64, t->step);
    ps_evaluation *e = &t->result->evaluation;
    uint64_t begin = ps_clock_ns();
    PS_TRY(ps_evaluate(t->o.evaluator, name, e));
    ps_trace_add(PS_TRACE_EVALUATE, begin, t->step);
    if (e->interrupted) {
        t->result->interrupted = true;
        *e = (ps_evaluation){0};
        return PS_OK;
    }
    ps_eval_record record = {.step = t->step,
                             .epoch = epochs_done,
                             .loss = e->loss,
                             .accuracy = e->accuracy,
                             .samples = e->samples};
    ps_metric_set(t->o.values, PS_METRIC_TEST_LOSS, e->loss);
    ps_metric_set(t->o.values, PS_METRIC_TEST_ACCURACY, e->accuracy);
    ps_metric_set(t->o.values, PS_METRIC_TEST_SAMPLES, (double)e->samples);
    ps_progress_line(t->o.progress,
                     "epoch %" PRId64 "/%" PRId64 "  test loss %.4f  test accuracy %.4f",
                     epochs_done, t->epochs, e->loss, e->accuracy);
    return ps_metrics_eval(t->o.metrics, &record);
}

/* --- loops ----------------------------------------------------------------------- */

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

static ps_err save_checkpoint(ps_trainer *t)
{
    char name[64];
    snprintf(name, sizeof name, "checkpoints/step-%" PRIu64 ".safetensors", t->step);
    PS_TRY(drain(t));
    return save(t, name);
}

/* One optimizer step with all that follows it. */
static ps_err step_once(ps_trainer *t, int64_t first, int64_t count, bool *stop)
{
    t->late = PS_CHECKPOINT_NOWHERE;
    if (t->member) PS_TRY(ps_member_check(t->member));
    int64_t group_n = 0;
    for (int64_t i = first; i < first + count; i++)
        group_n += t->global_n[i];
    uint64_t begin = ps_clock_ns();
    PS_TRY(run_group(t, first, count, group_n));
    ps_trace_add(PS_TRACE_STEP, begin, t->step);
    t->step++;
    t->position += group_n;
    bool epoch_ends = first + count == t->n_batches;
    // The last step of a stretch is done when its weights are here.
    if (epoch_ends || t->step == t->total_steps) PS_TRY(ps_session_drain(t->o.session));
    book_step(t, seconds_since(begin) + t->owed_seconds, group_n);
    if (t->rank == 0)
        ps_straggler_log_step(&t->result->stragglers, t->member, t->step - 1);
    t->owed_seconds = 0;
    bool record = record_due(t, epoch_ends);
    if (record) PS_TRY(take_losses(t, 0));
    *stop = (!t->member && ps_interrupted()) ||
            t->step == (uint64_t)t->o.config->train.stop_after;
    if (record || t->step >= t->next_check || *stop) PS_TRY(agree(t, record, stop));
    show_progress(t, t->step_loss, epoch_ends);
    // One that goes on has made the file, and what that makes of the weights.
    if (save_due(t) && (!*stop || t->o.checkpointer)) PS_TRY(save_checkpoint(t));
    return keep_if_due(t, *stop);
}

static ps_err run_epoch(ps_trainer *t, bool *stop)
{
    const int64_t accumulate = t->o.accumulate;
    PS_TRY(find_batch_sizes(t));
    PS_TRY(ps_loader_epoch(t->loader, (uint64_t)t->epoch, 0));
    if (!t->goes_on) t->epoch_loss_sum = t->epoch_samples = 0;
    if (!t->goes_on) t->position = 0;
    t->goes_on = false;
    for (int64_t i = 0; i < t->n_batches && t->step < t->total_steps && !*stop;
         i += accumulate) {
        int64_t left = t->n_batches - i;
        PS_TRY(step_once(t, i, left < accumulate ? left : accumulate, stop));
    }
    if (t->epoch_samples > 0)
        t->result->train_loss = t->epoch_loss_sum / t->epoch_samples;
    return PS_OK;
}

/* On the disk, unless this step's checkpoint is there. */
static ps_err keep_once(ps_trainer *t)
{
    return t->o.checkpointer && t->kept != t->step ? keep(t, PS_CHECKPOINT_DISK, true)
                                                   : PS_OK;
}

static void mark_if_best(ps_trainer *t)
{
    const ps_evaluation *e = &t->result->evaluation;
    double value;
    if (t->result->interrupted || e->samples == 0 || t->kept != t->step ||
        !ps_checkpointer_is_best(t->o.checkpointer, t->best, e->loss, e->accuracy,
                                 &value))
        return;
    t->best = value;
    ps_checkpointer_mark_best(t->o.checkpointer, t->step);
}

/* Behind an epoch that is not the last. */
static ps_err evaluate_epoch(ps_trainer *t)
{
    // The evaluation is done again where the job goes on from here.
    if (ps_checkpointer_keeps_best(t->o.checkpointer)) PS_TRY(keep_once(t));
    PS_TRY(drain(t));
    PS_TRY(evaluate(t, t->epoch + 1));
    mark_if_best(t);
    return t->result->interrupted ? keep_once(t) : PS_OK;
}

static ps_err train(ps_trainer *t)
{
    const ps_config_train *c = &t->o.config->train;
    bool stop = false;
    while ((t->step < t->total_steps || t->goes_on) && !stop) {
        t->result->epochs = t->epoch + 1;
        PS_TRY(run_epoch(t, &stop));
        if (stop) break;
        const bool last = t->step == t->total_steps;
        // A job that goes on from memory may have no step left to make.
        if (last) PS_TRY(keep_once(t));
        if (!last && c->eval_every > 0 && (t->epoch + 1) % c->eval_every == 0)
            PS_TRY(evaluate_epoch(t));
        stop = t->result->interrupted;
        t->epoch++;
    }
    t->result->interrupted = stop && t->result->next_workers == 0;
    return PS_OK;
}

/* Bytes and waiting of the steps alone: what the start had sent is taken away. */
static void book_traffic(ps_trainer *t, const ps_exchange_stats *before)
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

static void book_speed(ps_trainer *t)
{
    ps_trainer_result *r = t->result;
    if (t->warm_seconds > 0)
        r->samples_per_second = (double)t->warm_samples / t->warm_seconds;
    else if (r->seconds > 0)
        r->samples_per_second = (double)r->samples / r->seconds;
}

static void begin_result(ps_trainer_result *r, const ps_trainer_snapshot *s)
{
    r->first_step = r->steps = s->step;
    r->samples = s->samples;
    r->skipped_steps = s->skipped_steps;
    r->seconds = s->seconds;
}

static ps_err finish_checkpoints(ps_trainer *t)
{
    bool saved;
    if (!t->o.checkpointer) return PS_OK;
    PS_TRY(ps_checkpointer_finish(t->o.checkpointer, &saved));
    t->result->resumable = saved && t->kept == t->step;
    return PS_OK;
}

ps_err ps_trainer_run(ps_trainer *trainer, ps_trainer_result *result)
{
    ps_trainer *t = trainer;
    *result = (ps_trainer_result){.train_loss = NAN, .loss_scale = 1};
    t->result = result;
    if (t->o.start) begin_result(result, t->o.start);
    ps_exchange_stats before;
    ps_session_stats(t->o.session, &before);
    t->waited = before.wait_seconds;
    if (t->total_steps > 0) {
        PS_TRY(train(t));
        book_traffic(t, &before);
    }
    if (result->next_workers > 0) return PS_OK;
    book_speed(t);
    PS_TRY(drain(t));
    PS_TRY(renew_loss_scale(t));
    // The weights first: an evaluation may take long, and may be what is interrupted.
    if (t->total_steps > 0) PS_TRY(save(t, "model.safetensors"));
    if (!result->interrupted) PS_TRY(evaluate(t, t->epoch));
    mark_if_best(t);
    PS_TRY(finish_checkpoints(t));
    ps_progress_end(t->o.progress);
    return PS_OK;
}
