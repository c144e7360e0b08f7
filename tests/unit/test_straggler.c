/* The member that all others wait for is named: every member and every cause, one at a
 * time, in jobs of several sizes. After other delays no member is named. */
#include <math.h>

#include "check.h"
#include "pace.h"
#include "straggler.h"

enum { MOST = 5, MOST_SHARDS = 6 };

/* A step in which every worker computes for 20 ms and every way takes 10 ms. */
typedef struct job {
    ps_straggler_step s;
    double busy[MOST], way[MOST * MOST_SHARDS], out[MOST * MOST_SHARDS];
    double in[MOST * MOST_SHARDS], apply[MOST_SHARDS], stall[2][MOST];
} job;

static void even(job *j, int workers, int servers, int shards)
{
    *j = (job){.s = {.n_workers = workers,
                     .n_servers = servers,
                     .shards = shards,
                     .step_ms = 32,
                     .busy = j->busy,
                     .way = j->way,
                     .out = j->out,
                     .in = j->in,
                     .apply = j->apply,
                     .worker_stall = j->stall[PS_ROLE_WORKER],
                     .server_stall = j->stall[PS_ROLE_SERVER]}};
    for (int w = 0; w < workers; w++)
        j->busy[w] = 20;
    for (int i = 0; i < workers * servers * shards; i++) {
        j->way[i] = 10;
        j->out[i] = j->in[i] = 5;
    }
    for (int k = 0; k < servers * shards; k++)
        j->apply[k] = 1;
}

/* A little unevenness, the same for the same seed. */
static void shake(job *j, unsigned seed)
{
    const int all = j->s.n_servers * j->s.shards;
    for (int w = 0; w < j->s.n_workers; w++)
        j->busy[w] *= 1 + 0.2 * rand_r(&seed) / RAND_MAX;
    for (int i = 0; i < j->s.n_workers * all; i++)
        j->way[i] *= 1 + 0.2 * rand_r(&seed) / RAND_MAX;
}

/* Slows a link of a member by ms; inward: towards it. */
static void slow_link(job *j, ps_role role, int rank, bool inward, double ms)
{
    const int all = j->s.n_servers * j->s.shards;
    const bool to_server = inward == (role == PS_ROLE_SERVER);
    for (int w = 0; w < j->s.n_workers; w++)
        for (int k = 0; k < all; k++) {
            if (rank != (role == PS_ROLE_WORKER ? w : k / j->s.shards)) continue;
            j->way[w * all + k] += ms;
            (to_server ? j->out : j->in)[w * all + k] += ms / 4;
        }
    j->s.step_ms += ms;
}

static void slow(job *j, ps_straggler_cause cause, ps_role role, int rank, double ms)
{
    switch (cause) {
    case PS_STRAGGLER_COMPUTE:
        j->busy[rank] += ms;
        j->s.step_ms += ms;
        break;
    case PS_STRAGGLER_SERVER:
        j->apply[rank * j->s.shards] += ms;
        j->s.step_ms += ms;
        break;
    default:
        slow_link(j, role, rank, cause == PS_STRAGGLER_LINK_IN, ms);
    }
}

static ps_straggler judge(const job *j)
{
    double scratch[4 * 4 * MOST];
    return ps_straggler_judge(&j->s, NULL, scratch);
}

/* Every cause that a member can have, in every job. act is called with each. */
typedef void act(const job *even, ps_straggler_cause cause, ps_role role, int rank);

static void for_all(act *f)
{
    static const int jobs[][3] = {{2, 2, 1}, {3, 2, 1}, {5, 3, 2}, {2, 3, 1}, {4, 2, 3}};
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++)
        for (unsigned seed = 0; seed < 20; seed++)
            for (ps_role role = PS_ROLE_SERVER; role <= PS_ROLE_WORKER; role++)
                for (int rank = 0; rank < jobs[i][role == PS_ROLE_SERVER]; rank++)
                    for (int c = PS_STRAGGLER_COMPUTE; c < PS_STRAGGLER_STOPPED; c++) {
                        job j;
                        even(&j, jobs[i][0], jobs[i][1], jobs[i][2]);
                        shake(&j, seed);
                        const bool can =
                            c == PS_STRAGGLER_COMPUTE  ? role == PS_ROLE_WORKER
                            : c == PS_STRAGGLER_SERVER ? role == PS_ROLE_SERVER
                                                       : true;
                        if (can) f(&j, (ps_straggler_cause)c, role, rank);
                    }
}

static void is_named(const job *even, ps_straggler_cause cause, ps_role role, int rank)
{
    job j = *even;
    j.s.busy = j.busy;
    j.s.way = j.way;
    j.s.out = j.out;
    j.s.in = j.in;
    j.s.apply = j.apply;
    j.s.worker_stall = j.stall[PS_ROLE_WORKER];
    j.s.server_stall = j.stall[PS_ROLE_SERVER];
    assert_int_equal(judge(&j).cause, PS_STRAGGLER_NONE);
    slow(&j, cause, role, rank, 40);
    const ps_straggler s = judge(&j);
    assert_int_equal(s.cause, cause);
    assert_int_equal(s.role, role);
    assert_int_equal(s.rank, rank);
    assert_true(s.ms > s.usual_ms);
}

TEST(every_member_and_cause_is_named)
{
    for_all(is_named);
}

TEST(a_small_difference_is_none)
{
    job j;
    even(&j, 3, 2, 1);
    slow(&j, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER, 1, 8); // 28 ms instead of 20 ms
    assert_int_equal(judge(&j).cause, PS_STRAGGLER_NONE);
    even(&j, 3, 2, 1); // four times as long, but still short
    slow(&j, PS_STRAGGLER_SERVER, PS_ROLE_SERVER, 0, 3);
    assert_int_equal(judge(&j).cause, PS_STRAGGLER_NONE);
    even(&j, 2, 2, 1);
    for (int w = 0; w < 2; w++)
        j.busy[w] = 0.3;
    j.s.step_ms = 1;
    slow(&j, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER, 0, 1.5); // less than chance makes
    assert_int_equal(judge(&j).cause, PS_STRAGGLER_NONE);
}

TEST(a_network_that_is_slow_for_all_is_none)
{
    job j;
    even(&j, 4, 3, 1);
    for (int w = 0; w < 4; w++)
        slow_link(&j, PS_ROLE_WORKER, w, false, 100);
    assert_int_equal(judge(&j).cause, PS_STRAGGLER_NONE);
}

TEST(the_worst_of_two_is_named)
{
    job j;
    even(&j, 4, 2, 1);
    slow(&j, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER, 0, 40);
    slow(&j, PS_STRAGGLER_LINK_IN, PS_ROLE_WORKER, 2, 90);
    assert_int_equal(judge(&j).rank, 2);
    assert_int_equal(judge(&j).cause, PS_STRAGGLER_LINK_IN);
}

/* The messages of a member without a processor wait, too. This looks like a slow link. */
TEST(who_lacks_the_processor_is_slow_itself)
{
    for (int role = PS_ROLE_SERVER; role <= PS_ROLE_WORKER; role++) {
        job j;
        even(&j, 3, 2, 1);
        slow_link(&j, (ps_role)role, 1, true, 60);
        assert_int_equal(judge(&j).cause, PS_STRAGGLER_LINK_IN);
        j.stall[role][1] = 0.5;
        assert_int_equal(judge(&j).cause, role == PS_ROLE_SERVER ? PS_STRAGGLER_SERVER
                                                                 : PS_STRAGGLER_COMPUTE);
        for (int w = 0; w < 3; w++) // no member gets a processor
            j.stall[PS_ROLE_WORKER][w] = 0.5;
        for (int k = 0; k < 2; k++)
            j.stall[PS_ROLE_SERVER][k] = 0.5;
        assert_int_equal(judge(&j).cause, PS_STRAGGLER_LINK_IN);
    }
}

/* On one host there is no link that could be slow. */
TEST(who_has_no_link_is_slow_itself)
{
    const bool none[MOST] = {false};
    for (int role = PS_ROLE_SERVER; role <= PS_ROLE_WORKER; role++) {
        job j;
        even(&j, 3, 2, 1);
        j.s.worker_linked = j.s.server_linked = none;
        slow_link(&j, (ps_role)role, 1, false, 60);
        assert_int_equal(judge(&j).rank, 1);
        assert_int_equal(judge(&j).cause, role == PS_ROLE_SERVER ? PS_STRAGGLER_SERVER
                                                                 : PS_STRAGGLER_COMPUTE);
    }
}

TEST(what_is_not_known_is_left_out)
{
    job j;
    even(&j, 3, 2, 1);
    j.busy[0] = NAN;
    j.way[0] = j.out[0] = j.in[0] = NAN;
    j.apply[1] = NAN;
    assert_int_equal(judge(&j).cause, PS_STRAGGLER_NONE);
    slow(&j, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER, 1, 40);
    assert_int_equal(judge(&j).rank, 1);
}

/* ---- over steps ---- */

static bool take(ps_straggler_watch *w, const job *j)
{
    return ps_straggler_take(w, &j->s);
}

/* A job of 3 workers and 2 servers: steps that are even, and such in which one is slow.
 */
static void watch(ps_straggler_watch *w, job *calm, job *bad, ps_straggler_cause cause,
                  ps_role role)
{
    even(calm, 3, 2, 1);
    even(bad, 3, 2, 1);
    slow(bad, cause, role, 1, 40);
    assert_ok(ps_straggler_init(w, 3, 2));
}

TEST(one_slow_step_is_chance)
{
    ps_straggler_watch w;
    job calm, bad;
    watch(&w, &calm, &bad, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER);
    for (int i = 0; i < 20; i++) {
        assert_false(take(&w, i % PS_STRAGGLER_ROUNDS == 0 ? &calm : &bad));
        assert_int_equal(w.named.cause, PS_STRAGGLER_NONE);
    }
    ps_straggler_fini(&w);
}

TEST(it_is_named_in_time_once_and_forgotten)
{
    ps_straggler_watch w;
    job calm, bad;
    watch(&w, &calm, &bad, PS_STRAGGLER_LINK_OUT, PS_ROLE_SERVER);
    for (int i = 1; i <= 10; i++)
        assert_int_equal(take(&w, &bad), i == PS_STRAGGLER_ROUNDS);
    assert_int_equal(w.named.cause, PS_STRAGGLER_LINK_OUT);
    assert_int_equal(w.named.rank, 1);
    for (int i = 1; i <= 10; i++)
        assert_int_equal(take(&w, &calm), i == PS_STRAGGLER_CALM);
    assert_int_equal(w.named.cause, PS_STRAGGLER_NONE);
    ps_straggler_fini(&w);
}

/* After the steps of years the same worker is named, by the same times. */
TEST(steps_are_counted_for_years)
{
    ps_straggler_watch w;
    job calm, bad;
    watch(&w, &calm, &bad, PS_STRAGGLER_LINK_OUT, PS_ROLE_SERVER);
    for (int i = 0; i < 20; i++)
        assert_false(take(&w, &calm));
    w.n_steps = w.calm = INT32_MAX;
    for (int i = 0; i < 20; i++)
        assert_false(take(&w, &calm));
    assert_true(w.n_steps > INT32_MAX && w.calm > INT32_MAX);
    for (int i = 1; i <= 10; i++)
        assert_int_equal(take(&w, &bad), i == PS_STRAGGLER_ROUNDS);
    w.rounds = w.by_cause[PS_STRAGGLER_LINK_OUT] = INT32_MAX;
    for (int i = 0; i < 10; i++)
        assert_false(take(&w, &bad));
    assert_int_equal(w.named.cause, PS_STRAGGLER_LINK_OUT);
    assert_int_equal(w.named.rank, 1);
    ps_straggler_fini(&w);
}

TEST(the_cause_of_most_steps_counts)
{
    ps_straggler_watch w;
    job link, starved;
    watch(&w, &link, &starved, PS_STRAGGLER_COMPUTE, PS_ROLE_WORKER);
    slow(&link, PS_STRAGGLER_LINK_IN, PS_ROLE_WORKER, 1, 40);
    for (int i = 1; i < PS_STRAGGLER_ROUNDS; i++)
        assert_false(take(&w, &starved));
    assert_true(take(&w, &link));
    assert_int_equal(w.named.cause, PS_STRAGGLER_COMPUTE);
    ps_straggler_fini(&w);
}

/* One server or one worker alone is compared only with its own earlier steps. */
TEST(who_is_alone_is_compared_with_before)
{
    ps_straggler_watch w;
    job calm, bad;
    even(&calm, 1, 1, 1);
    even(&bad, 1, 1, 1);
    slow(&bad, PS_STRAGGLER_SERVER, PS_ROLE_SERVER, 0, 40);
    assert_ok(ps_straggler_init(&w, 1, 1));
    for (int i = 0; i < 10; i++)
        assert_false(take(&w, &bad)); // there are no calm steps yet
    w.n_steps = 0;                    // forgets what it has learnt
    for (int i = 0; i < 20; i++)
        assert_false(take(&w, &calm));
    bool named = false;
    for (int i = 0; i < PS_STRAGGLER_ROUNDS; i++)
        named = take(&w, &bad);
    assert_true(named);
    assert_int_equal(w.named.cause, PS_STRAGGLER_SERVER);
    ps_straggler_fini(&w);
}

TEST(the_stopped_one_is_named_until_a_step_is_made)
{
    ps_straggler_watch w;
    job calm;
    even(&calm, 2, 2, 1);
    assert_ok(ps_straggler_init(&w, 2, 2));
    take(&w, &calm);
    assert_true(ps_straggler_stopped(&w, PS_ROLE_SERVER, 1, 1300));
    assert_false(ps_straggler_stopped(&w, PS_ROLE_SERVER, 1, 1800));
    assert_int_equal(w.named.cause, PS_STRAGGLER_STOPPED);
    assert_true(take(&w, &calm));
    assert_int_equal(w.named.cause, PS_STRAGGLER_NONE);
    ps_straggler_fini(&w);
}

/* ---- pace ---- */

static void check_pace(uint64_t step_ns, bool one_host)
{
    ps_pace a = {.one_host = one_host}, b = {.one_host = one_host};
    uint64_t told = 0, others = 0, both = 0, last = 0;
    for (uint64_t s = 0; s < 12000; s++) {
        const bool one = ps_pace_step(&a, s, 1 + s * step_ns);
        const bool two = ps_pace_step(&b, s, 1 + s * step_ns * 3 / 4);
        if (s < 2000) continue;
        told += one;
        others += two;
        both += one && two;
        if (one && last > 0)
            assert_true((s - last) * step_ns >= PS_PACE_FAST_MS * UINT64_C(1000000) ||
                        s - last == 1);
        if (one) last = s;
    }
    assert_true(told > 0 && others > 0);
    assert_true(both == (told < others ? told : others));
}

TEST(fast_steps_are_told_seldom_and_in_step)
{
    for (uint64_t step_ns = 100000; step_ns < 100000000; step_ns *= 7) {
        check_pace(step_ns, false);
        check_pace(step_ns, true);
    }
}

/* Of steps of 50 ms each one over a network, and every fourth on one host. */
TEST(one_host_tells_less)
{
    int told[2] = {0};
    for (int here = 0; here < 2; here++) {
        ps_pace p = {.one_host = here};
        for (uint64_t s = 0; s < 100; s++)
            told[here] += ps_pace_step(&p, s, 1 + s * 50000000);
    }
    assert_int_equal(told[0], 99);
    assert_int_equal(told[1], 24);
}

TEST(a_thread_that_wakes_late_was_stalled)
{
    const uint64_t ms = 1000000;
    ps_stall s = {0};
    uint64_t now = ms;
    for (int i = 0; i < 20; i++) // wakes in time
        now += (uint64_t)ps_stall_awake(&s, now) * ms;
    assert_true(ps_stall_share(&s, now) < 60000);
    for (int i = 0; i < 20; i++) // sleeps 40 ms instead of 20 ms
        now += (uint64_t)ps_stall_awake(&s, now) * ms + 20 * ms;
    assert_in_range(ps_stall_share(&s, now), 250000, 600000);
}
