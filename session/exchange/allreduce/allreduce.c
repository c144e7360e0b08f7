#include "allreduce.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clock.h"
#include "interrupt.h"
#include "reducer.h"
#include "thread.h"

enum { POLL_MS = 50, WATCH_MS = 1 };

typedef enum wanted {
    WANT_NOTHING,
    WANT_ALL,     // rank 0's parameters and buffers
    WANT_BUFFERS, // rank 0's buffers
    WANT_FLUSH,   // that what this rank has sent has left it
} wanted;

typedef struct allreduce {
    ps_exchange base;
    ps_exchange_options at;
    ps_collective *collective;
    ps_device_stream *stream;
    bool owns_stream;

    /* The communication thread's, except its buckets, which do not change. */
    ps_reducer reducer;

    /* The main thread's. */
    uint64_t first_step, steps; // steps begun
    uint64_t before;            // of these, those whose weights are read now
    ps_ready_ranges ready;      // the step's gradients, by bucket
    uint32_t *batch;            // scratch: buckets that a range completes
    int next_bucket;            // of the step, the first that is not complete
    double wait_seconds;
    ps_thread thread;
    bool stopped;
    uint64_t taken; // of the collective's thread, which may be the main one: buckets

    /* Shared, under lock; changed is signalled at every change. No call to the collective
     * is made with the lock held. */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    uint64_t given;   // buckets handed over since the start
    uint64_t applied; // buckets whose parameters are new, for the device's next pass: of
                      // a step the last bucket is the first
    uint64_t completed; // of these, buckets that are known to be done
    wanted wanted;
    bool stopping;
    ps_err_saved failed;       // for good
    uint64_t bytes, shm_bytes; // the collective's
    float next_scale;          // of the loss, after what is applied
} allreduce;

static allreduce *allreduce_of(const ps_exchange *x)
{
    return (allreduce *)(uintptr_t)x;
}

/* ------------------------------------------------------------ communication thread */

/* Publishes what was done: buckets applied, whether everything is completed, and a
 * broadcast or flush that was requested. */
static void allreduce_publish(allreduce *x, uint64_t applied, bool completed, wanted done)
{
    pthread_mutex_lock(&x->lock);
    x->applied += applied;
    bool news =
        applied || done != WANT_NOTHING || (completed && x->completed < x->applied);
    if (completed) x->completed = x->applied;
    x->bytes = x->collective->bytes;
    x->shm_bytes = x->collective->shm_bytes;
    x->next_scale = x->reducer.rule.scale.scale;
    if (done != WANT_NOTHING) x->wanted = WANT_NOTHING;
    if (news) pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
}

static bool is_stopping(allreduce *x)
{
    pthread_mutex_lock(&x->lock);
    bool stopping = x->stopping;
    pthread_mutex_unlock(&x->lock);
    return stopping;
}

/* A neighbour's broken connection says nothing about who died first: the errors cascade
 * around the ring. The coordinator knows from the heartbeats, so it gets the time that it
 * needs. */
static ps_err allreduce_verdict(allreduce *x)
{
    ps_deadline deadline = ps_deadline_in_ms(x->at.settings.verdict_ms);
    struct pollfd pfd = {.fd = ps_member_abort_fd(x->at.member), .events = POLLIN};
    while (!ps_deadline_passed(deadline) && !is_stopping(x)) {
        ps_err err = ps_member_check(x->at.member);
        if (err != PS_OK) return err;
        poll(&pfd, 1, ps_deadline_left_ms_max(deadline, POLL_MS));
    }
    return ps_member_check(x->at.member);
}

/* The coordinator's error instead of one that only followed from it. */
static ps_err real_error(allreduce *x, ps_err err)
{
    bool lost = err == PS_ERR_NET || err == PS_ERR_TIMEOUT;
    if (!lost || x->at.world_size < 2) return err;
    const ps_err_saved first = ps_err_save(err);
    ps_err real = allreduce_verdict(x);
    return real != PS_OK ? real : ps_err_restore(&first);
}

static void allreduce_fail(allreduce *x, ps_err err)
{
    err = real_error(x, err);
    pthread_mutex_lock(&x->lock);
    x->failed = ps_err_save(err);
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
}

/* Whether all that is applied is done by now, or failed. */
static ps_err allreduce_watch(allreduce *x)
{
    bool done;
    PS_TRY(ps_reducer_complete(&x->reducer, false, &done));
    allreduce_publish(x, 0, done, WANT_NOTHING);
    return PS_OK;
}

/* Waits for all weights of an applied step, the first layers' first. */
static ps_err gather_step(allreduce *x)
{
    for (int b = x->reducer.buckets.n - 1; b >= 0; b--) {
        PS_TRY(ps_reducer_gather(&x->reducer, b));
        allreduce_publish(x, 1, false, WANT_NOTHING);
    }
    return PS_OK;
}

/* Bucket number `index` since the start. */
static ps_err reduce_bucket(allreduce *x, uint64_t index)
{
    uint64_t n = (uint64_t)x->reducer.buckets.n;
    bool applied;
    PS_TRY(ps_reducer_reduce(&x->reducer, (int)(index % n), x->first_step + index / n,
                             &applied));
    if (!applied) return PS_OK;
    PS_TRY(gather_step(x));
    return allreduce_watch(x);
}

static ps_err allreduce_flush(allreduce *x)
{
    const ps_collective_ops *ops = x->collective->ops;
    if (ops->flush) PS_TRY(ops->flush(x->collective));
    allreduce_publish(x, 0, true, WANT_FLUSH);
    return PS_OK;
}

static ps_err allreduce_broadcast(allreduce *x, wanted what)
{
    ps_device_stream *s = x->stream;
    // frozen parameters, the last buffers, do not change after the start
    const uint64_t still = what == WANT_ALL ? 0 : x->at.table->frozen_bytes;
    ps_collective_range ranges[2] = {
        {s->buffers, x->at.table->buffer_bytes - still},
        {s->params, x->at.table->arena_count * sizeof(float)},
    };
    int n = what == WANT_ALL ? 2 : 1;
    unsigned arenas = PS_STREAM_BUFFERS | (what == WANT_ALL ? PS_STREAM_PARAMS : 0);
    PS_TRY(s->ops->from_host(s, arenas));
    PS_TRY(x->collective->ops->broadcast(x->collective, ranges, n));
    PS_TRY(s->ops->to_host(s, arenas));
    allreduce_publish(x, 0, true, what);
    return PS_OK;
}

static ps_err allreduce_serve(allreduce *x, wanted what)
{
    return what == WANT_FLUSH ? allreduce_flush(x) : allreduce_broadcast(x, what);
}

/* false: the thread must end. *idle: there is nothing to do except watching. */
static bool wait_for_work(allreduce *x, uint64_t taken, wanted *what, bool *idle)
{
    pthread_mutex_lock(&x->lock);
    bool incomplete = x->reducer.queues && x->completed < taken, waited = false;
    while (!x->stopping && x->wanted == WANT_NOTHING && taken == x->given && !waited) {
        waited = incomplete;
        if (incomplete)
            ps_cond_wait(&x->changed, &x->lock, ps_deadline_in_ms(WATCH_MS));
        else
            pthread_cond_wait(&x->changed, &x->lock);
    }
    *what = x->wanted;
    *idle = x->wanted == WANT_NOTHING && taken == x->given;
    bool stopping = x->stopping;
    pthread_mutex_unlock(&x->lock);
    return !stopping;
}

static void *allreduce_thread_run(void *arg)
{
    allreduce *x = arg;
    wanted what;
    bool idle;
    while (wait_for_work(x, x->taken, &what, &idle)) {
        ps_err err = idle   ? allreduce_watch(x)
                     : what ? allreduce_serve(x, what)
                            : reduce_bucket(x, x->taken++);
        if (err != PS_OK) {
            allreduce_fail(x, err);
            break;
        }
    }
    return NULL;
}

/* -------------------------------------------------------------------- main thread */

/* Whether `target` buckets are counted (*count is x->applied or x->completed) and the
 * last request is done. The lock is held. */
static bool allreduce_arrived(const allreduce *x, const uint64_t *count, uint64_t target)
{
    return *count >= target && x->wanted == WANT_NOTHING;
}

/* What the communication thread does, where there is none. */
static void work_off(allreduce *x)
{
    ps_err err = x->failed.code;
    while (err == PS_OK && x->taken < x->given)
        err = reduce_bucket(x, x->taken++);
    if (err == PS_OK && x->wanted != WANT_NOTHING) err = allreduce_serve(x, x->wanted);
    if (err != PS_OK && x->failed.code == PS_OK) allreduce_fail(x, err);
}

/* Releases the lock and waits for a change, for a moment at most. */
static ps_err wait_round(allreduce *x)
{
    ps_cond_wait(&x->changed, &x->lock, ps_deadline_in_ms(POLL_MS));
    pthread_mutex_unlock(&x->lock);
    ps_err err = x->at.member ? ps_member_check(x->at.member) : PS_OK;
    if (err == PS_OK) err = ps_interrupt_ask_hook();
    pthread_mutex_lock(&x->lock);
    return err;
}

/* NCCL's own limit is net.step_timeout_ms too: its error says more, so it must come
 * first. */
static ps_deadline next_progress(const allreduce *x)
{
    return ps_deadline_in_ms(x->at.settings.step_timeout_ms + 1000);
}

/* Blocks until they have arrived. *late: they have not, and none came for too long. The
 * lock is held at the call and at the return. */
static ps_err wait_rounds(allreduce *x, const uint64_t *count, uint64_t target,
                          bool *late)
{
    ps_deadline deadline = next_progress(x);
    for (*late = false;;) {
        if (x->failed.code != PS_OK) return ps_err_restore(&x->failed);
        if (allreduce_arrived(x, count, target)) return PS_OK;
        *late = ps_deadline_passed(deadline);
        if (*late) return PS_OK;
        const uint64_t seen = *count;
        PS_TRY(wait_round(x));
        if (*count != seen) deadline = next_progress(x);
    }
}

static ps_err late_error(allreduce *x)
{
    ps_err err = ps_err_set(PS_ERR_TIMEOUT,
                            "%s: no bucket was summed for %lld ms (net.step_timeout_ms)",
                            x->base.ops->name, (long long)x->at.settings.step_timeout_ms);
    return real_error(x, err);
}

/* Blocks until they have arrived. */
static ps_err allreduce_wait_for(allreduce *x, const uint64_t *count, uint64_t target)
{
    bool late;
    const uint64_t begun_ns = ps_clock_ns();
    if (!x->thread.runs && !allreduce_arrived(x, count, target)) work_off(x);
    pthread_mutex_lock(&x->lock);
    ps_err err = wait_rounds(x, count, target, &late);
    pthread_mutex_unlock(&x->lock);
    x->wait_seconds += ps_clock_seconds_since(begun_ns);
    return err == PS_OK && late ? late_error(x) : err;
}

static ps_err allreduce_request(allreduce *x, wanted what)
{
    PS_TRY(ps_allreduce_drain(&x->base));
    pthread_mutex_lock(&x->lock);
    x->wanted = what;
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
    return ps_allreduce_drain(&x->base);
}

ps_err ps_allreduce_start(ps_exchange *base)
{
    allreduce *x = allreduce_of(base);
    if (!x->collective->by_caller)
        PS_TRY(ps_thread_start(&x->thread, base->ops->name, allreduce_thread_run, x));
    return allreduce_request(x, WANT_ALL);
}

ps_err ps_allreduce_begin(ps_exchange *base, uint64_t step)
{
    allreduce *x = allreduce_of(base);
    if (x->steps == 0) x->first_step = step;
    if (step != x->first_step + x->steps)
        return ps_err_set(PS_ERR_ARG, "%s: step %llu begun after %llu steps from %llu",
                          base->ops->name, (unsigned long long)step,
                          (unsigned long long)x->steps,
                          (unsigned long long)x->first_step);
    x->before = x->steps++;
    x->next_bucket = 0;
    ps_ready_ranges_restart(&x->ready);
    return PS_OK;
}

/* The communication thread has done with the step before the last one. */
void ps_allreduce_set_step_of(ps_exchange *base, uint32_t step_of)
{
    allreduce *x = allreduce_of(base);
    ps_reducer_set_step_of(&x->reducer, x->first_step + x->steps - 1, step_of);
}

/* Buckets that are applied when the weights of the range are those of the step. */
static uint64_t buckets_before(const allreduce *x, uint64_t begin, uint64_t end)
{
    if (x->before == 0) return 0;
    /* Weights come from the last bucket to the first, which holds the last tensors. */
    const uint64_t n = (uint64_t)x->reducer.buckets.n;
    uint32_t first, last;
    ps_ready_ranges_touched(&x->ready, begin, end, &first, &last);
    return (x->before - 1) * n + n - first;
}

ps_err ps_allreduce_params_needed(ps_exchange *base, uint64_t begin, uint64_t end)
{
    allreduce *x = allreduce_of(base);
    const uint64_t target = buckets_before(x, begin, end);
    return target ? allreduce_wait_for(x, &x->applied, target) : PS_OK;
}

ps_err ps_allreduce_params_ready(ps_exchange *base, uint64_t begin, uint64_t end,
                                 bool *ready)
{
    allreduce *x = allreduce_of(base);
    if (!x->thread.runs) work_off(x); // nobody else will
    pthread_mutex_lock(&x->lock);
    *ready = x->applied >= buckets_before(x, begin, end);
    pthread_mutex_unlock(&x->lock);
    return PS_OK;
}

ps_err ps_allreduce_grads_ready(ps_exchange *base, uint64_t begin, uint64_t end)
{
    allreduce *x = allreduce_of(base);
    uint32_t n = 0;
    PS_TRY(ps_ready_ranges_add(&x->ready, begin, end, x->batch, &n));
    uint64_t complete = 0; // buckets, in their order
    while (x->next_bucket < x->reducer.buckets.n && x->ready.left[x->next_bucket] == 0) {
        x->next_bucket++;
        complete++;
        if (x->collective->ops->offer) x->collective->ops->offer(x->collective);
    }
    if (!complete) return PS_OK;
    pthread_mutex_lock(&x->lock);
    x->given += complete;
    const ps_err failed = x->failed.code;
    if (failed != PS_OK) ps_err_restore(&x->failed);
    pthread_cond_broadcast(&x->changed);
    pthread_mutex_unlock(&x->lock);
    return failed;
}

ps_err ps_allreduce_finish(ps_exchange *base)
{
    allreduce *x = allreduce_of(base);
    x->before = x->steps;
    return PS_OK;
}

ps_err ps_allreduce_drain(ps_exchange *base)
{
    allreduce *x = allreduce_of(base);
    PS_TRY(
        allreduce_wait_for(x, &x->completed, x->steps * (uint64_t)x->reducer.buckets.n));
    // the communication thread has nothing to do now: the stream is this one's
    return x->steps > 0 ? x->stream->ops->to_host(x->stream, PS_STREAM_PARAMS) : PS_OK;
}

ps_err ps_allreduce_sync_buffers(ps_exchange *base)
{
    allreduce *x = allreduce_of(base);
    const ps_tensor_table *table = x->at.table;
    return table->buffer_bytes > table->frozen_bytes ? allreduce_request(x, WANT_BUFFERS)
                                                     : PS_OK;
}

ps_err ps_allreduce_loss_scale(ps_exchange *base, float *scale)
{
    allreduce *x = allreduce_of(base);
    uint64_t n = (uint64_t)x->reducer.buckets.n;
    *scale = 1;
    if (!x->reducer.rule.scale.on) return PS_OK;
    uint64_t finished = x->next_bucket < x->reducer.buckets.n ? x->steps - 1 : x->steps;
    PS_TRY(allreduce_wait_for(x, &x->completed, x->steps == 0 ? 0 : finished * n));
    pthread_mutex_lock(&x->lock);
    *scale = x->next_scale;
    pthread_mutex_unlock(&x->lock);
    return PS_OK;
}

ps_err ps_allreduce_save(ps_exchange *base, ps_exchange_state *out)
{
    return ps_reducer_save(&allreduce_of(base)->reducer,
                           out); // its thread has nothing to do
}

ps_err ps_allreduce_load(ps_exchange *base, const ps_exchange_state *in)
{
    return ps_reducer_load(&allreduce_of(base)->reducer,
                           in); // its thread does not run yet
}

void ps_allreduce_stats(const ps_exchange *base, ps_exchange_stats *out)
{
    allreduce *x = allreduce_of(base);
    pthread_mutex_lock(&x->lock);
    *out = (ps_exchange_stats){
        .bytes_sent = x->bytes,
        .bytes_received = x->bytes,
        .shm_sent = x->shm_bytes,
        .shm_received = x->shm_bytes,
        .computed = true,
        .wait_seconds = x->wait_seconds,
        .raw_bytes = x->bytes,
    };
    pthread_mutex_unlock(&x->lock);
}

static void end_thread(allreduce *x)
{
    ps_cond_set(&x->changed, &x->lock, &x->stopping);
    /* After a failure the thread may be inside a call that nobody will answer. */
    if (!x->stopped && x->collective) x->collective->ops->abort(x->collective);
    ps_thread_join(&x->thread);
}

ps_err ps_allreduce_stop(ps_exchange *base)
{
    allreduce *x = allreduce_of(base);
    PS_TRY(allreduce_request(x, WANT_FLUSH));
    x->stopped = true;
    end_thread(x);
    return PS_OK;
}

void ps_allreduce_destroy(ps_exchange **base)
{
    allreduce *x = allreduce_of(*base);
    end_thread(x);
    if (x->collective) x->collective->ops->destroy(&x->collective);
    if (x->owns_stream && x->stream) x->stream->ops->destroy(&x->stream);
    ps_reducer_fini(&x->reducer);
    ps_ready_ranges_fini(&x->ready);
    free(x->batch);
    pthread_cond_destroy(&x->changed);
    pthread_mutex_destroy(&x->lock);
    free(x);
    *base = NULL;
}

/* ------------------------------------------------------------------------- create */

static ps_err host_stream(allreduce *x)
{
    x->owns_stream = true;
    ps_host_stream_options options = {
        .table = x->at.table,
        .optimizer = &x->at.rule->optimizer,
        .params = x->at.params->base,
        .grads = x->at.grads->base,
        .buffers = x->at.buffers,
    };
    return ps_host_stream_create(&options, &x->stream);
}

static ps_err map_buckets(allreduce *x)
{
    const ps_buckets *b = &x->reducer.buckets;
    const size_t n = (size_t)b->n;
    uint64_t *begins = NULL;
    PS_TRY(PS_NEW(&x->batch, n, "buckets"));
    PS_TRY(PS_NEW(&begins, n, "buckets"));
    for (size_t i = 0; i < n; i++)
        begins[i] = b->list[i].offset;
    const ps_err err = ps_ready_ranges_init(&x->ready, x->at.table, begins, (uint32_t)n);
    free(begins);
    return err;
}

static ps_err allreduce_prepare(allreduce *x, ps_allreduce_connect *connect)
{
    x->stream = x->at.stream;
    if (!x->stream) PS_TRY(host_stream(x));
    ps_err err = connect(&x->at, x->stream, &x->collective);
    if (err != PS_OK) return real_error(x, err);
    PS_TRY(ps_reducer_init(&x->reducer, &x->at, x->stream, x->collective));
    x->next_scale = x->reducer.rule.scale.scale;
    return map_buckets(x);
}

ps_err ps_allreduce_create(const ps_exchange_ops *ops, const ps_exchange_options *options,
                           ps_allreduce_connect *connect, ps_exchange **out)
{
    *out = NULL;
    allreduce *x = NULL;
    PS_TRY(PS_NEW(&x, 1, ops->name));
    x->base = (ps_exchange){.ops = ops, .ready = &x->ready};
    x->at = *options;
    pthread_mutex_init(&x->lock, NULL);
    ps_cond_init(&x->changed);

    ps_err err = allreduce_prepare(x, connect);
    *out = &x->base;
    if (err != PS_OK) ps_allreduce_destroy(out);
    return err;
}
