/* libpstrain: how jobs end. Workers that have made equally many steps end well, whenever
 * and in whatever order they leave. If one has made fewer, the others learn it. */
#include <inttypes.h>
#include <time.h>

#include "check.h"
#include "clock.h"
#include "pstrain_rig.h"

enum { WORKERS = 3, STEPS = 4, ARRAY = 100000, REDUCER = 3, KINDS = 4 };
enum {
    SOON_MS = 10000, // joining included; waits have a deadline of 20 s
    TRIES = 3,
    NO_WAIT_MS = 4000 // less than servers wait for goodbyes
};

/* What sums, and how it travels: rings, sockets, with a codec, a reducer. */
static const char *const settings[KINDS][2] = {
    {"optimizer.name=sgd", "optimizer.lr=0.5"},
    {"optimizer.name=sgd", "exchange.shm=off"},
    {"exchange.codec=fp16", "exchange.codec_min=0"},
    {"exchange.nan=allow", "exchange.shm=auto"},
};

static const int orders[][WORKERS] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2},
                                      {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};

typedef struct course {
    int kind;
    uint64_t seed;
    const int *order;          // by worker: its place among those that leave
    int short_of;              // the worker that makes fewer steps; -1: none
    uint64_t fewer;            // how many it makes
    uint64_t told_ns[WORKERS]; // when the worker's last call returned
} course;

static void sleep_ms(uint64_t ms)
{
    const struct timespec t = {.tv_sec = (time_t)(ms / 1000),
                               .tv_nsec = (long)(ms % 1000) * 1000000};
    nanosleep(&t, NULL);
}

/* The same in every run of the test. */
static void nap(const rig_worker *w, uint64_t about, uint64_t most_ms)
{
    const course *c = w->rig->ctx;
    uint64_t x = c->seed * 1000003 + about * 8191 + (uint64_t)w->rank * 131 + 1;
    for (int i = 0; i < 3; i++)
        x = (x ^ x >> 31) * UINT64_C(0x9E3779B97F4A7C15);
    sleep_ms((x >> 33) % (most_ms + 1));
}

/* A worker without data may leave without a start. */
static int open_tensors(rig_worker *w, int kind, bool starts)
{
    static const int64_t shape[] = {300, 70};
    const pstrain_tensor tensors[] = {{.name = "a", .shape = shape, .n_dims = 2},
                                      {.name = "b", .shape = shape, .n_dims = 1}};
    const pstrain_table table = {.struct_size = sizeof table,
                                 .tensors = tensors,
                                 .n_tensors = 2,
                                 .tensor_size = sizeof *tensors,
                                 .settings = settings[kind],
                                 .n_settings = 2};
    RIG_TRY(pstrain_open(w->s, &table));
    memset(pstrain_params(w->s), 0, pstrain_arena_count(w->s) * sizeof(float));
    return starts ? pstrain_start(w->s) : 0;
}

static int make_steps(rig_worker *w, uint64_t n)
{
    for (uint64_t step = 0; step < n; step++) {
        RIG_TRY(pstrain_begin(w->s, NULL));
        RIG_TRY(pstrain_wait(w->s, 0, 2));
        RIG_TRY(pstrain_push(w->s, 1, 1));
        nap(w, step, 2);
        RIG_TRY(pstrain_push(w->s, 0, 1));
        RIG_TRY(pstrain_finish(w->s));
    }
    return 0;
}

static int make_sums(rig_worker *w, uint64_t n)
{
    float *values = calloc(ARRAY, sizeof *values);
    int status = values ? 0 : PSTRAIN_ERR_NOMEM;
    for (uint64_t i = 0; i < n && !status; i++) {
        uint64_t ticket;
        status = pstrain_reduce_begin(w->s, values, ARRAY, &ticket);
        nap(w, i, 2);
        // The last one is awaited at the end.
        if (!status && i + 1 < n) status = pstrain_reduce_end(w->s, ticket);
    }
    if (!status) status = pstrain_close(w->s); // the session reads `values` until then
    free(values);
    return status;
}

/* Before a worker leaves, it may wait for its last weights, only look, or do nothing. */
static int make_tensors_steps(rig_worker *w, uint64_t n)
{
    const course *c = w->rig->ctx;
    RIG_TRY(make_steps(w, n));
    if (n > 0 && (c->seed + (uint64_t)w->rank) % 3 == 0) RIG_TRY(pstrain_drain(w->s));
    if (c->order) sleep_ms((uint64_t)c->order[w->rank] * 4);
    nap(w, 99, 6);
    return pstrain_close(w->s);
}

static int take_part(rig_worker *w)
{
    course *c = w->rig->ctx;
    const bool is_short = w->rank == c->short_of;
    const uint64_t n = is_short ? c->fewer : STEPS;
    if (c->kind != REDUCER) {
        RIG_TRY(open_tensors(w, c->kind, n > 0));
        return make_tensors_steps(w, n);
    }
    const pstrain_reducer reducer = {.struct_size = sizeof reducer,
                                     .bytes = 1 << 20,
                                     .settings = settings[c->kind],
                                     .n_settings = 2};
    RIG_TRY(pstrain_open_reducer(w->s, &reducer));
    RIG_TRY(pstrain_start(w->s));
    if (c->order) sleep_ms((uint64_t)c->order[w->rank] * 4);
    return make_sums(w, n);
}

static int run(rig_worker *w)
{
    course *c = w->rig->ctx;
    const int status = take_part(w);
    c->told_ns[w->rank] = ps_clock_ns();
    return status;
}

TEST(test_equal_steps_in_every_order)
{
    for (uint64_t seed = 0; seed < 12; seed++)
        for (int kind = (int)(seed / 2 % 2); kind < KINDS; kind += 2) {
            course c = {.kind = kind,
                        .seed = seed,
                        .order = seed % 2 ? NULL : orders[seed / 2 % 6],
                        .short_of = -1};
            rig_run(&(rig){.servers = 1 + (int)(seed % 2),
                           .workers = WORKERS,
                           .run = run,
                           .ctx = &c});
        }
}

/* Every worker fails with the same words, also one that has left in order. */
static void expect_all_told(const rig *r, uint64_t begin_ns, const char *text)
{
    const course *c = r->ctx;
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(r->worker[i].status, PSTRAIN_ERR_PEER);
        assert_true(c->told_ns[i] - begin_ns < SOON_MS * UINT64_C(1000000));
        if (!strstr(r->worker[i].text, text))
            fail_msg("worker %d: \"%s\" does not say \"%s\"", i, r->worker[i].text, text);
    }
}

TEST(test_fewer_steps)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int gone = 0; gone < WORKERS; gone++) {
            const uint64_t fewer = gone == 2 ? 0 : STEPS - 1 - (uint64_t)gone; // 3, 2, 0
            course c = {.kind = kind, .seed = 7, .short_of = gone, .fewer = fewer};
            rig r = {
                .servers = 2, .workers = WORKERS, .run = run, .ctx = &c, .fails = true};
            char text[128];
            const uint64_t begin_ns = ps_clock_ns();
            rig_run(&r);
            if (kind == REDUCER)
                snprintf(text, sizeof text, "worker %d has ended, and worker ", gone);
            else
                snprintf(text, sizeof text,
                         "worker %d has ended before step %" PRIu64 ", and worker ", gone,
                         fewer + 1);
            expect_all_told(&r, begin_ns, text);
        }
}

/* Without worker 0 there are no first weights. */
TEST(test_worker_0_does_not_start)
{
    course c = {.seed = 7, .short_of = 0};
    rig r = {.servers = 2, .workers = WORKERS, .run = run, .ctx = &c, .fails = true};
    const uint64_t begin_ns = ps_clock_ns();
    rig_run(&r);
    expect_all_told(&r, begin_ns, "worker 0 has ended without a step, and worker ");
}

static int run_nothing(rig_worker *w)
{
    RIG_TRY(open_tensors(w, 0, false));
    nap(w, 1, 20);
    return pstrain_close(w->s);
}

TEST(test_nobody_starts)
{
    course c = {.seed = 7};
    uint64_t took_ns = UINT64_MAX;
    // the machine may be busy
    for (int i = 0; i < TRIES && took_ns >= NO_WAIT_MS * UINT64_C(1000000); i++) {
        const uint64_t begin_ns = ps_clock_ns();
        rig_run(&(rig){.servers = 2, .workers = WORKERS, .run = run_nothing, .ctx = &c});
        took_ns = ps_clock_ns() - begin_ns;
    }
    assert_true(took_ns < NO_WAIT_MS * UINT64_C(1000000));
}
