/* Two levels of summation (exchange.levels 2). Ranks are threads that say on which host
 * they are. The weights must be bit for bit those of a serial loop that sums host by
 * host. */
#include <math.h>

#include "check.h"
#include "exchange_run.h"

#define LEVELS "exchange.levels=2"

TEST(any_servers_shards_chunks)
{
    static const char *const chunks[] = {"exchange.chunk=16384", "exchange.chunk=65536",
                                         "exchange.chunk=0"};
    static const char *const shards[] = {"server.shards=1", "server.shards=2"};
    for (int servers = 1; servers <= 3; servers++)
        for (int i = 0; i < 2; i++) {
            check_ps_bits(servers, 4, .sleeps = i ? (unsigned)servers : 0,
                          .pieces = i ? 0 : (unsigned)servers, HOSTS(0, 0, 1, 1),
                          SETS(LEVELS, chunks[(servers + i) % 3], shards[i],
                               "optimizer.name=adamw", "optimizer.lr=0.01",
                               "schedule.name=cosine"));
        }
}

/* Hosts of different sizes, in mixed order, one for all, one for each. The servers' host
 * has no worker. */
TEST(any_hosts)
{
    static const int hosts[][4] = {{0, 0, 0, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 1, 0},
                                   {0, 0, 0, 0}, {0, 1, 2, 3}, {0, 1, 1, 2}};
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        check_ps_bits(
            2, 4, .sleeps = 3 + (unsigned)i, .hosts = hosts[i],
            SETS(LEVELS, i % 2 ? "optimizer.clip_norm=0" : "optimizer.clip_norm=1.5",
                 "exchange.chunk=16384", "optimizer.name=sgd", "optimizer.momentum=0.9"));
    }
}

/* If every host has one worker, or one host has all, sums have the flat order. */
TEST(one_host_of_servers_and_workers)
{
    const test_run_options options = PS_JOB(
        2, 4, SETS(LEVELS, "exchange.shm=on", "server.shards=2", "optimizer.name=adamw"));
    test_run_result result;
    test_run(&options, &result);
    for (int r = 0; r < 4; r++) {
        if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
        assert_memory_equal(result.rank[r].params, result.want, result.bytes);
        assert_true(result.rank[r].stats.bytes_sent < result.bytes / 4);
    }
    test_run_fini(&result, 4);
}

static uint64_t pushes(const test_run_result *result, int servers)
{
    uint64_t n = 0;
    for (int i = 0; i < servers; i++)
        n += result->server[i].stats.pushes;
    return n;
}

/* Only leaders send. A leader sends as much as a worker that is alone on its host. */
TEST(a_host_crosses_the_network_once)
{
    test_run_options options =
        PS_JOB(1, 4, HOSTS(0, 0, 1, 1), SETS(LEVELS, "exchange.chunk=16384"));
    test_run_result four, two;
    test_run(&options, &four);
    options.workers = 2;
    options.hosts = (const int[]){0, 1};
    test_run(&options, &two);
    for (int r = 0; r < 4; r++) {
        const ps_exchange_stats *s = &four.rank[r].stats;
        if (four.rank[r].err != PS_OK) fail_msg("%s", four.rank[r].text);
        assert_int_equal(s->bytes_sent, r % 2 ? 0 : two.rank[r / 2].stats.bytes_sent);
        if (r % 2) assert_int_equal(s->bytes_received, 0);
        if (r % 2) assert_int_equal(s->shm_sent, TEST_STEPS * four.bytes);
    }
    assert_int_equal(pushes(&four, 1), pushes(&two, 1));
    test_run_fini(&four, 4);
    test_run_fini(&two, 2);
}

TEST(loss_scaling)
{
    static const test_overflow overflows[] = {
        {0, 1, INFINITY}, {2, 0, 3e38f}, {2, 1, 3e38f}, {3, 3, NAN}};
    for (int i = 0; i < 2; i++) {
        check_ps_bits(
            2, 4, .sleeps = 1 + (unsigned)i, HOSTS(0, 0, 1, 1), OVERFLOWS(overflows),
            SETS(LEVELS, i ? "optimizer.clip_norm=1.5" : "optimizer.clip_norm=0",
                 "optimizer.name=adamw", "loss_scale.use=on", "loss_scale.interval=2"));
    }
}

/* Every worker ends with the same bits, in any order of arrival. */
TEST(codecs)
{
    static const char *const sets[] = {"exchange.codec=fp16", "exchange.codec=int8",
                                       "exchange.codec=int4", "exchange.codec=onebit",
                                       "exchange.codec=topk"};
    for (int i = 0; i < (int)(sizeof sets / sizeof *sets); i++) {
        test_run_options options = PS_JOB(
            1 + i % 2, 4, HOSTS(0, 0, 1, 1),
            SETS(LEVELS, sets[i], "exchange.codec_warmup=1", "exchange.codec_cooldown=1",
                 "exchange.codec_min=1024", "optimizer.name=sgd", "optimizer.lr=0.01"));
        test_run_result a, b;
        test_run(&options, &a);
        options.sleeps = 17;
        test_run(&options, &b);
        for (int r = 0; r < 4; r++) {
            if (a.rank[r].err != PS_OK) fail_msg("%s: %s", sets[i], a.rank[r].text);
            assert_memory_equal(a.rank[r].params, a.rank[0].params, a.bytes);
            assert_memory_equal(b.rank[r].params, a.rank[0].params, a.bytes);
        }
        test_run_fini(&a, 4);
        test_run_fini(&b, 4);
    }
}

TEST(a_nan_ends_the_job_and_is_named)
{
    const test_run_options options =
        PS_JOB(2, 4, .fault = TEST_FAULT_NAN, HOSTS(0, 0, 1, 1), SETS(LEVELS));
    test_run_result result;
    test_run(&options, &result);
    for (int r = 0; r < 4; r++) {
        assert_int_not_equal(result.rank[r].err, PS_OK);
        if (!strstr(result.rank[r].text, "the gradient of worker 3 for") ||
            !strstr(result.rank[r].text, "in step 2"))
            fail_msg("rank %d: %s", r, result.rank[r].text);
    }
    test_run_fini(&result, 4);
}

/* Its leader names it: no other worker sees it. */
TEST(a_stopped_worker_is_named)
{
    const test_run_options options =
        PS_JOB(1, 2, .fault = TEST_FAULT_STOPPED, HOSTS(0, 0),
               SETS(LEVELS, "net.step_timeout_ms=5000"));
    test_run_result result;
    test_run(&options, &result);
    assert_int_equal(result.rank[0].err, PS_ERR_TIMEOUT);
    if (!strstr(result.rank[0].text, "worker 1 of this host has given no gradients"))
        fail_msg("%s", result.rank[0].text);
    assert_int_not_equal(result.rank[1].err, PS_OK);
    test_run_fini(&result, 2);
}
