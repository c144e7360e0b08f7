#include "pstrain_rig.h"

#include "check.h"

enum { SETTINGS_MAX = 16 };

pstrain_options rig_options(const rig *r, int rank, const char **settings)
{
    int n = 0;
    settings[n++] = "net.join_timeout_ms=20000";
    settings[n++] = "net.step_timeout_ms=20000";
    for (int i = 0; i < r->n_settings; i++)
        settings[n++] = r->settings[i];
    return (pstrain_options){.struct_size = sizeof(pstrain_options),
                             .init_method =
                                 r->servers + r->workers > 1 ? r->job.init_method : NULL,
                             .rank_plus_1 = rank + 1,
                             .world_size = r->workers,
                             .servers_plus_1 = r->servers + 1,
                             .settings = settings,
                             .n_settings = n};
}

static int work(rig_worker *w)
{
    const char *settings[SETTINGS_MAX];
    const pstrain_options options = rig_options(w->rig, w->rank, settings);
    RIG_TRY(pstrain_create(&options, &w->s));
    RIG_TRY(pstrain_join(w->s));
    return w->rig->run(w);
}

static void *worker_main(void *arg)
{
    rig_worker *w = arg;
    w->status = work(w);
    if (w->status) {
        snprintf(w->text, sizeof w->text, "%s", pstrain_error());
        pstrain_abort(w->s, w->text);
    }
    pstrain_destroy(&w->s);
    return NULL;
}

static void load_server_settings(rig *r)
{
    char workers[32], servers[32];
    const char *const sets[] = {workers, servers, "net.join_timeout_ms=20000",
                                "net.step_timeout_ms=20000", "server.shards=2"};
    snprintf(workers, sizeof workers, "job.workers=%d", r->workers);
    snprintf(servers, sizeof servers, "job.servers=%d", r->servers ? r->servers : 1);
    assert_ok(ps_config_load(&r->job.cfg, NULL, sets, 5));
}

void rig_run(rig *r)
{
    r->job = (test_job){.servers = r->servers, .workers = r->workers};
    load_server_settings(r);
    test_job_serve(&r->job); // without tensors
    for (int i = 0; i < r->workers; i++) {
        r->worker[i] = (rig_worker){.rig = r, .rank = i};
        assert_int_equal(
            pthread_create(&r->worker[i].thread, NULL, worker_main, &r->worker[i]), 0);
    }
    for (int i = 0; i < r->workers; i++)
        pthread_join(r->worker[i].thread, NULL);
    test_job_end(&r->job);
    for (int i = 0; i < r->workers && !r->fails; i++)
        if (r->worker[i].status) fail_msg("worker %d: %s", i, r->worker[i].text);
    for (int i = 0; i < r->servers && !r->fails; i++)
        if (r->job.server[i].err) fail_msg("server %d: %s", i, r->job.server[i].text);
}

/* In a worker's thread cmocka cannot jump out of the test, so this ends the program. */
void rig_assert_refused(int status, int wanted, const char *text, const char *call,
                        int line)
{
    if (status == wanted && strstr(pstrain_error(), text)) return;
    fprintf(stderr, "line %d: %s gives %s (%s), not %s (%s)\n", line, call,
            pstrain_status_name(status), status ? pstrain_error() : "",
            pstrain_status_name(wanted), text);
    exit(1);
}
