#include "trainer_state.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fault_point.h"
#include "file_wait.h"
#include "local_steps.h"
#include "log.h"
#include "model_file.h"
#include "snapshot.h"
#include "step_program.h"
#include "trace.h"

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
    ps_err err = ps_mem_zalloc(&t->global_n, (size_t)epoch.n_batches, sizeof *t->global_n,
                               "the batch sizes");
    if (err == PS_OK)
        err = ps_mem_zalloc(&t->own_n, (size_t)epoch.n_batches, sizeof *t->own_n,
                            "the batch sizes");
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
                                .classes = o->spec->n_outputs};
    const ps_err err = ps_loader_create(&loader, &t->loader);
    if (err == PS_ERR_SHAPE) ps_err_prefix(err, "data.train");
    PS_TRY(err);
    ps_program_options program = ps_step_program_of(o->session, o->config, o->spec);
    program.max_batch = (int)t->max_batch;
    program.params = ps_session_params(o->session);
    program.grads = ps_session_grads(o->session);
    program.buffers = ps_session_buffers(o->session);
    return ps_program_create(o->device, &program, &t->program);
}

static const ps_trainer_pace_ops *trainer_pace_of(const ps_config *c)
{
    return ps_config_own_pace(c)  ? &ps_trainer_pace_own
           : ps_local_steps_on(c) ? &ps_trainer_pace_local
                                  : &ps_trainer_pace_bsp;
}

bool ps_trainer_places_are_own(const ps_config *config)
{
    return trainer_pace_of(config) == &ps_trainer_pace_own;
}

ps_err ps_trainer_create(const ps_trainer_options *options, ps_trainer **out)
{
    ps_trainer *t;
    PS_TRY(ps_mem_zalloc(&t, 1, sizeof *t, "the trainer"));
    t->o = *options;
    t->pace = trainer_pace_of(options->config);
    t->member = ps_session_member(options->session);
    t->rank = ps_session_rank(options->session);
    t->total_steps = ps_session_total_steps(options->session);
    t->sums_epoch = -1;
    t->best = t->best_before = t->patience.best = t->plateau.best = NAN;
    ps_trainer_start_from(t, options->start);
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
    free(t->global_n);
    free(t->own_n);
    t->pace->destroy(t);
    free(t);
    *trainer = NULL;
}

/* --- weights and evaluation ------------------------------------------------------ */

ps_err ps_trainer_drain(ps_trainer *t)
{
    uint64_t begin = ps_clock_ns();
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
    uint64_t begin = ps_clock_ns();
    PS_TRY(ps_model_file_save(path, &t->o.spec->table, ps_session_params(t->o.session),
                              ps_session_buffers(t->o.session), metadata, 5));
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

/* All ranks, at the end. Before the first step there is no average. */
static ps_err save_average(ps_trainer *t)
{
    static const char name[] = "ema.safetensors";
    const ps_optimizer *optimizer = ps_session_optimizer(t->o.session);
    if (optimizer->ema == 0 || t->step == t->result->skipped_steps) return PS_OK;
    PS_TRY(write_average(t, optimizer, name));
    return ps_file_wait_written(t->member, t->o.config, name);
}

ps_err ps_trainer_save(ps_trainer *t, const char *name)
{
    PS_TRY(trainer_write_weights(t, name));
    return ps_file_wait_written(t->member, t->o.config, name);
}

/* Evaluates the weights after all steps so far; with the policy local, those of the last
 * synchronisation. */
static ps_err trainer_evaluate(ps_trainer *t, int64_t epochs_done)
{
    if (t->o.evaluator->n_samples == 0) return PS_OK;
    char name[48];
    snprintf(name, sizeof name, "evaluate/%" PRIu64, t->step);
    ps_evaluation *e = &t->result->evaluation;
    if (t->pace->warn_of_older) t->pace->warn_of_older(t);
    // Of unequal workers each gets as many samples as it is fast.
    PS_TRY(ps_evaluator_share(t->o.evaluator, t->pace->shares(t)));
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
                             .top5 = e->top5,
                             .samples = e->samples};
    ps_metric_set(t->o.values, PS_METRIC_TEST_LOSS, e->loss);
    ps_metric_set(t->o.values, PS_METRIC_TEST_ACCURACY, e->accuracy);
    ps_metric_set(t->o.values, PS_METRIC_TEST_TOP5_ACCURACY, e->top5);
    ps_metric_set(t->o.values, PS_METRIC_TEST_SAMPLES, (double)e->samples);
    char accuracy[48] = "";
    double best;
    if (!isnan(e->accuracy))
        snprintf(accuracy, sizeof accuracy, "  test accuracy %.4f", e->accuracy);
    ps_progress_line(t->o.progress, "epoch %" PRId64 "/%" PRId64 "  test loss %.4f%s%s",
                     epochs_done, t->epochs, e->loss, accuracy,
                     ps_trainer_is_best(t, &best) ? "  new best" : "");
    return ps_metrics_eval(t->o.metrics, &record);
}

/* --- loops ----------------------------------------------------------------------- */

bool ps_trainer_evaluation_due(const ps_trainer *t)
{
    const int64_t every = t->o.config->train.eval_every;
    return every > 0 && (t->epoch + 1) % every == 0;
}

/* All ranks have the same figures, so all end, or none. A job that goes on from a
 * checkpoint of this step evaluates again, so that this result is not in it. */
static void stop_early(ps_trainer *t)
{
    ps_patience patience = t->patience;
    if (t->result->interrupted) return;
    t->result->stopped_early =
        ps_patience_is_over(&patience, t->o.config, &t->result->evaluation);
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
    if (accuracy && isnan(e->accuracy))
        return ps_err_set(PS_ERR_CONFIG,
                          "schedule.metric: the test split has no classes, so there is "
                          "no accuracy: set it to loss");
    if (!ps_plateau_step(&t->plateau, c, accuracy ? e->accuracy : e->loss)) return PS_OK;
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
    if (ps_checkpointer_keeps_best(t->o.checkpointer))
        PS_TRY(ps_trainer_checkpoint_once(t));
    PS_TRY(ps_trainer_drain(t));
    PS_TRY(trainer_evaluate(t, t->epoch + 1));
    ps_trainer_mark_if_best(t);
    stop_early(t);
    PS_TRY(follow_plateau(t));
    return t->result->interrupted || t->result->stopped_early
               ? ps_trainer_checkpoint_once(t)
               : PS_OK;
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
        if (last) PS_TRY(ps_trainer_checkpoint_once(t));
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
    *result = (ps_trainer_result){.train_loss = NAN, .loss_scale = 1};
    t->result = result;
    if (t->o.start) begin_result(result, t->o.start);
    if (t->epoch_samples > 0) result->train_loss = t->epoch_loss_sum / t->epoch_samples;
    ps_exchange_stats before;
    ps_session_stats(t->o.session, &before);
    t->waited = before.wait_seconds;
    if (t->pace->start) PS_TRY(t->pace->start(t));
    if (t->total_steps > 0) {
        PS_TRY(trainer_train_epochs(t));
        ps_trainer_book_traffic(t, &before);
    }
    if (result->next_workers > 0) return PS_OK;
    t->pace->report(t);
    ps_trainer_book_speed(t);
    PS_TRY(ps_trainer_drain(t));
    PS_TRY(ps_trainer_renew_loss_scale(t));
    // The weights first: an evaluation may take long, and may be what is interrupted.
    PS_FAULT_POINT("model.due");
    PS_TRY(ps_trainer_save(t, "model.safetensors"));
    if (t->total_steps > 0) PS_TRY(save_average(t));
    if (!result->interrupted && !result->stopped_early)
        PS_TRY(trainer_evaluate(t, t->epoch));
    ps_trainer_mark_if_best(t);
    PS_TRY(ps_trainer_finish_checkpoints(t));
    ps_progress_end(t->o.progress);
    return PS_OK;
}
