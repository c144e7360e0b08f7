/* The effect of encoded gradients and weights on training. */
#include <math.h>

#include "check.h"
#include "exchange_run.h"
#include "model_spec.h"

/* Returns |a - b| / |b - start|: 0 is exact, 1 is as bad as no step at all. */
static double relative_error(const test_run_result *result, const float *got,
                             const float *start)
{
    double error = 0, way = 0;
    for (size_t i = 0; i < result->bytes / sizeof(float); i++) {
        double e = (double)got[i] - result->want[i];
        double w = (double)result->want[i] - start[i];
        error += e * e;
        way += w * w;
    }
    return sqrt(error / way);
}

static float *start_weights(const test_run_options *options)
{
    test_job job;
    test_job_start(&job, 0, options->workers, options->sets, options->n_sets);
    float *start = calloc(job.table->arena_count, sizeof *start);
    test_first_weights(&job.spec, start);
    test_job_end(&job);
    return start;
}

typedef struct codec_case {
    const char *set;
    double error;  // of six random steps, relative to their length
    double volume; // bytes sent relative to uncoded ones, without first weights
} codec_case;

/* Gradients and weights are encoded. Every worker ends with the same bits, in any order
 * of arrival. The weights are close to those of float32, and fewer bytes travel. */
TEST(codecs)
{
    static const codec_case cases[] = {
        {"exchange.codec=fp16", 1.0 / 1024, 0.52},
        {"exchange.codec=bf16", 1.0 / 128, 0.52},
        {"exchange.codec=int8", 0.05, 0.28},
        {"exchange.codec=int4", 0.5, 0.15},
        {"exchange.codec=onebit", 1.0, 0.07},
        {"exchange.codec=topk", 1.0, 0.32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        test_run_options options =
            PS_JOB(2, 3,
                   SETS(cases[i].set, "exchange.topk=0.125", "exchange.codec_warmup=0",
                        "exchange.codec_cooldown=0", "exchange.codec_min=1024",
                        "optimizer.name=sgd", "optimizer.lr=0.01",
                        i % 2 ? "optimizer.clip_norm=0" : "optimizer.clip_norm=5"));
        test_run_result a, b;
        test_run(&options, &a);
        options.sleeps = 17;
        test_run(&options, &b);
        float *start = start_weights(&options);
        for (int r = 0; r < 3; r++) {
            if (a.rank[r].err != PS_OK) fail_msg("%s", a.rank[r].text);
            assert_memory_equal(a.rank[r].params, a.rank[0].params, a.bytes);
            assert_memory_equal(b.rank[r].params, a.rank[0].params, a.bytes);
        }
        double error = relative_error(&a, a.rank[0].params, start);
        if (!(error < cases[i].error)) fail_msg("%s: error %g", cases[i].set, error);
        const ps_exchange_stats *stats = &a.rank[1].stats; // rank 0 sent first weights
        double volume = (double)stats->bytes_sent / (TEST_STEPS * (double)a.bytes);
        if (!(volume < cases[i].volume)) fail_msg("%s: volume %g", cases[i].set, volume);
        assert_true(stats->raw_bytes >= TEST_STEPS * a.bytes);
        free(start);
        test_run_fini(&a, 3);
        test_run_fini(&b, 3);
    }
}

/* With plain SGD the final weights show the sum of all gradients that have travelled,
 * whatever their steps. When int8 comes last, this sum has the residuals of int4, onebit
 * and topk. */
TEST(cooldown_brings_what_was_kept)
{
    static const char *const sets[] = {"exchange.codec=int4", "exchange.codec=onebit",
                                       "exchange.codec=topk"};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        double error[2];
        for (int cooldown = 0; cooldown < 2; cooldown++) {
            const test_run_options options = PS_JOB(
                2, 2,
                SETS(sets[i], "exchange.codec_warmup=2", "exchange.codec_min=1024",
                     cooldown ? "exchange.codec_cooldown=1" : "exchange.codec_cooldown=0",
                     "optimizer.name=sgd", "optimizer.lr=0.01"));
            test_run_result result;
            test_run(&options, &result);
            if (result.rank[0].err != PS_OK) fail_msg("%s", result.rank[0].text);
            float *start = start_weights(&options);
            error[cooldown] = relative_error(&result, result.rank[0].params, start);
            free(start);
            test_run_fini(&result, 2);
        }
        if (!(error[1] < 0.02 && error[0] > 5 * error[1]))
            fail_msg("%s: %g without, %g with", sets[i], error[0], error[1]);
    }
}

static double distance_from_best(const ps_config *cfg, const float *params, int workers)
{
    ps_model_spec spec;
    assert_ok(ps_model_spec_init(&spec, cfg));
    double now = 0, at_first = 0;
    for (int t = 0; t < spec.table.n_tensors; t++)
        for (uint64_t k = 0; k < spec.table.tensors[t].count; k++) {
            uint64_t i = spec.table.tensors[t].offset + k;
            double best = 0;
            for (int r = 0; r < workers; r++)
                best += test_noise(r, 77, i) / (double)workers;
            now += (params[i] - best) * (params[i] - best);
            at_first += (test_noise(99, 0, i) - best) * (test_noise(99, 0, i) - best);
        }
    ps_model_spec_fini(&spec);
    return sqrt(now / at_first);
}

/* 9,800 weights instead of 50,000, since the steps are many. */
#define SMALL_MODEL                                                                      \
    "model.layers=[{conv2d: {name: conv, out: 4, kernel: 3}}, "                          \
    "{batch_norm2d: {name: bn}}, flatten, {linear: {name: a, out: 101}}, relu, "         \
    "{linear: {name: b, out: 30}}, {linear: {name: c, out: 3}}]"

/* Measures by how much the distance from the best weights shrinks in 300 steps with a
 * learning rate that falls to zero. An encoding sends later what it leaves out. So even
 * signs or an eighth of the numbers lead to the same weights. */
static double left_after_300_steps(const char *codec, const char *warmup,
                                   const char *optimizer, const char *lr)
{
    const test_run_options options = PS_JOB(
        2, 2, .steps = 300, .quadratic = true,
        SETS(SMALL_MODEL, codec, warmup, optimizer, lr, "exchange.shm=off",
             "exchange.topk=0.125", "exchange.codec_min=0", "exchange.codec_cooldown=0",
             "optimizer.weight_decay=0", "schedule.name=linear"));
    test_run_result result;
    test_run(&options, &result);
    test_job job;
    test_job_start(&job, 0, 2, options.sets, options.n_sets); // its configuration
    double left = 0;
    for (int r = 0; r < 2; r++) {
        if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
        left = fmax(left, distance_from_best(&job.cfg, result.rank[r].params, 2));
    }
    test_job_end(&job);
    test_run_fini(&result, 2);
    return left;
}

/* Uncoded, SGD's distance shrinks by 1 - lr a step, to 2e-7 in all; Adam moves each
 * weight by at most lr a step, 7.5 in all for ways of at most 2. After exact steps Adam's
 * second moments are small, so residuals move it more. */
TEST(codecs_converge)
{
    static const struct {
        const char *codec, *warmup;
        double sgd, adam;
    } cases[] = {{"exchange.codec=none", "exchange.codec_warmup=0", 1e-6, 1e-2},
                 {"exchange.codec=fp16", "exchange.codec_warmup=0", 5e-4, 1e-2},
                 {"exchange.codec=bf16", "exchange.codec_warmup=0", 4e-3, 1e-2},
                 {"exchange.codec=int8", "exchange.codec_warmup=0", 1e-3, 1e-2},
                 {"exchange.codec=int4", "exchange.codec_warmup=0", 1e-2, 1e-2},
                 {"exchange.codec=onebit", "exchange.codec_warmup=0", 1e-2, 1e-2},
                 {"exchange.codec=topk", "exchange.codec_warmup=0", 1e-2, 1e-2},
                 {"exchange.codec=onebit", "exchange.codec_warmup=32", 1e-2, 3e-2},
                 {"exchange.codec=topk", "exchange.codec_warmup=32", 1e-2, 3e-2}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double sgd = left_after_300_steps(cases[i].codec, cases[i].warmup,
                                          "optimizer.name=sgd", "optimizer.lr=0.1");
        if (!(sgd < cases[i].sgd)) fail_msg("%s: SGD: %g left", cases[i].codec, sgd);
        double adam = left_after_300_steps(cases[i].codec, cases[i].warmup,
                                           "optimizer.name=adamw", "optimizer.lr=0.05");
        if (!(adam < cases[i].adam)) fail_msg("%s: Adam: %g left", cases[i].codec, adam);
    }
}

/* Encoded values and their sums depend neither on the number of servers and shards nor
 * on the cuts of tensors. Weights of 19,264 and 30,100 elements are cut; small tensors
 * are in the same chunks or in chunks of their own. */
TEST(codecs_any_servers)
{
    static const char *const sets[] = {"exchange.codec=fp16",   "exchange.codec=bf16",
                                       "exchange.codec=int8",   "exchange.codec=int4",
                                       "exchange.codec=onebit", "exchange.codec=topk"};
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++) {
        static const char *const chunks[] = {
            "exchange.chunk=16KiB", "exchange.chunk=1MiB", "exchange.chunk=64KiB"};
        float *first = NULL;
        for (int servers = 1; servers <= 3; servers++) {
            const test_run_options options =
                PS_JOB(servers, 2 + (int)i % 2, .sleeps = (unsigned)servers * 7,
                       .pieces = servers == 3 ? 5 : 0,
                       SETS(sets[i], servers == 2 ? "server.shards=2" : "server.shards=1",
                            chunks[servers - 1], "exchange.codec_warmup=2",
                            "exchange.codec_cooldown=2", "exchange.codec_min=1024",
                            "optimizer.name=adamw"));
            test_run_result result;
            test_run(&options, &result);
            for (int r = 0; r < options.workers; r++) {
                if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
                if (!first) {
                    first = malloc(result.bytes);
                    memcpy(first, result.rank[r].params, result.bytes);
                }
                assert_memory_equal(result.rank[r].params, first, result.bytes);
            }
            test_run_fini(&result, options.workers);
        }
        free(first);
    }
}
