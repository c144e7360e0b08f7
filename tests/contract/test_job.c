#include "test_job.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../support/free_port.h"
#include "job_start.h"
#include "log.h"

static void die(const char *what)
{
    fprintf(stderr, "test_job: %s: %s\n", what, ps_err_message());
    exit(1);
}

static ps_err serve(test_job_server *s)
{
    test_job *job = s->job;
    const ps_server_options options = {
        .config = &job->cfg,
        .table = job->table,
        .address = "127.0.0.1",
        .init_method = job->init_method,
        .n_servers = job->servers,
        .n_workers = job->workers,
    };
    ps_server *server;
    PS_TRY(ps_server_create(&options, &server));
    ps_member_options as = {
        .config = ps_server_join_config(server),
        .role = PS_ROLE_SERVER,
        .rank = s->rank,
        .world_size = job->workers,
        .n_servers = job->servers,
        .init_method = job->init_method,
        .plan_hash = ps_server_plan_hash(server),
        .local_rank = -1,
    };
    as.endpoints = ps_server_endpoints(server, &as.n_endpoints);
    ps_member *member = NULL;
    ps_err err = ps_member_join(&as, &member);
    if (err == PS_OK) err = ps_server_start(server, member);
    s->server = server;
    if (err == PS_OK) err = ps_server_wait(server);
    snprintf(s->text, sizeof s->text, "%s", err == PS_OK ? "" : ps_err_message());
    if (err != PS_OK && member) ps_member_abort(member, err, s->text);
    ps_server_stop(server);
    ps_server_get_stats(server, &s->stats);
    ps_member_destroy(&member);
    ps_server_destroy(&server);
    return err;
}

static void *server_main(void *arg)
{
    test_job_server *s = arg;
    s->err = serve(s);
    return NULL;
}

void test_job_start(test_job *job, int servers, int workers, const char *const *sets,
                    int n_sets)
{
    static const char *const base[] = {
        "model.input=[2, 6, 6]",
        "model.loss=mse",
        "model.layers=[{conv2d: {name: conv, out: 4, kernel: 3}}, "
        "{batch_norm2d: {name: bn}}, flatten, {linear: {name: a, out: 301}}, relu, "
        "{linear: {name: b, out: 100}}, {linear: {name: c, out: 3}}]",
        "exchange.chunk=16384",
        "net.join_timeout_ms=20000",
        "net.step_timeout_ms=20000",
    };
    enum { BASE = sizeof base / sizeof base[0] };
    char sizes[2][32];
    const char *all[TEST_JOB_SETS + BASE + 2] = {sizes[0], sizes[1]};
    snprintf(sizes[0], sizeof sizes[0], "job.servers=%d", servers ? servers : 1);
    snprintf(sizes[1], sizeof sizes[1], "job.workers=%d", workers);
    memcpy(all + 2, base, sizeof base);
    memcpy(all + 2 + BASE, sets, (size_t)n_sets * sizeof *sets);
    *job = (test_job){.servers = servers, .workers = workers};
    if (ps_config_load(&job->cfg, NULL, all, 2 + BASE + n_sets) != PS_OK) die("settings");
    if (ps_model_spec_init(&job->spec, &job->cfg) != PS_OK) die("model");
    job->table = &job->spec.table;
    test_job_serve(job);
}

void test_job_serve(test_job *job)
{
    ps_log_init("test", PS_LOG_INFO);
    snprintf(job->init_method, sizeof job->init_method, "tcp://127.0.0.1:%d",
             test_free_port());
    for (int i = 0; i < job->servers; i++) {
        job->server[i] = (test_job_server){.job = job, .rank = i};
        if (pthread_create(&job->server[i].thread, NULL, server_main, &job->server[i]))
            die("no thread");
    }
}

ps_err test_job_join(const test_job *job, int rank, uint64_t plan_hash, ps_member **out)
{
    const ps_member_options options = {
        .config = &job->cfg,
        .role = PS_ROLE_WORKER,
        .rank = rank,
        .world_size = job->workers,
        .n_servers = job->servers,
        .init_method = job->init_method,
        .plan_hash = plan_hash,
        .local_rank = rank,
    };
    return ps_member_join(&options, out);
}

ps_err test_job_put_steps(ps_member *member, uint64_t steps)
{
    const ps_job_start start = {.total_steps = steps};
    return ps_job_start_put(member, &start, ps_deadline_in_ms(5000));
}

void test_job_end(test_job *job)
{
    for (int i = 0; i < job->servers; i++)
        pthread_join(job->server[i].thread, NULL);
    ps_model_spec_fini(&job->spec);
    ps_config_fini(&job->cfg);
}
