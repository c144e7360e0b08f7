/* All-reduce over Gloo: sums in the order of the ranks, clipping, loss scaling, and ranks
 * that die or stand still in the middle of a step. */
#include <math.h>
#include <signal.h>

#include "allreduce_run.h"
#include "check.h"
#include "clock.h"

TEST(test_gloo_sums_and_steps)
{
    allreduce_check_steps("exchange.name=gloo", allreduce_ways[0]);
    allreduce_check_steps("exchange.name=gloo", allreduce_ways[1]);
}

/* 2^24 + 1 is 2^24 in float32, so the sum is 0 only in the order of the ranks. */
static ps_err run_ordered(allreduce_rank *r)
{
    static const float grads[] = {16777216, 1, -16777216};
    PS_TRY(allreduce_step(r, 0, grads[r->rank], 1));
    return ps_session_drain(r->session);
}

TEST(test_gloo_sums_in_rank_order)
{
    for (int i = 0; i < 2; i++) {
        allreduce_job j;
        allreduce_run(&j, 3, run_ordered, "exchange.name=gloo", allreduce_ways[i]);
        allreduce_assert_weights(&j, 1, 0);
    }
}

/* Every bucket travels as a range of the arena; here each bucket is one tensor. Rank 0
 * sends the parameters and buffers once, and the buffers once more. */
TEST(test_gloo_counts_bytes)
{
    allreduce_job j;
    allreduce_run(&j, 2, allreduce_train, "exchange.name=gloo", "exchange.bucket=1",
                  allreduce_ways[0]);
    allreduce_assert_ok(&j);
    uint64_t params = 4 * 27 + 4 + 4 + 4 + 70 * 144 + 70 + 350 + 5;
    uint64_t sent = j.ranks[0].stats.bytes_sent;
    assert_true(j.ranks[0].stats.computed);
    /* Each gap between tensors has at most 15 elements. */
    assert_in_range(sent, 21 * params * 4, 21 * (params + 8 * 15) * 4 + 1000);
}

TEST(test_gloo_clips_the_whole_gradient)
{
    for (int i = 0; i < 2; i++) {
        allreduce_job j;
        allreduce_run(&j, 2, allreduce_run_clipped, "exchange.name=gloo",
                      "optimizer.clip_norm=1", allreduce_ways[i]);
        allreduce_assert_clipped(&j);
    }
}

TEST(test_gloo_refuses_nan)
{
    for (int i = 0; i < 2; i++) {
        allreduce_job j;
        allreduce_run(&j, 2, allreduce_run_nan, "exchange.name=gloo", allreduce_ways[i]);
        allreduce_assert_nan(&j, "c.");
    }
}

TEST(test_gloo_skips_what_overflows)
{
    allreduce_check_scaled("exchange.name=gloo", "exchange.bucket=1000",
                           allreduce_ways[0]);
    allreduce_check_scaled("exchange.name=gloo", "exchange.bucket=1000",
                           allreduce_ways[1]);
    allreduce_check_scaled("exchange.name=gloo", "optimizer.clip_norm=1000",
                           allreduce_ways[0]);
}

static ps_err run_unfinished(allreduce_rank *r)
{
    PS_TRY(ps_session_begin(r->session, 0));
    PS_TRY(ps_session_push(r->session, r->spec.table.n_tensors - 1, 1));
    ps_err err = ps_session_finish(r->session);
    if (err != PS_ERR_INTERNAL) return ps_err_set(PS_ERR_ARG, "finish gave %d", err);
    err = ps_session_begin(r->session, 5);
    return err == PS_ERR_ARG ? PS_ERR_INTERNAL : PS_OK;
}

TEST(test_gloo_sees_misuse)
{
    allreduce_job j;
    allreduce_run(&j, 1, run_unfinished, "exchange.name=gloo");
    assert_int_equal(j.ranks[0].err, PS_ERR_ARG);
}

TEST(test_gloo_names_the_rank_that_is_gone)
{
    allreduce_check_gone("exchange.name=gloo", 2, allreduce_ways[1]);
    allreduce_check_gone("exchange.name=gloo", 4, allreduce_ways[0]);
    allreduce_check_gone("exchange.name=gloo", 4, allreduce_ways[1]);
}

/* Where in a step the last rank goes away, or stands still. */
typedef enum moment {
    BEFORE_THE_LAST_SUMS, // some of its gradients are on their way, some never come
    AMONG_THE_WEIGHTS,    // it has the first layers' weights; others are on their way
} moment;

static moment when;
static bool stays; // it stands still instead

/* The job breaks in its third step. Its model is wide, so that a step takes a while. */
static ps_err run_until_it_breaks(allreduce_rank *r)
{
    const bool breaks = r->rank == r->job->world - 1;
    for (uint64_t step = 0; step < 50; step++) {
        PS_TRY(ps_session_begin(r->session, step));
        PS_TRY(ps_session_wait(r->session, 0, 1));
        if (breaks && step == 3 && when == AMONG_THE_WEIGHTS) break;
        PS_TRY(ps_session_wait(r->session, 0, r->spec.table.n_tensors));
        for (int i = r->spec.table.n_tensors - 1; i >= 0; i--) {
            if (breaks && step == 2 && i == 0 && when == BEFORE_THE_LAST_SUMS)
                goto broken;
            PS_TRY(ps_session_push(r->session, i, 1));
        }
        PS_TRY(ps_session_finish(r->session));
    }
broken:
    if (!breaks) return ps_session_drain(r->session);
    if (stays)
        (void)ps_member_cause(ps_session_member(r->session), ps_deadline_in_ms(20000));
    return ps_err_set(PS_ERR_IO, "gone");
}

static void check_broken_step(moment at, bool stops, const char *way)
{
    allreduce_job j;
    when = at;
    stays = stops;
    allreduce_run(&j, 4, run_until_it_breaks, "exchange.name=gloo", "model.input=[512]",
                  "model.layers=[{linear: {name: a, out: 1024}}, relu, {linear: {name: "
                  "b, out: 1024}}, log_softmax]",
                  way, stops ? "net.step_timeout_ms=1000" : way,
                  stops ? ALLREDUCE_VERDICT : way);
    int named = 0;
    for (int r = 0; r < 3; r++) {
        print_message("rank %d: %s\n", r, j.ranks[r].message);
        assert_int_not_equal(j.ranks[r].err, PS_OK);
        named += strstr(j.ranks[r].message, stops ? "net.step_timeout_ms" : "worker 3") !=
                 NULL;
    }
    // the first rank to report the standstill may leave before the others report it
    assert_true(stops ? named > 0 : named == 3);
}

TEST(test_gloo_survives_a_death_among_the_sums)
{
    check_broken_step(BEFORE_THE_LAST_SUMS, false, allreduce_ways[0]);
    check_broken_step(BEFORE_THE_LAST_SUMS, false, allreduce_ways[1]);
}

TEST(test_gloo_survives_a_death_among_the_weights)
{
    check_broken_step(AMONG_THE_WEIGHTS, false, allreduce_ways[0]);
    check_broken_step(AMONG_THE_WEIGHTS, false, allreduce_ways[1]);
}

TEST(test_gloo_waits_no_longer_than_it_may)
{
    check_broken_step(BEFORE_THE_LAST_SUMS, true, allreduce_ways[0]);
    check_broken_step(BEFORE_THE_LAST_SUMS, true, allreduce_ways[1]);
}

/* Sums that depend on the order of their terms, in a model of many segments, parts and
 * buckets, equal those of one thread that adds rank by rank, in any order of arrival. */
static float odd_gradient(int rank, uint64_t step, uint64_t i)
{
    uint64_t x =
        (i + 1) * 0x9E3779B97F4A7C15u + (uint64_t)rank * 0xD1B54A32D192ED03u + step;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    return ldexpf((float)(int32_t)(x >> 32), (int)(x % 40) - 60);
}

static ps_err check_odd_weights(const allreduce_rank *r, uint64_t steps)
{
    for (int t = 0; t < r->spec.table.n_tensors; t++)
        for (uint64_t k = 0; k < r->spec.table.tensors[t].count; k++) {
            const uint64_t i = r->spec.table.tensors[t].offset + k;
            float weight = 1;
            for (uint64_t s = 0; s < steps; s++) {
                float sum = odd_gradient(0, s, i);
                for (int rank = 1; rank < r->job->world; rank++)
                    sum += odd_gradient(rank, s, i);
                weight -= 0.5f * sum;
            }
            if (allreduce_params(r)[i] == weight) continue;
            return ps_err_set(PS_ERR_INTERNAL, "%s[%d] differs",
                              r->spec.table.tensors[t].name, (int)k);
        }
    return PS_OK;
}

static ps_err run_odd(allreduce_rank *r)
{
    enum { STEPS = 3 };
    for (uint64_t step = 0; step < STEPS; step++) {
        PS_TRY(ps_session_begin(r->session, step));
        PS_TRY(ps_session_wait(r->session, 0, r->spec.table.n_tensors));
        for (int i = r->spec.table.n_tensors - 1; i >= 0; i--) {
            const ps_tensor *t = &r->spec.table.tensors[i];
            for (uint64_t k = 0; k < t->count; k++)
                allreduce_grads(r)[t->offset + k] =
                    odd_gradient(r->rank, step, t->offset + k);
            PS_TRY(ps_session_push(r->session, i, 1));
        }
        PS_TRY(ps_session_finish(r->session));
    }
    PS_TRY(ps_session_drain(r->session));
    return check_odd_weights(r, STEPS);
}

TEST(test_gloo_adds_every_element_in_rank_order)
{
    static const char *const buckets[] = {"exchange.bucket=100000",
                                          "exchange.bucket=25000000"};
    for (int w = 2; w <= ALLREDUCE_WORKERS_MAX; w++)
        for (int i = 0; i < 4; i++) {
            allreduce_job j;
            allreduce_run(&j, w, run_odd, "exchange.name=gloo", "model.input=[300]",
                          "model.layers=[{linear: {name: a, out: 700}}, relu, {linear: "
                          "{name: b, out: 33}}, relu, {linear: {name: c, out: 900}}, "
                          "log_softmax]",
                          buckets[i / 2], allreduce_ways[i % 2]);
            allreduce_assert_ok(&j);
        }
}

int main(void)
{
    // ps-worker does the same: Gloo writes to connections that a dead rank has closed.
    signal(SIGPIPE, SIG_IGN);
    return check_run(NULL, NULL);
}
