/* Loss scaling over the exchange: a step that overflows anywhere is skipped everywhere.
 */
#include <math.h>

#include "check.h"
#include "exchange_run.h"

#include "../vectors/loss_scale_vectors.h"

/* Steps that overflow in a worker, in its sum with another's, or nowhere. */
static const test_overflow some_overflows[] = {
    {0, 0, INFINITY}, {2, 0, 3e38f}, {2, 1, 3e38f}, {3, 1, NAN}};

/* If a gradient overflows anywhere, no shard makes the step. A gradient that only
 * overflows in the sum of two workers is no reason to skip where there is one worker. */
TEST(a_step_that_overflows_is_skipped_everywhere)
{
    static const char *const ways[] = {"exchange.shm=off", "exchange.shm=on",
                                       "optimizer.clip_norm=1.5",
                                       "loss_scale.init=1234.5"};
    for (int workers = 1; workers <= 3; workers++)
        for (int i = 0; i < 4; i++) {
            check_ps_bits(1 + (i + workers) % 3, workers,
                          .sleeps = (unsigned)(i + workers), OVERFLOWS(some_overflows),
                          SETS(ways[i], "server.shards=2", "optimizer.name=adamw",
                               "schedule.name=linear", "loss_scale.use=on",
                               "loss_scale.interval=2"));
        }
    check_bits_alone(OVERFLOWS(some_overflows),
                     SETS("optimizer.name=adam", "loss_scale.use=on",
                          "loss_scale.init=777", "optimizer.clip_norm=1.5"));
}

/* Powers of two scale without rounding, so the results are those without a scale. */
TEST(a_scale_that_nothing_overflows_changes_no_bit)
{
    static const char *const scales[] = {"loss_scale.use=off", "loss_scale.use=on"};
    test_run_result result[2];
    for (int i = 0; i < 2; i++) {
        const test_run_options options = PS_JOB(
            2, 2, SETS(scales[i], "optimizer.momentum=0.9", "optimizer.clip_norm=2"));
        test_run(&options, &result[i]);
        if (result[i].rank[0].err != PS_OK) fail_msg("%s", result[i].rank[0].text);
    }
    assert_memory_equal(result[0].rank[1].params, result[1].rank[1].params,
                        result[0].bytes);
    assert_float_equal(result[1].rank[1].scales[TEST_STEPS], 65536, 0);
    test_run_fini(&result[0], 2);
    test_run_fini(&result[1], 2);
}

static void check_case(const struct scaled_case *c, const test_rank *r, bool clipped)
{
    if (r->err != PS_OK) fail_msg("%s", r->text);
    for (int step = 0; step <= SCALED_STEPS; step++) {
        assert_float_equal(r->scales[step], c->scales[step], 0);
        for (int i = 0; i < 8 && step > 0; i++) {
            float got = r->weights[step][i], want = c->weights[step - 1][i];
            // PyTorch adds a norm's squares in float32, we in double.
            float error = fabsf(got - want), most = clipped ? 1e-6f : 0;
            if (!(error <= most))
                fail_msg("%s, step %d: weight %d is %a, PyTorch's %a", c->settings[1],
                         step, i, (double)got, (double)want);
        }
    }
}

/* A scale of 2^17 puts this gradient's largest elements (up to 1.1) beyond fp16's 65504:
 * they travel as infinity, not as 65504, and every worker backs off. */
TEST(fp16_on_the_way_overflows_too)
{
    static const char *const codecs[] = {"exchange.codec=fp16", "exchange.codec=bf16",
                                         "exchange.codec=int8"};
    for (size_t i = 0; i < 3; i++) {
        const test_run_options options = PS_JOB(
            2, 2,
            SETS(codecs[i], "exchange.codec_min=1024", "optimizer.name=sgd",
                 "optimizer.lr=0.01", "loss_scale.use=on", "loss_scale.init=131072"));
        test_run_result result;
        test_run(&options, &result);
        float last = i == 0 ? 32768 : 131072;
        for (int r = 0; r < 2; r++) {
            if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
            assert_float_equal(result.rank[r].scales[TEST_STEPS], last, 0);
            assert_memory_equal(result.rank[r].params, result.rank[0].params,
                                result.bytes);
        }
        test_run_fini(&result, 2);
    }
}

TEST(as_torch_amp_gradscaler)
{
    for (size_t i = 0; i < sizeof scaled_cases / sizeof *scaled_cases; i++) {
        const struct scaled_case *c = &scaled_cases[i];
        const char *sets[3 + SCALED_SETTINGS] = {
            "model.input=[3]", "model.layers=[{linear: {name: l, out: 2}}]",
            i % 2 ? "exchange.shm=off" : "exchange.shm=on"};
        int n = 3;
        bool clipped = false;
        for (int k = 0; k < SCALED_SETTINGS && c->settings[k]; k++) {
            sets[n++] = c->settings[k];
            clipped = clipped || strstr(c->settings[k], "clip_norm");
        }
        const test_run_options options =
            PS_JOB(1, 2, .steps = SCALED_STEPS, OVERFLOWS(scaled_overflows), .sets = sets,
                   .n_sets = n);
        test_run_result result;
        test_run(&options, &result);
        for (int r = 0; r < 2; r++)
            check_case(c, &result.rank[r], clipped);
        test_run_fini(&result, 2);
    }
}
