#include "member_rig.h"

#include <unistd.h>

#include "check.h"

enum { WAIT_MS = 20000 };

pthread_barrier_t rig_others_have_joined;

ps_deadline rig_soon(void)
{
    return ps_deadline_in_ms(WAIT_MS);
}

void rig_open(rig_job *j, int n_servers, int n_workers)
{
    static int number;
    const char *const set[] = {"job.name=test", "net.heartbeat_ms=50",
                               "net.dead_after_ms=20000", "net.join_timeout_ms=20000"};
    *j = (rig_job){.n_servers = n_servers, .n_workers = n_workers};
    assert_ok(ps_config_load(&j->config, NULL, set, 4));
    snprintf(j->init, sizeof j->init, "file:///tmp/pstrain-test-member-%d-%d",
             (int)getpid(), number++);
    unlink(j->init + 7);
}

void rig_close(rig_job *j)
{
    assert_int_equal(access(j->init + 7, F_OK), -1); // the coordinator took it away
    ps_config_fini(&j->config);
}

ps_err rig_join(rig_part *p)
{
    static const char *const endpoints[] = {"tcp://0.0.0.0:4001", "tcp://10.9.8.7:4002"};
    const ps_member_options o = {.config = &p->job->config,
                                 .role = p->role,
                                 .rank = p->rank,
                                 .world_size = p->job->n_workers,
                                 .min_workers = p->job->min_workers,
                                 .expected_workers = p->expected_workers,
                                 .n_servers = p->job->n_servers,
                                 .init_method = p->job->init,
                                 .plan_hash = 77,
                                 .local_rank = -1,
                                 .endpoints = endpoints,
                                 .n_endpoints = p->role == PS_ROLE_SERVER ? 2 : 0};
    return ps_member_join(&o, &p->member);
}

void rig_note(rig_part *p, ps_err err)
{
    if (p->err != PS_OK || err == PS_OK) return;
    p->err = err;
    snprintf(p->message, sizeof p->message, "%s", ps_err_message());
}

void *rig_run_part(void *arg)
{
    rig_part *p = arg;
    if (p->late) pthread_barrier_wait(&rig_others_have_joined);
    rig_note(p, rig_join(p));
    if (p->err == PS_OK) p->run(p);
    ps_member_destroy(&p->member);
    return NULL;
}

void rig_run(rig_job *j, rig_part *parts, rig_body server, rig_body worker)
{
    int n = j->n_servers + j->n_workers;
    for (int i = 0; i < n; i++) {
        bool is_server = i < j->n_servers;
        parts[i] = (rig_part){.job = j,
                              .role = is_server ? PS_ROLE_SERVER : PS_ROLE_WORKER,
                              .rank = is_server ? i : i - j->n_servers,
                              .run = is_server ? server : worker};
    }
    for (int i = n - 1; i >= 0; i--) // the coordinator's host comes last
        assert_int_equal(pthread_create(&parts[i].thread, NULL, rig_run_part, &parts[i]),
                         0);
    for (int i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
}

void rig_assert_well(const rig_job *j, const rig_part *parts)
{
    for (int i = 0; i < j->n_servers + j->n_workers; i++)
        if (parts[i].err != PS_OK) fail_msg("member %d: %s", i, parts[i].message);
}

void rig_run_well(int n_servers, int n_workers, rig_body server, rig_body worker)
{
    rig_job j;
    rig_part parts[RIG_MEMBERS_MAX];
    rig_open(&j, n_servers, n_workers);
    rig_run(&j, parts, server, worker);
    rig_assert_well(&j, parts);
    rig_close(&j);
}

void rig_expect(rig_part *p, bool holds, const char *what)
{
    if (!holds) rig_note(p, ps_err_set(PS_ERR_INTERNAL, "expected: %s", what));
}

void rig_serve(rig_part *p)
{
    rig_note(p, ps_member_wait_end(p->member));
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}
