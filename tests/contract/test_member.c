/* Whole jobs in one process: each member has its own thread and real sockets on the
 * loopback. These jobs go well. */
#include "member.h"

#include <math.h>
#include <unistd.h>
#include <zmq.h>

#include "../support/own_connections.h"
#include "check.h"
#include "coord_link.h"
#include "member_rig.h"

/* ---- a job that goes well ---- */

static void check_roster(rig_part *p)
{
    const ps_roster *r = ps_member_roster(p->member);
    rig_expect(p, r->n_servers == p->job->n_servers, "servers of the roster");
    rig_expect(p, r->n_workers == p->job->n_workers, "workers of the roster");
    rig_expect(p, r->nonce != 0 && r->epoch == 1, "nonce and epoch");
    for (int i = 0; i < r->n_servers; i++) {
        char own[64];
        snprintf(own, sizeof own, "tcp://%s:4001", ps_member_address(p->member));
        rig_expect(p, r->servers[i].rank == i && r->servers[i].n_endpoints == 2,
                   "a server");
        rig_expect(p, strcmp(r->servers[i].endpoints[0], own) == 0, "wildcard replaced");
        rig_expect(p, strcmp(r->servers[i].endpoints[1], "tcp://10.9.8.7:4002") == 0,
                   "an endpoint as given");
        rig_expect(p, ps_roster_same_host(&r->servers[i], &r->workers[0]), "one host");
    }
}

static void store_and_fetch(rig_part *p)
{
    int rank = ps_member_rank(p->member);
    char key[32], value[64];
    snprintf(key, sizeof key, "key-%d", rank);
    int n = snprintf(value, sizeof value, "value of %d", rank);
    int next = (rank + 1) % p->job->n_workers;
    if (rank == 0) usleep(50000); // its reader has to wait
    rig_note(p, ps_member_put(p->member, key, value, (size_t)n, rig_soon()));
    void *got = NULL;
    size_t bytes = 0;
    snprintf(key, sizeof key, "key-%d", next);
    rig_note(p, ps_member_get(p->member, key, &got, &bytes, rig_soon()));
    n = snprintf(value, sizeof value, "value of %d", next);
    rig_expect(p, got && bytes == (size_t)n && memcmp(got, value, bytes) == 0, "a value");
    free(got);
}

/* 1e16 + 1 + 1 + ... depends on the order of its terms: only rank order gives this sum.
 */
static void reduce_in_order(rig_part *p)
{
    int rank = ps_member_rank(p->member), n = p->job->n_workers;
    double in_order = 0;
    for (int r = 0; r < n; r++)
        in_order += r == 0 ? 1e16 : 1.0;
    for (int round = 0; round < 20; round++) {
        double v[2] = {rank == 0 ? 1e16 : 1.0, rank + round};
        if ((rank + round) % n == 0) usleep(1000); // orders of arrival differ
        rig_note(p, ps_member_reduce(p->member, "sum", v, 2, rig_soon()));
        rig_expect(p, v[0] == in_order, "the sum in rank order");
        rig_expect(p, v[1] == n * (n - 1) / 2.0 + n * round, "the sum of the ranks");
    }
}

static void work(rig_part *p)
{
    check_roster(p);
    rig_note(p, ps_member_barrier(p->member, "start", rig_soon()));
    store_and_fetch(p);
    reduce_in_order(p);
    rig_note(p, ps_member_barrier(p->member, "start", rig_soon()));
    rig_expect(p, ps_member_check(p->member) == PS_OK, "a job that goes on");
    if (ps_member_rank(p->member) == 0) usleep(100000); // the others wait for its leave
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}

/* Whether the key has these bytes; NULL: it is not there. */
static void expect_key(rig_part *p, const char *key, const char *wanted)
{
    void *got = NULL;
    size_t bytes = 0;
    const ps_err err = ps_member_get(p->member, key, &got, &bytes,
                                     wanted ? rig_soon() : ps_deadline_in_ms(0));
    rig_expect(p, err == (wanted ? PS_OK : PS_ERR_TIMEOUT), "the key's value, or none");
    rig_expect(p, !wanted || (bytes == strlen(wanted) && memcmp(got, wanted, bytes) == 0),
               "the key's value");
    free(got);
}

/* Only who may set a key may drop it, and it can be set again. */
static void drop_keys(rig_part *p)
{
    static const char key[] = "job/place/7";
    const bool sets = ps_member_rank(p->member) == 0;
    for (int round = 0; round < 3; round++) {
        const char *value = round % 2 ? "" : "value";
        if (sets)
            rig_note(p, ps_member_put(p->member, key, value, strlen(value), rig_soon()));
        expect_key(p, key, value);
        if (!sets)
            rig_expect(p, ps_member_drop(p->member, key, rig_soon()) == PS_ERR_PEER,
                       "a refusal");
        rig_note(p, ps_member_barrier(p->member, "got", rig_soon()));
        for (int again = 0; again < 2 && sets; again++)
            rig_note(p, ps_member_drop(p->member, key, rig_soon()));
        rig_note(p, ps_member_barrier(p->member, "dropped", rig_soon()));
        expect_key(p, key, NULL);
        rig_note(p, ps_member_barrier(p->member, "looked", rig_soon()));
    }
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}

TEST(a_key_that_is_dropped_is_gone)
{
    rig_run_well(1, 3, rig_serve, drop_keys);
}

TEST(jobs_of_all_shapes_end_well)
{
    static const int shapes[][2] = {{0, 1}, {1, 1}, {2, 3}, {0, 4}, {3, 4}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++)
        rig_run_well(shapes[i][0], shapes[i][1], rig_serve, work);
}

TEST(ranks_are_given_to_those_without)
{
    rig_job j;
    rig_part parts[RIG_MEMBERS_MAX];
    rig_open(&j, 1, 3);
    for (int i = 0; i < 4; i++) {
        parts[i] = (rig_part){.job = &j,
                              .role = i == 0 ? PS_ROLE_SERVER : PS_ROLE_WORKER,
                              .rank = i == 0   ? 0
                                      : i == 3 ? 1
                                               : -1, // one asks for rank 1
                              .run = i == 0 ? rig_serve : work};
        assert_int_equal(pthread_create(&parts[i].thread, NULL, rig_run_part, &parts[i]),
                         0);
    }
    for (int i = 0; i < 4; i++)
        pthread_join(parts[i].thread, NULL);
    rig_assert_well(&j, parts);
    rig_close(&j);
}

TEST(a_job_alone_needs_no_address)
{
    rig_job j;
    rig_open(&j, 0, 1);
    const ps_member_options o = {
        .config = &j.config, .role = PS_ROLE_WORKER, .rank = -1, .world_size = 1};
    ps_member *m;
    assert_ok(ps_member_join(&o, &m));
    assert_int_equal(ps_member_rank(m), 0);
    assert_string_equal(ps_member_address(m), "127.0.0.1");
    double v = 3;
    assert_ok(ps_member_reduce(m, "x", &v, 1, rig_soon()));
    assert_true(v == 3);
    assert_ok(ps_member_leave(m, rig_soon()));
    ps_member_destroy(&m);
    ps_config_fini(&j.config);
}

/* The file is left over from a dead job. A new coordinator replaces it while the worker
 * reads it. */
TEST(a_stale_file_leads_nowhere)
{
    rig_job j;
    rig_part parts[RIG_MEMBERS_MAX];
    rig_open(&j, 1, 2);
    FILE *f = fopen(j.init + 7, "w");
    assert_non_null(f);
    fputs("pstrain-init 1 127.0.0.1 1 00000000000000ab\n", f); // nobody is on port 1
    fclose(f);
    rig_run(&j, parts, rig_serve, work);
    rig_assert_well(&j, parts);
    rig_close(&j);
}

/* trusted: net.insecure is on; else the job has to stay on this host. */
static void assert_address(bool trusted, const char *interface, const char *init,
                           const char *want)
{
    const ps_deadline now = {0};
    char address[PS_ADDRESS_MAX], setting[64];
    const char *const set[] = {setting, "net.insecure=true"};
    ps_config config;
    snprintf(setting, sizeof setting, "net.interface=%s", interface);
    assert_ok(ps_config_load(&config, NULL, set, trusted ? 2 : 1));
    assert_int_equal(ps_joining_address(&config, init, now, address),
                     want ? PS_OK : PS_ERR_ARG);
    if (want) assert_string_equal(address, want);
    ps_config_fini(&config);
}

/* An address that means only this host is offered when the user asks for just that, and
 * in a job that stays on this host. */
TEST(addresses_are_those_that_others_reach)
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

static void interrupt_and_serve(rig_part *p)
{
    if (p->rank == 1) ps_member_interrupt(p->member);
    rig_serve(p);
    rig_expect(p, !ps_member_interrupted(p->member), "a server that is not told");
}

static void work_until_interrupted(rig_part *p)
{
    for (ps_deadline end = rig_soon(); !ps_deadline_passed(end); usleep(1000))
        if (ps_member_interrupted(p->member)) break;
    rig_expect(p, ps_member_interrupted(p->member), "an interrupt");
    rig_note(p, ps_member_check(p->member)); // the job goes on
    rig_note(p, ps_member_barrier(p->member, "last", rig_soon()));
    rig_note(p, ps_member_leave(p->member, rig_soon()));
}

TEST(an_interrupt_reaches_all_workers)
{
    rig_run_well(2, 3, interrupt_and_serve, work_until_interrupted);
}

/* ---- gradient norms ---- */

enum { BLOCKS = 7 };
static const double BLOCK_SUMS[BLOCKS] = {1e16, 1, 1, 3, 1e-3, 7, 11};

/* sums NULL: the link has asked for the norm. */
static void await_answer(rig_part *p, ps_coord_link *link, uint64_t wanted_step,
                         double *norm, double *sums)
{
    int got = 0;
    uint64_t step = 0;
    for (int i = 0; i < 200 && !got && p->err == PS_OK; i++) {
        zmq_pollitem_t items[] = {
            {.socket = ps_coord_link_socket(link), .events = ZMQ_POLLIN},
            {.socket = ps_coord_link_monitor(link), .events = ZMQ_POLLIN}};
        zmq_poll(items, 2, 100);
        if (items[1].revents) rig_note(p, ps_coord_link_mend(link));
        rig_note(p, sums ? ps_coord_link_sums_recv(link, &got, &step, sums, BLOCKS)
                         : ps_coord_link_gradnorm_recv(link, &got, &step, norm));
    }
    rig_expect(p, got && step == wanted_step, "an answer for the step");
}

static void await_gradnorm(rig_part *p, ps_coord_link *link, uint64_t step, double wanted)
{
    double norm = 0;
    await_answer(p, link, step, &norm, NULL);
    rig_expect(p, norm == wanted, "the norm with the blocks in order");
}

static void await_sums(rig_part *p, ps_coord_link *link, uint64_t step, double factor)
{
    double sums[BLOCKS] = {0};
    await_answer(p, link, step, NULL, sums);
    for (int i = 0; i < BLOCKS; i++)
        rig_expect(p, sums[i] == factor * BLOCK_SUMS[i], "all sums, in their order");
}

typedef ps_err (*send_fn)(ps_coord_link *, uint64_t, uint32_t, uint64_t, uint32_t,
                          const uint64_t *, const uint64_t *, const double *);

/* Server 0 has blocks 1-2 and 5, server 1 has blocks 0, 3-4 and 6. All sums are
 * multiplied by factor. Returns the norm. */
static double send_by(send_fn send, rig_part *p, ps_coord_link *link, uint64_t step,
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
    rig_note(p, send(link, step, 2, BLOCKS, 3, first[rank], counts[rank], sums));
    return sqrt(in_order);
}

static double send_gradnorm(rig_part *p, ps_coord_link *link, uint64_t step,
                            double factor)
{
    return send_by(ps_coord_link_gradnorm_send, p, link, step, factor);
}

static void serve_gradnorm(rig_part *p)
{
    void *context = zmq_ctx_new();
    ps_coord_link *link = NULL;
    rig_note(p, ps_coord_link_create(context, p->member, 1, &link));
    if (p->rank == 1) usleep(30000);
    double norm = send_gradnorm(p, link, 5, 1);
    await_gradnorm(p, link, 5, norm);
    (void)send_by(ps_coord_link_sums_send, p, link, 5, 3); // for the same step
    await_sums(p, link, 5, 3);
    ps_coord_link_destroy(&link);
    zmq_ctx_term(context);
    rig_serve(p);
}

TEST(gradnorms_do_not_depend_on_the_shards)
{
    rig_run_well(2, 1, serve_gradnorm, work);
}

enum { CUT_STEPS = 24 };
static pthread_barrier_t both_servers;

/* In most steps both links of one server are cut: before it sends its part, while the
 * part is on its way, or while the answer may be on its way. */
static void serve_gradnorms_over_cuts(rig_part *p)
{
    void *context = zmq_ctx_new();
    ps_coord_link *link = NULL;
    test_connections members; // their connections stay
    const int port = atoi(strrchr(ps_member_coordinator(p->member), ':') + 1);
    pthread_barrier_wait(&both_servers); // all members have joined, no link is there
    test_connections_to(port, &members);
    pthread_barrier_wait(&both_servers);
    rig_note(p, ps_coord_link_create(context, p->member, 1, &link));
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
            await_gradnorm(p, link, step, norm);
    }
    rig_expect(p, n_cut > CUT_STEPS / 4, "connections that were cut");
    ps_coord_link_destroy(&link);
    zmq_ctx_term(context);
    rig_serve(p);
}

TEST(gradnorms_outlive_lost_connections)
{
    pthread_barrier_init(&both_servers, NULL, 2);
    rig_run_well(2, 1, serve_gradnorms_over_cuts, work);
    pthread_barrier_destroy(&both_servers);
}
