#include "worker_job.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chunk_codec.h"
#include "device_stream.h"
#include "fd_limit.h"
#include "file_wait.h"
#include "init_method.h"
#include "init_weights.h"
#include "log.h"
#include "procstat.h"
#include "resume.h"
#include "safetensors.h"
#include "shm_offer.h"
#include "trainer.h"

enum { STATS_MS = 2000 }; // to fetch what is there

typedef struct job {
    const ps_config *config;
    const ps_cli *cli;
    int rank, world_size, n_servers, threads;
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    ps_dataset train, test;
    int64_t *batches; // (world_size)
    ps_sampler_options sampler;
    uint64_t total_steps;
    ps_member *member; // NULL: alone
    ps_device *device;
    char device_name[160];
    ps_shared_mem params, grads;
    void *buffers;
    ps_device_stream *stream; // where the weights stay on a GPU
    ps_exchange *exchange;
    ps_resume resume;
    ps_checkpointer *checkpointer;
    ps_evaluator evaluator;
    ps_trainer *trainer;
    ps_run_dir run_dir;
    bool has_run_dir;
    ps_metrics metrics;
    ps_progress progress;
    ps_trace trace;
    char **server_stats; // (n_servers)
    uint64_t peak_rss_bytes, most_in_flight;
} job;

static bool is_ps(const job *j)
{
    return strcmp(j->config->exchange.name, "ps") == 0;
}

static bool is_none(const job *j)
{
    return strcmp(j->config->exchange.name, "none") == 0;
}

static const char *mode_name(const job *j)
{
    return is_ps(j) ? "ps" : is_none(j) ? "single" : "allreduce";
}

static ps_deadline step_deadline(const job *j)
{
    return ps_deadline_in_ms((uint64_t)j->config->net.step_timeout_ms);
}

/* --- what the configuration alone says -------------------------------------------- */

static ps_err plan_job(job *j)
{
    const ps_config *c = j->config;
    j->world_size = (int)c->job.workers;
    j->n_servers = is_ps(j) ? (int)c->job.servers : 0;
    if (is_ps(j) && j->n_servers == 0)
        return ps_err_set(PS_ERR_CONFIG, "exchange.name is ps, but job.servers is 0");
    PS_TRY(ps_model_spec_init(&j->spec, c));
    uint32_t shards = is_ps(j) ? (uint32_t)(j->n_servers * c->server.shards) : 1;
    ps_chunk_size size =
        ps_chunk_size_wanted(c, ps_init_method_is_loopback(j->cli->init_method));
    PS_TRY(ps_plan_init(&j->plan, &j->spec.table, size, shards));
    return ps_step_rule_init(&j->rule, c);
}

static ps_err check_descriptors(const job *j)
{
    const ps_config *c = j->config;
    const bool first = j->cli->rank == 0 || j->world_size == 1;
    const ps_fd_job fds = {.workers = (uint64_t)j->world_size,
                           .servers = (uint64_t)j->n_servers,
                           .shards = (uint64_t)c->server.shards,
                           .io_threads = (uint64_t)c->net.io_threads,
                           .votes = ps_step_rule_waits(&j->rule),
                           .hosts = first && j->n_servers == 0,
                           .shm = strcmp(c->exchange.shm, "off") != 0};
    const ps_fd_need need = ps_fd_need_of_worker(&fds);
    return ps_fd_limit_check(&need);
}

/* --- data --------------------------------------------------------------------------- */

static ps_err load_data(job *j)
{
    const ps_config *c = j->config;
    const ps_dims *want = &j->spec.input;
    if (j->config->train.epochs > 0)
        PS_TRY(ps_dataset_load(c, PS_SPLIT_TRAIN, want, j->spec.n_outputs, &j->train));
    PS_TRY(ps_dataset_load(c, PS_SPLIT_TEST, want, j->spec.n_outputs, &j->test));
    if (c->train.epochs == 0 && j->test.n == 0)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.test: there is no test set, and train.epochs=0 does "
                          "nothing but evaluate");
    PS_TRY(ps_mem_zalloc(&j->batches, (size_t)j->world_size, sizeof *j->batches,
                         "the batch sizes"));
    for (int r = 0; r < j->world_size; r++)
        j->batches[r] = ps_config_batch(j->config, r);
    const ps_config_data *d = &j->config->data;
    j->sampler = (ps_sampler_options){.n_samples = j->train.n,
                                      .world_size = j->world_size,
                                      .rank = j->rank,
                                      .shuffle = d->shuffle,
                                      .drop_last = d->drop_last,
                                      .drop_last_batch = d->drop_last_batch,
                                      .seed = d->seed,
                                      .batch = j->batches};
    j->total_steps = ps_trainer_total_steps(j->config, &j->sampler, 0);
    if (j->config->train.epochs > 0 && j->total_steps == 0)
        return ps_err_set(PS_ERR_CONFIG,
                          "data.train: %lld samples make no step for %d workers%s",
                          (long long)j->train.n, j->world_size,
                          d->drop_last_batch ? " without a short batch "
                                               "(data.drop_last_batch)"
                                             : "");
    return PS_OK;
}

/* --- the others -----------------------------------------------------------------------
 */

static ps_err join(job *j)
{
    if (is_none(j) && j->world_size == 1) {
        j->rank = 0;
        return PS_OK;
    }
    ps_member_options options = {.config = j->config,
                                 .role = PS_ROLE_WORKER,
                                 .rank = j->cli->rank,
                                 .world_size = j->world_size,
                                 .n_servers = j->n_servers,
                                 .init_method = j->cli->init_method,
                                 .plan_hash = j->plan.hash,
                                 .local_rank = j->cli->local_rank};
    PS_TRY(ps_member_join(&options, &j->member));
    j->rank = ps_member_rank(j->member);
    char role[32];
    snprintf(role, sizeof role, "worker/%d", j->rank);
    ps_log_set_role(role);
    return PS_OK;
}

/* Servers have no data, and cannot count the steps that a schedule spans. */
static ps_err find_start(job *j)
{
    const ps_resume_options options = {.config = j->config,
                                       .cli = j->cli,
                                       .table = &j->spec.table,
                                       .member = j->member,
                                       .rank = j->rank};
    PS_TRY(ps_resume_init(&j->resume, &options, &j->rule.optimizer));
    PS_TRY(ps_resume_tell(&j->resume, &j->sampler, &j->rule, &j->total_steps));
    if (j->rank != 0) return PS_OK;
    const char *init = j->resume.goes_on ? "" : j->config->train.init;
    return ps_file_announce_init(j->member, init, step_deadline(j));
}

/* --- arithmetic -----------------------------------------------------------------------
 */

static ps_err open_device(job *j)
{
    const ps_config_train *t = &j->config->train;
    ps_device_options options = {.index = -1,
                                 .local_rank = j->cli->local_rank,
                                 .threads = j->threads,
                                 .precision = t->precision,
                                 .tf32 = t->tf32,
                                 .cudnn = t->cudnn,
                                 .no_graphs = !t->graphs,
                                 .no_winograd = !t->winograd};
    PS_TRY(ps_device_open(t->device, &options, &j->device));
    ps_device_describe(j->device, j->device_name, sizeof j->device_name);
    return PS_OK;
}

static ps_err make_arenas(job *j)
{
    size_t bytes = j->spec.table.arena_count * sizeof(float);
    bool shared = j->member &&
                  ps_shm_offer_possible(j->config, ps_member_roster(j->member), j->rank);
    ps_err (*init)(ps_shared_mem *, size_t, const char *) =
        shared ? ps_shared_mem_init : ps_shared_mem_init_private;
    PS_TRY(init(&j->params, bytes, "the parameters"));
    PS_TRY(init(&j->grads, bytes, "the gradients"));
    size_t buffers = j->spec.table.buffer_bytes > 0 ? j->spec.table.buffer_bytes : 64;
    return ps_mem_zalloc_aligned(&j->buffers, buffers, "the buffers");
}

/* Rank 0's become everybody's when the exchange starts. */
static ps_err first_weights(job *j)
{
    const char *init = j->config->train.init;
    if (j->resume.goes_on && j->rank == 0) {
        ps_resume_weights(&j->resume, j->params.base, j->buffers);
        return PS_OK;
    }
    if (init[0] != '\0' && j->rank == 0) {
        PS_TRY(ps_st_load_model(init, &j->spec.table, j->params.base, j->buffers));
        return ps_file_init_is_read(j->member, step_deadline(j));
    }
    ps_init_weights(&j->spec, j->config->train.seed, 1, j->params.base, j->buffers);
    return j->rank == 0 ? PS_OK : ps_file_wait_init(j->member, j->config);
}

/* Exchanges between GPUs, and none at all, work on the weights where the device has them;
 * ps and gloo on the host's. */
static ps_err open_stream(job *j)
{
    const char *name = j->config->exchange.name;
    bool there =
        is_none(j) || strcmp(name, "nccl") == 0 || strcmp(name, "allreduce") == 0;
    if (!there || !j->device->ops->stream_create) return PS_OK;
    ps_host_stream_options options = {.table = &j->spec.table,
                                      .optimizer = &j->rule.optimizer,
                                      .params = j->params.base,
                                      .grads = j->grads.base,
                                      .buffers = j->buffers};
    return j->device->ops->stream_create(j->device, &options, &j->stream);
}

static ps_err start_exchange(job *j)
{
    PS_TRY(open_stream(j));
    ps_exchange_options options = {.config = j->config,
                                   .table = &j->spec.table,
                                   .plan = &j->plan,
                                   .rule = &j->rule,
                                   .member = j->member,
                                   .rank = j->rank,
                                   .world_size = j->world_size,
                                   .total_steps = j->total_steps,
                                   .first_step = j->resume.start.step,
                                   .params = &j->params,
                                   .grads = &j->grads,
                                   .buffers = j->buffers,
                                   .stream = j->stream};
    PS_TRY(ps_exchange_create(j->config->exchange.name, j->device->ops->name, &options,
                              &j->exchange));
    PS_TRY(ps_resume_exchange(&j->resume, j->exchange));
    return ps_exchange_start(j->exchange);
}

/* --- training --------------------------------------------------------------------------
 */

static ps_err open_outputs(job *j)
{
    char path[PATH_MAX], name[48] = "trace.json";
    bool first = j->rank == 0;
    if (first || (j->cli->out && j->cli->out[0])) {
        PS_TRY(ps_run_dir_init(&j->run_dir, j->cli->out, j->config->job.name));
        j->has_run_dir = true;
    }
    if (first) PS_TRY(ps_resume_claim(&j->resume, &j->run_dir));
    if ((j->cli->trace || j->config->train.trace) && j->has_run_dir) {
        if (!first) snprintf(name, sizeof name, "trace-worker-%d.json", j->rank);
        PS_TRY(ps_run_dir_path(&j->run_dir, name, path));
        PS_TRY(ps_trace_open(&j->trace, path, j->rank));
    }
    ps_progress_init(&j->progress, first ? stderr : NULL, j->cli->bar_columns);
    if (!first) return PS_OK;
    PS_TRY(ps_file_announce_folder(j->member, &j->run_dir, step_deadline(j)));
    PS_TRY(ps_run_dir_path(&j->run_dir, "metrics.jsonl", path));
    return ps_resume_metrics(&j->resume, &j->metrics, path);
}

static ps_err close_outputs(job *j)
{
    ps_err err = ps_metrics_close(&j->metrics);
    ps_err trace = ps_trace_close(&j->trace);
    return err != PS_OK ? err : trace;
}

/* What travels together, and on a GPU is one graph of launches: about a chunk, a bucket,
 * or, where nothing travels, all. */
static size_t group_bytes(const job *j)
{
    if (is_ps(j)) return (size_t)j->plan.max_chunk_count * sizeof(float);
    return is_none(j) ? SIZE_MAX : (size_t)j->config->exchange.bucket;
}

static ps_err make_checkpointer(job *j)
{
    if (!ps_checkpointer_wanted(j->config) || j->total_steps == 0) return PS_OK;
    const ps_checkpointer_options options = {.config = j->config,
                                             .shape = &j->resume.shape,
                                             .member = j->member,
                                             .rank = j->rank,
                                             .params = j->params.base,
                                             .buffers = j->buffers,
                                             .run_dir = j->run_dir.path};
    return ps_checkpointer_create(&options, &j->checkpointer);
}

static ps_err make_trainer(job *j)
{
    PS_TRY(make_checkpointer(j));
    ps_evaluator_options evaluator = {.config = j->config,
                                      .spec = &j->spec,
                                      .dataset = &j->test,
                                      .device = j->device,
                                      .member = j->member,
                                      .rank = j->rank,
                                      .world_size = j->world_size,
                                      .params = j->params.base,
                                      .buffers = j->buffers};
    PS_TRY(ps_evaluator_init(&j->evaluator, &evaluator));
    j->sampler.rank = j->rank;
    const ps_trainer_snapshot *start =
        j->resume.goes_on ? &j->resume.snapshot.trainer : NULL;
    ps_trainer_options options = {.config = j->config,
                                  .spec = &j->spec,
                                  .schedule = &j->rule.schedule,
                                  .train = &j->train,
                                  .sampler = &j->sampler,
                                  .device = j->device,
                                  .exchange = j->exchange,
                                  .member = j->member,
                                  .evaluator = &j->evaluator,
                                  .rank = j->rank,
                                  .world_size = j->world_size,
                                  .params = j->params.base,
                                  .grads = j->grads.base,
                                  .buffers = j->buffers,
                                  .group_bytes = group_bytes(j),
                                  .total_steps = j->total_steps,
                                  .start = start,
                                  .checkpointer = j->checkpointer,
                                  .run_dir = j->rank == 0 ? &j->run_dir : NULL,
                                  .metrics = &j->metrics,
                                  .progress = &j->progress,
                                  .trace = &j->trace};
    return ps_trainer_create(&options, &j->trainer);
}

/* How many workers share this process's cores; 0 where another one speaks for them. */
static int workers_here(const job *j, const ps_host *host)
{
    // Bound to some of the cores: the others may have theirs.
    if (!j->member || host->cores < (int)sysconf(_SC_NPROCESSORS_ONLN)) return 1;
    const ps_roster *roster = ps_member_roster(j->member);
    int n = 0;
    for (int r = 0; r < roster->n_workers; r++) {
        if (strcmp(roster->workers[r].boot_id, host->boot_id) != 0) continue;
        if (n++ == 0 && r != j->rank) return 0;
    }
    return n;
}

static void check_cores(const job *j)
{
    if (strcmp(j->device->ops->name, "cpu") != 0) return;
    ps_host host;
    ps_host_find(&host);
    int n = workers_here(j, &host);
    if (n * j->threads <= host.cores) return;
    PS_WARN("cores",
            "%d worker%s of %d thread%s on %d core%s: they wait for each other; fewer "
            "workers, or train.threads, would be faster",
            n, n > 1 ? "s" : "", j->threads, j->threads > 1 ? "s" : "", host.cores,
            host.cores > 1 ? "s" : "");
}

static void announce(const job *j)
{
    check_cores(j);
    if (j->rank != 0) return;
    PS_INFO("job", "name=%s mode=%s workers=%d servers=%d params=%llu steps=%llu",
            j->config->job.name, mode_name(j), j->world_size, j->n_servers,
            (unsigned long long)j->spec.table.n_params,
            (unsigned long long)j->total_steps);
    PS_INFO("device", "%s", j->device_name);
    PS_INFO("data", "kind=%s train=%lld test=%lld", j->config->data.kind,
            (long long)j->train.n, (long long)j->test.n);
    if (j->test.n == 0 && strcmp(j->config->data.kind, "synthetic") != 0)
        PS_WARN("data", "no test set: data.test is not given, and data.path has no files "
                        "of the usual names; nothing is evaluated");
}

/* --- the end
 * ---------------------------------------------------------------------------- */

static uint64_t largest(const double *values, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        if (values[i] > most) most = values[i];
    return (uint64_t)most;
}

/* The largest worker's: every rank puts its own into places of its own. */
static ps_err gather_peaks(job *j, const ps_trainer_result *result)
{
    j->peak_rss_bytes = ps_procstat_peak_rss();
    j->most_in_flight = result->traffic.most_in_flight;
    if (!j->member) return PS_OK;
    const int n = j->world_size;
    double *peaks;
    PS_TRY(ps_mem_zalloc(&peaks, 2 * (size_t)n, sizeof *peaks, "the peaks"));
    peaks[j->rank] = (double)j->peak_rss_bytes;
    peaks[n + j->rank] = (double)j->most_in_flight;
    ps_err err =
        ps_member_reduce(j->member, "peaks", peaks, 2 * (size_t)n, step_deadline(j));
    if (err == PS_OK) {
        j->peak_rss_bytes = largest(peaks, n);
        j->most_in_flight = largest(peaks + n, n);
    }
    free(peaks);
    return err;
}

static ps_err get_server_stats(job *j, int server, ps_deadline deadline)
{
    char key[48];
    void *value;
    size_t bytes;
    snprintf(key, sizeof key, "server/%d/stats", server);
    PS_TRY(ps_member_get(j->member, key, &value, &bytes, deadline));
    ps_err err = ps_mem_zalloc(&j->server_stats[server], bytes + 1, 1, "an account");
    if (err == PS_OK) memcpy(j->server_stats[server], value, bytes);
    free(value);
    return err;
}

/* Every server publishes its account once all workers have said goodbye to it: the
 * exchange has waited for that. Without an account the job is as good. */
static ps_err gather_server_stats(job *j)
{
    if (j->rank != 0 || j->n_servers == 0) return PS_OK;
    PS_TRY(ps_mem_zalloc(&j->server_stats, (size_t)j->n_servers, sizeof(char *),
                         "the servers' accounts"));
    const ps_deadline deadline = ps_deadline_in_ms(STATS_MS);
    for (int i = 0; i < j->n_servers; i++) {
        ps_err err = get_server_stats(j, i, deadline);
        if (err != PS_OK && err != PS_ERR_TIMEOUT) return err;
        if (err != PS_OK)
            PS_WARN("stats", "server=%d reason=\"%s\"", i, ps_err_message());
    }
    return PS_OK;
}

static int64_t step_samples(const job *j)
{
    int64_t sum = 0;
    for (int r = 0; r < j->world_size; r++)
        sum += j->batches[r];
    return sum * j->config->train.accumulate;
}

static ps_err write_summary(job *j, const ps_trainer_result *r)
{
    const ps_config *c = j->config;
    char dataset[512], path[PATH_MAX];
    bool made = strcmp(c->data.kind, "synthetic") == 0;
    snprintf(dataset, sizeof dataset, "%s%s%s", c->data.kind, made ? "" : " ",
             made ? "" : c->data.path);
    double steps = r->steps > r->first_step ? (double)(r->steps - r->first_step) : 1;
    bool tested = r->evaluation.samples > 0;
    ps_summary summary = {
        .mode = mode_name(j),
        .model = c->job.name,
        .dataset = dataset,
        .device = j->device_name,
        .precision = c->train.precision,
        .skipped_steps = r->skipped_steps,
        .loss_scale = r->loss_scale,
        .exchange = j->exchange->ops->name,
        .codec = c->exchange.codec,
        .servers = j->n_servers,
        .shards = is_ps(j) ? (int)j->plan.n_shards : 0,
        .workers = j->world_size,
        .params = j->spec.table.n_params,
        .epochs = r->epochs,
        .steps = r->steps,
        .samples = r->samples,
        .seed = c->train.seed,
        .seconds = r->seconds,
        .samples_per_second = r->samples_per_second,
        .step_ms_p50 = ps_duration_percentile(&r->step_time, 0.5) * 1e3,
        .step_ms_p99 = ps_duration_percentile(&r->step_time, 0.99) * 1e3,
        .exchange_wait_ms_p50 = ps_duration_percentile(&r->wait_time, 0.5) * 1e3,
        .bytes_sent_per_step = (double)r->traffic.bytes_sent / steps,
        .bytes_received_per_step = (double)r->traffic.bytes_received / steps,
        .raw_bytes_per_step = (double)r->traffic.raw_bytes / steps,
        .shm_bytes_sent_per_step = (double)r->traffic.shm_sent / steps,
        .shm_bytes_received_per_step = (double)r->traffic.shm_received / steps,
        .bytes_computed = r->traffic.computed,
        .train_loss = r->train_loss,
        .test_loss = tested ? r->evaluation.loss : NAN,
        .test_accuracy = tested ? r->evaluation.accuracy : NAN,
        .test_samples = r->evaluation.samples,
        .batch = step_samples(j),
        .threads = j->threads,
        .interrupted = r->interrupted,
        .peak_rss_bytes = j->peak_rss_bytes,
        .most_bytes_in_flight = j->most_in_flight,
        .server_stats = j->server_stats};
    PS_TRY(ps_run_dir_path(&j->run_dir, "summary.json", path));
    return ps_summary_write(&summary, path);
}

static ps_err finish(job *j, const ps_trainer_result *result)
{
    PS_TRY(gather_peaks(j, result));
    PS_TRY(ps_exchange_stop(j->exchange));
    PS_TRY(gather_server_stats(j));
    if (j->rank == 0) PS_TRY(write_summary(j, result));
    PS_TRY(close_outputs(j));
    PS_TRY(ps_file_wait_written(j->member, j->config, "summary.json"));
    return j->member ? ps_member_leave(j->member, step_deadline(j)) : PS_OK;
}

/* A job whose loss has become no number has learnt nothing, although it ran to its end.
 */
static ps_err judge(const job *j, const ps_trainer_result *r)
{
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
    if (strcmp(j->config->exchange.nan, "allow") != 0)
        return ps_err_set(PS_ERR_NUMERIC, "%s", text);
    if (j->rank == 0) PS_WARN("loss", "%s", text);
    return PS_OK;
}

static void print_data(const job *j)
{
    printf("%" PRId64 " training and %" PRId64 " test samples, %" PRIu64 " steps\n",
           j->train.n, j->test.n, j->total_steps);
}

static ps_err run(job *j, ps_trainer_result *result)
{
    PS_TRY(plan_job(j));
    PS_TRY(check_descriptors(j));
    PS_TRY(load_data(j));
    if (j->cli->check_data) {
        print_data(j);
        return PS_OK;
    }
    PS_TRY(join(j));
    PS_TRY(find_start(j));
    PS_TRY(open_outputs(j));
    PS_TRY(open_device(j));
    PS_TRY(make_arenas(j));
    PS_TRY(first_weights(j));
    announce(j);
    PS_TRY(start_exchange(j));
    PS_TRY(make_trainer(j));
    PS_TRY(ps_trainer_run(j->trainer, result));
    PS_TRY(finish(j, result));
    return judge(j, result);
}

static void clean_up(job *j)
{
    // first: a GPU may be at a sum that waits for a rank which is gone
    ps_exchange_destroy(&j->exchange);
    ps_trainer_destroy(&j->trainer);
    ps_checkpointer_destroy(&j->checkpointer);
    ps_resume_fini(&j->resume);
    ps_evaluator_fini(&j->evaluator);
    ps_member_destroy(&j->member);
    if (j->stream) j->stream->ops->destroy(&j->stream);
    ps_device_close(&j->device);
    ps_shared_mem_fini(&j->params);
    ps_shared_mem_fini(&j->grads);
    free(j->buffers);
    ps_metrics_close(&j->metrics);
    ps_trace_close(&j->trace);
    if (j->has_run_dir) ps_run_dir_fini(&j->run_dir);
    ps_dataset_fini(&j->train);
    ps_dataset_fini(&j->test);
    free(j->batches);
    for (int i = 0; j->server_stats && i < j->n_servers; i++)
        free(j->server_stats[i]);
    free(j->server_stats);
    ps_plan_fini(&j->plan);
    ps_model_spec_fini(&j->spec);
}

/* train.threads, else OMP_NUM_THREADS (which launchers set where workers share a host),
 * else all cores. */
static int count_threads(const job *j)
{
    if (j->config->train.threads > 0) return (int)j->config->train.threads;
    if (j->cli->default_threads > 0) return j->cli->default_threads;
    ps_host host;
    ps_host_find(&host);
    return host.cores;
}

/* Tells the others why, and cleans up without losing the reason. */
static ps_err give_up(job *j, ps_err err)
{
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", ps_err_message());
    if (j->member) ps_member_abort(j->member, reason);
    clean_up(j);
    return ps_err_set(err, "%s", reason);
}

ps_err ps_worker_job_run(const ps_cli *cli, const ps_config *config, bool *interrupted,
                         bool *resumable)
{
    job *j;
    ps_trainer_result *result = NULL;
    PS_TRY(ps_mem_zalloc(&j, 1, sizeof *j, "the job"));
    j->config = config;
    j->cli = cli;
    j->rank = cli->rank > 0 ? cli->rank : 0;
    j->threads = count_threads(j);
    ps_err err = ps_mem_zalloc(&result, 1, sizeof *result, "the result");
    if (err == PS_OK) err = run(j, result);
    if (err == PS_OK)
        clean_up(j);
    else
        err = give_up(j, err);
    *interrupted = result && result->interrupted;
    *resumable = result && result->interrupted && result->resumable;
    free(result);
    free(j);
    return err;
}
