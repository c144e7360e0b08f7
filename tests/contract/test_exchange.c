/* One suite over the exchanges: ranks are threads, the final weights have to be, bit for
 * bit, those of a serial loop that adds gradients in rank order and steps the optimizer.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "chunk_codec.h"
#include "exchange.h"
#include "grad_norm.h"
#include "test_job.h"

enum { STEPS = 6, FAULT_NONE = 0, FAULT_NAN, FAULT_STOPPED };

/* A gradient that overflows: the first element of a tensor that the step picks. */
typedef struct overflow {
    uint64_t step;
    int rank;
    float value;
} overflow;

#include "../vectors/loss_scale_vectors.h"

enum { MAX_STEPS = 16 };

typedef struct run_options {
    const char *exchange;
    int servers, workers;
    const char *const *sets;
    int n_sets;
    unsigned sleeps; // seed of random pauses; 0: none
    int fault;       // of the last rank, in step 2
    uint64_t steps;  // 0: STEPS
    bool quadratic;  // the loss is a worker's distance from its goal, squared
    const overflow *overflows;
    size_t n_overflows;
} run_options;

static uint64_t steps_of(const run_options *run)
{
    return run->steps ? run->steps : STEPS;
}

typedef struct rank_thread {
    const run_options *run;
    test_job *job;
    int rank;
    pthread_t thread;
    ps_err err;
    char text[512];
    float *params; // the final arena; owned
    bool buffers_right;
    ps_exchange_stats stats;
    float scales[MAX_STEPS + 1];     // before each step, and after all
    float weights[MAX_STEPS + 1][8]; // likewise, of the model of the vectors
} rank_thread;

/* A draw in [-1, 1) for (rank, step, element). */
static float noise(int rank, uint64_t step, uint64_t i)
{
    uint64_t x = i * 0x9E3779B97F4A7C15u + step * 0xD1B54A32D192ED03u +
                 (uint64_t)(rank + 1) * 0x8CB92BA72F3D8DD7u;
    x ^= x >> 29;
    x *= 0xBF58476D1CE4E5B9u;
    x ^= x >> 32;
    return (float)(int32_t)(uint32_t)x * 0x1p-31f;
}

/* Depends on the weights, so that weights of a wrong version show. */
static float gradient(int rank, uint64_t step, uint64_t i, float param)
{
    return noise(rank, step, i) + 0.125f * param;
}

static void overflow_some(const run_options *run, const ps_model_spec *spec, int rank,
                          uint64_t step, float *grads)
{
    const ps_tensor *t = &spec->tensors[step % (uint64_t)spec->n_tensors];
    for (size_t i = 0; i < run->n_overflows; i++)
        if (run->overflows[i].step == step && run->overflows[i].rank == rank)
            grads[t->offset] = run->overflows[i].value;
}

/* Of (param - goal)^2 / 2, where each rank has a goal of its own: the mean over the ranks
 * is least at the mean of the goals. */
static float way_to_goal(int rank, int workers, uint64_t i, float param)
{
    return (param - noise(rank, 77, i)) / (float)workers;
}

static void first_weights(const ps_model_spec *spec, float *params)
{
    for (int t = 0; t < spec->n_tensors; t++)
        for (uint64_t i = 0; i < spec->tensors[t].count; i++) {
            uint64_t at = spec->tensors[t].offset + i;
            params[at] = noise(99, 0, at);
        }
}

/* ---- the serial loop ---- */

/* torch.amp.GradScaler, written down once more. */
typedef struct scaler {
    bool on;
    float scale;
    int64_t streak;
    uint64_t skipped;
} scaler;

static void scaler_update(scaler *s, const ps_config_loss_scale *cfg, bool finite)
{
    s->streak = finite ? s->streak + 1 : 0;
    s->skipped += !finite;
    if (!finite) s->scale = (float)(s->scale * cfg->backoff);
    if (s->streak < cfg->interval) return;
    if (isfinite((float)(s->scale * cfg->growth)))
        s->scale = (float)(s->scale * cfg->growth);
    s->streak = 0;
}

typedef struct serial {
    const run_options *run;
    const ps_config *cfg;
    ps_model_spec spec;
    ps_optimizer opt;
    ps_schedule schedule;
    scaler scaler;
    float *params, *sum, *one, *states[2];
    double *blocks;
} serial;

/* The sum of all ranks' gradients in the order of ranks; whether it is finite. */
static bool serial_sum(serial *s, uint64_t step)
{
    const float inverse = (float)(1.0 / (double)s->scaler.scale);
    bool finite = true;
    memset(s->sum, 0, s->spec.arena_count * sizeof(float));
    for (int r = 0; r < s->run->workers; r++) {
        for (uint64_t i = 0; i < s->spec.arena_count; i++)
            s->one[i] = gradient(r, step, i, s->params[i]) * s->scaler.scale;
        overflow_some(s->run, &s->spec, r, step, s->one);
        for (uint64_t i = 0; i < s->spec.arena_count; i++)
            s->sum[i] = r == 0 ? s->one[i] : s->sum[i] + s->one[i];
    }
    for (uint64_t i = 0; i < s->spec.arena_count; i++) {
        s->sum[i] *= inverse;
        finite = finite && isfinite(s->sum[i]);
    }
    return finite;
}

static double serial_clip(serial *s)
{
    const ps_chunk whole = {.count = s->spec.arena_count,
                            .last_tensor = s->spec.n_tensors - 1};
    if (s->cfg->optimizer.clip_norm <= 0) return 1;
    ps_grad_norm_chunk(&s->spec, &whole, s->sum, s->blocks);
    double norm = ps_grad_norm_total(s->blocks, ps_grad_norm_blocks(&s->spec));
    return ps_grad_norm_clip(norm, s->cfg->optimizer.clip_norm);
}

static void serial_step(serial *s, uint64_t step)
{
    bool finite = serial_sum(s, step);
    ps_optimizer_step o = {.lr = ps_schedule_lr(&s->schedule, step),
                           .t = step + 1 - s->scaler.skipped,
                           .grad_scale = serial_clip(s)};
    if (s->scaler.on) scaler_update(&s->scaler, &s->cfg->loss_scale, finite);
    if (s->scaler.on && !finite) return;
    for (int t = 0; t < s->spec.n_tensors; t++) {
        uint64_t at = s->spec.tensors[t].offset;
        float *const state[2] = {s->states[0] + at, s->states[1] + at};
        ps_optimizer_apply(&s->opt, &o,
                           ps_optimizer_decay(&s->opt, s->spec.tensors[t].role),
                           s->spec.tensors[t].count, s->params + at, s->sum + at, state);
    }
}

static float *serial_weights(const ps_config *cfg, const run_options *run)
{
    serial s = {.run = run, .cfg = cfg};
    s.scaler.on = strcmp(cfg->loss_scale.use, "on") == 0;
    s.scaler.scale = s.scaler.on ? (float)cfg->loss_scale.init : 1;
    assert_int_equal(ps_model_spec_init(&s.spec, cfg), PS_OK);
    assert_int_equal(ps_optimizer_init(&s.opt, cfg), PS_OK);
    assert_int_equal(ps_schedule_init(&s.schedule, cfg, STEPS), PS_OK);
    float **arenas[] = {&s.params, &s.sum, &s.one, &s.states[0], &s.states[1]};
    for (int i = 0; i < 5; i++)
        *arenas[i] = calloc(s.spec.arena_count, sizeof(float));
    s.blocks = calloc(ps_grad_norm_blocks(&s.spec), sizeof *s.blocks);
    first_weights(&s.spec, s.params);
    for (uint64_t step = 0; step < STEPS; step++)
        serial_step(&s, step);
    free(s.sum), free(s.one), free(s.states[0]), free(s.states[1]), free(s.blocks);
    ps_model_spec_fini(&s.spec);
    return s.params;
}

/* ---- a rank ---- */

typedef struct rank_state {
    ps_model_spec spec;
    ps_plan plan;
    ps_optimizer opt;
    ps_schedule schedule;
    ps_shared_mem params, grads;
    uint8_t *buffers;
    ps_member *member;
    ps_exchange *x;
    unsigned seed;
} rank_state;

static void pause_a_little(const rank_thread *r, rank_state *s)
{
    if (r->run->sleeps) usleep((unsigned)rand_r(&s->seed) % 400);
}

static ps_err forward(const rank_thread *r, rank_state *s)
{
    for (int t = 0; t < s->spec.n_tensors; t++) {
        PS_TRY(ps_exchange_params_needed(s->x, t, 1));
        pause_a_little(r, s);
    }
    return PS_OK;
}

static ps_err backward(const rank_thread *r, rank_state *s, uint64_t step)
{
    float *grads = s->grads.base;
    const float *params = s->params.base;
    const float scale = r->scales[step < MAX_STEPS ? step : MAX_STEPS];
    bool faulty = r->run->fault && r->rank == r->run->workers - 1 && step == 2;
    for (int t = s->spec.n_tensors - 1; t >= 0; t--) {
        const ps_tensor *tensor = &s->spec.tensors[t];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++)
            grads[i] = r->run->quadratic
                           ? way_to_goal(r->rank, r->run->workers, i, params[i])
                           : gradient(r->rank, step, i, params[i]) * scale;
        if (step % (uint64_t)s->spec.n_tensors == (uint64_t)t)
            overflow_some(r->run, &s->spec, r->rank, step, grads);
        if (faulty && r->run->fault == FAULT_NAN && t == 4) grads[tensor->offset] = NAN;
        if (faulty && r->run->fault == FAULT_STOPPED && t == 2)
            while (ps_member_check(s->member) == PS_OK)
                usleep(10000);
        pause_a_little(r, s);
        PS_TRY(ps_exchange_grads_ready(s->x, t, 1));
    }
    return PS_OK;
}

static bool buffers_are(const rank_state *s, uint8_t value)
{
    for (uint64_t i = 0; i < s->spec.buffer_bytes; i++)
        if (s->buffers[i] != value) return false;
    return true;
}

/* What the rank has before a step, or after all. */
static ps_err note(rank_thread *r, rank_state *s, uint64_t step)
{
    PS_TRY(ps_exchange_loss_scale(s->x, &r->scales[step]));
    for (int t = 0, n = 0; t < s->spec.n_tensors; t++)
        for (uint64_t i = 0; i < s->spec.tensors[t].count && n < 8; i++)
            r->weights[step][n++] =
                ((float *)s->params.base)[s->spec.tensors[t].offset + i];
    return PS_OK;
}

static ps_err train(rank_thread *r, rank_state *s)
{
    memset(s->buffers, 7 + r->rank, s->spec.buffer_bytes);
    if (r->rank == 0) first_weights(&s->spec, s->params.base);
    PS_TRY(ps_exchange_start(s->x));
    r->buffers_right = buffers_are(s, 7);
    for (uint64_t step = 0; step < steps_of(r->run); step++) {
        PS_TRY(ps_exchange_begin(s->x, step));
        PS_TRY(forward(r, s));
        PS_TRY(note(r, s, step < MAX_STEPS ? step : MAX_STEPS));
        PS_TRY(backward(r, s, step));
        PS_TRY(ps_exchange_finish(s->x));
        if (step != 3) continue;
        memset(s->buffers, 70 + r->rank, s->spec.buffer_bytes); // as before evaluation
        PS_TRY(ps_exchange_drain(s->x));
        PS_TRY(ps_exchange_sync_buffers(s->x));
        r->buffers_right = r->buffers_right && buffers_are(s, 70);
    }
    PS_TRY(ps_exchange_drain(s->x));
    PS_TRY(note(r, s, steps_of(r->run) < MAX_STEPS ? steps_of(r->run) : MAX_STEPS));
    memcpy(r->params, s->params.base, s->spec.arena_count * sizeof(float));
    ps_exchange_stats_get(s->x, &r->stats);
    PS_TRY(ps_exchange_stop(s->x));
    return s->member ? ps_member_leave(s->member, ps_deadline_in_ms(10000)) : PS_OK;
}

static ps_err make_rank(rank_thread *r, rank_state *s)
{
    const ps_config *cfg = &r->job->cfg;
    int shards = r->run->servers ? r->run->servers * (int)cfg->server.shards : 1;
    PS_TRY(ps_model_spec_init(&s->spec, cfg));
    PS_TRY(ps_plan_init(&s->plan, &s->spec, ps_chunk_size_wanted(cfg, false),
                        (uint32_t)shards));
    PS_TRY(ps_optimizer_init(&s->opt, cfg));
    PS_TRY(ps_schedule_init(&s->schedule, cfg, STEPS));
    size_t bytes = s->spec.arena_count * sizeof(float);
    PS_TRY(ps_shared_mem_init(&s->params, bytes, "params"));
    PS_TRY(ps_shared_mem_init(&s->grads, bytes, "grads"));
    PS_TRY(ps_mem_zalloc_aligned(&s->buffers, s->spec.buffer_bytes + 64, "buffers"));
    PS_TRY(ps_mem_zalloc(&r->params, s->spec.arena_count, sizeof(float), "result"));
    if (strcmp(r->run->exchange, "none") == 0) return PS_OK;
    PS_TRY(test_job_join(r->job, r->rank, s->plan.hash, &s->member));
    return r->rank == 0 ? test_job_put_steps(s->member, steps_of(r->run)) : PS_OK;
}

static ps_err run_rank(rank_thread *r, rank_state *s)
{
    PS_TRY(make_rank(r, s));
    const ps_exchange_options options = {
        .config = &r->job->cfg,
        .spec = &s->spec,
        .plan = &s->plan,
        .optimizer = &s->opt,
        .schedule = &s->schedule,
        .member = s->member,
        .rank = r->rank,
        .world_size = r->run->workers,
        .params = &s->params,
        .grads = &s->grads,
        .buffers = s->buffers,
    };
    PS_TRY(ps_exchange_create(r->run->exchange, "cpu", &options, &s->x));
    return train(r, s);
}

static void *rank_main(void *arg)
{
    rank_thread *r = arg;
    rank_state s = {.seed = r->run->sleeps * 31 + (unsigned)r->rank};
    r->err = run_rank(r, &s);
    if (r->err != PS_OK) {
        snprintf(r->text, sizeof r->text, "%s", ps_err_message());
        if (s.member) ps_member_abort(s.member, r->text);
    }
    ps_exchange_destroy(&s.x);
    ps_member_destroy(&s.member);
    ps_shared_mem_fini(&s.params);
    ps_shared_mem_fini(&s.grads);
    free(s.buffers);
    ps_plan_fini(&s.plan);
    ps_model_spec_fini(&s.spec);
    return NULL;
}

/* ---- a run ---- */

typedef struct run_result {
    rank_thread rank[TEST_JOB_MAX];
    test_job_server server[TEST_JOB_MAX];
    float *want;
    size_t bytes;
} run_result;

static void run(const run_options *options, run_result *out)
{
    test_job job;
    test_job_start(&job, options->servers, options->workers, options->sets,
                   options->n_sets);
    for (int r = 0; r < options->workers; r++) {
        out->rank[r] = (rank_thread){.run = options, .job = &job, .rank = r};
        assert_int_equal(
            pthread_create(&out->rank[r].thread, NULL, rank_main, &out->rank[r]), 0);
    }
    for (int r = 0; r < options->workers; r++)
        pthread_join(out->rank[r].thread, NULL);
    out->want = serial_weights(&job.cfg, options);
    ps_model_spec spec;
    assert_int_equal(ps_model_spec_init(&spec, &job.cfg), PS_OK);
    out->bytes = spec.arena_count * sizeof(float);
    ps_model_spec_fini(&spec);
    test_job_end(&job);
    memcpy(out->server, job.server, sizeof out->server);
}

static void release(run_result *result, int workers)
{
    for (int r = 0; r < workers; r++)
        free(result->rank[r].params);
    free(result->want);
}

static void check_bits(const run_options *options)
{
    run_result result;
    run(options, &result);
    for (int r = 0; r < options->workers; r++) {
        if (result.rank[r].err != PS_OK) fail_msg("rank %d: %s", r, result.rank[r].text);
        assert_memory_equal(result.rank[r].params, result.want, result.bytes);
        assert_true(result.rank[r].buffers_right);
    }
    for (int i = 0; i < options->servers; i++)
        if (result.server[i].err != PS_OK)
            fail_msg("server %d: %s", i, result.server[i].text);
    release(&result, options->workers);
}

#define SETS(...)                                                                        \
    .sets = (const char *const[]){__VA_ARGS__},                                          \
    .n_sets = sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void tcp_any_size(void **state)
{
    static const char *const chunks[] = {"exchange.chunk=16384", "exchange.chunk=65536",
                                         "exchange.chunk=0"};
    for (int workers = 1; workers <= 4; workers++)
        for (int servers = 1; servers <= 3; servers++) {
            const run_options options = {.exchange = "ps",
                                         .servers = servers,
                                         .workers = workers,
                                         .sleeps = (unsigned)(workers * 10 + servers),
                                         SETS("exchange.shm=off",
                                              chunks[(workers + servers) % 2],
                                              "optimizer.name=adamw", "optimizer.lr=0.01",
                                              "schedule.name=cosine")};
            check_bits(&options);
        }
}

static void tcp_several_shards_a_server(void **state)
{
    for (int workers = 2; workers <= 3; workers++) {
        const run_options options = {
            .exchange = "ps",
            .servers = 2,
            .workers = workers,
            .sleeps = 3,
            SETS("exchange.shm=off", "server.shards=2", "optimizer.name=sgd",
                 "optimizer.lr=0.05", "optimizer.momentum=0.9", "optimizer.nesterov=true",
                 "optimizer.weight_decay=0.01")};
        check_bits(&options);
    }
}

static void clipping(void **state)
{
    static const char *const shm[] = {"exchange.shm=off", "exchange.shm=on"};
    for (int i = 0; i < 4; i++) {
        const run_options options = {
            .exchange = "ps",
            .servers = 2,
            .workers = 1 + i,
            .sleeps = i % 2 ? 5 : 0,
            SETS(shm[i % 2], "server.shards=2", "optimizer.name=adamw",
                 "optimizer.clip_norm=1.5", "exchange.credit=20000")};
        check_bits(&options);
    }
}

static void shared_memory(void **state)
{
    for (int workers = 1; workers <= 4; workers++) {
        const run_options options = {
            .exchange = "ps",
            .servers = 1 + workers % 3,
            .workers = workers,
            .sleeps = workers % 2 ? 9 : 0,
            SETS("exchange.shm=on", "optimizer.name=adamw", "server.shards=2")};
        run_result result;
        run(&options, &result);
        for (int r = 0; r < workers; r++) {
            if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
            assert_memory_equal(result.rank[r].params, result.want, result.bytes);
            // Headers only: far below one payload of all the weights.
            assert_true(result.rank[r].stats.bytes_sent < result.bytes / 4);
        }
        release(&result, workers);
    }
}

static double distance_from_best(const ps_config *cfg, const float *params, int workers)
{
    ps_model_spec spec;
    assert_int_equal(ps_model_spec_init(&spec, cfg), PS_OK);
    double now = 0, at_first = 0;
    for (int t = 0; t < spec.n_tensors; t++)
        for (uint64_t k = 0; k < spec.tensors[t].count; k++) {
            uint64_t i = spec.tensors[t].offset + k;
            double best = 0;
            for (int r = 0; r < workers; r++)
                best += noise(r, 77, i) / (double)workers;
            now += (params[i] - best) * (params[i] - best);
            at_first += (noise(99, 0, i) - best) * (noise(99, 0, i) - best);
        }
    ps_model_spec_fini(&spec);
    return sqrt(now / at_first);
}

/* By how much the distance from the best weights shrinks in 300 steps with a learning
 * rate that falls to nothing: what an encoding leaves out comes later, so that even a
 * sign or an eighth of the numbers leads to the same place. */
static double left_after_300_steps(const char *codec, const char *warmup,
                                   const char *optimizer, const char *lr)
{
    const run_options options = {
        .exchange = "ps",
        .servers = 2,
        .workers = 2,
        .steps = 300,
        .quadratic = true,
        SETS(codec, warmup, optimizer, lr, "exchange.shm=off", "exchange.topk=0.125",
             "exchange.codec_min=0", "optimizer.weight_decay=0", "schedule.name=linear")};
    run_result result;
    run(&options, &result);
    test_job job;
    test_job_start(&job, 0, 2, options.sets, options.n_sets); // its configuration
    double left = 0;
    for (int r = 0; r < 2; r++) {
        if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
        left = fmax(left, distance_from_best(&job.cfg, result.rank[r].params, 2));
    }
    test_job_end(&job);
    release(&result, 2);
    return left;
}

/* Uncoded, SGD's distance shrinks by 1 - lr a step, to 2e-7 in all; Adam moves each
 * weight by at most lr a step, 7.5 in all for ways of at most 2. After exact steps its
 * second moments are small, and what residuals bring moves it more. */
static void codecs_converge(void **state)
{
    (void)state;
    static const struct {
        const char *codec, *warmup;
        double sgd, adam;
    } cases[] = {{"exchange.codec=none", "exchange.codec_warmup=0", 1e-6, 1e-2},
                 {"exchange.codec=fp16", "exchange.codec_warmup=0", 5e-4, 1e-2},
                 {"exchange.codec=bf16", "exchange.codec_warmup=0", 4e-3, 1e-2},
                 {"exchange.codec=int8", "exchange.codec_warmup=0", 1e-3, 1e-2},
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

/* With the same chunks, what is encoded and added does not depend on who sums it where.
 */
static void codecs_any_servers(void **state)
{
    static const char *const sets[] = {"exchange.codec=fp16", "exchange.codec=bf16",
                                       "exchange.codec=int8", "exchange.codec=onebit",
                                       "exchange.codec=topk"};
    for (size_t i = 0; i < 5; i++) {
        float *first = NULL;
        for (int servers = 1; servers <= 3; servers++) {
            const run_options options = {
                .exchange = "ps",
                .servers = servers,
                .workers = 2 + (int)i % 2,
                .sleeps = (unsigned)servers * 7,
                SETS(sets[i], servers == 2 ? "server.shards=2" : "server.shards=1",
                     "exchange.codec_warmup=2", "exchange.codec_min=1024",
                     "optimizer.name=adamw")};
            run_result result;
            run(&options, &result);
            for (int r = 0; r < options.workers; r++) {
                if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
                if (!first) {
                    first = malloc(result.bytes);
                    memcpy(first, result.rank[r].params, result.bytes);
                }
                assert_memory_equal(result.rank[r].params, first, result.bytes);
            }
            release(&result, options.workers);
        }
        free(first);
    }
}

/* Windows from less than a chunk to more than a shard. */
static void small_credits(void **state)
{
    static const char *const credits[] = {"exchange.credit=1", "exchange.credit=17000",
                                          "exchange.credit=40000"};
    for (int i = 0; i < 3; i++) {
        const run_options options = {.exchange = "ps",
                                     .servers = 1,
                                     .workers = 2,
                                     SETS("exchange.shm=off", credits[i])};
        check_bits(&options);
    }
}

static void without_exchange(void **state)
{
    const run_options plain = {.exchange = "none",
                               .workers = 1,
                               SETS("optimizer.name=adam", "schedule.name=linear")};
    check_bits(&plain);
    const run_options clip = {.exchange = "none",
                              .workers = 1,
                              SETS("optimizer.name=adamw", "optimizer.clip_norm=0.5")};
    check_bits(&clip);
}

/* Steps that overflow in a worker, in its sum with another's, or nowhere. */
static const overflow some_overflows[] = {
    {0, 0, INFINITY}, {2, 0, 3e38f}, {2, 1, 3e38f}, {3, 1, NAN}};

#define OVERFLOWS(list) .overflows = (list), .n_overflows = sizeof(list) / sizeof *(list)

/* Nobody steps, in no shard, where anybody's gradient overflows anywhere; but a step that
 * one worker alone has too large for a sum of two is made where there is no second. */
static void a_step_that_overflows_is_skipped_everywhere(void **state)
{
    static const char *const ways[] = {"exchange.shm=off", "exchange.shm=on",
                                       "optimizer.clip_norm=1.5",
                                       "loss_scale.init=1234.5"};
    for (int workers = 1; workers <= 3; workers++)
        for (int i = 0; i < 4; i++) {
            const run_options options = {.exchange = "ps",
                                         .servers = 1 + (i + workers) % 3,
                                         .workers = workers,
                                         .sleeps = (unsigned)(i + workers),
                                         OVERFLOWS(some_overflows),
                                         SETS(ways[i], "server.shards=2",
                                              "optimizer.name=adamw",
                                              "schedule.name=linear", "loss_scale.use=on",
                                              "loss_scale.interval=2")};
            check_bits(&options);
        }
    const run_options alone = {.exchange = "none",
                               .workers = 1,
                               OVERFLOWS(some_overflows),
                               SETS("optimizer.name=adam", "loss_scale.use=on",
                                    "loss_scale.init=777", "optimizer.clip_norm=1.5")};
    check_bits(&alone);
}

/* Powers of two scale without rounding: all is as without. */
static void a_scale_that_nothing_overflows_changes_no_bit(void **state)
{
    static const char *const scales[] = {"loss_scale.use=off", "loss_scale.use=on"};
    run_result result[2];
    for (int i = 0; i < 2; i++) {
        const run_options options = {
            .exchange = "ps",
            .servers = 2,
            .workers = 2,
            SETS(scales[i], "optimizer.momentum=0.9", "optimizer.clip_norm=2")};
        run(&options, &result[i]);
        if (result[i].rank[0].err != PS_OK) fail_msg("%s", result[i].rank[0].text);
    }
    assert_memory_equal(result[0].rank[1].params, result[1].rank[1].params,
                        result[0].bytes);
    assert_float_equal(result[1].rank[1].scales[STEPS], 65536, 0);
    release(&result[0], 2);
    release(&result[1], 2);
}

static void check_case(const struct scaled_case *c, const rank_thread *r, bool clipped)
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

/* A scale of 2^17 puts this gradient's largest elements, up to 1.1, beyond fp16's 65504:
 * they are infinite on their way, not cut off, and every worker backs off. */
static void fp16_on_the_way_overflows_too(void **state)
{
    static const char *const codecs[] = {"exchange.codec=fp16", "exchange.codec=bf16",
                                         "exchange.codec=int8"};
    for (size_t i = 0; i < 3; i++) {
        const run_options options = {.exchange = "ps",
                                     .servers = 2,
                                     .workers = 2,
                                     SETS(codecs[i], "exchange.codec_min=1024",
                                          "optimizer.name=sgd", "optimizer.lr=0.01",
                                          "loss_scale.use=on", "loss_scale.init=131072")};
        run_result result;
        run(&options, &result);
        float last = i == 0 ? 32768 : 131072;
        for (int r = 0; r < 2; r++) {
            if (result.rank[r].err != PS_OK) fail_msg("%s", result.rank[r].text);
            assert_float_equal(result.rank[r].scales[STEPS], last, 0);
            assert_memory_equal(result.rank[r].params, result.rank[0].params,
                                result.bytes);
        }
        release(&result, 2);
    }
}

static void as_torch_amp_gradscaler(void **state)
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
        const run_options options = {.exchange = "ps",
                                     .servers = 1,
                                     .workers = 2,
                                     .steps = SCALED_STEPS,
                                     OVERFLOWS(scaled_overflows),
                                     .sets = sets,
                                     .n_sets = n};
        run_result result;
        run(&options, &result);
        for (int r = 0; r < 2; r++)
            check_case(c, &result.rank[r], clipped);
        release(&result, 2);
    }
}

/* |a - b| / |b - start|: 0 is exact, 1 as bad as never having moved. */
static double relative_error(const run_result *result, const float *got,
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

static float *start_weights(const run_options *options)
{
    test_job job;
    test_job_start(&job, 0, options->workers, options->sets, options->n_sets);
    ps_model_spec spec;
    assert_int_equal(ps_model_spec_init(&spec, &job.cfg), PS_OK);
    float *start = calloc(spec.arena_count, sizeof *start);
    first_weights(&spec, start);
    ps_model_spec_fini(&spec);
    test_job_end(&job);
    return start;
}

typedef struct codec_case {
    const char *set;
    double error;  // of six steps with random gradients, relative to the way
    double volume; // bytes sent relative to uncoded ones, without first weights
} codec_case;

/* Encoded both ways: every worker ends with the same bits, whatever the order of arrival,
 * close to what float32 gives, with fewer bytes. */
static void codecs(void **state)
{
    static const codec_case cases[] = {
        {"exchange.codec=fp16", 1.0 / 1024, 0.52},
        {"exchange.codec=bf16", 1.0 / 128, 0.52},
        {"exchange.codec=int8", 0.05, 0.28},
        {"exchange.codec=onebit", 1.0, 0.06},
        {"exchange.codec=topk", 1.0, 0.32},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        run_options options = {
            .exchange = "ps",
            .servers = 2,
            .workers = 3,
            SETS(cases[i].set, "exchange.topk=0.125", "exchange.codec_warmup=0",
                 "exchange.codec_min=1024", "optimizer.name=sgd", "optimizer.lr=0.01",
                 i % 2 ? "optimizer.clip_norm=0" : "optimizer.clip_norm=5")};
        run_result a, b;
        run(&options, &a);
        options.sleeps = 17;
        run(&options, &b);
        float *start = start_weights(&options);
        for (int r = 0; r < 3; r++) {
            if (a.rank[r].err != PS_OK) fail_msg("%s", a.rank[r].text);
            assert_memory_equal(a.rank[r].params, a.rank[0].params, a.bytes);
            assert_memory_equal(b.rank[r].params, a.rank[0].params, a.bytes);
        }
        double error = relative_error(&a, a.rank[0].params, start);
        if (!(error < cases[i].error)) fail_msg("%s: error %g", cases[i].set, error);
        const ps_exchange_stats *stats = &a.rank[1].stats; // rank 0 sent first weights
        double volume = (double)stats->bytes_sent / (STEPS * (double)a.bytes);
        if (!(volume < cases[i].volume)) fail_msg("%s: volume %g", cases[i].set, volume);
        assert_true(stats->raw_bytes >= STEPS * a.bytes);
        free(start);
        release(&a, 3);
        release(&b, 3);
    }
}

static void a_nan_ends_the_job_and_is_named(void **state)
{
    static const char *const ways[] = {"exchange.shm=off", "exchange.shm=on",
                                       "exchange.codec=int8", "exchange.codec=topk"};
    for (int i = 0; i < 4; i++) {
        const run_options options = {.exchange = "ps",
                                     .servers = 2,
                                     .workers = 2,
                                     .fault = FAULT_NAN,
                                     SETS(ways[i])};
        run_result result;
        run(&options, &result);
        for (int r = 0; r < 2; r++) {
            assert_int_not_equal(result.rank[r].err, PS_OK);
            if (!strstr(result.rank[r].text, "the gradient of worker 1 for") ||
                !strstr(result.rank[r].text, "in step 2"))
                fail_msg("rank %d: %s", r, result.rank[r].text);
        }
        assert_int_not_equal(result.server[0].err, PS_OK);
        assert_int_not_equal(result.server[1].err, PS_OK);
        release(&result, 2);
    }
}

static void a_stopped_worker_is_noticed(void **state)
{
    const run_options options = {.exchange = "ps",
                                 .servers = 1,
                                 .workers = 2,
                                 .fault = FAULT_STOPPED,
                                 SETS("exchange.shm=off", "net.step_timeout_ms=700")};
    run_result result;
    run(&options, &result);
    assert_int_equal(result.rank[0].err, PS_ERR_TIMEOUT);
    if (!strstr(result.rank[0].text, "of server 0") ||
        !strstr(result.rank[0].text, "chunk"))
        fail_msg("%s", result.rank[0].text);
    assert_int_not_equal(result.rank[1].err, PS_OK);
    release(&result, 2);
}

static void an_unknown_exchange_is_refused(void **state)
{
    const ps_exchange_options options = {0};
    ps_exchange *x;
    assert_int_equal(ps_exchange_create("carrier-pigeon", "cpu", &options, &x),
                     PS_ERR_CONFIG);
    assert_null(x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(without_exchange),
        cmocka_unit_test(an_unknown_exchange_is_refused),
        cmocka_unit_test(tcp_any_size),
        cmocka_unit_test(tcp_several_shards_a_server),
        cmocka_unit_test(clipping),
        cmocka_unit_test(shared_memory),
        cmocka_unit_test(small_credits),
        cmocka_unit_test(codecs),
        cmocka_unit_test(codecs_any_servers),
        cmocka_unit_test(codecs_converge),
        cmocka_unit_test(a_step_that_overflows_is_skipped_everywhere),
        cmocka_unit_test(a_scale_that_nothing_overflows_changes_no_bit),
        cmocka_unit_test(fp16_on_the_way_overflows_too),
        cmocka_unit_test(as_torch_amp_gradscaler),
        cmocka_unit_test(a_nan_ends_the_job_and_is_named),
        cmocka_unit_test(a_stopped_worker_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
