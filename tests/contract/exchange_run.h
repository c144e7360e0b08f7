/* A job whose ranks are threads, each with an exchange, and whose servers are those of
 * test_job.h. */
#ifndef PS_TEST_EXCHANGE_RUN_H
#define PS_TEST_EXCHANGE_RUN_H

#include "exchange.h"
#include "serial_training.h"
#include "test_job.h"

enum {
    TEST_STEPS_MAX = 16, // of which weights are recorded
    TEST_FAULT_NONE = 0,
    TEST_FAULT_NAN,     // a gradient
    TEST_FAULT_STOPPED, // the rank stops
    TEST_FAULT_NO_BYE   // the rank leaves without a goodbye to the shards
};

typedef struct test_run_options {
    ps_exchange_kind exchange;
    int servers, workers;
    const char *const *sets;
    int n_sets;
    unsigned sleeps; // seed of random pauses; 0: none
    int fault;       // of the last rank, in step 2
    uint64_t steps;  // 0: TEST_STEPS
    unsigned pieces; // seed of ranges that are pushed in any order; 0: tensor by tensor
    bool quadratic;  // the loss is a worker's distance from its goal, squared
    test_overflows overflows;
    /* By rank: the number of the host on which it says it is. With exchange.levels 2 each
     * host is summed first. NULL: all are on this host and are summed in rank order. */
    const int *hosts;
    unsigned sockets; // a bit for each rank that shares no memory, whatever sets say
} test_run_options;

typedef struct test_rank {
    const test_run_options *run;
    test_job *job;
    int rank;
    pthread_t thread;
    ps_err err;
    char text[512];
    float *params; // the final arena; owned
    bool buffers_right;
    ps_exchange_stats stats;
    float scales[TEST_STEPS_MAX + 1];     // before each step, and after the last
    float weights[TEST_STEPS_MAX + 1][8]; // likewise; only for the model of the vectors
} test_rank;

typedef struct test_run_result {
    test_rank rank[TEST_JOB_MAX];
    test_job_server server[TEST_JOB_MAX];
    float *want;
    size_t bytes;
} test_run_result;

#define SETS(...)                                                                        \
    .sets = (const char *const[]){__VA_ARGS__},                                          \
    .n_sets = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

#define HOSTS(...)                                                                       \
    .hosts = (const int[])                                                               \
    {                                                                                    \
        __VA_ARGS__                                                                      \
    }

#define OVERFLOWS(some) .overflows = {(some), sizeof(some) / sizeof *(some)}

/* Options of a job with servers; after their numbers, more options. */
#define PS_JOB(n_servers, n_workers, ...)                                                \
    {                                                                                    \
        .exchange = PS_EXCHANGE_PS, .servers = (n_servers), .workers = (n_workers),      \
        __VA_ARGS__                                                                      \
    }

/* Runs the job to its end, successful or not. */
void test_run(const test_run_options *options, test_run_result *out);
void test_run_fini(test_run_result *result, int workers);
/* Runs the job and checks that every rank ends with the weights of the serial loop. */
void test_run_check_bits(const test_run_options *options);
#define check_ps_bits(...) test_run_check_bits(&(test_run_options)PS_JOB(__VA_ARGS__))
/* Of a worker without an exchange. */
#define check_bits_alone(...)                                                            \
    test_run_check_bits(                                                                 \
        &(test_run_options){.exchange = PS_EXCHANGE_NONE, .workers = 1, __VA_ARGS__})

#endif
