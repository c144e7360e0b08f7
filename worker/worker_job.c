#include "worker_job.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check_data.h"
#include "config_needs.h"
#include "data_sets.h"
#include "evaluate.h"
#include "fault_point.h"
#include "file_wait.h"
#include "init_weights.h"
#include "interrupt.h"
#include "log.h"
#include "membership_log.h"
#include "model_file.h"
#include "monitor.h"
#include "procstat.h"
#include "readable.h"
#include "rejoin.h"
#include "resume.h"
#include "roster.h"
#include "row_values.h"
#include "run_config.h"
#include "same_data.h"
#include "session.h"
#include "summary.h"
#include "trace_of_job.h"
#include "warm_up.h"

typedef struct job {
    const ps_config *config;
    const ps_cli *cli;
    int threads;
    ps_model_spec spec;
    ps_session *session;
    ps_member *member; // of the session; NULL: alone
    int rank;          // -1: any, until it has joined
    int64_t rejoins;
    uint64_t generation;  // resume.h
    int expected_workers; // when it joins again
    bool announced;
    bool left; // the others go on without it
    ps_data_sets data;
    uint64_t train_mark, test_mark; // ps_dataset_mark
    int64_t *batches;               // (most workers)
    ps_sampler_options sampler;
    int64_t accumulate; // micro-batches per step
    uint64_t total_steps;
    ps_warm_up warm_up;
    ps_device *device;
    char device_name[160];
    ps_row_client *rows;    // of the model's embedding tables; NULL: none
    ps_rows_points *points; // likewise
    ps_resume resume;
    ps_checkpointer *checkpointer;
    ps_evaluator evaluator;
    ps_trainer *trainer;
    ps_trainer_result result;
    ps_run_dir run_dir;
    bool has_run_dir, claimed;
    ps_metrics metrics;
    ps_progress progress;
    ps_monitor *monitor; // NULL: nobody can watch
    ps_summary summary;
} job;

static const ps_exchange_ops *ops_of(const job *j)
{
    return ps_session_ops(j->session);
}

/* --- what the configuration alone says --------------------------------------------- */

static ps_err make_session(job *j)
{
    const ps_session_options options = {
        .config = j->config,
        .table = &j->spec.table,
        .init_method = j->cli->init_method,
        .rank = ps_membership_rank(j->config, j->rank, j->cli->rank),
        .expected_workers = j->expected_workers,
        .view = ps_monitor_view(j->monitor),
        .counts = true,
        .local_rank = j->cli->local_rank,
        .incarnation = (uint64_t)j->cli->incarnation};
    return ps_session_create(&options, &j->session);
}

/* --- data -------------------------------------------------------------------------- */

static void set_workers(job *j, int workers)
{
    const ps_config_data *d = &j->config->data;
    j->accumulate = ps_config_split(j->config, workers, j->batches);
    j->sampler = (ps_sampler_options){.n_samples = j->data.train.n,
                                      .world_size = workers,
                                      .shuffle = d->shuffle,
                                      .drop_last = d->drop_last,
                                      .drop_last_batch = d->drop_last_batch,
                                      .seed = d->seed,
                                      .batch = j->batches};
    if (d->drop_last_batch && d->global_batch > 0 && !ps_config_balances(j->config))
        j->sampler.drop_last_batch = j->accumulate;
}

/* Tables: what becomes of their cells stands in every file of weights. */
static ps_err keep_state(job *j)
{
    char **text = &j->spec.table.preprocessing;
    const ps_dataset *set = j->data.train.n > 0 ? &j->data.train : &j->data.test;
    if (j->config->data.kind == PS_DATA_NPY)
        j->spec.table.samples = ps_sample_type_name(ps_dataset_type(set));
    return j->data.state && !*text ? ps_preprocessing_text(j->data.state, text) : PS_OK;
}

/* Splits what was read among as many workers as the job may have. */
static ps_err split_data(job *j)
{
    const ps_config *c = j->config;
    const int workers = (int)c->job.most_workers;
    j->train_mark = ps_dataset_mark(&j->data.train);
    j->test_mark = ps_dataset_mark(&j->data.test);
    PS_TRY(keep_state(j));
    PS_TRY(PS_NEW(&j->batches, (size_t)workers, "the batch sizes"));
    set_workers(j, workers);
    j->total_steps = ps_trainer_total_steps(c, &j->sampler, j->accumulate, 0);
    if (c->train.epochs > 0 && j->total_steps == 0)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.train: %lld samples make no step for %d workers%s",
                          (long long)j->data.train.n, workers,
                          c->data.drop_last_batch ? " without a short batch "
                                                    "(data.drop_last_batch)"
                                                  : "");
    return PS_OK;
}

/* A process that was started again has read its data before, and others wait for it: it
 * reads while they get ready to join again. Any other one reads before it joins, so that
 * what is wrong is found before anybody waits. */
static ps_err begin_data(job *j)
{
    if (j->cli->incarnation > 0 && !j->cli->check_data)
        return ps_data_sets_begin(&j->data, j->config, &j->spec);
    PS_TRY(ps_data_sets_read(&j->data, j->config, &j->spec));
    return split_data(j);
}

/* Once it has joined. */
static ps_err end_data(job *j)
{
    if (j->batches) return PS_OK;
    PS_TRY(ps_data_sets_end(&j->data));
    return split_data(j);
}

/* --- the others -------------------------------------------------------------------- */

static void worker_job_start_monitor(job *j)
{
    const ps_config *c = j->config;
    const bool first = j->rank == 0 || c->job.most_workers == 1;
    const ps_monitor_options options = {.config = c,
                                        .role = PS_ROLE_WORKER,
                                        .hosts =
                                            first && c->exchange.name != PS_EXCHANGE_PS};
    j->monitor = ps_monitor_start(&options);
    ps_metric_set(ps_monitor_values(j->monitor), PS_METRIC_RESTARTS,
                  (double)j->cli->incarnation);
}

static ps_err worker_job_join(job *j)
{
    PS_TRY(ps_session_join_members(j->session));
    j->member = ps_session_member(j->session);
    PS_TRY(end_data(j));
    ps_metric_set(ps_monitor_values(j->monitor), PS_METRIC_REJOINS, (double)j->rejoins);
    ps_monitor_attach(j->monitor, j->member, NULL, NULL, NULL);
    set_workers(j, ps_session_world_size(j->session));
    j->sampler.rank = j->rank = ps_session_rank(j->session);
    if (!j->member) return PS_OK;
    char role[32];
    snprintf(role, sizeof role, "worker/%d", j->rank);
    ps_log_set_role(role);
    return ps_same_data(j->member, j->rank, j->config, &j->data,
                        j->spec.table.preprocessing);
}

/* Rank 0 looks for a checkpoint, counts the steps, and tells the others. */
static ps_err worker_job_find_start(job *j)
{
    const ps_resume_options options = {.config = j->config,
                                       .cli = j->cli,
                                       .table = &j->spec.table,
                                       .member = j->member,
                                       .rank = j->rank,
                                       .world_size = j->sampler.world_size,
                                       .train = &j->data.train,
                                       .train_mark = j->train_mark,
                                       .test = &j->data.test,
                                       .test_mark = j->test_mark,
                                       .accumulate = j->accumulate,
                                       .batches = j->batches,
                                       .own_dir = j->claimed ? j->run_dir.path : NULL,
                                       .checkpointer = j->checkpointer,
                                       .generation = j->generation,
                                       .made = j->result.steps};
    PS_TRY(ps_resume_init(&j->resume, &options, ps_session_optimizer(j->session)));
    const int had = j->resume.snapshot.trainer.n_ranks;
    if (j->resume.goes_on && ps_trainer_reentrys_are_own(j->config) &&
        had != j->sampler.world_size)
        return ps_err_set(
            PS_ERR_CONFIG,
            "sync.policy: %s goes on from a checkpoint with as many workers "
            "as it had, %d; train.init begins with its weights",
            ps_word_name(ps_policy_words, (int)j->config->sync.policy), had);
    PS_TRY(ps_resume_tell(&j->resume, &j->sampler));
    j->generation = j->resume.choice.generation;
    PS_TRY(ps_session_set_start(j->session, &j->resume.start));
    j->total_steps = j->resume.start.total_steps;
    if (!j->member || j->rank != 0) return PS_OK;
    const char *init = j->resume.goes_on ? "" : j->config->train.init;
    return ps_file_announce_init(j->member, init, ps_config_step_deadline(j->config));
}

/* --- arithmetic -------------------------------------------------------------------- */

static ps_device_options device_options(const job *j)
{
    const ps_cli *cli = j->cli;
    ps_device_options o = ps_device_options_of(j->config, cli->local_rank, j->threads);
    o.own_waits = cli->own_waits;
    return o;
}

/* Beside what the others do until this process has joined again. */
static ps_err warm_up(job *j)
{
    if (j->cli->incarnation == 0 || j->cli->check_data) return PS_OK;
    const int64_t workers =
        j->expected_workers > 0 ? j->expected_workers : j->config->job.workers;
    j->warm_up =
        (ps_warm_up){.config = j->config,
                     .options = device_options(j),
                     .program = ps_trainer_program(j->session, j->config, &j->spec),
                     .rank = j->rank < workers ? j->rank : -1,
                     .workers = (int)workers};
    return ps_warm_up_begin(&j->warm_up);
}

/* The arenas, which copies between host and GPU go through. Before they are pinned. */
static bool worker_job_move_arenas(const job *j, const ps_numa *numa)
{
    const size_t bytes = j->spec.table.arena_count * sizeof(float);
    return ps_numa_move(numa, ps_session_params(j->session), bytes) &&
           ps_numa_move(numa, ps_session_grads(j->session), bytes);
}

static void worker_job_bind(const job *j)
{
    ps_numa numa;
    bool memory;
    if (!j->config->train.numa || !j->device->ops->numa ||
        !j->device->ops->numa(j->device, &numa))
        return;
    const ps_numa_result result = ps_numa_bind(&numa, &memory);
    if (memory) memory = worker_job_move_arenas(j, &numa);
    if (result == PS_NUMA_BOUND)
        PS_INFO("numa", "gpu=%s node=%d of=%d cores=%s memory=%s", numa.address,
                numa.node, numa.n_nodes, numa.cores,
                memory ? "preferred" : "\"as the system gives it\"");
    if (result == PS_NUMA_REFUSED)
        PS_WARN("numa",
                "gpu=%s node=%d cores=%s reason=\"%s\" mend=\"numactl, or "
                "train.numa=false\"",
                numa.address, numa.node, numa.cores, strerror(errno));
}

static ps_err open_device(job *j)
{
    if (j->device) return PS_OK;
    const ps_device_options options = device_options(j);
    j->device = ps_warm_up_end(&j->warm_up);
    if (!j->device)
        PS_TRY(ps_device_open(j->config->train.device.kind, &options, &j->device));
    ps_device_describe(j->device, j->device_name, sizeof j->device_name);
    worker_job_bind(j);
    return PS_OK;
}

/* Rank 0's become everybody's when the session starts. */
static ps_err first_weights(job *j)
{
    const char *init = j->config->train.init;
    float *params = ps_session_params(j->session);
    void *buffers = ps_session_buffers(j->session);
    if (j->resume.goes_on && (j->rank == 0 || j->resume.start.back_at > 0)) {
        ps_resume_weights(&j->resume, params, buffers);
        return PS_OK;
    }
    const bool strict = j->config->train.init_strict, reads = init[0] && j->rank == 0;
    if (!j->resume.goes_on && (!reads || !strict))
        ps_init_weights(&j->spec, j->config->train.seed, 1, params, buffers);
    if (reads) {
        const ps_err err =
            ps_model_file_load(init, &j->spec.table, strict, params, buffers);
        if (err != PS_OK) return ps_err_prefix(err, "train.init");
        return ps_file_init_is_read(j->member, ps_config_step_deadline(j->config));
    }
    return j->rank == 0 ? PS_OK : ps_file_wait_init(j->member, j->config);
}

/* Gives the servers the rows beside train.init. */
static ps_err worker_job_first_rows(job *j)
{
    const char *init = j->config->train.init;
    ps_row_values values = {0};
    if (!init[0]) return PS_OK;
    ps_err err = ps_row_values_open(&values, init, &j->spec);
    if (err == PS_OK) err = ps_row_values_put(&values, j->rows);
    if (err != PS_OK) err = ps_err_prefix(err, "train.init");
    ps_row_values_fini(&values);
    return err;
}

/* Before anybody asks for a row, rank 0 sees to it that the servers have them. */
static ps_err worker_job_open_rows(job *j)
{
    const ps_model_spec *spec = &j->spec;
    if (spec->n_rows == 0) return PS_OK;
    PS_TRY(ps_row_client_create(j->session, spec->rows, spec->n_rows, &j->rows));
    PS_TRY(ps_rows_points_create(spec->rows, (uint32_t)spec->n_rows,
                                 ps_session_plan(j->session)->n_shards, &j->points));
    if (j->rank == 0)
        PS_TRY(j->resume.goes_on ? ps_resume_rows(&j->resume, j->session, j->points)
                                 : worker_job_first_rows(j));
    PS_TRY(ps_row_client_set_step(j->rows, j->resume.start.step));
    return ps_member_barrier(j->member, "rows",
                             ps_file_meeting_deadline(j->config, j->rank));
}

/* Starts with the exchange's state in the checkpoint, if there is one. */
static ps_err start_session(job *j)
{
    const ps_exchange_state *state;
    PS_TRY(ps_resume_exchange(&j->resume, &state));
    PS_TRY(ps_session_start(j->session, j->device, state));
    PS_TRY(worker_job_open_rows(j));
    ps_resume_drop_arrays(&j->resume);
    return PS_OK;
}

/* --- training ---------------------------------------------------------------------- */

static ps_err open_folder(job *j)
{
    const bool first = j->rank == 0;
    if (j->has_run_dir || (!first && !(j->cli->out && j->cli->out[0]))) return PS_OK;
    PS_TRY(ps_run_dir_init(&j->run_dir, j->cli->out, j->config->job.name));
    j->has_run_dir = true;
    if (first) PS_TRY(ps_resume_claim(&j->resume, &j->run_dir));
    j->claimed = first;
    return PS_OK;
}

static ps_err note_membership(const job *j)
{
    const ps_trainer_snapshot *s = &j->resume.snapshot.trainer;
    ps_membership now = {.workers = j->sampler.world_size,
                         .generation = j->generation,
                         .nonce = j->member ? ps_member_roster(j->member)->nonce : 0};
    if (j->resume.goes_on) {
        now.step = s->step;
        now.epoch = s->epoch;
        now.position = s->position;
    }
    return ps_membership_note(j->config, j->run_dir.path, &now);
}

static ps_err open_outputs(job *j)
{
    PS_TRY(open_folder(j));
    if (j->has_run_dir)
        PS_TRY(ps_trace_of_job(j->config, j->run_dir.path, j->cli->incarnation,
                               PS_ROLE_WORKER, j->rank, j->member));
    ps_progress_init(&j->progress, j->rank == 0 ? stderr : NULL, j->cli->bar_columns);
    if (j->rank != 0) return PS_OK;
    PS_TRY(ps_file_announce_folder(j->member, &j->run_dir,
                                   ps_config_step_deadline(j->config)));
    PS_TRY(note_membership(j));
    PS_TRY(ps_resume_metrics(&j->resume, &j->run_dir, &j->metrics));
    if (!j->config->train.tensorboard) return PS_OK;
    // The records of the step that the job goes on from are in the older files.
    const uint64_t step = j->resume.start.step, first = step > 0 ? step + 1 : 0;
    return ps_metrics_add_events(&j->metrics, j->run_dir.path, first);
}

static ps_err make_checkpointer(job *j)
{
    if (!ps_config_makes_checkpoints(j->config) || j->total_steps == 0) return PS_OK;
    const ps_checkpointer_options options = {
        .config = j->config, .shape = &j->resume.shape, .run_dir = j->run_dir.path};
    if (!j->checkpointer) PS_TRY(ps_checkpointer_create(&options, &j->checkpointer));
    return ps_checkpointer_attach(j->checkpointer, j->session, j->points);
}

static ps_err make_trainer(job *j)
{
    PS_TRY(make_checkpointer(j));
    const ps_evaluator_options evaluator = {.config = j->config,
                                            .spec = &j->spec,
                                            .dataset = &j->data.test,
                                            .device = j->device,
                                            .session = j->session,
                                            .rows = j->rows};
    PS_TRY(ps_evaluator_init(&j->evaluator, &evaluator));
    const ps_resume *r = &j->resume;
    const ps_trainer_reentry *reentry = r->start.back_at > 0 ? &r->reentry : NULL;
    const ps_trainer_options options = {.config = j->config,
                                        .spec = &j->spec,
                                        .train = &j->data.train,
                                        .train_mark = j->train_mark,
                                        .test_mark = j->test_mark,
                                        .sampler = &j->sampler,
                                        .accumulate = j->accumulate,
                                        .device = j->device,
                                        .session = j->session,
                                        .evaluator = &j->evaluator,
                                        .rows = j->rows,
                                        .start = r->goes_on ? &r->snapshot.trainer : NULL,
                                        .generation = j->generation,
                                        .reentry = reentry,
                                        .checkpointer = j->checkpointer,
                                        .run_dir = j->rank == 0 ? &j->run_dir : NULL,
                                        .metrics = &j->metrics,
                                        .progress = &j->progress,
                                        .values = ps_monitor_values(j->monitor)};
    return ps_trainer_create(&options, &j->trainer);
}

/* How many workers share this process's cores; 0 when another of them gives the
 * warning. */
static int workers_here(const ps_member *member, int rank, const ps_host *host)
{
    // Bound to some of the cores: other workers may be bound to others.
    if (!member || host->cores < ps_machine_cores()) return 1;
    const ps_roster *roster = ps_member_roster(member);
    int n = 0;
    for (int r = 0; r < roster->n_workers; r++) {
        if (strcmp(roster->workers[r].boot_id, host->boot_id) != 0) continue;
        if (n++ == 0 && r != rank) return 0;
    }
    return n;
}

/* Warns where the workers of a host have no core for each of their threads; of a host's
 * workers the first one does. member NULL: a worker alone. threads: of arithmetic, of
 * each worker. */
static void worker_job_check_cores(const ps_member *member, int rank, int threads)
{
    ps_host host;
    ps_host_find(&host);
    int n = workers_here(member, rank, &host);
    if (n * threads <= host.cores) return;
    PS_WARN("cores",
            "%d worker%s of %d thread%s on %d core%s: they wait for each other; fewer "
            "workers, or train.threads, would be faster",
            n, n > 1 ? "s" : "", threads, threads > 1 ? "s" : "", host.cores,
            host.cores > 1 ? "s" : "");
}

static void warn_of_warmup(const job *j)
{
    const uint64_t warmup = (uint64_t)j->config->schedule.warmup;
    if (warmup > 0 && j->total_steps > 0 && warmup >= j->total_steps)
        PS_WARN("schedule",
                "schedule.warmup: %s steps, and the job has %s: the learning rate does "
                "not come to optimizer.lr",
                PS_COUNTED(warmup), PS_COUNTED(j->total_steps));
}

static void worker_job_announce(job *j)
{
    if (j->rank == 0)
        ps_membership_announce(j->config, j->sampler.world_size, j->resume.start.step);
    if (j->announced) return;
    j->announced = true;
    if (!j->device->ops->uses_cores && j->cli->cuda_overrides[0])
        PS_WARN("cuda-overrides",
                "%s effect=\"products are rounded in another way than "
                "train.tf32 and the other workers say: equal bits are lost\"",
                j->cli->cuda_overrides);
    if (j->device->ops->uses_cores)
        worker_job_check_cores(j->member, j->rank, j->threads);
    if (j->rank != 0) return;
    PS_INFO("job", "name=%s mode=%s workers=%d servers=%d params=%llu steps=%llu",
            j->config->job.name, ops_of(j)->mode, ps_session_world_size(j->session),
            ps_session_servers(j->session), (unsigned long long)j->spec.table.n_params,
            (unsigned long long)j->total_steps);
    PS_INFO("device", "%s", j->device_name);
    ps_data_sets_log(&j->data, j->config);
    warn_of_warmup(j);
    ps_config_warn_of_needs(j->config);
}

/* --- the end ----------------------------------------------------------------------- */

static int64_t step_samples(const job *j)
{
    int64_t sum = 0;
    for (int r = 0; r < j->sampler.world_size; r++)
        sum += j->batches[r];
    return sum * j->accumulate;
}

static void begin_summary(job *j)
{
    const ps_session *s = j->session;
    j->summary =
        (ps_summary){.config = j->config,
                     .result = &j->result,
                     .mode = ops_of(j)->mode,
                     .device = j->device_name,
                     .exchange = ps_session_exchange_name(s),
                     .servers = ps_session_servers(s),
                     .shards = ops_of(j)->servers ? (int)ps_session_plan(s)->n_shards : 0,
                     .workers = ps_session_world_size(s),
                     .threads = j->threads,
                     .params = j->spec.table.n_params,
                     .rejoins = j->rejoins,
                     .batch = step_samples(j)};
}

static ps_err write_summary(job *j)
{
    PS_TRY(ps_summary_gather_servers(&j->summary, j->session));
    return ps_summary_write(&j->summary, &j->run_dir);
}

/* With train.epochs=0 there is no training set. */
static ps_err worker_job_write_config(job *j)
{
    const ps_data_sets *d = &j->data;
    return ps_run_config_write(
        j->config, d->train.names.n > 0 ? &d->train.names : &d->test.names, &j->run_dir);
}

static ps_err worker_job_finish(job *j)
{
    begin_summary(j);
    PS_TRY(ps_summary_gather_workers(&j->summary, j->session, j->device));
    PS_TRY(ps_session_stop(j->session));
    if (j->rank == 0 && j->evaluator.whole)
        PS_TRY(ps_evaluation_write(&j->evaluator, &j->run_dir));
    if (j->rank == 0) PS_TRY(worker_job_write_config(j));
    PS_TRY(ps_metrics_close(&j->metrics));
    if (j->rank == 0) PS_TRY(write_summary(j));
    PS_TRY(ps_file_wait_written(j->member, j->config, "summary.json"));
    PS_TRY(ps_session_close(j->session));
    PS_FAULT_POINT("job.left");
    return PS_OK;
}

/* A job whose loss is not finite has learnt nothing, although it ran to its end. */
static ps_err worker_job_judge(const job *j)
{
    const ps_trainer_result *r = &j->result;
    bool trained = r->steps > 0, tested = r->evaluation.samples > 0;
    bool bad = (trained && !isfinite(r->train_loss)) ||
               (tested && !isfinite(r->evaluation.loss));
    if (r->interrupted || !bad) return PS_OK;
    char train[32] = "-", test[32] = "-", text[256];
    if (trained) snprintf(train, sizeof train, "%g", r->train_loss);
    if (tested) snprintf(test, sizeof test, "%g", r->evaluation.loss);
    snprintf(text, sizeof text,
             "the last loss is not finite (training %s, test %s): a lower optimizer.lr "
             "or optimizer.clip_norm may help",
             train, test);
    if (j->config->exchange.nan == PS_NAN_ERROR)
        return ps_err_set(PS_ERR_NUMERIC, "%s", text);
    if (j->rank == 0) PS_WARN("loss", "%s", text);
    return PS_OK;
}

static ps_err worker_job_check_data(const job *j)
{
    const ps_check_data_options options = {.config = j->config,
                                           .spec = &j->spec,
                                           .data = &j->data,
                                           .sampler = &j->sampler,
                                           .accumulate = j->accumulate,
                                           .total_steps = j->total_steps};
    return ps_check_data(&options, stdout);
}

/* All have taken part in the checkpoint; worker 0 has it and ends the job for now. */
static ps_err worker_job_regroup(job *j)
{
    const int n = j->result.next_workers;
    if (j->rank == 0) ps_member_regroup(j->member, n);
    ps_member_cause(j->member, ps_config_step_deadline(j->config));
    j->left = j->result.leaves;
    if (j->left) return PS_OK;
    return ps_err_set(PS_ERR_REGROUP, "the job goes on with %d workers", n);
}

/* The process's part in the job, from joining it to leaving it. */
static ps_err take_part(job *j)
{
    if (!j->session) PS_TRY(make_session(j));
    PS_TRY(worker_job_join(j));
    PS_TRY(worker_job_find_start(j));
    PS_TRY(open_outputs(j));
    PS_TRY(open_device(j));
    PS_TRY(first_weights(j));
    worker_job_announce(j);
    PS_TRY(start_session(j));
    PS_TRY(make_trainer(j));
    PS_TRY(ps_trainer_run(j->trainer, &j->result));
    return j->result.next_workers > 0 ? worker_job_regroup(j) : worker_job_finish(j);
}

/* Frees what belongs to one joining of the job. */
static void leave_session(job *j)
{
    ps_monitor_detach(j->monitor);
    ps_trainer_destroy(&j->trainer);
    ps_checkpointer_detach(j->checkpointer);
    ps_resume_fini(&j->resume);
    ps_evaluator_fini(&j->evaluator);
    ps_session_destroy(&j->session);
    ps_row_client_destroy(&j->rows); // the session's thread may have been writing there
    ps_rows_points_destroy(&j->points); // likewise
    ps_metrics_close(&j->metrics);
    ps_summary_fini(&j->summary);
    j->member = NULL;
}

/* This process cannot join again then: what starts it again has to. */
static bool worker_job_lost_device(const job *j)
{
    if (!ps_device_lost(j->device)) return false;
    PS_WARN("device-lost",
            "device=\"%s\" note=\"this process ends: only another one can "
            "use it again\"",
            j->device_name);
    return true;
}

/* What asks for as much memory again, here, would lack it again: all of it is free when
 * the process has ended. */
static bool worker_job_lacks_memory(const job *j, ps_err err)
{
    if (err != PS_ERR_NOMEM || j->config->recovery.rejoins == 0) return false;
    PS_WARN("no-memory",
            "note=\"this process ends: only then is all of its memory free again\"");
    return true;
}

/* Whether it joins again. Then everything is ready for that. The exchange is destroyed
 * before the trainer: a GPU may be in a sum that waits for a rank that is gone. */
static bool starts_over(job *j, ps_err err)
{
    const bool leaves = j->session && ps_session_told_to_leave(j->session);
    if ((ps_interrupted() && !leaves) || worker_job_lost_device(j) ||
        worker_job_lacks_memory(j, err) ||
        !ps_rejoin_allowed(j->config, j->member, err, &j->rejoins))
        return false;
    j->left = leaves;
    j->expected_workers = ps_member_next_workers(j->member);
    ps_session_abort(j->session, err, ps_err_message());
    leave_session(j);
    return true;
}

static ps_err worker_job_run(job *j)
{
    j->expected_workers = (int)j->config->job.start_workers;
    PS_TRY(ps_model_spec_init(&j->spec, j->config));
    PS_TRY(ps_model_spec_check_rows(&j->spec, j->config));
    j->threads = ps_worker_threads(j->cli, j->config, &j->spec);
    if (!j->cli->check_data) worker_job_start_monitor(j);
    PS_TRY(make_session(j));
    PS_TRY(begin_data(j));
    PS_TRY(warm_up(j));
    if (j->cli->check_data) return worker_job_check_data(j);
    ps_err err;
    do
        err = take_part(j);
    while (err != PS_OK && starts_over(j, err) && !j->left);
    if (j->left) {
        PS_INFO("left", "step=%" PRIu64 " note=\"the others go on\"", j->result.steps);
        return PS_OK;
    }
    return err == PS_OK ? worker_job_judge(j) : err;
}

static void clean_up(job *j)
{
    leave_session(j);
    ps_checkpointer_destroy(&j->checkpointer);
    if (!j->device) j->device = ps_warm_up_end(&j->warm_up);
    ps_device_close(&j->device);
    ps_trace_of_job_ended(); // its threads have ended
    ps_monitor_stop(&j->monitor);
    if (j->has_run_dir) ps_run_dir_fini(&j->run_dir);
    ps_data_sets_fini(&j->data);
    free(j->batches);
    ps_model_spec_fini(&j->spec);
}

/* The threads wait for each other after each layer. Beside other load that costs about a
 * millisecond, as long as a thread takes for these multiply-adds. */
enum { WORTH_A_THREAD = 16 << 20 };

/* Those that the layers of a micro-batch are worth, as a mean. The same for all ranks. */
static int64_t threads_worth(const ps_config *config, const ps_model_spec *spec)
{
    uint64_t products = 0, layers = 0;
    for (int i = 0; i < spec->n_layers; i++) {
        const uint64_t n = ps_layer_products(spec, &spec->layers[i]);
        products += n;
        layers += n > 0;
    }
    const uint64_t batch = (uint64_t)ps_config_batch(config, 0);
    return layers ? (int64_t)(products / layers * batch / WORTH_A_THREAD) : 0;
}

int ps_worker_threads(const ps_cli *cli, const ps_config *config,
                      const ps_model_spec *spec)
{
    if (config->train.threads > 0) return (int)config->train.threads;
    const int most = cli->default_threads > 0 ? cli->default_threads : ps_process_cores();
    const int64_t worth = spec ? threads_worth(config, spec) : most;
    return worth > most ? most : worth < 1 ? 1 : (int)worth;
}

/* Tells the others why, and cleans up without losing the reason. The exchange is
 * destroyed before the trainer: a GPU may be in a sum that waits for a rank that is
 * gone. */
static ps_err worker_job_give_up(job *j, ps_err err, bool *resumable)
{
    const ps_err_saved failure = ps_err_save(err);
    const bool told = err == PS_ERR_INTERRUPTED || ps_err_is_passing(err);
    ps_session_abort(j->session, err, failure.message);
    // It was told to end while it joined again, or because others had ended.
    *resumable = told && ps_interrupted() && ps_checkpointer_secure(j->checkpointer);
    clean_up(j);
    return ps_err_restore(&failure);
}

ps_err ps_worker_job_run(const ps_cli *cli, const ps_config *config, bool *interrupted,
                         bool *resumable)
{
    job *j;
    PS_TRY(PS_NEW(&j, 1, "the job"));
    j->config = config;
    j->cli = cli;
    j->rank = cli->rank;
    ps_err err = worker_job_run(j);
    *interrupted = j->result.interrupted;
    *resumable = j->result.interrupted && j->result.resumable;
    if (err == PS_OK)
        clean_up(j);
    else
        err = worker_job_give_up(j, err, resumable);
    free(j);
    return err;
}
