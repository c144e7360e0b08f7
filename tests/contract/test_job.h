/* A job whose servers are threads of the test, with real shards and real sockets. */
#ifndef PS_TEST_JOB_H
#define PS_TEST_JOB_H

#include <pthread.h>

#include "model_spec.h"
#include "server.h"

enum { TEST_JOB_MAX = 4, TEST_JOB_SETS = 32 };

typedef struct test_job_server {
    struct test_job *job;
    int rank;
    pthread_t thread;
    _Atomic(ps_server *) server; // while it runs
    ps_err err;
    char text[512];
    ps_shard_stats stats;
} test_job_server;

typedef struct test_job {
    ps_config cfg;
    ps_model_spec spec;           // of test_job_start
    const ps_tensor_table *table; // the spec's, or one without a model
    char init_method[64];
    int servers, workers;
    test_job_server server[TEST_JOB_MAX];
} test_job;

/* The caller sets cfg, table, servers and workers; this starts the servers' threads and
 * sets the rest. */
void test_job_serve(test_job *job);
/* Sets all of these itself. The model is small and has every kind of tensor and several
 * chunks. sets has more settings. */
void test_job_start(test_job *job, int servers, int workers, const char *const *sets,
                    int n_sets);
/* Joins as a worker. */
ps_err test_job_join(const test_job *job, int rank, uint64_t plan_hash, ps_member **out);
/* Puts job/total_steps, as rank 0's trainer does. */
ps_err test_job_put_steps(ps_member *member, uint64_t steps);
/* Waits for the servers; their results are in job->server. */
void test_job_end(test_job *job);

#endif
