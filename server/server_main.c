/* ps-server: one process of parameter-server shards. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli.h"
#include "clock.h"
#include "mem.h"
#include "server.h"

static const ps_cli_program program = {
    .name = "ps-server",
    .about =
        "Holds a part of the parameters of a training job: sums the workers' gradients\n"
        "in rank order, applies the optimizer and sends the new weights back. Server 0\n"
        "is the one whose address everybody needs (MASTER_ADDR, MASTER_PORT).\n",
    .examples = "  ps-server --config configs/digits-basicnet.yaml --rank 0 \\\n"
                "      --init-method tcp://10.0.0.7:29500\n",
    .is_server = true,
};

/* The exit code of a program that ended on a signal, as shells report it. */
enum { EXIT_SIGNAL = 128 };

typedef struct signal_watch {
    sigset_t set;
    _Atomic(ps_member *) member; // NULL before joining
    pthread_t thread;
} signal_watch;

/* The first signal ends the job in order (or, before joining, the process); the second
 * one ends the process. */
static void *watch_signals(void *arg)
{
    signal_watch *watch = arg;
    for (int seen = 0;;) {
        int number = 0;
        if (sigwait(&watch->set, &number) != 0) continue;
        if (number == SIGUSR1) return NULL;
        ps_member *member = atomic_load(&watch->member);
        if (!member || seen++) _exit(EXIT_SIGNAL + number);
        char reason[96];
        snprintf(reason, sizeof reason, "server %d was told to stop (%s)",
                 ps_member_rank(member), number == SIGINT ? "Ctrl-C" : "SIGTERM");
        ps_member_abort(member, reason);
    }
}

/* Before any other thread starts: all inherit the mask. SIGUSR1 ends the watch. */
static ps_err start_watch(signal_watch *watch)
{
    sigemptyset(&watch->set);
    sigaddset(&watch->set, SIGINT);
    sigaddset(&watch->set, SIGTERM);
    sigaddset(&watch->set, SIGUSR1);
    signal(SIGPIPE, SIG_IGN);
    if (pthread_sigmask(SIG_BLOCK, &watch->set, NULL) != 0 ||
        pthread_create(&watch->thread, NULL, watch_signals, watch) != 0)
        return ps_err_set(PS_ERR_NOMEM, "no thread for signals");
    return PS_OK;
}

static void stop_watch(signal_watch *watch)
{
    pthread_kill(watch->thread, SIGUSR1);
    pthread_join(watch->thread, NULL);
}

static void print_summary(const ps_server *server, int rank, uint64_t start_ns)
{
    ps_shard_stats stats;
    ps_server_get_stats(server, &stats);
    PS_INFO("done",
            "rank=%d steps=%" PRIu64 " pushes=%" PRIu64 " received=%.1fMB sent=%.1fMB "
            "peak_rss=%.1fMB seconds=%.1f",
            rank, stats.steps, stats.pushes, (double)stats.bytes_received * 1e-6,
            (double)stats.bytes_sent * 1e-6, (double)ps_server_peak_rss() * 1e-6,
            (double)(ps_clock_ns() - start_ns) * 1e-9);
}

static ps_err join_and_serve(ps_server *server, const ps_config *cfg, const ps_cli *cli,
                             signal_watch *watch)
{
    ps_member_options options = {
        .config = cfg,
        .role = PS_ROLE_SERVER,
        .rank = cli->rank,
        .world_size = (int)cfg->job.workers,
        .n_servers = (int)cfg->job.servers,
        .init_method = cli->init_method,
        .plan_hash = ps_server_plan_hash(server),
        .local_rank = cli->local_rank,
    };
    options.endpoints = ps_server_endpoints(server, &options.n_endpoints);
    uint64_t start = ps_clock_ns();
    ps_member *member = NULL;
    PS_TRY(ps_member_join(&options, &member));
    atomic_store(&watch->member, member);
    int rank = ps_member_rank(member);
    char role[32];
    snprintf(role, sizeof role, "server/%d", rank);
    ps_log_set_role(role);
    ps_err err = ps_server_start(server, member);
    if (err == PS_OK) err = ps_server_wait(server);
    if (err == PS_OK)
        print_summary(server, rank, start);
    else
        ps_member_abort(member, ps_err_message());
    ps_server_stop(server); // the shards use the member
    atomic_store(&watch->member, NULL);
    ps_member_destroy(&member);
    return err;
}

static ps_err serve(const ps_config *cfg, const ps_cli *cli, signal_watch *watch)
{
    char address[PS_ADDRESS_MAX];
    PS_TRY(ps_joining_address(cfg->net.interface, cli->init_method,
                              ps_deadline_in_ms((uint64_t)cfg->net.join_timeout_ms),
                              address));
    const ps_server_options options = {
        .config = cfg,
        .address = address,
        .init_method = cli->init_method,
        .n_servers = (int)cfg->job.servers,
        .n_workers = (int)cfg->job.workers,
    };
    ps_server *server = NULL;
    PS_TRY(ps_server_create(&options, &server));
    ps_err err = join_and_serve(server, cfg, cli, watch);
    char reason[1024];
    snprintf(reason, sizeof reason, "%s", ps_err_message());
    ps_server_destroy(&server);
    return err == PS_OK ? PS_OK : ps_err_set(err, "%s", reason);
}

static ps_err run(const ps_cli *cli)
{
    ps_config cfg;
    signal_watch watch = {0};
    ps_err err;
    bool watching = false;
    PS_TRY_GOTO(ps_cli_load_config(cli, &program, &cfg), err, out);
    PS_TRY_GOTO(start_watch(&watch), err, out);
    watching = true;
    err = serve(&cfg, cli, &watch);
out:
    if (err != PS_OK) PS_ERROR("failed", "%s: %s", ps_err_name(err), ps_err_message());
    if (watching) stop_watch(&watch);
    ps_config_fini(&cfg);
    return err;
}

int main(int argc, char **argv)
{
    ps_mem_keep_freed();
    ps_log_init("server", PS_LOG_INFO);
    ps_cli cli;
    ps_err err = ps_cli_parse(&cli, &program, argc, argv, stdout);
    if (err != PS_OK)
        PS_ERROR("failed", "%s: %s", ps_err_name(err), ps_err_message());
    else if (!cli.done) {
        ps_log_init("server", cli.log_level);
        err = run(&cli);
    }
    ps_cli_fini(&cli);
    return err == PS_OK ? EXIT_SUCCESS : EXIT_FAILURE;
}
