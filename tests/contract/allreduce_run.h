/* A job in all-reduce mode whose ranks are threads, each with a session. Gradients are
 * small binary fractions, so that every sum and every step of SGD is exact and the
 * expected weights are closed forms. A failure fails the test. */
#ifndef PS_TEST_ALLREDUCE_RUN_H
#define PS_TEST_ALLREDUCE_RUN_H

#include <stdatomic.h>

#include "device_stream.h"
#include "model_spec.h"
#include "session.h"

enum { ALLREDUCE_WORKERS_MAX = 4, ALLREDUCE_SETS_MAX = 24 };

typedef struct allreduce_rank {
    struct allreduce_job *job;
    int rank;
    char address[64]; // of the coordinator
    ps_config cfg;
    ps_model_spec spec;
    ps_session *session;
    ps_device *device; // allreduce_on_gpu, as is the stream
    ps_device_ops noting;
    ps_device_stream *stream; // the session's
    ps_err err;
    char message[512];
    ps_exchange_stats stats;
    bool faulty_element; // of the next step's gradients
    float first, last;   // weights after the run
    float buffer;
} allreduce_rank;

typedef struct allreduce_job {
    int world;
    int port;
    const char *sets[ALLREDUCE_SETS_MAX + 1]; // NULL at the end
    ps_err (*run)(allreduce_rank *r);         // after start
    atomic_int refused; // ranks whose step was refused: allreduce_run_nan
    allreduce_rank ranks[ALLREDUCE_WORKERS_MAX];
} allreduce_job;

extern bool allreduce_on_gpu; // the host is the ranks' GPU
/* Settings for Gloo's two ways to exchange gradients and weights: by messages, and by the
 * arenas themselves. */
extern const char *const allreduce_ways[2];

/* Runs a job of that many ranks, with further settings, to its end, successful or not: a
 * small model with a batch norm; rank 0's weights are 1, the other ranks' 99. */
#define allreduce_run(j, world, body, ...)                                               \
    allreduce_run_with(j, world, body, (const char *const[]){__VA_ARGS__, NULL})
void allreduce_run_with(allreduce_job *j, int world, ps_err (*run)(allreduce_rank *r),
                        const char *const *settings);
/* Setting: a rank with an error waits that long, and two heartbeats, for the coordinator
 * to say who died. */
#define ALLREDUCE_VERDICT "net.dead_after_ms=5000"
void allreduce_assert_ok(const allreduce_job *j);
/* All ranks are well, with these weights. */
void allreduce_assert_weights(const allreduce_job *j, float expected, double bound);
/* All ranks have NUMERIC, with these words. */
void allreduce_assert_nan(const allreduce_job *j, const char *words);

/* Where the exchange finds them. */
float *allreduce_params(const allreduce_rank *r);
float *allreduce_grads(const allreduce_rank *r);
/* Gives gradients from the last tensor to the first, and finishes the step. */
ps_err allreduce_give(allreduce_rank *r, float grad);
/* A step as a device makes it: it asks for parameters tensor by tensor, and all have to
 * be `expected`. On a GPU they are drained first. */
ps_err allreduce_step(allreduce_rank *r, uint64_t step, float grad, float expected);

/* 20 steps; rank r gives (r + 1) / 64 in each, so that the sum is W (W + 1) / 128 and the
 * step half of it. */
ps_err allreduce_train(allreduce_rank *r);
/* Makes those steps with 1 to 4 workers. more: one more setting. */
void allreduce_check_steps(const char *exchange, const char *more);
/* Gradients that overflow in two of eight steps: these are skipped. */
void allreduce_check_scaled(const char *exchange, const char *more, const char *way);
/* The last rank goes away after three steps without a goodbye. The others name it. */
void allreduce_check_gone(const char *exchange, int world, const char *way);

/* One step of two ranks that is clipped: n equal gradients of 0.5 have the norm
 * 0.5 sqrt(n), so each becomes 1 / sqrt(n). */
ps_err allreduce_run_clipped(allreduce_rank *r);
void allreduce_assert_clipped(const allreduce_job *j);
/* One step in which rank 1 gives NaN. */
ps_err allreduce_run_nan(allreduce_rank *r);

#endif
