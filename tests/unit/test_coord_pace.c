/* The slow member is named from what members tell of their steps. What makes no sense is
 * ignored. */
#include <math.h>

#include "check.h"
#include "coord_pace.h"
#include "log.h"

enum { SERVERS = 2, SHARDS = 2, ALL = SERVERS * SHARDS, WORKERS = 3 };

#define MS 1e6

/* A coordinator without sockets: what it sends goes nowhere. */
typedef struct rig {
    ps_coordinator c;
    ps_coord_peer peers[SERVERS + WORKERS];
    double worker[1 + 4 * ALL], shard[2 * (WORKERS + 1)];
    double out_ms[WORKERS], in_ms[WORKERS], busy_ms[WORKERS], apply_ms[SERVERS];
} rig;

static int open_rig(void **state)
{
    rig *r = calloc(1, sizeof *r);
    if (!r) return 1;
    r->c = (ps_coordinator){.o = {.n_servers = SERVERS,
                                  .n_workers = WORKERS,
                                  .heartbeat_ms = 500,
                                  .names_straggler = true},
                            .state = PS_COORD_RUNNING,
                            .n_workers = WORKERS,
                            .peers = r->peers,
                            .n_peers = SERVERS + WORKERS};
    for (int i = 0; i < SERVERS + WORKERS; i++) {
        ps_roster_entry *e = &r->peers[i].entry;
        e->role = i < SERVERS ? PS_ROLE_SERVER : PS_ROLE_WORKER;
        e->rank = i < SERVERS ? i : i - SERVERS;
        e->n_endpoints = i < SERVERS ? SHARDS : 0;
        r->peers[i].heard_ns = ps_clock_awake_ns();
    }
    for (int w = 0; w < WORKERS; w++) {
        r->out_ms[w] = r->in_ms[w] = 5;
        r->busy_ms[w] = 20;
    }
    for (int s = 0; s < SERVERS; s++)
        r->apply_ms[s] = 1;
    *state = r;
    return 0;
}

static int close_rig(void **state)
{
    rig *r = *state;
    ps_coord_pace_destroy(&r->c.pace);
    free(r);
    return 0;
}
#define RIG_TEST(test) TEST_WITH(test, open_rig, close_rig)

static void tell(rig *r, int peer, uint64_t step, uint64_t part, const double *values,
                 size_t n)
{
    ps_control m = {
        .kind = PS_CONTROL_PACE, .value = values, .bytes = n * sizeof *values};
    m.pace.step = step;
    m.pace.part = part;
    ps_coord_pace_take(&r->c, &r->peers[peer], &m);
}

static double longest(const double *ms, int n)
{
    double most = 0;
    for (int i = 0; i < n; i++)
        most = fmax(most, ms[i]);
    return most;
}

static void tell_worker(rig *r, int w, uint64_t step, double begin, double last)
{
    const double given = begin + r->busy_ms[w] * MS;
    r->worker[0] = r->busy_ms[w] * MS;
    for (int k = 0; k < ALL; k++) {
        const double had = last + (r->apply_ms[k / SHARDS] + r->in_ms[w]) * MS;
        r->worker[1 + k] = r->worker[1 + 2 * ALL + k] = given;
        r->worker[1 + ALL + k] = r->worker[1 + 3 * ALL + k] = had;
    }
    tell(r, SERVERS + w, step, 0, r->worker, 1 + 4 * ALL);
}

static void tell_shard(rig *r, int k, uint64_t step, double begin, double replied)
{
    for (int w = 0; w < WORKERS; w++)
        r->shard[w] = r->shard[WORKERS + 1 + w] =
            begin + (r->busy_ms[w] + r->out_ms[w]) * MS;
    r->shard[WORKERS] = r->shard[2 * WORKERS + 1] = replied;
    tell(r, k / SHARDS, step, 1 + (uint64_t)k, r->shard, 2 * (WORKERS + 1));
}

/* All members tell of n steps, one after the other. Returns the time at which they end.
 */
static double steps(rig *r, uint64_t first, int n, double begin)
{
    for (int i = 0; i < n; i++) {
        double came[WORKERS], end = begin;
        for (int w = 0; w < WORKERS; w++)
            came[w] = r->busy_ms[w] + r->out_ms[w];
        const double last = begin + longest(came, WORKERS) * MS;
        for (int k = 0; k < ALL; k++) {
            const double replied = last + r->apply_ms[k / SHARDS] * MS;
            end = fmax(end, replied + longest(r->in_ms, WORKERS) * MS);
            tell_shard(r, k, first + (uint64_t)i, begin, replied);
        }
        for (int w = 0; w < WORKERS; w++)
            tell_worker(r, w, first + (uint64_t)i, begin, last);
        begin = end;
    }
    return begin;
}

static void is_named(const rig *r, ps_straggler_cause cause, ps_role role, int rank)
{
    const ps_straggler s = ps_coord_pace_named(&r->c);
    assert_int_equal(s.cause, cause);
    if (cause == PS_STRAGGLER_NONE) return;
    assert_int_equal(s.role, role);
    assert_int_equal(s.rank, rank);
}

RIG_TEST(each_cause_is_named_and_forgotten)
{
    rig *r = *state;
    double now = steps(r, 0, 20, 1e12);
    uint64_t step = 20;
    is_named(r, PS_STRAGGLER_NONE, PS_ROLE_WORKER, 0);
    struct {
        double *ms;
        ps_straggler_cause cause;
        ps_role role;
        int rank;
    } rows[] = {{&r->busy_ms[1], PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER, 1},
                {&r->out_ms[2], PS_STRAGGLER_LINK_OUT, PS_ROLE_WORKER, 2},
                {&r->in_ms[0], PS_STRAGGLER_LINK_IN, PS_ROLE_WORKER, 0},
                {&r->apply_ms[1], PS_STRAGGLER_SERVER, PS_ROLE_SERVER, 1}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const double usual = *rows[i].ms;
        *rows[i].ms += 50;
        now = steps(r, step, PS_STRAGGLER_ROUNDS, now);
        is_named(r, rows[i].cause, rows[i].role, rows[i].rank);
        *rows[i].ms = usual;
        now = steps(r, step + PS_STRAGGLER_ROUNDS, PS_STRAGGLER_CALM, now);
        is_named(r, PS_STRAGGLER_NONE, PS_ROLE_WORKER, 0);
        step += PS_STRAGGLER_ROUNDS + PS_STRAGGLER_CALM;
    }
}

static int n_warnings;

static void count_warnings(void *ctx, ps_log_level level, const char *text)
{
    (void)ctx;
    n_warnings += level == PS_LOG_WARN && strncmp(text, "straggler ", 10) == 0;
}

RIG_TEST(the_log_warns_of_it_when_the_job_is_some_seconds_old)
{
    rig *r = *state;
    n_warnings = 0;
    ps_log_set_sink(count_warnings, NULL, PS_LOG_WARN);
    double now = steps(r, 0, 20, 1e12);
    r->busy_ms[1] += 50;
    now = steps(r, 20, PS_STRAGGLER_ROUNDS, now);
    is_named(r, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER, 1);
    assert_int_equal(n_warnings, 0);
    steps(r, 20 + PS_STRAGGLER_ROUNDS, 60, now); // 5 s of 80 ms
    assert_int_equal(n_warnings, 1);
    ps_log_set_sink(NULL, NULL, PS_LOG_WARN);
}

RIG_TEST(nonsense_does_no_harm)
{
    rig *r = *state;
    double now = steps(r, 0, 10, 1e12);
    double bad[1 + 4 * ALL] = {NAN};
    for (uint64_t part = 0; part < 2 * ALL; part++)
        for (int peer = 0; peer < SERVERS + WORKERS; peer++)
            for (size_t n = 0; n <= 1 + 4 * ALL; n++)
                tell(r, peer, 10, part, bad, n);
    bad[0] = INFINITY;
    tell(r, SERVERS, 10, 0, bad, 1 + 4 * ALL);
    tell(r, SERVERS, 10, UINT64_MAX, bad, 1 + 4 * ALL);
    r->peers[SERVERS].entry.rank = WORKERS; // a rank of a larger job
    tell(r, SERVERS, 10, 0, r->worker, 1 + 4 * ALL);
    r->peers[SERVERS].entry.rank = 0;
    for (uint64_t i = 0; i < 100; i++) // steps that no other makes
        tell_worker(r, 0, UINT64_MAX - i * 77, 0, 0);
    tell_worker(r, 0, 3, 0, 0); // a step that is over
    is_named(r, PS_STRAGGLER_NONE, PS_ROLE_WORKER, 0);
    r->busy_ms[1] += 50;
    steps(r, 11, PS_STRAGGLER_ROUNDS + 1,
          now); // the first has a longer time since the step before
    is_named(r, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER, 1);
}

RIG_TEST(servers_that_differ_are_left_alone)
{
    rig *r = *state;
    r->peers[0].entry.n_endpoints = 1;
    steps(r, 0, 10, 1e12);
    assert_null(r->c.pace);
}

/* The other members have just been heard. */
static void hear_all_but(rig *r, int silent)
{
    for (int i = 0; i < SERVERS + WORKERS; i++)
        if (i != silent) r->peers[i].heard_ns = ps_clock_awake_ns();
}

/* Until a member is named. On a busy machine this process may lose the processor between
 * two lines, and all are silent for as long. */
static void check_until_named(rig *r, int silent)
{
    const ps_deadline patience = ps_deadline_in_ms(30000);
    while (!ps_coord_pace_named(&r->c).cause && !ps_deadline_passed(patience)) {
        hear_all_but(r, silent);
        ps_coord_pace_check_silence(&r->c);
    }
}

RIG_TEST(a_silent_member_is_named_while_nothing_moves)
{
    rig *r = *state;
    ps_coord_pace_check_silence(&r->c); // no step yet
    steps(r, 0, 10, 1e12);
    ps_coord_pace_check_silence(&r->c);
    is_named(r, PS_STRAGGLER_NONE, PS_ROLE_WORKER, 0);
    const uint64_t second = 1000000000;
    r->peers[SERVERS + 1].heard_ns -= 2 * second;
    r->peers[0].heard_ns -= 1 * second; // two are silent: the machine may be busy
    const ps_deadline moved = ps_deadline_in_ms(300); // five steps
    while (!ps_deadline_passed(moved))
        ps_coord_pace_check_silence(&r->c);
    is_named(r, PS_STRAGGLER_NONE, PS_ROLE_WORKER, 0);
    check_until_named(r, SERVERS + 1);
    is_named(r, PS_STRAGGLER_STOPPED, PS_ROLE_WORKER, 1);
}

/* It is most likely dead. */
RIG_TEST(a_member_whose_connection_has_closed_is_not_called_stopped)
{
    rig *r = *state;
    r->peers[SERVERS + 2].heard_ns -= UINT64_C(2000000000);
    r->peers[SERVERS + 2].lost_ns = r->peers[SERVERS + 2].heard_ns;
    hear_all_but(r, SERVERS + 2);
    ps_coord_pace_check_silence(&r->c);
    is_named(r, PS_STRAGGLER_NONE, PS_ROLE_WORKER, 0);
}

RIG_TEST(a_member_is_silent_before_the_first_step_is_told)
{
    rig *r = *state;
    r->peers[SERVERS + 2].heard_ns -= UINT64_C(2000000000);
    check_until_named(r, SERVERS + 2);
    is_named(r, PS_STRAGGLER_STOPPED, PS_ROLE_WORKER, 2);
}

/* A step that a slow member made long does not tell how long the next one may take. */
RIG_TEST(a_member_is_silent_again_after_a_long_step)
{
    rig *r = *state;
    const double now = steps(r, 0, 10, 1e12);
    r->busy_ms[1] += 10000;
    steps(r, 10, 1, now);
    r->peers[SERVERS + 1].heard_ns -= UINT64_C(2000000000);
    check_until_named(r, SERVERS + 1);
    is_named(r, PS_STRAGGLER_STOPPED, PS_ROLE_WORKER, 1);
}

RIG_TEST(a_job_that_names_nobody)
{
    rig *r = *state;
    r->c.o.names_straggler = false;
    r->peers[SERVERS + 1].heard_ns -= UINT64_C(2000000000);
    ps_coord_pace_check_silence(&r->c);
    assert_null(r->c.pace);
}
