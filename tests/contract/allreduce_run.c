#include "allreduce_run.h"

#include <math.h>
#include <pthread.h>
#include <time.h>

#include "../support/free_port.h"
#include "check.h"

enum { TOTAL_STEPS = 100 };

const char *const allreduce_ways[2] = {"exchange.shm=off", "exchange.shm=on"};
bool allreduce_on_gpu;

/* ---- a rank ---- */

float *allreduce_params(const allreduce_rank *r)
{
    return ps_session_params(r->session);
}

float *allreduce_grads(const allreduce_rank *r)
{
    return r->stream ? r->stream->grads : ps_session_grads(r->session);
}

static float *buffer_of(const allreduce_rank *r)
{
    return ps_session_buffers(r->session);
}

static ps_err join(allreduce_rank *r)
{
    const allreduce_job *j = r->job;
    char workers[32];
    const char *all[ALLREDUCE_SETS_MAX + 1] = {workers};
    snprintf(workers, sizeof workers, "job.workers=%d", j->world);
    snprintf(r->address, sizeof r->address, "tcp://127.0.0.1:%d", j->port);
    int n = 1;
    for (; j->sets[n - 1]; n++)
        all[n] = j->sets[n - 1];
    PS_TRY(ps_config_load(&r->cfg, NULL, all, n));
    PS_TRY(ps_model_spec_init(&r->spec, &r->cfg));
    const ps_session_options options = {.config = &r->cfg,
                                        .table = &r->spec.table,
                                        .init_method = r->address,
                                        .rank = r->rank,
                                        .local_rank = r->rank};
    PS_TRY(ps_session_create(&options, &r->session));
    return ps_session_join(r->session, TOTAL_STEPS);
}

/* The rank of this thread gets the stream that its session opens. */
static _Thread_local allreduce_rank *self;
static _Thread_local const ps_device_ops *device_ops; // what the device had before

static ps_err note_stream(ps_device *device, const ps_host_stream_options *options,
                          ps_device_stream **out)
{
    PS_TRY(device_ops->stream_create(device, options, out));
    self->stream = *out;
    return PS_OK;
}

static ps_err open_device(allreduce_rank *r)
{
    const ps_device_options options = {.index = -1, .local_rank = -1};
    if (!allreduce_on_gpu) return PS_OK;
    PS_TRY(ps_device_open(PS_DEVICE_CUDA, &options, &r->device));
    self = r;
    device_ops = r->device->ops;
    r->noting = *r->device->ops;
    r->noting.stream_create = note_stream;
    r->device->ops = &r->noting;
    return PS_OK;
}

static ps_err start(allreduce_rank *r)
{
    for (uint64_t i = 0; i < r->spec.table.arena_count; i++)
        allreduce_params(r)[i] = r->rank == 0 ? 1.0f : 99.0f;
    *buffer_of(r) = (float)r->rank + 7;
    return ps_session_start(r->session, r->device, NULL);
}

static void note_results(allreduce_rank *r)
{
    const ps_tensor_table *table = &r->spec.table;
    r->first = allreduce_params(r)[0];
    r->last = allreduce_params(r)[table->tensors[table->n_tensors - 1].offset];
    r->buffer = *buffer_of(r);
    ps_session_stats(r->session, &r->stats);
}

static void *rank_main(void *arg)
{
    allreduce_rank *r = arg;
    r->err = join(r);
    if (r->err == PS_OK) r->err = open_device(r);
    if (r->err == PS_OK) r->err = start(r);
    if (r->err == PS_OK) r->err = r->job->run(r);
    if (r->err != PS_OK) snprintf(r->message, sizeof r->message, "%s", ps_err_message());
    if (r->err == PS_OK) note_results(r); // else the exchange may still write
    if (r->err == PS_OK) r->err = ps_session_close(r->session);
    ps_session_destroy(&r->session);
    ps_device_close(&r->device);
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
    return NULL;
}

/* ---- a job ---- */

void allreduce_run_with(allreduce_job *j, int world, ps_err (*run)(allreduce_rank *r),
                        const char *const *settings)
{
    pthread_t threads[ALLREDUCE_WORKERS_MAX];
    // Nothing here waits a minute, not even on a machine that is busy with forty tests.
    *j = (allreduce_job){
        .world = world,
        .port = test_free_port(),
        .run = run,
        .sets = {"model.input=[3, 8, 8]",
                 "model.layers=[{conv2d: {name: a, out: 4, kernel: 3}}, {batch_norm2d: "
                 "{name: n}}, relu, flatten, {linear: {name: b, out: 70}}, relu, "
                 "{linear: {name: c, out: 5}}, log_softmax]",
                 "model.loss=nll", "optimizer.name=sgd", "optimizer.lr=0.5",
                 "exchange.bucket=1000", "net.interface=lo", "net.join_timeout_ms=60000",
                 "net.step_timeout_ms=60000", "net.dead_after_ms=60000"}};
    int n = 0;
    while (j->sets[n])
        n++;
    for (int i = 0; settings[i]; i++, n++) {
        assert_in_range(n, 0, ALLREDUCE_SETS_MAX - 1);
        j->sets[n] = settings[i];
    }
    for (int r = 0; r < j->world; r++) {
        j->ranks[r].job = j;
        j->ranks[r].rank = r;
        pthread_create(&threads[r], NULL, rank_main, &j->ranks[r]);
    }
    for (int r = 0; r < j->world; r++)
        pthread_join(threads[r], NULL);
}

void allreduce_assert_ok(const allreduce_job *j)
{
    for (int r = 0; r < j->world; r++) {
        if (j->ranks[r].err != PS_OK)
            print_error("rank %d: %s\n", r, j->ranks[r].message);
        assert_ok(j->ranks[r].err);
    }
}

void allreduce_assert_weights(const allreduce_job *j, float expected, double bound)
{
    allreduce_assert_ok(j);
    for (int r = 0; r < j->world; r++) {
        assert_float_equal(j->ranks[r].first, expected, bound);
        assert_float_equal(j->ranks[r].last, expected, bound);
    }
}

void allreduce_assert_nan(const allreduce_job *j, const char *words)
{
    for (int r = 0; r < j->world; r++) {
        assert_int_equal(j->ranks[r].err, PS_ERR_NUMERIC);
        assert_non_null(strstr(j->ranks[r].message, words));
    }
}

ps_err allreduce_give(allreduce_rank *r, float grad)
{
    for (int i = r->spec.table.n_tensors - 1; i >= 0; i--) {
        const ps_tensor *t = &r->spec.table.tensors[i];
        for (uint64_t k = 0; k < t->count; k++)
            allreduce_grads(r)[t->offset + k] = grad;
        if (r->faulty_element && i == 2) allreduce_grads(r)[t->offset] = NAN;
        PS_TRY(ps_session_push(r->session, i, 1));
    }
    return ps_session_finish(r->session);
}

ps_err allreduce_step(allreduce_rank *r, uint64_t step, float grad, float expected)
{
    if (r->stream) PS_TRY(ps_session_drain(r->session));
    PS_TRY(ps_session_begin(r->session, step));
    for (int i = 0; i < r->spec.table.n_tensors; i++) {
        PS_TRY(ps_session_wait(r->session, i, 1));
        const ps_tensor *t = &r->spec.table.tensors[i];
        for (uint64_t k = 0; k < t->count; k++)
            if (allreduce_params(r)[t->offset + k] != expected)
                return ps_err_set(
                    PS_ERR_INTERNAL, "step %d: %s[%d] is %g, not %g", (int)step, t->name,
                    (int)k, (double)allreduce_params(r)[t->offset + k], (double)expected);
    }
    return allreduce_give(r, grad);
}

ps_err allreduce_train(allreduce_rank *r)
{
    int w = r->job->world;
    float weight = 1;
    for (uint64_t step = 0; step < 20; step++) {
        PS_TRY(allreduce_step(r, step, (float)(r->rank + 1) / 64, weight));
        weight -= 0.5f * (float)(w * (w + 1)) / 128;
    }
    PS_TRY(ps_session_drain(r->session));
    *buffer_of(r) = (float)r->rank + 20;
    return ps_session_sync_buffers(r->session);
}

void allreduce_check_steps(const char *exchange, const char *more)
{
    for (int w = 1; w <= ALLREDUCE_WORKERS_MAX; w++) {
        allreduce_job j;
        allreduce_run(&j, w, allreduce_train, exchange, more);
        allreduce_assert_weights(&j, 1 - 20 * 0.5f * (float)(w * (w + 1)) / 128, 0);
        for (int r = 0; r < w; r++)
            assert_float_equal(j.ranks[r].buffer, 20, 0);
    }
}

ps_err allreduce_run_clipped(allreduce_rank *r)
{
    PS_TRY(allreduce_step(r, 0, 0.25f, 1));
    return ps_session_drain(r->session);
}

void allreduce_assert_clipped(const allreduce_job *j)
{
    double n = 4 * 27 + 4 + 4 + 4 + 70 * 144 + 70 + 350 + 5;
    allreduce_assert_weights(j, (float)(1 - 0.5 * 0.5 / (0.5 * sqrt(n) + 1e-6)), 2e-7);
}

ps_err allreduce_run_nan(allreduce_rank *r)
{
    ps_err err = allreduce_step(r, 0, r->rank == 1 ? NAN : 1.0f, 1);
    if (err == PS_OK) err = ps_session_drain(r->session);
    // A rank that left now would be another's reason to end, if that one is slower.
    atomic_fetch_add(&r->job->refused, 1);
    for (int ms = 0; ms < 20000 && r->job->refused < r->job->world; ms++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    return err;
}

/* All gradients of the last rank overflow in step 1, and one element in step 3. The
 * interval is 2. So the scale is 8, 8 (skipped), 4, 4 (skipped), 2, 2, then it grows. */
static ps_err run_scaled(allreduce_rank *r)
{
    static const float scales[] = {8, 8, 4, 4, 2, 2, 4, 4};
    const int w = r->job->world;
    float weight = 1, scale;
    PS_TRY(ps_session_loss_scale(r->session, &scale));
    for (uint64_t step = 0; step < 8; step++) {
        if (scale != scales[step])
            return ps_err_set(PS_ERR_INTERNAL, "step %d: scale %g", (int)step,
                              (double)scale);
        bool faulty = r->rank == w - 1 && step == 1;
        float grad = (float)(r->rank + 1) / 64 * scale;
        r->faulty_element = r->rank == w - 1 && step == 3;
        PS_TRY(allreduce_step(r, step, faulty ? INFINITY : grad, weight));
        PS_TRY(ps_session_loss_scale(r->session, &scale));
        if (step != 1 && step != 3) weight -= 0.5f * (float)(w * (w + 1)) / 128;
    }
    return ps_session_drain(r->session);
}

void allreduce_check_scaled(const char *exchange, const char *more, const char *way)
{
    for (int w = 1; w <= 3; w++) {
        allreduce_job j;
        allreduce_run(&j, w, run_scaled, exchange, "loss_scale.use=on",
                      "loss_scale.init=8", "loss_scale.interval=2", more, way);
        allreduce_assert_weights(&j, 1 - 6 * 0.5f * (float)(w * (w + 1)) / 128, 0);
    }
}

/* The last rank goes away after three steps without a goodbye. */
static ps_err run_until_one_is_gone(allreduce_rank *r)
{
    int w = r->job->world;
    float weight = 1;
    for (uint64_t step = 0; step < 50; step++) {
        if (step == 3 && r->rank == w - 1) return ps_err_set(PS_ERR_IO, "gone");
        PS_TRY(allreduce_step(r, step, (float)(r->rank + 1) / 64, weight));
        weight -= 0.5f * (float)(w * (w + 1)) / 128;
    }
    return ps_session_drain(r->session);
}

void allreduce_check_gone(const char *exchange, int world, const char *way)
{
    allreduce_job j;
    allreduce_run(&j, world, run_until_one_is_gone, exchange, way);
    char name[32];
    snprintf(name, sizeof name, "worker %d", world - 1);
    for (int r = 0; r < world - 1; r++) {
        print_message("rank %d: %s\n", r, j.ranks[r].message);
        assert_int_equal(j.ranks[r].err, PS_ERR_PEER);
        assert_non_null(strstr(j.ranks[r].message, name));
    }
}
