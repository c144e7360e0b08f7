/* Whole jobs in one process: each member on a thread of its own, real sockets on the
 * loopback. */
#include "member.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <zmq.h>

#include "../support/own_connections.h"
#include "coord_link.h"
#include "log.h"

enum { MAX_MEMBERS = 8, WAIT_MS = 20000 };

typedef struct job {
    ps_config config;
    char init[128];
    int n_servers, n_workers;
    int min_workers; // 0: the number of workers is fixed
} job;

typedef struct part part;
typedef void (*body)(part *p);

struct part {
    job *job;
    ps_role role;
    int rank;
    int expected_workers; // of an elastic job
    bool late;            // joins when the others have
    body run;
    ps_member *member;
    ps_err err;
    char message[1024];
    pthread_t thread;
};

static ps_deadline soon(void)
{
    return ps_deadline_in_ms(WAIT_MS);
}

static void open_job(job *j, int n_servers, int n_workers)
{
    static int number;
    const char *const set[] = {"job.name=test", "net.heartbeat_ms=50",
                               "net.dead_after_ms=5000", "net.join_timeout_ms=20000"};
    *j = (job){.n_servers = n_servers, .n_workers = n_workers};
    assert_int_equal(ps_config_load(&j->config, NULL, set, 4), PS_OK);
    snprintf(j->init, sizeof j->init, "file:///tmp/pstrain-test-member-%d-%d",
             (int)getpid(), number++);
    unlink(j->init + 7);
}

static void close_job(job *j)
{
    assert_int_equal(access(j->init + 7, F_OK), -1); // the coordinator took it away
    ps_config_fini(&j->config);
}

static ps_err join_as(part *p)
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

static void note(part *p, ps_err err)
{
    if (p->err != PS_OK || err == PS_OK) return;
    p->err = err;
    snprintf(p->message, sizeof p->message, "%s", ps_err_message());
}

static pthread_barrier_t others_have_joined;

static void *run_part(void *arg)
{
    part *p = arg;
    if (p->late) pthread_barrier_wait(&others_have_joined);
    note(p, join_as(p));
    if (p->err == PS_OK) p->run(p);
    ps_member_destroy(&p->member);
    return NULL;
}

/* Runs every member on a thread and waits for all. The parts are the servers, then the
 * workers. */
static void run_job(job *j, part *parts, body server, body worker)
{
    int n = j->n_servers + j->n_workers;
    for (int i = 0; i < n; i++) {
        bool is_server = i < j->n_servers;
        parts[i] = (part){.job = j,
                          .role = is_server ? PS_ROLE_SERVER : PS_ROLE_WORKER,
                          .rank = is_server ? i : i - j->n_servers,
                          .run = is_server ? server : worker};
    }
    for (int i = n - 1; i >= 0; i--) // the coordinator's host comes last
        assert_int_equal(pthread_create(&parts[i].thread, NULL, run_part, &parts[i]), 0);
    for (int i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
}

static void assert_all_well(const job *j, const part *parts)
{
    for (int i = 0; i < j->n_servers + j->n_workers; i++)
        if (parts[i].err != PS_OK) fail_msg("member %d: %s", i, parts[i].message);
}

/* A check for other threads: cmocka's checks may fail only in the main thread. */
static void expect(part *p, bool holds, const char *what)
{
    if (!holds) note(p, ps_err_set(PS_ERR_INTERNAL, "expected: %s", what));
}

static void serve_to_the_end(part *p)
{
    note(p, ps_member_wait_end(p->member));
    note(p, ps_member_leave(p->member, soon()));
}

/* ---- a job that goes well ---- */

static void check_roster(part *p)
{
    const ps_roster *r = ps_member_roster(p->member);
    expect(p, r->n_servers == p->job->n_servers, "servers of the roster");
    expect(p, r->n_workers == p->job->n_workers, "workers of the roster");
    expect(p, r->nonce != 0 && r->epoch == 1, "nonce and epoch");
    for (int i = 0; i < r->n_servers; i++) {
        char own[64];
        snprintf(own, sizeof own, "tcp://%s:4001", ps_member_address(p->member));
        expect(p, r->servers[i].rank == i && r->servers[i].n_endpoints == 2, "a server");
        expect(p, strcmp(r->servers[i].endpoints[0], own) == 0, "wildcard replaced");
        expect(p, strcmp(r->servers[i].endpoints[1], "tcp://10.9.8.7:4002") == 0,
               "an endpoint as given");
        expect(p, ps_roster_same_host(&r->servers[i], &r->workers[0]), "one host");
    }
}

static void store_and_fetch(part *p)
{
    int rank = ps_member_rank(p->member);
    char key[32], value[64];
    snprintf(key, sizeof key, "key-%d", rank);
    int n = snprintf(value, sizeof value, "value of %d", rank);
    int next = (rank + 1) % p->job->n_workers;
    if (rank == 0) usleep(50000); // its reader has to wait
    note(p, ps_member_put(p->member, key, value, (size_t)n, soon()));
    void *got = NULL;
    size_t bytes = 0;
    snprintf(key, sizeof key, "key-%d", next);
    note(p, ps_member_get(p->member, key, &got, &bytes, soon()));
    n = snprintf(value, sizeof value, "value of %d", next);
    expect(p, got && bytes == (size_t)n && memcmp(got, value, bytes) == 0, "a value");
    free(got);
}

/* 1e16 + 1 + 1 + ... depends on the order of its terms: only rank order gives this sum.
 */
static void reduce_in_order(part *p)
{
    int rank = ps_member_rank(p->member), n = p->job->n_workers;
    double in_order = 0;
    for (int r = 0; r < n; r++)
        in_order += r == 0 ? 1e16 : 1.0;
    for (int round = 0; round < 20; round++) {
        double v[2] = {rank == 0 ? 1e16 : 1.0, rank + round};
        if ((rank + round) % n == 0) usleep(1000); // orders of arrival differ
        note(p, ps_member_reduce(p->member, "sum", v, 2, soon()));
        expect(p, v[0] == in_order, "the sum in rank order");
        expect(p, v[1] == n * (n - 1) / 2.0 + n * round, "the sum of the ranks");
    }
}

static void work(part *p)
{
    check_roster(p);
    note(p, ps_member_barrier(p->member, "start", soon()));
    store_and_fetch(p);
    reduce_in_order(p);
    note(p, ps_member_barrier(p->member, "start", soon()));
    expect(p, ps_member_check(p->member) == PS_OK, "a job that goes on");
    if (ps_member_rank(p->member) == 0) usleep(100000); // the others wait for its leave
    note(p, ps_member_leave(p->member, soon()));
}

static void jobs_of_all_shapes_end_well(void **state)
{
    static const int shapes[][2] = {{0, 1}, {1, 1}, {2, 3}, {0, 4}, {3, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        job j;
        part parts[MAX_MEMBERS];
        open_job(&j, shapes[i][0], shapes[i][1]);
        run_job(&j, parts, serve_to_the_end, work);
        assert_all_well(&j, parts);
        close_job(&j);
    }
}

static void ranks_are_given_to_those_without(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 1, 3);
    for (int i = 0; i < 4; i++) {
        parts[i] = (part){.job = &j,
                          .role = i == 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER,
                          .rank = i == 0   ? 0
                                  : i == 3 ? 1
                                           : -1, // one asks for rank 1
                          .run = i == 0 ? serve_to_the_end : work};
        assert_int_equal(pthread_create(&parts[i].thread, NULL, run_part, &parts[i]), 0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(parts[i].thread, NULL);
    assert_all_well(&j, parts);
    close_job(&j);
}

static void a_job_alone_needs_no_address(void **state)
{
    job j;
    open_job(&j, 0, 1);
    const ps_member_options o = {
        .config = &j.config, .role = PS_ROLE_WORKER, .rank = -1, .world_size = 1};
    ps_member *m;
    assert_int_equal(ps_member_join(&o, &m), PS_OK);
    assert_int_equal(ps_member_rank(m), 0);
    assert_string_equal(ps_member_address(m), "127.0.0.1");
    double v = 3;
    assert_int_equal(ps_member_reduce(m, "x", &v, 1, soon()), PS_OK);
    assert_true(v == 3);
    assert_int_equal(ps_member_leave(m, soon()), PS_OK);
    ps_member_destroy(&m);
    ps_config_fini(&j.config);
}

/* ---- norms ---- */

enum { BLOCKS = 7 };
static const double BLOCK_SUMS[BLOCKS] = {1e16, 1, 1, 3, 1e-3, 7, 11};

/* sums NULL: the norm was asked for. */
static void await_answer(part *p, ps_coord_link *link, uint64_t wanted_step, double *norm,
                         double *sums)
{
    int got = 0;
    uint64_t step = 0;
    for (int i = 0; i < 200 && !got && p->err == PS_OK; i++) {
        zmq_pollitem_t items[] = {
            {.socket = ps_coord_link_socket(link), .events = ZMQ_POLLIN},
            {.socket = ps_coord_link_monitor(link), .events = ZMQ_POLLIN}};
        zmq_poll(items, 2, 100);
        if (items[1].revents) note(p, ps_coord_link_mend(link));
        note(p, sums ? ps_coord_link_sums_recv(link, &got, &step, sums, BLOCKS)
                     : ps_coord_link_gradnorm_recv(link, &got, &step, norm));
    }
    expect(p, got && step == wanted_step, "an answer for the step");
}

static void await_norm(part *p, ps_coord_link *link, uint64_t step, double wanted)
{
    double norm = 0;
    await_answer(p, link, step, &norm, NULL);
    expect(p, norm == wanted, "the norm with the blocks in order");
}

static void await_sums(part *p, ps_coord_link *link, uint64_t step, double factor)
{
    double sums[BLOCKS] = {0};
    await_answer(p, link, step, NULL, sums);
    for (int i = 0; i < BLOCKS; i++)
        expect(p, sums[i] == factor * BLOCK_SUMS[i], "all sums, in their order");
}

typedef ps_err (*send_fn)(ps_coord_link *, uint64_t, uint32_t, uint64_t, uint32_t,
                          const uint64_t *, const uint64_t *, const double *);

/* Server 0 has blocks 1-2 and 5, server 1 has blocks 0, 3-4 and 6. All sums are
 * multiplied by factor. Returns the norm. */
static double send_by(send_fn send, part *p, ps_coord_link *link, uint64_t step,
                      double factor)
{
    static const uint64_t first[2][3] = {{5, 1, 0}, {3, 6, 0}};
    static const uint64_t counts[2][3] = {{1, 2, 0}, {2, 1, 1}};
    double sums[BLOCKS], in_order = 0;
    int n = 0, rank = p->rank;
    for (int r = 0; r < 3; r++)
        for (uint64_t b = 0; b < counts[rank][r]; b++)
            sums[n++] = factor * BLOCK_SUMS[first[rank][r] + b];
    for (int b = 0; b < BLOCKS; b++)
        in_order += factor * BLOCK_SUMS[b];
    note(p, send(link, step, 2, BLOCKS, 3, first[rank], counts[rank], sums));
    return sqrt(in_order);
}

static double send_norm(part *p, ps_coord_link *link, uint64_t step, double factor)
{
    return send_by(ps_coord_link_gradnorm_send, p, link, step, factor);
}

static void serve_norm(part *p)
{
    void *context = zmq_ctx_new();
    ps_coord_link *link = NULL;
    note(p, ps_coord_link_create(context, p->member, 1, &link));
    if (p->rank == 1) usleep(30000);
    double norm = send_norm(p, link, 5, 1);
    await_norm(p, link, 5, norm);
    (void)send_by(ps_coord_link_sums_send, p, link, 5, 3); // of the same step
    await_sums(p, link, 5, 3);
    ps_coord_link_destroy(&link);
    zmq_ctx_term(context);
    serve_to_the_end(p);
}

static void norms_do_not_depend_on_the_shards(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 2, 1);
    run_job(&j, parts, serve_norm, work);
    assert_all_well(&j, parts);
    close_job(&j);
}

enum { CUT_STEPS = 24 };
static pthread_barrier_t both_servers;

/* In most steps one of the servers has both links cut: before it sends its part, while
 * the part is on its way, or while the answer may be. */
static void serve_norms_over_cuts(part *p)
{
    void *context = zmq_ctx_new();
    ps_coord_link *link = NULL;
    test_connections members; // whose connections stay
    const int port = atoi(strrchr(ps_member_coordinator(p->member), ':') + 1);
    pthread_barrier_wait(&both_servers); // all members have joined, no link is there
    test_connections_to(port, &members);
    pthread_barrier_wait(&both_servers);
    note(p, ps_coord_link_create(context, p->member, 1, &link));
    int n_cut = 0;
    for (uint64_t step = 0; step < CUT_STEPS && p->err == PS_OK; step++) {
        const unsigned when = (unsigned)(step + (uint64_t)p->rank * 2) % 4;
        if (when == 0) n_cut += test_cut_connections(port, &members);
        const double factor = (double)(step + 1);
        const bool whole = step % 3 == 2;
        double norm =
            send_by(whole ? ps_coord_link_sums_send : ps_coord_link_gradnorm_send, p,
                    link, step, factor);
        if (when == 2) usleep(2000);
        if (when > 0 && when < 3) n_cut += test_cut_connections(port, &members);
        if (whole)
            await_sums(p, link, step, factor);
        else
            await_norm(p, link, step, norm);
    }
    expect(p, n_cut > CUT_STEPS / 4, "connections that were cut");
    ps_coord_link_destroy(&link);
    zmq_ctx_term(context);
    serve_to_the_end(p);
}

static void norms_outlive_lost_connections(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    pthread_barrier_init(&both_servers, NULL, 2);
    open_job(&j, 2, 1);
    run_job(&j, parts, serve_norms_over_cuts, work);
    assert_all_well(&j, parts);
    close_job(&j);
    pthread_barrier_destroy(&both_servers);
}

static void interrupt_and_serve(part *p)
{
    if (p->rank == 1) ps_member_interrupt(p->member);
    serve_to_the_end(p);
    expect(p, !ps_member_interrupted(p->member), "a server that is not told");
}

static void work_until_interrupted(part *p)
{
    for (ps_deadline end = soon(); !ps_deadline_passed(end); usleep(1000))
        if (ps_member_interrupted(p->member)) break;
    expect(p, ps_member_interrupted(p->member), "an interrupt");
    note(p, ps_member_check(p->member)); // the job goes on
    note(p, ps_member_barrier(p->member, "last", soon()));
    note(p, ps_member_leave(p->member, soon()));
}

static void an_interrupt_reaches_all_workers(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 2, 3);
    run_job(&j, parts, interrupt_and_serve, work_until_interrupted);
    assert_all_well(&j, parts);
    close_job(&j);
}

/* ---- jobs that go wrong ---- */

static void assert_told(const part *p, const char *words)
{
    if (!strstr(p->message, words))
        fail_msg("\"%s\" was expected in \"%s\"", words, p->message);
}

static void give_up(part *p)
{
    if (p->rank == 1) {
        ps_member_abort(p->member, PS_ERR_PEER, "the loss is not finite at step 3");
        note(p, ps_member_check(p->member));
    } else {
        note(p, ps_member_barrier(p->member, "never", soon()));
        struct pollfd item = {.fd = ps_member_abort_fd(p->member), .events = POLLIN};
        expect(p, poll(&item, 1, 0) == 1, "a readable abort descriptor");
    }
}

static void an_abort_reaches_everybody_at_once(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 2, 3);
    uint64_t before = ps_clock_ns();
    run_job(&j, parts, serve_to_the_end, give_up);
    assert_true(ps_clock_ns() - before < 10000000000u);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(parts[i].err, PS_ERR_PEER);
        assert_told(&parts[i], "the loss is not finite at step 3");
        if (i != 3) assert_told(&parts[i], "worker 1");
    }
    close_job(&j);
}

static void host_gives_up(part *p)
{
    if (p->rank == 0)
        ps_member_abort(p->member, PS_ERR_PEER,
                        "the disk is full"); // and is destroyed at once
    else
        note(p, ps_member_barrier(p->member, "never", soon()));
}

static void the_hosts_own_abort_gets_out(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 0, 3);
    run_job(&j, parts, NULL, host_gives_up);
    for (int i = 1; i < 3; i++) {
        assert_int_equal(parts[i].err, PS_ERR_PEER);
        assert_told(&parts[i], "worker 0");
        assert_told(&parts[i], "the disk is full");
    }
    close_job(&j);
}

static void go_without_a_word(part *p)
{
    if (p->rank == 2) return; // destroyed without leave
    note(p, ps_member_barrier(p->member, "never", soon()));
}

static void an_end_without_goodbye_aborts(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 1, 3);
    run_job(&j, parts, serve_to_the_end, go_without_a_word);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(parts[i].err, PS_ERR_PEER);
        assert_told(&parts[i], "worker 2");
        assert_told(&parts[i], "ended before the job was over");
    }
    close_job(&j);
}

/* The file is left over from a dead job. A new coordinator replaces it while the worker
 * reads it. */
static void a_stale_file_leads_nowhere(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 1, 2);
    FILE *f = fopen(j.init + 7, "w");
    assert_non_null(f);
    fputs("pstrain-init 1 127.0.0.1 1 00000000000000ab\n", f); // nobody is on port 1
    fclose(f);
    run_job(&j, parts, serve_to_the_end, work);
    assert_all_well(&j, parts);
    close_job(&j);
}

static void wait_for_a_late_one(part *p)
{
    if (p->rank != 1) {
        ps_err err = ps_member_barrier(p->member, "b", ps_deadline_in_ms(300));
        expect(p, err == PS_ERR_TIMEOUT, "a timeout");
        expect(p, strstr(ps_err_message(), "missing: 1") != NULL, "who is missing");
        void *value;
        size_t bytes;
        err = ps_member_get(p->member, "unset", &value, &bytes, ps_deadline_in_ms(100));
        expect(p, err == PS_ERR_TIMEOUT, "a timeout of get");
        expect(p, strstr(ps_err_message(), "\"unset\"") != NULL, "the key");
    }
    note(p, ps_member_barrier(p->member, "together", soon()));
    note(p, ps_member_leave(p->member, soon()));
}

static void a_timeout_names_who_is_missing(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 1, 3);
    run_job(&j, parts, serve_to_the_end, wait_for_a_late_one);
    assert_all_well(&j, parts);
    close_job(&j);
}

static void wait_for_one_that_left(part *p)
{
    if (p->rank == 1) {
        note(p, ps_member_leave(p->member, soon()));
        return;
    }
    ps_err err = ps_member_barrier(p->member, "b", soon());
    expect(p, err == PS_ERR_PEER, "an error at once");
    // the others may have had their answer, and left, before the last one asks
    bool named = strstr(ps_err_message(), "worker 1 has left") ||
                 strstr(ps_err_message(), "worker 0 has left");
    expect(p, named, "who has left");
    note(p, ps_member_leave(p->member, soon()));
}

static void a_barrier_does_not_wait_for_one_that_left(void **state)
{
    job j;
    part parts[MAX_MEMBERS];
    open_job(&j, 0, 3);
    run_job(&j, parts, NULL, wait_for_one_that_left);
    assert_all_well(&j, parts);
    close_job(&j);
}

/* trusted: net.insecure; else the job has to stay on this host. */
static void assert_address(bool trusted, const char *interface, const char *init,
                           const char *want)
{
    const ps_deadline now = {0};
    char address[PS_ADDRESS_MAX], setting[64];
    const char *const set[] = {setting, "net.insecure=true"};
    ps_config config;
    snprintf(setting, sizeof setting, "net.interface=%s", interface);
    assert_int_equal(ps_config_load(&config, NULL, set, trusted ? 2 : 1), PS_OK);
    assert_int_equal(ps_joining_address(&config, init, now, address),
                     want ? PS_OK : PS_ERR_ARG);
    if (want) assert_string_equal(address, want);
    ps_config_fini(&config);
}

/* An address that means this host alone is offered where it is literally asked for, and
 * in a job that stays on this host. */
static void addresses_are_those_that_others_reach(void **state)
{
    static const char *const no_host[] = {"tcp://0.0.0.0:29500", "tcp://[::]:29500",
                                          "file:///tmp/nothing", NULL};
    char route[PS_ADDRESS_MAX];
    ps_net_default_address(route);
    assert_address(true, "", "tcp://127.0.0.1:29500", "127.0.0.1");
    assert_address(true, "lo", "tcp://0.0.0.0:29500", "127.0.0.1");
    for (size_t i = 0; i < sizeof no_host / sizeof *no_host; i++) {
        assert_address(true, "", no_host[i], route);
        assert_address(false, "", no_host[i], "127.0.0.1");
    }
    assert_address(false, "", "tcp://somewhere", NULL);
}

/* ---- elastic jobs ---- */

static void end_elastic(part *p, int workers)
{
    expect(p, ps_member_roster(p->member)->n_workers == workers, "all workers");
    if (p->role == PS_ROLE_SERVER)
        note(p, ps_member_wait_end(p->member));
    else
        note(p, ps_member_barrier(p->member, "end", soon()));
    note(p, ps_member_leave(p->member, soon()));
}

static void regroup_for_a_newcomer(part *p)
{
    const ps_roster *roster = ps_member_roster(p->member);
    const bool is_worker = p->role == PS_ROLE_WORKER;
    expect(p, roster->n_workers == 2, "two workers at first");
    expect(p, ps_member_rank(p->member) == (p->rank > 0), "ranks without a gap");
    if (is_worker && p->rank == 0) {
        pthread_barrier_wait(&others_have_joined);
        const ps_deadline end = soon();
        while (ps_member_newcomers(p->member) == 0 && !ps_deadline_passed(end))
            usleep(10000);
        ps_member_regroup(p->member, 2 + ps_member_newcomers(p->member));
    }
    expect(p, ps_member_cause(p->member, soon()) == PS_ERR_REGROUP, "to regroup");
    p->expected_workers = ps_member_next_workers(p->member);
    expect(p, p->expected_workers == 3, "one more worker");
    const uint64_t nonce = roster->nonce;
    expect(p, roster->n_workers == 2, "the same roster until the end of its epoch");
    ps_member_destroy(&p->member);
    note(p, join_as(p));
    if (p->err != PS_OK) return;
    expect(p, ps_member_roster(p->member)->nonce != nonce, "another epoch's nonce");
    end_elastic(p, 3);
}

static void join_late(part *p)
{
    expect(p, ps_member_rank(p->member) == 2, "the last rank");
    end_elastic(p, 3);
}

static void run_elastic(job *j, part *parts, int n)
{
    j->min_workers = 1;
    for (int i = 0; i < n; i++) {
        parts[i].job = j;
        assert_int_equal(pthread_create(&parts[i].thread, NULL, run_part, &parts[i]), 0);
    }
    for (int i = 0; i < n; i++)
        pthread_join(parts[i].thread, NULL);
    for (int i = 0; i < n; i++)
        if (parts[i].err != PS_OK) fail_msg("member %d: %s", i, parts[i].message);
}

static void a_newcomer_is_let_in(void **state)
{
    job j;
    open_job(&j, 1, 4);
    part parts[] = {
        {.role = PS_ROLE_SERVER, .expected_workers = 2, .run = regroup_for_a_newcomer},
        {.role = PS_ROLE_WORKER, .rank = 0, .run = regroup_for_a_newcomer},
        {.role = PS_ROLE_WORKER, .rank = 5, .run = regroup_for_a_newcomer},
        {.role = PS_ROLE_WORKER, .rank = -1, .late = true, .run = join_late}};
    pthread_barrier_init(&others_have_joined, NULL, 2);
    run_elastic(&j, parts, 3 + 1);
    pthread_barrier_destroy(&others_have_joined);
    close_job(&j);
}

static void end_as_two(part *p)
{
    end_elastic(p, 2);
}

static void others_begin_without_those_that_do_not_come(void **state)
{
    for (int expected = 0; expected <= 3; expected += 3) { // 0: not said
        job j;
        open_job(&j, 1, 4);
        j.config.recovery.wait_ms = 300;
        part parts[] = {
            {.role = PS_ROLE_SERVER, .expected_workers = expected, .run = end_as_two},
            {.role = PS_ROLE_WORKER, .rank = 1, .run = end_as_two},
            {.role = PS_ROLE_WORKER, .rank = 0, .run = end_as_two}};
        run_elastic(&j, parts, 3);
        close_job(&j);
    }
}

int main(void)
{
    ps_log_init("test", PS_LOG_ERROR + 1); // these tests cause errors
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_newcomer_is_let_in),
        cmocka_unit_test(others_begin_without_those_that_do_not_come),
        cmocka_unit_test(addresses_are_those_that_others_reach),
        cmocka_unit_test(a_job_alone_needs_no_address),
        cmocka_unit_test(jobs_of_all_shapes_end_well),
        cmocka_unit_test(ranks_are_given_to_those_without),
        cmocka_unit_test(norms_do_not_depend_on_the_shards),
        cmocka_unit_test(norms_outlive_lost_connections),
        cmocka_unit_test(an_interrupt_reaches_all_workers),
        cmocka_unit_test(an_abort_reaches_everybody_at_once),
        cmocka_unit_test(the_hosts_own_abort_gets_out),
        cmocka_unit_test(an_end_without_goodbye_aborts),
        cmocka_unit_test(a_stale_file_leads_nowhere),
        cmocka_unit_test(a_timeout_names_who_is_missing),
        cmocka_unit_test(a_barrier_does_not_wait_for_one_that_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
