/* ps-server: one process of parameter-server shards. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "clock.h"
#include "clock_watch.h"
#include "fd_limit.h"
#include "job_keys.h"
#include "mem.h"
#include "model_spec.h"
#include "monitor.h"
#include "procstat.h"
#include "rejoin.h"
#include "server.h"
#include "signal_watch.h"
#include "trace_of_job.h"

static const ps_cli_program program = {
    .name = "ps-server",
    .about =
        "Holds a part of the parameters of a training job: sums the workers' gradients\n"
        "in rank order, applies the optimizer and sends the new weights back. Server 0\n"
        "is the one whose address everybody needs (MASTER_ADDR, MASTER_PORT). Without a\n"
        "model in its configuration it serves programs that use libpstrain: the workers\n"
        "bring the tensors and choose the optimizer. After Ctrl-C or SIGTERM the "
        "workers\n"
        "end in order and keep the weights, then it ends; a second one ends the job at\n"
        "once.\n",
    .examples = "  ps-server --config configs/digits-basicnet.yaml --rank 0 \\\n"
                "      --init-method tcp://10.0.0.7:29500\n",
    .is_server = true,
};

static void print_summary(const ps_server *server, int rank, uint64_t start_ns)
{
    ps_shard_stats stats;
    ps_server_get_stats(server, &stats);
    PS_INFO("done",
            "rank=%d steps=%" PRIu64 " pushes=%" PRIu64 " received=%.1fMB sent=%.1fMB "
            "peak_rss=%.1fMB seconds=%.1f",
            rank, stats.steps, stats.pushes, (double)stats.bytes_received * 1e-6,
            (double)stats.bytes_sent * 1e-6, (double)ps_procstat_peak_rss() * 1e-6,
            ps_clock_seconds_since(start_ns));
}

/* What a server process does until its end. */
typedef struct service {
    const ps_config *cfg;
    const ps_cli *cli;
    const ps_tensor_table *table;
    const ps_model_spec *spec; // of the table
    ps_signal_watch *watch;
    ps_monitor *monitor; // NULL: nobody can watch
    ps_rows_keeper *keeper;
    int signal; // that told it to end
    int rank;   // -1: any
    int64_t rejoins;
    int expected_workers; // when it joins again
    bool again;           // joins again
    bool has_served;      // so the job has a worker 0, which has its folder
} service;

static bool server_main_hosts_coordinator(const service *s)
{
    return s->rank == 0 || s->cfg->job.servers == 1;
}

static void server_main_start_monitor(service *s)
{
    const ps_monitor_options options = {.config = s->cfg,
                                        .role = PS_ROLE_SERVER,
                                        .hosts = server_main_hosts_coordinator(s)};
    s->monitor = ps_monitor_start(&options);
    ps_metric_set(ps_monitor_values(s->monitor), PS_METRIC_RESTARTS,
                  (double)s->cli->incarnation);
}

/* A worker 0 that is new asks it (resume.c). */
static ps_err server_main_say_again(const service *s, ps_member *member)
{
    if (s->rank != 0 || !s->table) return PS_OK;
    return ps_member_put(member, PS_JOB_KEY_AGAIN, "1", s->rejoins > 0,
                         ps_config_step_deadline(s->cfg));
}

static ps_member_options member_options(const ps_server *server, const service *s)
{
    const ps_config *cfg = s->cfg;
    const ps_cli *cli = s->cli;
    ps_member_options options = {
        .config = ps_server_join_config(server),
        .role = PS_ROLE_SERVER,
        .rank = s->rank,
        .world_size = (int)cfg->job.most_workers,
        .min_workers = ps_config_fewest_workers(cfg),
        .expected_workers = s->expected_workers,
        .goes_on = s->has_served,
        .n_servers = (int)cfg->job.servers,
        .init_method = cli->init_method,
        .plan_hash = ps_server_plan_hash(server),
        .local_rank = cli->local_rank,
        .incarnation = (uint64_t)cli->incarnation,
        .view = ps_monitor_view(s->monitor),
    };
    options.endpoints = ps_server_endpoints(server, &options.n_endpoints);
    return options;
}

static ps_err join_and_serve(ps_server *server, service *s)
{
    const ps_config *cfg = s->cfg;
    const ps_member_options options = member_options(server, s);
    uint64_t start = ps_clock_ns();
    ps_member *member = NULL;
    PS_TRY(ps_member_join(&options, &member));
    ps_signal_watch_attach(s->watch, member,
                           (uint64_t)cfg->net.step_timeout_ms +
                               (uint64_t)cfg->train.file_timeout_ms);
    const int rank = s->rank = ps_member_rank(member);
    s->has_served = true;
    char role[32];
    snprintf(role, sizeof role, "server/%d", rank);
    ps_log_set_role(role);
    ps_metric_set(ps_monitor_values(s->monitor), PS_METRIC_REJOINS, (double)s->rejoins);
    ps_monitor_attach(s->monitor, member, ps_server_sample, ps_server_tables, server);
    ps_err err = ps_trace_of_job(cfg, s->cli->out, s->cli->incarnation, PS_ROLE_SERVER,
                                 rank, member);
    if (err == PS_OK) err = server_main_say_again(s, member);
    if (err == PS_OK) err = ps_server_start(server, member);
    if (err == PS_OK) err = ps_server_wait(server);
    if (err == PS_OK)
        print_summary(server, rank, start);
    else
        s->again = ps_rejoin_allowed(cfg, member, err, &s->rejoins);
    s->expected_workers = ps_member_next_workers(member);
    if (err != PS_OK) ps_member_abort(member, err, ps_err_message());
    ps_monitor_detach(s->monitor);
    ps_server_stop(server); // the shards use the member
    s->signal = ps_signal_watch_detach(s->watch);
    ps_member_destroy(&member);
    return err;
}

static ps_err serve_once(service *s)
{
    const ps_config *cfg = s->cfg;
    const ps_cli *cli = s->cli;
    char address[PS_ADDRESS_MAX];
    PS_TRY(
        ps_joining_address(cfg, cli->init_method, ps_config_join_deadline(cfg), address));
    const ps_server_options options = {
        .config = cfg,
        .table = s->table,
        .rows = s->spec->rows,
        .n_rows = s->spec->n_rows,
        .address = address,
        .init_method = cli->init_method,
        .n_servers = (int)cfg->job.servers,
        .n_workers = (int)cfg->job.most_workers,
        .hosts_coordinator = server_main_hosts_coordinator(s),
        .keeper = s->keeper,
    };
    ps_server *server = NULL;
    PS_TRY(ps_server_create(&options, &server));
    ps_err err = join_and_serve(server, s);
    const ps_err_saved end = ps_err_save(err);
    ps_server_destroy(&server);
    if (s->again) ps_mem_give_back();
    return ps_err_restore(&end);
}

static ps_err server_main_serve(service *s)
{
    ps_err err;
    do {
        s->again = false;
        err = serve_once(s);
    } while (err != PS_OK && s->again && s->signal == 0);
    return err;
}

/* Of a job without servers nobody would come. */
static ps_err server_main_check_exchange(const ps_config *cfg)
{
    const ps_exchange_kind kind = cfg->exchange.name;
    const ps_yaml *at = ps_yaml_path(cfg->tree, "exchange.name");
    if (kind == PS_EXCHANGE_PS) return PS_OK;
    return ps_yaml_error(at ? at : cfg->tree,
                         "exchange.name: a job with %s has no servers: start its workers "
                         "alone, with PS_SERVERS=0, or set exchange.name=ps",
                         ps_word_name(ps_exchange_words, (int)kind));
}

static ps_err server_main_run(const ps_cli *cli, int *signal)
{
    ps_config cfg;
    ps_model_spec spec = {0};
    ps_signal_watch watch;
    ps_err err;
    bool watching = false;
    PS_TRY_GOTO(ps_cli_load_config(cli, &program, &cfg), err, out);
    PS_TRY_GOTO(server_main_check_exchange(&cfg), err, out);
    PS_TRY_GOTO(ps_signal_watch_start(&watch), err, out);
    watching = true;
    PS_TRY_GOTO(ps_clock_watch(), err, out);
    // Without a model the workers bring the tensors (libpstrain).
    const bool model = ps_config_has_model(&cfg);
    if (model) PS_TRY_GOTO(ps_model_spec_init(&spec, &cfg), err, out);
    PS_TRY_GOTO(ps_model_spec_check_rows(&spec, &cfg), err, out);
    service s = {.cfg = &cfg,
                 .cli = cli,
                 .table = model ? &spec.table : NULL,
                 .spec = &spec,
                 .watch = &watch,
                 .expected_workers = (int)cfg.job.start_workers,
                 .rank = cli->rank};
    PS_TRY_GOTO(ps_rows_keeper_create(&s.keeper), err, out);
    server_main_start_monitor(&s);
    err = server_main_serve(&s);
    ps_monitor_stop(&s.monitor);
    ps_rows_keeper_destroy(&s.keeper);
    const ps_err_saved end = ps_err_save(err);
    ps_trace_of_job_ended();
    err = ps_err_restore(&end);
    *signal = s.signal;
out:
    if (err != PS_OK) ps_log_failure("failed", err);
    if (watching) ps_signal_watch_stop(&watch);
    ps_model_spec_fini(&spec);
    ps_config_fini(&cfg);
    return err;
}

int main(int argc, char **argv)
{
    ps_mem_keep_freed();
    ps_fd_limit_raise();
    ps_log_init("server", PS_LOG_INFO);
    ps_cli cli;
    int signal = 0; // the one that told it to end
    ps_err err = ps_cli_parse(&cli, &program, argc, argv, stdout);
    if (err != PS_OK)
        ps_log_failure("failed", err);
    else if (!cli.done) {
        ps_log_init("server", cli.log_level);
        err = server_main_run(&cli, &signal);
    }
    ps_cli_fini(&cli);
    if (err != PS_OK) return EXIT_FAILURE;
    return signal ? PS_EXIT_SIGNAL + signal : EXIT_SUCCESS;
}
