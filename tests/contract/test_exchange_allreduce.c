/* The all-reduce exchanges over real members, ranks as threads: Gloo, and NCCL's path
 * with the stand-in library (fake_nccl.c), on host memory and on the stream of a GPU that
 * is the host (host_gpu.c). Gradients are small binary fractions, so that
 * every sum and every SGD step is exact and the expected weights are closed forms. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>
#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../support/free_port.h"
#include "device.h"
#include "device_stream.h"
#include "exchange_gloo.h"
#include "exchange_nccl.h"
#include "host_gpu.h"
#include "model_spec.h"

enum { MAX_WORLD = 4, MAX_TEXT = 64, MAX_OVERRIDES = 24 };

static void (*fake_break)(int rank, int after, int how);
static int (*fake_open)(void);
static void (*fake_hold)(bool hold);
static bool on_gpu; // ranks have the host for a GPU
enum { FAKE_FAIL = 1, FAKE_HANG = 2 };

typedef struct rank_run {
    const struct job *job;
    int rank;
    ps_config cfg;
    ps_model_spec spec;
    ps_plan plan;
    ps_step_rule rule;
    ps_shared_mem params, grads;
    float *buffers;
    ps_member *member;
    ps_device *device; // on_gpu, as is the stream
    ps_device_stream *stream;
    ps_exchange *x;
    ps_err err;
    char message[512];
    ps_exchange_stats stats;
    bool faulty_element; // of the next step's gradients
    float first, last;   // weights after the run
    float buffer;
} rank_run;

typedef struct job {
    const ps_exchange_ops *ops;
    int world;
    int port;
    const char *overrides[MAX_OVERRIDES];
    int n_overrides;
    ps_err (*run)(rank_run *r); // after start
    rank_run ranks[MAX_WORLD];
} job;

static float *params_of(rank_run *r)
{
    return r->params.base;
}

static ps_err set_up(rank_run *r)
{
    const job *j = r->job;
    PS_TRY(ps_config_load(&r->cfg, NULL, j->overrides, j->n_overrides));
    PS_TRY(ps_model_spec_init(&r->spec, &r->cfg));
    PS_TRY(ps_plan_init(&r->plan, &r->spec.table, (ps_chunk_size){0}, 1));
    PS_TRY(ps_step_rule_init(&r->rule, &r->cfg));
    PS_TRY(ps_step_rule_start(&r->rule, &r->cfg, 100));
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    PS_TRY(ps_shared_mem_init(&r->params, bytes, "parameters"));
    PS_TRY(ps_shared_mem_init(&r->grads, bytes, "gradients"));
    PS_TRY(
        ps_mem_zalloc_aligned(&r->buffers, r->spec.table.buffer_bytes + 64, "buffers"));
    char address[MAX_TEXT];
    snprintf(address, sizeof address, "tcp://127.0.0.1:%d", j->port);
    ps_member_options options = {
        .config = &r->cfg,
        .role = PS_ROLE_WORKER,
        .rank = r->rank,
        .world_size = j->world,
        .init_method = address,
        .plan_hash = r->plan.hash,
        .local_rank = r->rank,
    };
    return ps_member_join(&options, &r->member);
}

static ps_err open_stream(rank_run *r)
{
    const ps_device_options device = {.index = -1, .local_rank = -1};
    const ps_host_stream_options stream = {.table = &r->spec.table,
                                           .optimizer = &r->rule.optimizer,
                                           .params = r->params.base,
                                           .grads = r->grads.base,
                                           .buffers = r->buffers};
    if (!on_gpu) return PS_OK;
    PS_TRY(ps_device_open(PS_DEVICE_CUDA, &device, &r->device));
    return r->device->ops->stream_create(r->device, &stream, &r->stream);
}

/* Where the exchange finds them. */
static float *grads_of(const rank_run *r)
{
    return r->stream ? r->stream->ops->grads(r->stream) : r->grads.base;
}

static ps_err connect_rank(rank_run *r)
{
    PS_TRY(open_stream(r));
    ps_exchange_options options = {
        .config = &r->cfg,
        .table = &r->spec.table,
        .plan = &r->plan,
        .rule = &r->rule,
        .member = r->member,
        .rank = r->rank,
        .world_size = r->job->world,
        .params = &r->params,
        .grads = &r->grads,
        .buffers = r->buffers,
        .stream = r->stream,
    };
    PS_TRY(r->job->ops->create(&options, &r->x));
    for (uint64_t i = 0; i < r->spec.table.arena_count; i++)
        params_of(r)[i] = r->rank == 0 ? 1.0f : 99.0f;
    r->buffers[0] = (float)r->rank + 7;
    PS_TRY(ps_exchange_start(r->x));
    return r->job->run(r);
}

static void *rank_main(void *arg)
{
    rank_run *r = arg;
    r->err = set_up(r);
    if (r->err == PS_OK) r->err = connect_rank(r);
    if (r->err != PS_OK) snprintf(r->message, sizeof r->message, "%s", ps_err_message());
    if (r->x) ps_exchange_stats_get(r->x, &r->stats);
    if (r->err == PS_OK) { // else the exchange may still write
        r->first = params_of(r)[0];
        r->last = params_of(r)[r->spec.table.tensors[r->spec.table.n_tensors - 1].offset];
        r->buffer = r->buffers[0];
    }
    if (r->err == PS_OK) r->err = ps_exchange_stop(r->x);
    if (r->err == PS_OK) r->err = ps_member_leave(r->member, ps_deadline_in_ms(20000));
    ps_exchange_destroy(&r->x);
    if (r->stream) r->stream->ops->destroy(&r->stream);
    ps_device_close(&r->device);
    ps_member_destroy(&r->member);
    ps_shared_mem_fini(&r->params);
    ps_shared_mem_fini(&r->grads);
    free(r->buffers);
    ps_plan_fini(&r->plan);
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
    return NULL;
}

static void with(job *j, const char *override)
{
    j->overrides[j->n_overrides++] = override;
}

static void job_init(job *j, const ps_exchange_ops *ops, int world,
                     ps_err (*run)(rank_run *r))
{
    *j = (job){.ops = ops, .world = world, .port = test_free_port(), .run = run};
    with(j, "model.input=[3, 8, 8]");
    with(j, "model.layers=[{conv2d: {name: a, out: 4, kernel: 3}}, {batch_norm2d: {name: "
            "n}}, relu, flatten, {linear: {name: b, out: 70}}, relu, {linear: {name: c, "
            "out: 5}}, log_softmax]");
    with(j, "model.loss=nll");
    with(j, "optimizer.name=sgd");
    with(j, "optimizer.lr=0.5");
    with(j, "exchange.bucket=1000");
    with(j, "net.interface=lo");
    with(j, "net.join_timeout_ms=20000");
    with(j, "net.step_timeout_ms=20000");
}

static void run_job(job *j)
{
    pthread_t threads[MAX_WORLD];
    for (int r = 0; r < j->world; r++) {
        j->ranks[r].job = j;
        j->ranks[r].rank = r;
        pthread_create(&threads[r], NULL, rank_main, &j->ranks[r]);
    }
    for (int r = 0; r < j->world; r++)
        pthread_join(threads[r], NULL);
}

static void assert_all_ok(const job *j)
{
    for (int r = 0; r < j->world; r++) {
        if (j->ranks[r].err != PS_OK)
            print_error("rank %d: %s\n", r, j->ranks[r].message);
        assert_int_equal(j->ranks[r].err, PS_OK);
    }
}

/* Gradients given from the last to the first. */
static ps_err give_gradients(rank_run *r, float grad)
{
    for (int i = r->spec.table.n_tensors - 1; i >= 0; i--) {
        const ps_tensor *t = &r->spec.table.tensors[i];
        for (uint64_t k = 0; k < t->count; k++)
            grads_of(r)[t->offset + k] = grad;
        if (r->faulty_element && i == 2) grads_of(r)[t->offset] = NAN;
        PS_TRY(ps_exchange_grads_ready(r->x, i, 1));
    }
    return ps_exchange_finish(r->x);
}

/* A step as the device makes it, parameters asked for tensor by tensor. Those of a GPU
 * are looked at when they are drained. */
static ps_err one_step(rank_run *r, uint64_t step, float grad, float expected)
{
    if (r->stream) PS_TRY(ps_exchange_drain(r->x));
    PS_TRY(ps_exchange_begin(r->x, step));
    for (int i = 0; i < r->spec.table.n_tensors; i++) {
        PS_TRY(ps_exchange_params_needed(r->x, i, 1));
        const ps_tensor *t = &r->spec.table.tensors[i];
        for (uint64_t k = 0; k < t->count; k++)
            if (params_of(r)[t->offset + k] != expected)
                return ps_err_set(PS_ERR_INTERNAL, "step %d: %s[%d] is %g, not %g",
                                  (int)step, t->name, (int)k,
                                  (double)params_of(r)[t->offset + k], (double)expected);
    }
    return give_gradients(r, grad);
}

/* Rank r gives (r + 1) / 64 in every step: the sum is W (W + 1) / 128, the step half. */
static ps_err run_steps(rank_run *r)
{
    int w = r->job->world;
    float weight = 1;
    for (uint64_t step = 0; step < 20; step++) {
        PS_TRY(one_step(r, step, (float)(r->rank + 1) / 64, weight));
        weight -= 0.5f * (float)(w * (w + 1)) / 128;
    }
    PS_TRY(ps_exchange_drain(r->x));
    r->buffers[0] = (float)r->rank + 20;
    return ps_exchange_sync_buffers(r->x);
}

/* Gloo's two ways for gradients and weights: messages and the arenas themselves. */
static const char *const ways[] = {"exchange.shm=off", "exchange.shm=on"};

static void check_steps(const ps_exchange_ops *ops, const char *more)
{
    for (int w = 1; w <= MAX_WORLD; w++) {
        job j;
        job_init(&j, ops, w, run_steps);
        with(&j, more);
        run_job(&j);
        assert_all_ok(&j);
        float expected = 1 - 20 * 0.5f * (float)(w * (w + 1)) / 128;
        for (int r = 0; r < w; r++) {
            assert_float_equal(j.ranks[r].first, expected, 0);
            assert_float_equal(j.ranks[r].last, expected, 0);
            assert_float_equal(j.ranks[r].buffer, 20, 0);
        }
    }
}

static void test_gloo_sums_and_steps(void **state)
{
    check_steps(&ps_exchange_gloo_ops, ways[0]);
    check_steps(&ps_exchange_gloo_ops, ways[1]);
}

/* 2^24 + 1 is 2^24 in float32: only in the order of the ranks is the sum 0. */
static ps_err run_ordered(rank_run *r)
{
    static const float grads[] = {16777216, 1, -16777216};
    PS_TRY(one_step(r, 0, grads[r->rank], 1));
    return ps_exchange_drain(r->x);
}

static void test_gloo_sums_in_rank_order(void **state)
{
    for (int i = 0; i < 2; i++) {
        job j;
        job_init(&j, &ps_exchange_gloo_ops, 3, run_ordered);
        with(&j, ways[i]);
        run_job(&j);
        assert_all_ok(&j);
        for (int r = 0; r < 3; r++) {
            assert_float_equal(j.ranks[r].first, 1, 0);
            assert_float_equal(j.ranks[r].last, 1, 0);
        }
    }
}

/* Every bucket travels as its own range of the arena: with one tensor a bucket, its
 * elements. Parameters and buffers come once from rank 0, buffers once more. */
static void test_gloo_counts_bytes(void **state)
{
    job j;
    job_init(&j, &ps_exchange_gloo_ops, 2, run_steps);
    with(&j, "exchange.bucket=1");
    with(&j, ways[0]);
    run_job(&j);
    assert_all_ok(&j);
    uint64_t params = 4 * 27 + 4 + 4 + 4 + 70 * 144 + 70 + 350 + 5;
    uint64_t sent = j.ranks[0].stats.bytes_sent;
    assert_true(j.ranks[0].stats.computed);
    /* Gaps between tensors: at most 15 elements each. */
    assert_in_range(sent, 21 * params * 4, 21 * (params + 8 * 15) * 4 + 1000);
}

static ps_err run_clipped(rank_run *r)
{
    PS_TRY(one_step(r, 0, 0.25f, 1));
    return ps_exchange_drain(r->x);
}

/* n equal gradients of 0.5 have the norm 0.5 sqrt(n), clipped to 1 each is 1/sqrt(n). */
static void assert_clipped(const job *j)
{
    double n = 4 * 27 + 4 + 4 + 4 + 70 * 144 + 70 + 350 + 5;
    float expected = (float)(1 - 0.5 * 0.5 / (0.5 * sqrt(n) + 1e-6));
    assert_all_ok(j);
    for (int r = 0; r < 2; r++) {
        assert_float_equal(j->ranks[r].first, expected, 2e-7);
        assert_float_equal(j->ranks[r].last, expected, 2e-7);
    }
}

static void test_gloo_clips_the_whole_gradient(void **state)
{
    for (int i = 0; i < 2; i++) {
        job j;
        job_init(&j, &ps_exchange_gloo_ops, 2, run_clipped);
        with(&j, "optimizer.clip_norm=1");
        with(&j, ways[i]);
        run_job(&j);
        assert_clipped(&j);
    }
}

static ps_err run_nan(rank_run *r)
{
    PS_TRY(one_step(r, 0, r->rank == 1 ? NAN : 1.0f, 1));
    return ps_exchange_drain(r->x);
}

static void test_gloo_refuses_nan(void **state)
{
    for (int i = 0; i < 2; i++) {
        job j;
        job_init(&j, &ps_exchange_gloo_ops, 2, run_nan);
        with(&j, ways[i]);
        run_job(&j);
        for (int r = 0; r < 2; r++) {
            assert_int_equal(j.ranks[r].err, PS_ERR_NUMERIC);
            assert_non_null(strstr(j.ranks[r].message, "c."));
        }
    }
}

/* The last rank's gradients overflow in step 1, in one element of all in step 3; with an
 * interval of 2 the scale of 8 goes 8, 8 (skipped), 4, 4 (skipped), 2, 2, then grows. */
static ps_err run_scaled(rank_run *r)
{
    static const float scales[] = {8, 8, 4, 4, 2, 2, 4, 4};
    const int w = r->job->world;
    float weight = 1, scale;
    PS_TRY(ps_exchange_loss_scale(r->x, &scale));
    for (uint64_t step = 0; step < 8; step++) {
        if (scale != scales[step])
            return ps_err_set(PS_ERR_INTERNAL, "step %d: scale %g", (int)step,
                              (double)scale);
        bool faulty = r->rank == w - 1 && step == 1;
        float grad = (float)(r->rank + 1) / 64 * scale;
        r->faulty_element = r->rank == w - 1 && step == 3;
        PS_TRY(one_step(r, step, faulty ? INFINITY : grad, weight));
        PS_TRY(ps_exchange_loss_scale(r->x, &scale));
        if (step != 1 && step != 3) weight -= 0.5f * (float)(w * (w + 1)) / 128;
    }
    return ps_exchange_drain(r->x);
}

static void check_scaled(const ps_exchange_ops *ops, const char *more, const char *way)
{
    for (int w = 1; w <= 3; w++) {
        job j;
        job_init(&j, ops, w, run_scaled);
        with(&j, "loss_scale.use=on");
        with(&j, "loss_scale.init=8");
        with(&j, "loss_scale.interval=2");
        with(&j, more);
        with(&j, way);
        run_job(&j);
        assert_all_ok(&j);
        float expected = 1 - 6 * 0.5f * (float)(w * (w + 1)) / 128;
        for (int r = 0; r < w; r++) {
            assert_float_equal(j.ranks[r].first, expected, 0);
            assert_float_equal(j.ranks[r].last, expected, 0);
        }
    }
}

static void test_gloo_skips_what_overflows(void **state)
{
    check_scaled(&ps_exchange_gloo_ops, "exchange.bucket=1000", ways[0]);
    check_scaled(&ps_exchange_gloo_ops, "exchange.bucket=1000", ways[1]);
    check_scaled(&ps_exchange_gloo_ops, "optimizer.clip_norm=1000", ways[0]);
}

static ps_err run_unfinished(rank_run *r)
{
    PS_TRY(ps_exchange_begin(r->x, 0));
    PS_TRY(ps_exchange_grads_ready(r->x, r->spec.table.n_tensors - 1, 1));
    ps_err err = ps_exchange_finish(r->x);
    if (err != PS_ERR_INTERNAL) return ps_err_set(PS_ERR_ARG, "finish gave %d", err);
    err = ps_exchange_begin(r->x, 5);
    return err == PS_ERR_ARG ? PS_ERR_INTERNAL : PS_OK;
}

static void test_gloo_sees_misuse(void **state)
{
    job j;
    job_init(&j, &ps_exchange_gloo_ops, 1, run_unfinished);
    run_job(&j);
    assert_int_equal(j.ranks[0].err, PS_ERR_INTERNAL);
}

/* The last rank goes away after three steps, without a word. */
static ps_err run_until_one_is_gone(rank_run *r)
{
    int w = r->job->world;
    float weight = 1;
    for (uint64_t step = 0; step < 50; step++) {
        if (step == 3 && r->rank == w - 1) return ps_err_set(PS_ERR_IO, "gone");
        PS_TRY(one_step(r, step, (float)(r->rank + 1) / 64, weight));
        weight -= 0.5f * (float)(w * (w + 1)) / 128;
    }
    return ps_exchange_drain(r->x);
}

static void check_gone(const ps_exchange_ops *ops, int world, const char *way)
{
    job j;
    job_init(&j, ops, world, run_until_one_is_gone);
    with(&j, way);
    with(&j, "net.heartbeat_ms=100");
    with(&j, "net.dead_after_ms=2000");
    uint64_t begun = ps_clock_ns();
    run_job(&j);
    assert_true(ps_clock_ns() - begun < 15 * 1000000000ull);
    char name[MAX_TEXT];
    snprintf(name, sizeof name, "worker %d", world - 1);
    for (int r = 0; r < world - 1; r++) {
        print_message("rank %d: %s\n", r, j.ranks[r].message);
        assert_int_equal(j.ranks[r].err, PS_ERR_PEER);
        assert_non_null(strstr(j.ranks[r].message, name));
    }
}

static void test_gloo_names_the_rank_that_is_gone(void **state)
{
    check_gone(&ps_exchange_gloo_ops, 2, ways[1]);
    check_gone(&ps_exchange_gloo_ops, 4, ways[0]);
}

/* Where in a step the last rank goes away, or stands still. */
typedef enum moment {
    BEFORE_THE_LAST_SUMS, // some of its gradients are on their way, some never come
    AMONG_THE_WEIGHTS,    // it has those of the first layers: others are on their way
} moment;

static moment when;
static bool stays; // it stands still instead

/* The job of a wide model, of which a step takes a while, breaks in its third step. */
static ps_err run_until_it_breaks(rank_run *r)
{
    const bool breaks = r->rank == r->job->world - 1;
    for (uint64_t step = 0; step < 50; step++) {
        PS_TRY(ps_exchange_begin(r->x, step));
        PS_TRY(ps_exchange_params_needed(r->x, 0, 1));
        if (breaks && step == 3 && when == AMONG_THE_WEIGHTS) break;
        PS_TRY(ps_exchange_params_needed(r->x, 0, r->spec.table.n_tensors));
        for (int i = r->spec.table.n_tensors - 1; i >= 0; i--) {
            if (breaks && step == 2 && i == 0 && when == BEFORE_THE_LAST_SUMS)
                goto broken;
            PS_TRY(ps_exchange_grads_ready(r->x, i, 1));
        }
        PS_TRY(ps_exchange_finish(r->x));
    }
broken:
    if (!breaks) return ps_exchange_drain(r->x);
    const ps_deadline enough = ps_deadline_in_ms(20000);
    while (stays && ps_member_check(r->member) == PS_OK && !ps_deadline_passed(enough))
        usleep(1000);
    return ps_err_set(PS_ERR_IO, "gone");
}

static void check_broken_step(moment at, bool stops)
{
    job j;
    when = at;
    stays = stops;
    job_init(&j, &ps_exchange_gloo_ops, 4, run_until_it_breaks);
    with(&j, "model.input=[512]");
    with(&j, "model.layers=[{linear: {name: a, out: 1024}}, relu, {linear: {name: b, "
             "out: 1024}}, log_softmax]");
    with(&j, ways[0]);
    with(&j, "net.heartbeat_ms=100");
    with(&j, "net.dead_after_ms=2000");
    with(&j, "net.step_timeout_ms=1000");
    uint64_t begun = ps_clock_ns();
    run_job(&j);
    assert_true(ps_clock_ns() - begun < 15 * 1000000000ull);
    int named = 0;
    for (int r = 0; r < 3; r++) {
        print_message("rank %d: %s\n", r, j.ranks[r].message);
        assert_int_not_equal(j.ranks[r].err, PS_OK);
        named += strstr(j.ranks[r].message, stops ? "net.step_timeout_ms" : "worker 3") !=
                 NULL;
    }
    // of a job that stands still the first to say so may be gone before the others are
    assert_true(stops ? named > 0 : named == 3);
}

static void test_gloo_survives_a_death_among_the_sums(void **state)
{
    check_broken_step(BEFORE_THE_LAST_SUMS, false);
}

static void test_gloo_survives_a_death_among_the_weights(void **state)
{
    check_broken_step(AMONG_THE_WEIGHTS, false);
}

static void test_gloo_waits_no_longer_than_it_may(void **state)
{
    check_broken_step(BEFORE_THE_LAST_SUMS, true);
}

/* Sums that depend on their order, of a model of many segments, parts and buckets: equal
 * to those of one thread that adds rank by rank, whatever arrives first. */
static float odd_gradient(int rank, uint64_t step, uint64_t i)
{
    uint64_t x =
        (i + 1) * 0x9E3779B97F4A7C15u + (uint64_t)rank * 0xD1B54A32D192ED03u + step;
    x ^= x >> 31;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 27;
    return ldexpf((float)(int32_t)(x >> 32), (int)(x % 40) - 60);
}

static ps_err check_odd_weights(const rank_run *r, uint64_t steps)
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
            if (((const float *)r->params.base)[i] == weight) continue;
            return ps_err_set(PS_ERR_INTERNAL, "%s[%d] differs",
                              r->spec.table.tensors[t].name, (int)k);
        }
    return PS_OK;
}

static ps_err run_odd(rank_run *r)
{
    enum { STEPS = 3 };
    for (uint64_t step = 0; step < STEPS; step++) {
        PS_TRY(ps_exchange_begin(r->x, step));
        PS_TRY(ps_exchange_params_needed(r->x, 0, r->spec.table.n_tensors));
        for (int i = r->spec.table.n_tensors - 1; i >= 0; i--) {
            const ps_tensor *t = &r->spec.table.tensors[i];
            for (uint64_t k = 0; k < t->count; k++)
                grads_of(r)[t->offset + k] = odd_gradient(r->rank, step, t->offset + k);
            PS_TRY(ps_exchange_grads_ready(r->x, i, 1));
        }
        PS_TRY(ps_exchange_finish(r->x));
    }
    PS_TRY(ps_exchange_drain(r->x));
    return check_odd_weights(r, STEPS);
}

static void test_gloo_adds_every_element_in_rank_order(void **state)
{
    static const char *const buckets[] = {"exchange.bucket=100000",
                                          "exchange.bucket=25000000"};
    for (int w = 2; w <= MAX_WORLD; w++)
        for (int i = 0; i < 4; i++) {
            job j;
            job_init(&j, &ps_exchange_gloo_ops, w, run_odd);
            with(&j, "model.input=[300]");
            with(&j, "model.layers=[{linear: {name: a, out: 700}}, relu, {linear: {name: "
                     "b, out: 33}}, relu, {linear: {name: c, out: 900}}, log_softmax]");
            with(&j, buckets[i / 2]);
            with(&j, ways[i % 2]);
            run_job(&j);
            assert_all_ok(&j);
        }
}

/* ---------------------------------------------------------- NCCL with the stand-in */

static void test_nccl_sums_and_steps(void **state)
{
    check_steps(&ps_exchange_nccl_ops, ways[0]);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_skips_what_overflows(void **state)
{
    check_scaled(&ps_exchange_nccl_ops, "exchange.bucket=1", ways[0]);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_names_the_rank_that_is_gone(void **state)
{
    check_gone(&ps_exchange_nccl_ops, 3, ways[0]);
    assert_int_equal(fake_open(), 0);
}

static void check_broken(int how, ps_err expected)
{
    job j;
    job_init(&j, &ps_exchange_nccl_ops, 2, run_steps);
    with(&j, "net.step_timeout_ms=500");
    with(&j, "net.heartbeat_ms=100");
    with(&j, "net.dead_after_ms=300");
    fake_break(1, 5, how);
    uint64_t begun = ps_clock_ns();
    run_job(&j);
    fake_break(-1, 0, 0);
    assert_true(ps_clock_ns() - begun < 10 * 1000000000ull);
    /* One of the two sees it first; the other may learn it from the coordinator. */
    assert_true(j.ranks[0].err != PS_OK && j.ranks[1].err != PS_OK);
    assert_true(j.ranks[0].err == expected || j.ranks[1].err == expected);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_reports_asynchronous_errors(void **state)
{
    check_broken(FAKE_FAIL, PS_ERR_NET);
}

static void test_nccl_aborts_at_the_deadline(void **state)
{
    check_broken(FAKE_HANG, PS_ERR_TIMEOUT);
}

/* Nobody waits for a sum, nor for the step behind it: with all sums held back, the next
 * step begins, its parameters can be had, and the weights are right in the end. */
static ps_err run_held(rank_run *r)
{
    fake_hold(true);
    PS_TRY(ps_exchange_begin(r->x, 0));
    PS_TRY(give_gradients(r, (float)(r->rank + 1) / 64));
    PS_TRY(ps_exchange_begin(r->x, 1));
    PS_TRY(ps_exchange_params_needed(r->x, 0, r->spec.table.n_tensors));
    PS_TRY(ps_member_barrier(r->member, "all are here", ps_deadline_in_ms(20000)));
    fake_hold(false);
    // the gradients lie there until the first step is made
    PS_TRY(r->stream->ops->to_host(r->stream, PS_STREAM_PARAMS));
    PS_TRY(give_gradients(r, 0));
    return ps_exchange_drain(r->x);
}

static void test_nccl_waits_for_no_sum_on_a_gpu(void **state)
{
    job j;
    job_init(&j, &ps_exchange_nccl_ops, 3, run_held);
    run_job(&j);
    assert_all_ok(&j);
    for (int r = 0; r < 3; r++)
        assert_float_equal(j.ranks[r].first, 1 - 0.5f * 12 / 128, 0);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_refuses_nan_on_a_gpu(void **state)
{
    job j;
    job_init(&j, &ps_exchange_nccl_ops, 2, run_nan);
    run_job(&j);
    int numeric = 0;
    for (int r = 0; r < 2; r++) {
        // the first to know may be gone before the other has asked
        assert_true(j.ranks[r].err == PS_ERR_NUMERIC || j.ranks[r].err == PS_ERR_PEER);
        if (j.ranks[r].err != PS_ERR_NUMERIC) continue;
        assert_non_null(strstr(j.ranks[r].message, "step 0"));
        numeric++;
    }
    assert_true(numeric > 0);
    assert_int_equal(fake_open(), 0);
}

static void test_nccl_clips_on_a_gpu(void **state)
{
    job j;
    job_init(&j, &ps_exchange_nccl_ops, 2, run_clipped);
    with(&j, "optimizer.clip_norm=1");
    run_job(&j);
    assert_clipped(&j);
}

static int load_stand_in(void **state)
{
    void *lib = dlopen(PS_FAKE_NCCL, RTLD_NOW);
    if (!lib) {
        print_error("%s\n", dlerror());
        return -1;
    }
    *(void **)&fake_break = dlsym(lib, "fake_nccl_break");
    *(void **)&fake_open = dlsym(lib, "fake_nccl_open_communicators");
    *(void **)&fake_hold = dlsym(lib, "fake_nccl_hold");
    return fake_break && fake_open && fake_hold ? 0 : -1;
}

static int take_the_host_for_a_gpu(void **state)
{
    void (*queue)(void (*push)(void *, bool (*)(void *), const void *, size_t));
    *(void **)&queue = dlsym(dlopen(PS_FAKE_NCCL, RTLD_NOW), "fake_nccl_queue");
    on_gpu = true;
    if (!queue) return -1;
    queue(host_gpu_poll);
    return 0;
}

/* Before the stand-in is loaded: a machine without NCCL, or with it and without a GPU. */
static ps_err run_nothing(rank_run *r)
{
    return PS_OK;
}

/* In a process of its own: a library that was found stays, in the stand-in's place. */
static void test_nccl_on_the_cpu_is_unsupported(void **state)
{
    int status;
    pid_t child = fork();
    if (child == 0) {
        job j;
        job_init(&j, &ps_exchange_nccl_ops, 1, run_nothing);
        run_job(&j);
        const rank_run *r = &j.ranks[0];
        _exit(r->err == PS_ERR_UNSUPPORTED && strstr(r->message, "nccl") ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    const struct CMUnitTest gloo[] = {
        cmocka_unit_test(test_gloo_sums_and_steps),
        cmocka_unit_test(test_gloo_sums_in_rank_order),
        cmocka_unit_test(test_gloo_counts_bytes),
        cmocka_unit_test(test_gloo_clips_the_whole_gradient),
        cmocka_unit_test(test_gloo_skips_what_overflows),
        cmocka_unit_test(test_gloo_refuses_nan),
        cmocka_unit_test(test_gloo_sees_misuse),
        cmocka_unit_test(test_gloo_names_the_rank_that_is_gone),
        cmocka_unit_test(test_gloo_survives_a_death_among_the_sums),
        cmocka_unit_test(test_gloo_survives_a_death_among_the_weights),
        cmocka_unit_test(test_gloo_waits_no_longer_than_it_may),
        cmocka_unit_test(test_gloo_adds_every_element_in_rank_order),
        cmocka_unit_test(test_nccl_on_the_cpu_is_unsupported),
    };
    const struct CMUnitTest nccl[] = {
        cmocka_unit_test(test_nccl_sums_and_steps),
        cmocka_unit_test(test_nccl_skips_what_overflows),
        cmocka_unit_test(test_nccl_names_the_rank_that_is_gone),
        cmocka_unit_test(test_nccl_reports_asynchronous_errors),
        cmocka_unit_test(test_nccl_aborts_at_the_deadline),
    };
    const struct CMUnitTest nccl_on_gpu[] = {
        cmocka_unit_test(test_nccl_sums_and_steps),
        cmocka_unit_test(test_nccl_skips_what_overflows),
        cmocka_unit_test(test_nccl_names_the_rank_that_is_gone),
        cmocka_unit_test(test_nccl_reports_asynchronous_errors),
        cmocka_unit_test(test_nccl_aborts_at_the_deadline),
        cmocka_unit_test(test_nccl_waits_for_no_sum_on_a_gpu),
        cmocka_unit_test(test_nccl_refuses_nan_on_a_gpu),
        cmocka_unit_test(test_nccl_clips_on_a_gpu),
    };
    // As ps-worker does: Gloo writes to connections that a dead rank has closed.
    signal(SIGPIPE, SIG_IGN);
    int failed = cmocka_run_group_tests_name("gloo", gloo, NULL, NULL);
    failed += cmocka_run_group_tests_name("nccl stand-in", nccl, load_stand_in, NULL);
    return failed + cmocka_run_group_tests_name("nccl stand-in on a GPU", nccl_on_gpu,
                                                take_the_host_for_a_gpu, NULL);
}
