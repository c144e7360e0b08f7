/* The exchanges ps and none. Ranks are threads. The final weights must be bit for bit
 * those of a serial loop that adds gradients in rank order and steps the optimizer. */
#include "check.h"
#include "exchange_run.h"

TEST(tcp_any_size)
{
    static const char *const chunks[] = {"exchange.chunk=16384", "exchange.chunk=65536",
                                         "exchange.chunk=0"};
    for (int workers = 1; workers <= 4; workers++)
        for (int servers = 1; servers <= 3; servers++) {
            check_ps_bits(servers, workers, .sleeps = (unsigned)(workers * 10 + servers),
                          SETS("exchange.shm=off", chunks[(workers + servers) % 2],
                               "optimizer.name=adamw", "optimizer.lr=0.01",
                               "schedule.name=cosine"));
        }
}

TEST(tcp_several_shards_a_server)
{
    for (int workers = 2; workers <= 3; workers++) {
        check_ps_bits(2, workers, .sleeps = 3,
                      SETS("exchange.shm=off", "server.shards=2", "optimizer.name=sgd",
                           "optimizer.lr=0.05", "optimizer.momentum=0.9",
                           "optimizer.nesterov=true", "optimizer.weight_decay=0.01"));
    }
}

/* The optimizers whose state differs from Adam's. */
TEST(every_optimizer)
{
    static const char *const names[] = {
        "optimizer={name: rmsprop, momentum: 0.9, centered: true, eps: 0.01}",
        "optimizer={name: adagrad, initial_accumulator_value: 0.1, lr_decay: 0.1}",
        "optimizer={name: lion, weight_decay: 0.1, lr: 0.01}"};
    for (int i = 0; i < 6; i++) {
        const bool alone = i % 2;
        const test_run_options options = {.exchange =
                                              alone ? PS_EXCHANGE_NONE : PS_EXCHANGE_PS,
                                          .servers = alone ? 0 : 2,
                                          .workers = alone ? 1 : 3,
                                          SETS("exchange.chunk=16384", names[i / 2])};
        test_run_check_bits(&options);
    }
}

TEST(clipping)
{
    static const char *const shm[] = {"exchange.shm=off", "exchange.shm=on"};
    for (int i = 0; i < 4; i++) {
        check_ps_bits(2, 1 + i, .sleeps = i % 2 ? 5 : 0,
                      SETS(shm[i % 2], "server.shards=2", "optimizer.name=adamw",
                           "optimizer.clip_norm=1.5", "exchange.credit=20000"));
    }
}

TEST(ranges_of_gradients)
{
    static const char *const shm[] = {"exchange.shm=off", "exchange.shm=on"};
    static const char *const clip[] = {"optimizer.clip_norm=0",
                                       "optimizer.clip_norm=1.5"};
    for (int i = 0; i < 4; i++) {
        check_ps_bits(2, 1 + i, .sleeps = i % 2 ? 5 : 0, .pieces = 1 + (unsigned)i,
                      SETS(shm[i % 2], clip[i / 2], "exchange.chunk=16384",
                           "optimizer.name=adamw"));
    }
    check_bits_alone(.pieces = 7, SETS("optimizer.name=adam", "schedule.name=linear"));
}

/* Also where cores are short, and a shard is woken with the last gradients of a step. */
TEST(shared_memory)
{
    static const char *const threads[] = {"train.threads=1", "train.threads=1024"};
    for (int i = 0; i < 8; i++) {
        const int workers = 1 + i / 2;
        const test_run_options options =
            PS_JOB(1 + workers % 3, workers, .sleeps = workers % 2 ? 9 : 0,
                   SETS("exchange.shm=on", threads[i % 2], "optimizer.name=adamw",
                        "server.shards=2", "exchange.chunk=16384"));
        test_run_result result;
        test_run(&options, &result);
        for (int r = 0; r < workers; r++) {
            if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
            assert_memory_equal(result.rank[r].params, result.want, result.bytes);
            // Only headers travel: far less than one payload of all weights.
            assert_true(result.rank[r].stats.bytes_sent < result.bytes / 4);
        }
        test_run_fini(&result, workers);
    }
}

/* As where some workers are on the servers' host: the order stays that of ranks. */
TEST(memory_and_sockets)
{
    for (unsigned sockets = 1; sockets < 7; sockets++) {
        check_ps_bits(
            2, 3, .sleeps = sockets, .sockets = sockets,
            SETS(sockets % 2 ? "optimizer.clip_norm=0" : "optimizer.clip_norm=1.5",
                 "optimizer.name=adamw", "exchange.chunk=16384"));
    }
}

/* Credits from less than a chunk to more than a shard. */
TEST(small_credits)
{
    static const char *const credits[] = {"exchange.credit=1", "exchange.credit=17000",
                                          "exchange.credit=40000"};
    for (int i = 0; i < 3; i++) {
        check_ps_bits(1, 2, SETS("exchange.shm=off", credits[i]));
    }
}

TEST(without_exchange)
{
    check_bits_alone(SETS("optimizer.name=adam", "schedule.name=linear"));
    check_bits_alone(SETS("optimizer.name=adamw", "optimizer.clip_norm=0.5"));
}

TEST(a_nan_ends_the_job_and_is_named)
{
    static const char *const ways[] = {"exchange.shm=off", "exchange.shm=on",
                                       "exchange.codec=int8", "exchange.codec=topk"};
    for (int i = 0; i < 4; i++) {
        const test_run_options options =
            PS_JOB(2, 2, .fault = TEST_FAULT_NAN, SETS(ways[i]));
        test_run_result result;
        test_run(&options, &result);
        for (int r = 0; r < 2; r++) {
            assert_int_not_equal(result.rank[r].err, PS_OK);
            if (!strstr(result.rank[r].text, "the gradient of worker 1 for") ||
                !strstr(result.rank[r].text, "in step 2"))
                fail_msg("rank %d: %s", r, result.rank[r].text);
        }
        assert_int_not_equal(result.server[0].err, PS_OK);
        assert_int_not_equal(result.server[1].err, PS_OK);
        test_run_fini(&result, 2);
    }
}

TEST(a_stopped_worker_is_noticed)
{
    const test_run_options options =
        PS_JOB(1, 2, .fault = TEST_FAULT_STOPPED,
               SETS("exchange.shm=off", "net.step_timeout_ms=4000"));
    test_run_result result;
    test_run(&options, &result);
    assert_int_equal(result.rank[0].err, PS_ERR_TIMEOUT);
    if (!strstr(result.rank[0].text, "of server 0") ||
        !strstr(result.rank[0].text, "chunk"))
        fail_msg("%s", result.rank[0].text);
    assert_int_not_equal(result.rank[1].err, PS_OK);
    test_run_fini(&result, 2);
}

TEST(a_lost_goodbye_ends_no_finished_job)
{
    check_ps_bits(2, 2, .fault = TEST_FAULT_NO_BYE,
                  SETS("server.shards=2", "net.step_timeout_ms=4000"));
}
