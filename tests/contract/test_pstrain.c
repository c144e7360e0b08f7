/* libpstrain: sessions with tensors. Gradients and rates are small binary fractions, so
 * that every sum and step is exact and the weights are closed forms. */
#include <limits.h>
#include <math.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "curve.h"
#include "pstrain_rig.h"
#include "temp_files.h"

enum { STEPS = 6, N_TENSORS = 4, N_PARAMS = 3 };

static const int64_t shape_a[] = {90, 70}, shape_b[] = {90}, shape_c[] = {3, 2, 5, 7, 11};
#define TENSORS(second)                                                                  \
    {                                                                                    \
        {.name = "a", .shape = shape_a, .n_dims = 2},                                    \
            {.name = "mean",                                                             \
             .shape = shape_b,                                                           \
             .n_dims = 1,                                                                \
             .kind = PSTRAIN_BUFFER_FLOAT32},                                            \
            {.name = "b", .shape = shape_b, .n_dims = 1, .group = second},               \
            {.name = "c", .shape = shape_c, .n_dims = 5, .group = second},               \
    }
static const pstrain_tensor tensors[N_TENSORS] = TENSORS(0);
static const pstrain_tensor grouped[N_TENSORS] = TENSORS(1);
static const int group_of[N_PARAMS] = {0, 1, 1};
static const uint64_t counts[N_PARAMS] = {90 * 70, 90, 3 * 2 * 5 * 7 * 11};

static pstrain_table table_of(const char *const *settings, int n)
{
    return RIG_TABLE(tensors, N_TENSORS, .settings = settings, .n_settings = n);
}

static float gradient(int rank, uint64_t step, uint64_t i)
{
    return (float)((uint64_t)rank + 1 + step + i % 7) / 64;
}

static float *param(pstrain_session *s, int i)
{
    static const int entry[N_PARAMS] = {0, 2, 3};
    return pstrain_params(s) + pstrain_tensor_offset(s, entry[i]);
}

/* Pushes a gradient twice as large, which the copy halves. */
static int push_double(rig_worker *w, int t, uint64_t step)
{
    float *from = malloc(counts[t] * sizeof *from);
    if (!from) return PSTRAIN_ERR_NOMEM;
    for (uint64_t i = 0; i < counts[t]; i++)
        from[i] = 2 * gradient(w->rank, step, i);
    const int status = pstrain_push_copy(w->s, t, from, 0.5f);
    free(from);
    return status;
}

static void fill_gradients(rig_worker *w, uint64_t step)
{
    for (int t = 0; t < N_PARAMS; t++) {
        float *g = pstrain_grads(w->s) + (param(w->s, t) - pstrain_params(w->s));
        for (uint64_t i = 0; i < counts[t]; i++)
            g[i] = gradient(w->rank, step, i);
    }
}

/* Whether the rank has a gradient for the parameter: for the last two nobody in step 3,
 * and rank 0 alone in step 4. */
static bool has_gradient(int rank, uint64_t step, int t)
{
    return t == 0 || (step != 3 && (step != 4 || rank == 0));
}

static const char *const two_levels[] = {"exchange.levels=2"}; // all are on one host

/* --- steps by groups --------------------------------------------------------------- */

/* The rate of a group in a step: it changes in some steps, and not in others. */
static double rate(int group, uint64_t step)
{
    return (group ? 0.5 : 0.25) / (step < 2 ? 1 : step < 4 ? 2 : 4);
}

/* With a context the servers make the mean. */
static int check_weights(rig_worker *w, uint64_t steps)
{
    const float part = w->rig->ctx ? 1.0f / (float)w->rig->workers : 1;
    for (int t = 0; t < N_PARAMS; t++)
        for (uint64_t i = 0; i < counts[t]; i++) {
            float want = (float)(i % 64);
            for (uint64_t k = 0; k < steps; k++)
                for (int r = 0; r < w->rig->workers && has_gradient(r, k, t); r++)
                    want -= (float)rate(group_of[t], k) * gradient(r, k, i) * part;
            if (param(w->s, t)[i] != want) {
                fprintf(stderr, "tensor %d: %g is not %g\n", t, (double)param(w->s, t)[i],
                        (double)want);
                return PSTRAIN_ERR_INTERNAL;
            }
        }
    return 0;
}

static int set_rates(pstrain_session *s, uint64_t step)
{
    pstrain_group groups[2] = {{.lr = rate(0, step)}, {.lr = rate(1, step)}};
    return pstrain_set_groups(s, groups, 2, sizeof *groups);
}

static int one_step(rig_worker *w, uint64_t step)
{
    uint64_t begun;
    int here;
    RIG_TRY(set_rates(w->s, step));
    if (step % 3 == 0) RIG_TRY(pstrain_wait(w->s, 0, N_PARAMS)); // between two steps
    if (step % 3 == 0) RIG_TRY(check_weights(w, step));
    RIG_TRY(pstrain_begin(w->s, &begun));
    if (begun != step) return PSTRAIN_ERR_INTERNAL;
    RIG_TRY(pstrain_wait(w->s, 0, 1));
    RIG_TRY(pstrain_wait(w->s, 1, 2));
    RIG_TRY(pstrain_ready(w->s, 0, N_PARAMS, &here));
    if (!here) return PSTRAIN_ERR_INTERNAL;
    RIG_TRY(check_weights(w, step));
    if (step % 2) {
        for (int t = 0; t < N_PARAMS; t++)
            RIG_TRY(has_gradient(w->rank, step, t) ? push_double(w, t, step)
                                                   : pstrain_push_none(w->s, t, 1));
        return pstrain_finish(w->s);
    }
    fill_gradients(w, step);
    if (!has_gradient(w->rank, step, 1)) {
        RIG_TRY(pstrain_push_none(w->s, 1, 2));
        RIG_TRY(pstrain_push(w->s, 0, 1));
        return pstrain_finish(w->s);
    }
    RIG_TRY(pstrain_push(w->s, 2, 1));
    RIG_TRY(pstrain_push(w->s, 0, 2));
    return pstrain_finish(w->s);
}

static void first_weights(rig_worker *w)
{
    for (int t = 0; t < N_PARAMS; t++)
        for (uint64_t i = 0; i < counts[t]; i++)
            param(w->s, t)[i] = w->rank == 0 ? (float)(i % 64) : 99;
    memset(pstrain_buffers(w->s), 7 + w->rank, pstrain_buffer_bytes(w->s));
}

static int train_by_groups(rig_worker *w)
{
    const char *const settings[] = {"optimizer.name=sgd", "exchange.chunk=16384"};
    pstrain_group groups[2] = {{.lr = 1}, {.lr = 1}}; // replaced before the first step
    pstrain_table table = table_of(settings, 2);
    table.tensors = grouped;
    table.groups = groups;
    table.n_groups = 2;
    table.group_size = sizeof *groups;
    table.mean = w->rig->ctx != NULL;
    RIG_TRY(pstrain_open(w->s, &table));
    first_weights(w);
    RIG_TRY(pstrain_start(w->s));
    if (*(uint8_t *)pstrain_buffers(w->s) != 7) return PSTRAIN_ERR_INTERNAL;
    for (uint64_t step = 0; step < STEPS; step++)
        RIG_TRY(one_step(w, step));
    RIG_TRY(pstrain_drain(w->s));
    RIG_TRY(check_weights(w, STEPS));
    memset(pstrain_buffers(w->s), 20 + w->rank, pstrain_buffer_bytes(w->s));
    RIG_TRY(pstrain_sync(w->s));
    if (w->rig->workers > 1 && *(uint8_t *)pstrain_buffers(w->s) != 20)
        return PSTRAIN_ERR_INTERNAL;
    pstrain_stats stats = {.struct_size = sizeof stats};
    RIG_TRY(pstrain_stats_get(w->s, &stats));
    if (stats.steps != STEPS) return PSTRAIN_ERR_INTERNAL;
    return pstrain_close(w->s);
}

/* Every group's rate holds from its step on: with servers and without, in shared memory
 * and over sockets, and where one worker of a host speaks for all. */
TEST(test_groups)
{
    static const char *const no_shm[] = {"exchange.shm=off"};
    rig_job(1, 1, train_by_groups);
    rig_job(1, 2, train_by_groups);
    rig_job(2, 3, train_by_groups, .settings = no_shm, .n_settings = 1);
    rig_job(2, 3, train_by_groups, .settings = two_levels, .n_settings = 1);
    int mean;
    for (int levels = 0; levels < 2; levels++) // 2: a mean of the workers, not of hosts
        rig_job(2, 2, train_by_groups, .ctx = &mean, .settings = two_levels,
                .n_settings = levels);
    rig_job(0, 1, train_by_groups);
#if PS_WITH_GLOO
    rig_job(0, 2, train_by_groups);
#endif
}

/* --- optimizers in turn ------------------------------------------------------------ */

enum { TURNS = 2 * STEPS };

static int check_turns(rig_worker *w, uint64_t steps)
{
    for (int t = 0; t < N_PARAMS; t++)
        for (uint64_t i = 0; i < counts[t]; i++) {
            float want = (float)(i % 64);
            for (uint64_t k = (uint64_t)group_of[t]; k < steps; k += 2)
                for (int r = 0; r < w->rig->workers; r++)
                    want -= 0.25f * gradient(r, k, i);
            if (param(w->s, t)[i] != want) return PSTRAIN_ERR_INTERNAL;
        }
    return 0;
}

/* Of the parameters that a step leaves out nothing is pushed, and nobody waits for them. */
static int take_turns(rig_worker *w)
{
    const char *const settings[] = {"optimizer.name=sgd", "exchange.chunk=4096"};
    const pstrain_group groups[2] = {{.lr = 0.25}, {.lr = 0.25, .optimizer = 1}};
    pstrain_table table = table_of(settings, 2);
    table.tensors = grouped;
    table.groups = groups;
    table.n_groups = 2;
    table.group_size = sizeof *groups;
    RIG_TRY(pstrain_open(w->s, &table));
    first_weights(w);
    RIG_TRY(pstrain_start(w->s));
    for (uint64_t step = 0; step < TURNS; step++) {
        const int turn = (int)step % 2;
        RIG_TRY(turn ? 0 : pstrain_wait(w->s, 0, N_PARAMS));
        RIG_TRY(turn ? 0 : check_turns(w, step));
        RIG_TRY(pstrain_begin_of(w->s, turn, NULL));
        for (int t = turn; t < (turn ? N_PARAMS : 1); t++)
            RIG_TRY(push_double(w, t, step));
        RIG_TRY(pstrain_finish(w->s));
    }
    RIG_TRY(pstrain_drain(w->s));
    RIG_TRY(check_turns(w, TURNS));
    return pstrain_close(w->s);
}

TEST(test_optimizers_in_turn)
{
    static const char *const no_shm[] = {"exchange.shm=off"};
    rig_job(2, 1, take_turns);
    rig_job(2, 2, take_turns);
    rig_job(2, 2, take_turns, .settings = no_shm, .n_settings = 1);
    rig_job(1, 2, take_turns, .settings = two_levels, .n_settings = 1);
    rig_job(0, 1, take_turns);
}

/* --- sums -------------------------------------------------------------------------- */

typedef struct sums {
    const char *optimizer, *codec;
    float factor, tolerance; // of the sum; of its largest element
} sums;

static int check_sums(rig_worker *w, uint64_t step, const sums *c)
{
    for (int t = 0; t < N_PARAMS; t++)
        for (uint64_t i = 0; i < counts[t]; i++) {
            float want = 0;
            for (int r = 0; r < w->rig->workers; r++)
                want += gradient(r, step * 100, i);
            want *= c->factor;
            const float largest = (float)(w->rig->workers * (10 + (int)step * 100)) / 64;
            if (!(fabsf(param(w->s, t)[i] - want) <= c->tolerance * largest)) {
                fprintf(stderr, "%s %s, step %d: %g is not %g\n", c->optimizer, c->codec,
                        (int)step, (double)param(w->s, t)[i], (double)want);
                return PSTRAIN_ERR_INTERNAL;
            }
        }
    return 0;
}

static int add_up(rig_worker *w)
{
    const sums *c = w->rig->ctx;
    const char *const settings[] = {c->optimizer, c->codec, "exchange.chunk=16384"};
    const pstrain_table table = table_of(settings, 3);
    RIG_TRY(pstrain_open(w->s, &table));
    RIG_TRY(pstrain_start(w->s));
    for (uint64_t step = 0; step < STEPS; step++) {
        RIG_TRY(pstrain_begin(w->s, NULL));
        RIG_TRY(pstrain_wait(w->s, 0, N_PARAMS));
        if (step > 0) RIG_TRY(check_sums(w, step - 1, c));
        fill_gradients(w, step * 100);
        RIG_TRY(pstrain_push(w->s, 0, N_PARAMS));
        RIG_TRY(pstrain_finish(w->s));
    }
    return pstrain_close(w->s);
}

/* After a step the arena holds that step's sum, whatever the step before gave. */
TEST(test_sums)
{
    sums exact = {"optimizer.name=sum", "exchange.codec=none", 1, 0};
    sums half = {"optimizer.name=mean", "exchange.codec=none", 0.5f, 0};
    sums fp16 = {"optimizer.name=sum", "exchange.codec=fp16", 1, 2e-3f};
    sums int8 = {"optimizer.name=sum", "exchange.codec=int8", 1, 3e-2f};
    rig_job(2, 2, add_up, .ctx = &exact);
    rig_job(1, 2, add_up, .ctx = &half);
    rig_job(0, 1, add_up, .ctx = &exact);
    rig_job(1, 3, add_up, .ctx = &fp16);
    rig_job(1, 2, add_up, .ctx = &int8);
    sums *const levels[] = {&exact, &half, &int8};
    for (int i = 0; i < 3; i++)
        rig_job(2, 2, add_up, .ctx = levels[i], .settings = two_levels, .n_settings = 1);
#if PS_WITH_GLOO
    rig_job(0, 2, add_up, .ctx = &exact);
    rig_job(0, 2, add_up, .ctx = &half);
#endif
}

/* --- state ------------------------------------------------------------------------- */

typedef struct saved {
    pstrain_state state; // after STEPS steps
    float *arrays[2];
    uint64_t missed[N_PARAMS];
    float *weights; // then
    float *ends[2]; // the last weights, without a break and with one
    size_t bytes;   // of an arena
    bool resumes;
} saved;

static int adam_step(rig_worker *w, uint64_t step)
{
    RIG_TRY(pstrain_begin(w->s, NULL));
    RIG_TRY(pstrain_wait(w->s, 0, N_PARAMS));
    fill_gradients(w, step);
    if (has_gradient(w->rank, step, 1)) {
        RIG_TRY(pstrain_push(w->s, 0, N_PARAMS));
    } else {
        RIG_TRY(pstrain_push(w->s, 0, 1));
        RIG_TRY(pstrain_push_none(w->s, 1, 2));
    }
    return pstrain_finish(w->s);
}

static float *copy_of_weights(rig_worker *w, size_t bytes)
{
    float *copy = malloc(bytes);
    memcpy(copy, pstrain_params(w->s), bytes);
    return copy;
}

static int save_state(rig_worker *w, saved *c)
{
    pstrain_state none = {.struct_size = sizeof none};
    if (w->rank != 0) return pstrain_save(w->s, &none);
    c->bytes = pstrain_arena_count(w->s) * sizeof(float);
    c->state = (pstrain_state){.struct_size = sizeof c->state, .missed = c->missed};
    for (int i = 0; i < 2; i++)
        c->state.arrays[i] = c->arrays[i] = malloc(c->bytes);
    RIG_TRY(pstrain_save(w->s, &c->state));
    c->weights = copy_of_weights(w, c->bytes);
    if (c->missed[0] != 0 || c->missed[1] != 1 || c->missed[2] != 1)
        return PSTRAIN_ERR_INTERNAL;
    return c->state.step == STEPS ? 0 : PSTRAIN_ERR_INTERNAL;
}

static int train_adam(rig_worker *w)
{
    saved *c = w->rig->ctx;
    const char *const settings[] = {"optimizer.name=adamw", "exchange.chunk=16384"};
    pstrain_table table = table_of(settings, 2);
    if (c->resumes && w->rank == 0) table.resume = &c->state;
    RIG_TRY(pstrain_open(w->s, &table));
    first_weights(w);
    if (c->resumes && w->rank == 0) memcpy(pstrain_params(w->s), c->weights, c->bytes);
    RIG_TRY(pstrain_start(w->s));
    if (pstrain_state_arrays(w->s) != 2 ||
        strcmp(pstrain_state_name(w->s, 1), "exp_avg_sq") != 0)
        return PSTRAIN_ERR_INTERNAL;
    for (uint64_t step = c->resumes ? STEPS : 0; step < STEPS * 2; step++) {
        RIG_TRY(adam_step(w, step));
        if (!c->resumes && step + 1 == STEPS) RIG_TRY(save_state(w, c));
    }
    RIG_TRY(pstrain_drain(w->s));
    if (w->rank == 0) c->ends[c->resumes] = copy_of_weights(w, c->bytes);
    return pstrain_close(w->s);
}

/* A job that goes on from the saved state ends with the same bits. */
static void check_resume(int servers, int workers)
{
    saved c = {.resumes = false};
    rig r = {.servers = servers, .workers = workers, .run = train_adam, .ctx = &c};
    rig_run(&r);
    c.resumes = true;
    rig_run(&r);
    assert_memory_equal(c.ends[0], c.ends[1], c.bytes);
    free(c.arrays[0]), free(c.arrays[1]), free(c.weights), free(c.ends[0]),
        free(c.ends[1]);
}

TEST(test_resume)
{
    check_resume(2, 2);
    check_resume(0, 1);
#if PS_WITH_GLOO
    check_resume(0, 2);
#endif
}

/* --- loss scale -------------------------------------------------------------------- */

static int overflow_once(rig_worker *w)
{
    const char *const settings[] = {"optimizer.lr=0.5", "loss_scale.use=on",
                                    "loss_scale.init=4"};
    const pstrain_table table = table_of(settings, 3);
    float scale;
    uint64_t skipped;
    RIG_TRY(pstrain_open(w->s, &table));
    RIG_TRY(pstrain_start(w->s));
    for (uint64_t step = 0; step < 3; step++) {
        RIG_TRY(pstrain_begin(w->s, NULL));
        RIG_TRY(pstrain_wait(w->s, 0, N_PARAMS));
        RIG_TRY(pstrain_loss_scale(w->s, &scale, &skipped));
        if (skipped != (step == 2) || scale != (step == 2 ? 2.0f : 4.0f))
            return PSTRAIN_ERR_INTERNAL;
        fill_gradients(w, 0);
        if (step == 1 && w->rank == 0) pstrain_grads(w->s)[5] = INFINITY;
        RIG_TRY(pstrain_push(w->s, 0, N_PARAMS));
        RIG_TRY(pstrain_finish(w->s));
    }
    RIG_TRY(pstrain_drain(w->s));
    // Two steps are made, with the scales 4 and 2.
    const float want = -0.5f * (gradient(0, 0, 0) + gradient(1, 0, 0)) * 0.75f;
    if (param(w->s, 0)[0] != want) return PSTRAIN_ERR_INTERNAL;
    pstrain_state *state = w->rig->ctx;
    pstrain_state none = {.struct_size = sizeof none};
    RIG_TRY(pstrain_save(w->s, w->rank == 0 ? state : &none));
    return pstrain_close(w->s);
}

/* Every rank learns what was skipped before. */
static int go_on_after_overflow(rig_worker *w)
{
    const char *const settings[] = {"optimizer.lr=0.5", "loss_scale.use=on",
                                    "loss_scale.init=4"};
    pstrain_table table = table_of(settings, 3);
    float scale;
    uint64_t skipped;
    if (w->rank == 0) table.resume = w->rig->ctx;
    RIG_TRY(pstrain_open(w->s, &table));
    RIG_TRY(pstrain_start(w->s));
    RIG_TRY(pstrain_loss_scale(w->s, &scale, &skipped));
    if (skipped != 1 || scale != 2) return PSTRAIN_ERR_INTERNAL;
    return pstrain_close(w->s);
}

TEST(test_loss_scale)
{
    pstrain_state kept = {.struct_size = sizeof kept};
    rig r = {.servers = 1, .workers = 2, .run = overflow_once, .ctx = &kept};
    rig_run(&r);
    r.run = go_on_after_overflow;
    rig_run(&r);
}

/* --- disagreement ------------------------------------------------------------------ */

static int open_differently(rig_worker *w)
{
    const int what = *(int *)w->rig->ctx;
    const int64_t shape[] = {91};
    const char *const settings[] = {what == 1 && w->rank == 1 ? "optimizer.lr=0.25"
                                                              : "optimizer.lr=0.5",
                                    "net.step_timeout_ms=10000"};
    const pstrain_group groups[2] = {{.lr = 1},
                                     {.lr = what == 2 && w->rank == 1 ? 2 : 1}};
    pstrain_tensor mine[N_TENSORS];
    memcpy(mine, grouped, sizeof mine);
    if (what == 0 && w->rank == 1) mine[2].shape = shape;
    pstrain_table table = table_of(settings, 2);
    table.tensors = mine;
    table.groups = groups;
    table.n_groups = 2;
    table.group_size = sizeof *groups;
    return pstrain_open(w->s, &table);
}

static void check_differs(int servers, int what, const char *text)
{
    rig r = {.servers = servers,
             .workers = 2,
             .run = open_differently,
             .ctx = &what,
             .fails = true};
    rig_run(&r);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.worker[i].status, PSTRAIN_ERR_PEER);
        if (!strstr(r.worker[i].text, text)) fail_msg("%d: %s", i, r.worker[i].text);
    }
    for (int i = 0; i < servers; i++)
        if (!strstr(r.job.server[i].text, text)) fail_msg("%s", r.job.server[i].text);
}

/* Every member learns which worker differs, and in what. */
TEST(test_differs)
{
    check_differs(2, 0,
                  "worker 1 has other tensors than worker 0: tensor 1 is b (91), "
                  "not b (90)");
    check_differs(1, 1, "worker 1 has another optimizer.lr than worker 0");
    check_differs(1, 2, "worker 1 has other numbers than worker 0 for parameter group 1");
#if PS_WITH_GLOO
    check_differs(0, 0, "tensor 1 is b (91)");
#endif
}

/* --- keys -------------------------------------------------------------------------- */

static int open_alone(rig_worker *w)
{
    const pstrain_table table = table_of(NULL, 0);
    RIG_TRY(pstrain_open(w->s, &table));
    RIG_TRY(pstrain_start(w->s));
    return pstrain_close(w->s);
}

static int make_keys(void **state)
{
    return temp_folder_make(state) != 0 || ps_curve_make(folder.path) != PS_OK;
}

/* A job with keys sends nothing that is not encrypted, unless the network is trusted. */
TEST_WITH(test_keys_without_servers, make_keys, temp_folder_remove)
{
    char keys[PATH_MAX];
    const char *const settings[] = {keys, "net.insecure=true"};
    rig r = {.workers = 2, .run = open_alone, .settings = settings, .fails = true};
    snprintf(keys, sizeof keys, "net.curve=%s", folder.path);
    r.n_settings = 1;
    rig_run(&r);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.worker[i].status, PSTRAIN_ERR_CONFIG);
        if (!strstr(r.worker[i].text, "what Gloo and NCCL send is not encrypted"))
            fail_msg("%d: %s", i, r.worker[i].text);
    }
#if PS_WITH_GLOO
    r.n_settings = 2;
    r.fails = false;
    rig_run(&r);
#endif
}

/* --- misuse ------------------------------------------------------------------------ */

static int use_badly(rig_worker *w)
{
    pstrain_session *s = w->s;
    const pstrain_table table = table_of(NULL, 0);
    uint64_t ticket;
    rig_refused(pstrain_join(s), PSTRAIN_ERR_ARG, "has joined already");
    rig_refused(pstrain_start(s), PSTRAIN_ERR_ARG, "no tensors yet");
    rig_refused(pstrain_begin(s, NULL), PSTRAIN_ERR_ARG,
                "pstrain_begin: the session has");
    rig_refused(pstrain_open(s, NULL), PSTRAIN_ERR_ARG, "NULL");
    if (pstrain_params(s) || pstrain_tensor_offset(s, 0) != UINT64_MAX)
        return PSTRAIN_ERR_INTERNAL;
    RIG_TRY(pstrain_open(s, &table));
    rig_refused(pstrain_open(s, &table), PSTRAIN_ERR_ARG, "is open already");
    rig_refused(pstrain_push(s, 0, 1), PSTRAIN_ERR_ARG, "not started yet");
    if (pstrain_tensor_offset(s, N_TENSORS) != UINT64_MAX) return PSTRAIN_ERR_INTERNAL;
    RIG_TRY(pstrain_start(s));
    rig_refused(pstrain_start(s), PSTRAIN_ERR_ARG, "already started");
    rig_refused(pstrain_begin_of(s, 1, NULL), PSTRAIN_ERR_ARG, "there are 1");
    rig_refused(pstrain_push(s, 0, 1), PSTRAIN_ERR_ARG, "no step has begun");
    rig_refused(pstrain_finish(s), PSTRAIN_ERR_ARG, "no step has begun");
    rig_refused(pstrain_reduce_begin(s, NULL, 0, &ticket), PSTRAIN_ERR_ARG,
                "pstrain_open_reducer");
    rig_refused(pstrain_set_groups(s, NULL, 3, 8), PSTRAIN_ERR_ARG, "the table has");
    rig_refused(pstrain_set_lr(s, NAN), PSTRAIN_ERR_ARG, "lr is nan");
    RIG_TRY(pstrain_begin(s, NULL));
    rig_refused(pstrain_begin(s, NULL), PSTRAIN_ERR_ARG, "step 0 is not finished yet");
    rig_refused(pstrain_wait(s, 1, 3), PSTRAIN_ERR_ARG, "but there are 3");
    RIG_TRY(pstrain_wait(s, 0, N_PARAMS));
    RIG_TRY(pstrain_push(s, 0, 2));
    rig_refused(pstrain_push(s, 1, 2), PSTRAIN_ERR_ARG,
                "in step 0: the gradient of b was pushed before");
    rig_refused(pstrain_push_copy(s, 1, pstrain_params(s), 1), PSTRAIN_ERR_ARG,
                "in step 0: the gradient of b was pushed before");
    rig_refused(pstrain_push_copy(s, 2, NULL, 1), PSTRAIN_ERR_ARG, "c is NULL");
    rig_refused(pstrain_finish(s), PSTRAIN_ERR_ARG, "c was not pushed in step 0");
    rig_refused(pstrain_drain(s), PSTRAIN_ERR_ARG, "step 0 is not finished yet");
    RIG_TRY(pstrain_push(s, 2, 1));
    RIG_TRY(pstrain_finish(s));
    RIG_TRY(pstrain_close(s)); // nothing of this has done harm
    rig_refused(pstrain_close(s), PSTRAIN_ERR_ARG, "is closed");
    rig_refused(pstrain_begin(s, NULL), PSTRAIN_ERR_ARG, "is closed");
    rig_refused(pstrain_barrier(s), PSTRAIN_ERR_ARG, "is closed");
    return 0;
}

TEST(test_misuse)
{
    rig_job(1, 2, use_badly);
    assert_int_equal(pstrain_begin(NULL, NULL), PSTRAIN_ERR_ARG);
    pstrain_abort(NULL, "nothing");
    pstrain_destroy(NULL);
}

/* --- options ----------------------------------------------------------------------- */

static void refuse_options(pstrain_options o, int status, const char *text)
{
    pstrain_session *s;
    rig_refused(pstrain_create(&o, &s), status, text);
    assert_null(s);
}

static pstrain_session *alone(void)
{
    const pstrain_options o = {
        .struct_size = sizeof o, .rank_plus_1 = 1, .world_size = 1, .servers_plus_1 = 1};
    pstrain_session *s;
    assert_int_equal(pstrain_create(&o, &s), PSTRAIN_OK);
    assert_int_equal(pstrain_join(s), PSTRAIN_OK);
    return s;
}

static void refuse_table(const pstrain_tensor *list, int n, const char *setting,
                         const char *text)
{
    pstrain_session *s = alone();
    const pstrain_table t = RIG_TABLE(list, n, .settings = &setting,
                                      .n_settings = setting != NULL, .mean = true);
    rig_refused(pstrain_open(s, &t), PSTRAIN_ERR_CONFIG, text);
    rig_refused(pstrain_start(s), PSTRAIN_ERR_ARG, "has failed before");
    rig_refused(pstrain_close(s), PSTRAIN_ERR_ARG, "has failed before");
    pstrain_destroy(&s);
    assert_null(s);
}

TEST(test_bad_options)
{
    const char *const train[] = {"train.epochs=3"}, *const word[] = {
                                                        "exchange.codec=zip"};
    const size_t size = sizeof(pstrain_options);
    refuse_options((pstrain_options){0}, PSTRAIN_ERR_ARG, "struct_size 0");
    refuse_options(
        (pstrain_options){.struct_size = size, .rank_plus_1 = 3, .world_size = 2},
        PSTRAIN_ERR_ARG, "rank 2 does not fit a job of 2 workers");
    refuse_options((pstrain_options){.struct_size = size, .init_method = "udp://x"},
                   PSTRAIN_ERR_ARG, "udp://x");
    refuse_options(
        (pstrain_options){.struct_size = size, .settings = train, .n_settings = 1},
        PSTRAIN_ERR_CONFIG, "train.epochs=3: not a setting of a program");
    refuse_options(
        (pstrain_options){.struct_size = size, .settings = word, .n_settings = 1},
        PSTRAIN_ERR_CONFIG, "exchange.codec: 'zip' is not one of");
    refuse_table((pstrain_tensor[]){{.name = "x"}}, 1, "exchange.codec=int8",
                 "mean needs exchange.codec none");
    const int64_t none[] = {0}, many[] = {1 << 30, 1 << 29};
    refuse_table((pstrain_tensor[]){{.name = "x"}, {.name = "x"}}, 2, NULL,
                 "two tensors have the name x");
    refuse_table((pstrain_tensor[]){{.name = "x", .shape = none, .n_dims = 1}}, 1, NULL,
                 "tensor 0 (x): a dimension below 1");
    refuse_table((pstrain_tensor[]){{.name = "x", .shape = many, .n_dims = 2}}, 1, NULL,
                 "x (1073741824, 536870912): too many elements");
    refuse_table((pstrain_tensor[]){{.name = "x", .group = 1}}, 1, NULL, "its group");
    refuse_table((pstrain_tensor[]){{.name = "x", .kind = 1}}, 1, NULL, "no parameter");
    refuse_table((pstrain_tensor[]){{.name = "x"}}, 1, "optimizer.name=adamax",
                 "optimizer.name: 'adamax'");
}

/* --- ends -------------------------------------------------------------------------- */

static int abort_in_step(rig_worker *w)
{
    const pstrain_table table = table_of(NULL, 0);
    RIG_TRY(pstrain_open(w->s, &table));
    RIG_TRY(pstrain_start(w->s));
    RIG_TRY(pstrain_begin(w->s, NULL));
    RIG_TRY(pstrain_wait(w->s, 0, N_PARAMS));
    if (w->rank == 1) { // it dies of another cause, or leaves without a goodbye
        if (w->rig->ctx) pstrain_abort(w->s, w->rig->ctx);
        return 0;
    }
    RIG_TRY(pstrain_push(w->s, 0, N_PARAMS));
    RIG_TRY(pstrain_finish(w->s));
    RIG_TRY(pstrain_drain(w->s));
    return 0;
}

TEST(test_abort)
{
    rig r = {.servers = 1, .workers = 2, .run = abort_in_step, .fails = true};
    r.ctx = "no memory for the next batch";
    rig_run(&r);
    assert_int_equal(r.worker[0].status, PSTRAIN_ERR_PEER);
    assert_non_null(strstr(r.worker[0].text, "worker 1"));
    assert_non_null(strstr(r.worker[0].text, "no memory for the next batch"));
    r.ctx = NULL;
    rig_run(&r);
    assert_int_equal(r.worker[0].status, PSTRAIN_ERR_PEER);
    assert_non_null(strstr(r.worker[0].text, "worker 1"));
}

/* Any memory: each change of a byte is found, in what is left of a word, too. */
TEST(test_checksum)
{
    unsigned char bytes[15];
    memset(bytes, 7, sizeof bytes);
    for (size_t n = 0; n <= sizeof bytes; n++) {
        const uint32_t before = pstrain_checksum(n > 0 ? bytes : NULL, n);
        for (size_t i = 0; i < sizeof bytes; i++) {
            bytes[i] ^= 1;
            assert_int_equal(pstrain_checksum(bytes, n) != before, i < n);
            bytes[i] ^= 1;
        }
    }
}

/* Another sign, or twice as much, of all elements is found, also where they are equal. */
TEST(test_checksum_of_all)
{
    static float x[4096], y[4096];
    const float factors[] = {-1, 2, 0.5F, -4, 1.0F / 65536};
    for (size_t n = 2; n <= 4096; n *= 2)
        for (int alike = 0; alike < 2; alike++)
            for (size_t f = 0; f < sizeof factors / sizeof *factors; f++) {
                for (size_t i = 0; i < n; i++) {
                    x[i] = alike ? 1 : 0.37F + (float)(i * 7919 % 4093);
                    y[i] = x[i] * factors[f];
                }
                assert_int_not_equal(pstrain_checksum(x, n * sizeof *x),
                                     pstrain_checksum(y, n * sizeof *y));
            }
}

/* A program that joins, but needs no tensors. */
static int leave_early(rig_worker *w)
{
    RIG_TRY(pstrain_barrier(w->s));
    return pstrain_close(w->s);
}

TEST(test_leave_early)
{
    rig_job(2, 2, leave_early);
}

static int soon(void *ctx)
{
    return ++*(int *)ctx > 2;
}

/* Worker 0 waits for a worker that does not come, until its program interrupts it. */
TEST(test_interrupted)
{
    int asked = 0;
    pstrain_session *s;
    const pstrain_options o = {.struct_size = sizeof o,
                               .init_method = "tcp://127.0.0.1:1",
                               .rank_plus_1 = 2,
                               .world_size = 2,
                               .servers_plus_1 = 1,
                               .interrupted = soon,
                               .interrupted_ctx = &asked};
    assert_int_equal(pstrain_create(&o, &s), PSTRAIN_OK);
    rig_refused(pstrain_join(s), PSTRAIN_ERR_INTERRUPTED, "interrupted");
    rig_refused(pstrain_join(s), PSTRAIN_ERR_ARG, "has failed before");
    pstrain_destroy(&s);
}

/* A child of fork() can do no harm. */
TEST(test_fork)
{
    pstrain_session *s = alone();
    const pid_t child = fork();
    if (child == 0) {
        rig_refused(pstrain_barrier(s), PSTRAIN_ERR_ARG, "after fork()");
        pstrain_abort(s, "the child is done");
        pstrain_destroy(&s);
        _exit(s != NULL);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(pstrain_close(s), PSTRAIN_OK);
    pstrain_destroy(&s);
}
