/* libpstrain: how jobs end. If a worker has made fewer steps, the others learn it. Those
 * that have made equally many end well in whatever order they leave: see ps-world. */
#include <inttypes.h>
#include <stdatomic.h>

#include "check.h"
#include "log.h"
#include "pstrain_rig.h"

enum { WORKERS = 3, STEPS = 4, ARRAY = 100000, REDUCER = 3, KINDS = 4 };

/* What sums, and how it travels: rings, sockets, with a codec, a reducer. */
static const char *const settings[KINDS][2] = {
    {"optimizer.name=sgd", "optimizer.lr=0.5"},
    {"optimizer.name=sgd", "exchange.shm=off"},
    {"exchange.codec=fp16", "exchange.codec_min=0"},
    {"exchange.nan=allow", "exchange.shm=auto"},
};

typedef struct course {
    int kind;
    int short_of;   // the worker that makes fewer steps
    uint64_t fewer; // how many it makes
} course;

/* A worker without data may leave without a start. */
static int open_tensors(rig_worker *w, int kind, bool starts)
{
    static const int64_t shape[] = {300, 70};
    const pstrain_tensor tensors[] = {{.name = "a", .shape = shape, .n_dims = 2},
                                      {.name = "b", .shape = shape, .n_dims = 1}};
    const pstrain_table table =
        RIG_TABLE(tensors, 2, .settings = settings[kind], .n_settings = 2);
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
        // The last one is awaited at the end.
        if (!status && i + 1 < n) status = pstrain_reduce_end(w->s, ticket);
    }
    if (!status) status = pstrain_close(w->s); // the session reads `values` until then
    free(values);
    return status;
}

/* Before a worker leaves, it may wait for its last weights. */
static int make_tensors_steps(rig_worker *w, uint64_t n)
{
    RIG_TRY(make_steps(w, n));
    if (n > 0 && w->rank == 2) RIG_TRY(pstrain_drain(w->s));
    return pstrain_close(w->s);
}

static int run(rig_worker *w)
{
    const course *c = w->rig->ctx;
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
    return make_sums(w, n);
}

/* Every worker fails with the same words, also one that has left in order. */
static void expect_all_told(const rig *r, const char *text)
{
    for (int i = 0; i < WORKERS; i++) {
        assert_int_equal(r->worker[i].status, PSTRAIN_ERR_PEER);
        if (!strstr(r->worker[i].text, text))
            fail_msg("worker %d: \"%s\" does not say \"%s\"", i, r->worker[i].text, text);
    }
}

TEST(test_fewer_steps)
{
    for (int kind = 0; kind < KINDS; kind++)
        for (int gone = 0; gone < WORKERS; gone++) {
            const uint64_t fewer = gone == 2 ? 0 : STEPS - 1 - (uint64_t)gone; // 3, 2, 0
            course c = {.kind = kind, .short_of = gone, .fewer = fewer};
            rig r = {
                .servers = 2, .workers = WORKERS, .run = run, .ctx = &c, .fails = true};
            char text[128];
            rig_run(&r);
            if (kind == REDUCER)
                snprintf(text, sizeof text, "worker %d has ended, and worker ", gone);
            else
                snprintf(text, sizeof text,
                         "worker %d has ended before step %" PRIu64 ", and worker ", gone,
                         fewer + 1);
            expect_all_told(&r, text);
        }
}

/* Without worker 0 there are no first weights. */
TEST(test_worker_0_does_not_start)
{
    course c = {.short_of = 0};
    rig r = {.servers = 2, .workers = WORKERS, .run = run, .ctx = &c, .fails = true};
    rig_run(&r);
    expect_all_told(&r, "worker 0 has ended without a step, and worker ");
}

static int run_nothing(rig_worker *w)
{
    RIG_TRY(open_tensors(w, 0, false));
    return pstrain_close(w->s);
}

static atomic_int n_warnings;

static void count_warnings(void *ctx, ps_log_level level, const char *text)
{
    if (strncmp(text, "goodbye ", 8) == 0) atomic_fetch_add(&n_warnings, 1);
}

/* No server waits for a goodbye that does not come. */
TEST(test_nobody_starts)
{
    ps_log_set_sink(count_warnings, NULL, PS_LOG_WARN);
    rig_job(2, WORKERS, run_nothing);
    ps_log_set_sink(NULL, NULL, PS_LOG_WARN);
    assert_int_equal(n_warnings, 0);
}
