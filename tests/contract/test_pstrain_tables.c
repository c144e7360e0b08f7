/* libpstrain: jobs that give up their table between two steps, for a longer one. All
 * numbers are small binary fractions, so the weights are closed forms. */
#include "check.h"
#include "pstrain_rig.h"

enum { TABLES = 3, STEPS = 2, MOST = 5, COUNT = 20000 };

static const char *const momentum[] = {"optimizer.name=sgd", "optimizer.lr=0.25",
                                       "optimizer.momentum=0.5"};
static const char *const names[MOST] = {"a", "b", "c", "d", "e"};

static int tensors_of(int table)
{
    return 1 + 2 * table;
}

/* Each worker's gradient of tensor i is 1 + rank: the sum of two workers is 3. Momentum
 * begins with the tensor's first step. */
static float wanted(int i, int n_steps, int workers)
{
    const float sum = (float)(workers * (workers + 1)) / 2;
    float weight = (float)i, buffer = 0;
    const int first = i == 0 ? 0 : (i + 1) / 2 * STEPS;
    for (int step = first; step < n_steps; step++) {
        buffer = step == first ? sum : 0.5f * buffer + sum;
        weight -= 0.25f * buffer;
    }
    return weight;
}

static int open_table(rig_worker *w, int k, const pstrain_state *before)
{
    static const int64_t shape[] = {COUNT};
    pstrain_tensor tensors[MOST];
    for (int i = 0; i < MOST; i++)
        tensors[i] = (pstrain_tensor){.name = names[i], .shape = shape, .n_dims = 1};
    const pstrain_table table = RIG_TABLE(tensors, tensors_of(k), .settings = momentum,
                                          .n_settings = 3, .resume = before);
    RIG_TRY(pstrain_open(w->s, &table));
    for (int i = 0; i < tensors_of(k); i++)
        for (int e = 0; e < COUNT; e++)
            pstrain_params(w->s)[pstrain_tensor_offset(w->s, i) + (uint64_t)e] =
                wanted(i, k * STEPS, w->rig->workers);
    return pstrain_start(w->s);
}

static int make_steps(rig_worker *w, int k)
{
    const int n = tensors_of(k);
    for (int step = 0; step < STEPS; step++) {
        RIG_TRY(pstrain_begin(w->s, NULL));
        RIG_TRY(pstrain_wait(w->s, 0, n));
        for (int i = 0; i < n; i++)
            for (int e = 0; e < COUNT; e++)
                pstrain_grads(w->s)[pstrain_tensor_offset(w->s, i) + (uint64_t)e] =
                    (float)(1 + w->rank);
        RIG_TRY(pstrain_push(w->s, 0, n));
        RIG_TRY(pstrain_finish(w->s));
    }
    RIG_TRY(pstrain_drain(w->s));
    for (int i = 0; i < n; i++)
        for (int e = 0; e < COUNT; e += 999)
            assert_true(
                pstrain_params(w->s)[pstrain_tensor_offset(w->s, i) + (uint64_t)e] ==
                wanted(i, (k + 1) * STEPS, w->rig->workers));
    return 0;
}

static int grow(rig_worker *w)
{
    const uint64_t room = MOST * (COUNT + 16);
    float *array = calloc(room, sizeof *array);
    uint64_t missed[MOST];
    pstrain_state state = {.struct_size = sizeof state};
    pstrain_arenas *old = NULL;
    if (w->rank == 0) {
        state.arrays[0] = array;
        state.missed = missed;
    }
    int status = open_table(w, 0, NULL);
    for (int k = 0; k < TABLES && !status; k++) {
        if (!status) status = make_steps(w, k);
        if (status || k == TABLES - 1) break;
        status = pstrain_save(w->s, &state);
        for (int i = tensors_of(k); i < MOST; i++)
            missed[i] = state.step;
        const float *before = pstrain_params(w->s);
        if (!status) status = pstrain_close_table(w->s, &old);
        if (!status) status = open_table(w, k + 1, &state);
        if (!status)
            assert_true(before[0] == wanted(0, (k + 1) * STEPS, w->rig->workers));
        pstrain_arenas_free(&old);
        assert_null(old);
    }
    free(array);
    return status ? status : pstrain_close(w->s);
}

TEST(test_longer_tables)
{
    static const char *const sockets[] = {"exchange.shm=off"};
    rig_job(2, 2, grow);
    rig_job(1, 3, grow, .settings = sockets, .n_settings = 1);
    rig_job(0, 1, grow);
#if PS_WITH_GLOO
    static const char *const gloo[] = {"exchange.name=gloo"};
    rig_job(0, 2, grow, .settings = gloo, .n_settings = 1);
#endif
}

static int grow_alone(rig_worker *w)
{
    pstrain_arenas *old = NULL;
    RIG_TRY(open_table(w, 0, NULL));
    RIG_TRY(make_steps(w, 0));
    rig_refused(pstrain_close_table(w->s, NULL), PSTRAIN_ERR_ARG, "arenas is NULL");
    RIG_TRY(pstrain_begin(w->s, NULL));
    rig_refused(pstrain_close_table(w->s, &old), PSTRAIN_ERR_ARG, "not finished");
    RIG_TRY(pstrain_push_none(w->s, 0, 1));
    RIG_TRY(pstrain_finish(w->s));
    if (w->rank == 0) return make_steps(w, 0);
    const int status = pstrain_close_table(w->s, &old);
    const int then = status ? status : open_table(w, 1, NULL);
    pstrain_arenas_free(&old);
    return then;
}

TEST(test_one_alone_is_named)
{
    rig r = {.servers = 1, .workers = 2, .run = grow_alone, .fails = true};
    rig_run(&r);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.worker[i].status, PSTRAIN_ERR_PEER);
        assert_non_null(
            strstr(r.worker[i].text, "worker 1 adds parameters, and worker 0"));
    }
}

static int share(rig_worker *w, uint8_t value)
{
    uint8_t bytes[1000];
    memset(bytes, w->rank == 0 ? value : 0, sizeof bytes);
    RIG_TRY(pstrain_broadcast(w->s, bytes, sizeof bytes, 0));
    for (size_t i = 0; i < sizeof bytes; i++)
        assert_int_equal(bytes[i], value);
    return 0;
}

/* As a thread of collectives may do beside the one that makes steps. */
static int share_beside(rig_worker *w)
{
    pstrain_arenas *old = NULL;
    RIG_TRY(open_table(w, 0, NULL));
    RIG_TRY(make_steps(w, 0));
    RIG_TRY(share(w, 1));
    if (w->rank == 1) RIG_TRY(share(w, 2));
    RIG_TRY(pstrain_close_table(w->s, &old));
    pstrain_arenas_free(&old);
    if (w->rank == 0) RIG_TRY(share(w, 2));
    RIG_TRY(share(w, 3));
    int kept = 1;
    RIG_TRY(pstrain_rows_kept(w->s, 1, &kept));
    assert_int_equal(kept, 0);
    return pstrain_close(w->s);
}

TEST(test_what_is_shared_is_of_no_table)
{
    rig_run(&(rig){.servers = 2, .workers = 2, .run = share_beside});
}
