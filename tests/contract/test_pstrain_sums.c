/* libpstrain: collectives, and the reducer that sums arrays of any size. */
#include "check.h"
#include "pstrain_rig.h"

static int wrong(const char *what, uint64_t i)
{
    fprintf(stderr, "%s, element %d is wrong\n", what, (int)i);
    return PSTRAIN_ERR_INTERNAL;
}

/* --- collectives ------------------------------------------------------------------- */

static uint8_t byte_of(int rank, uint64_t i)
{
    return (uint8_t)(i * 31 + i / 1021 + (uint64_t)rank * 7 + 1);
}

static int gather_bytes(rig_worker *w, uint64_t n)
{
    const int workers = w->rig->workers;
    uint8_t *in = malloc(n + 1), *out = calloc((size_t)workers, n + 1);
    for (uint64_t i = 0; i < n; i++)
        in[i] = byte_of(w->rank, i);
    RIG_TRY(pstrain_all_gather(w->s, in, n, out));
    for (int r = 0; r < workers; r++)
        for (uint64_t i = 0; i < n; i++)
            if (out[(uint64_t)r * n + i] != byte_of(r, i)) return wrong("gathered", i);
    const int root = workers - 1;
    RIG_TRY(pstrain_broadcast(w->s, in, n, root));
    for (uint64_t i = 0; i < n; i++)
        if (in[i] != byte_of(root, i)) return wrong("broadcast", i);
    free(in);
    free(out);
    return 0;
}

static int reduce_integers(rig_worker *w)
{
    const int64_t big = (int64_t)1 << 62;
    int64_t a[3] = {big - w->rank, -5 * w->rank, INT64_MAX};
    uint8_t flags[2] = {(uint8_t)(w->rank == 0), 1};
    int32_t low = w->rank - 1;
    double exact = 0.1 * (w->rank + 1);
    RIG_TRY(pstrain_all_reduce(w->s, a, 3, PSTRAIN_INT64, PSTRAIN_SUM));
    if (a[0] != (int64_t)((uint64_t)big * 2 - 1) || a[1] != -5 || a[2] != -2)
        return wrong("int64", 0);
    RIG_TRY(pstrain_all_reduce(w->s, flags, 2, PSTRAIN_UINT8, PSTRAIN_MAX));
    if (flags[0] != 1 || flags[1] != 1) return wrong("max", 0);
    RIG_TRY(pstrain_all_reduce(w->s, &low, 1, PSTRAIN_INT32, PSTRAIN_MIN));
    if (low != -1) return wrong("min", 0);
    RIG_TRY(pstrain_all_reduce(w->s, &exact, 1, PSTRAIN_FLOAT64, PSTRAIN_PRODUCT));
    return exact == 0.1 * 1 * (0.1 * 2) ? 0 : wrong("product", 0);
}

static float value(int rank, uint64_t i)
{
    return 1.0f / (float)(i % 1000 + 3 + (uint64_t)rank);
}

/* In rank order, as float32. */
static float sum_of(int workers, uint64_t i)
{
    float sum = value(0, i);
    for (int r = 1; r < workers; r++)
        sum += value(r, i);
    return sum;
}

static int reduce_floats(rig_worker *w, uint64_t n)
{
    float *v = malloc(n * sizeof *v);
    for (uint64_t i = 0; i < n; i++)
        v[i] = value(w->rank, i);
    RIG_TRY(pstrain_all_reduce(w->s, v, n, PSTRAIN_FLOAT32, PSTRAIN_SUM));
    for (uint64_t i = 0; i < n; i++)
        if (v[i] != sum_of(w->rig->workers, i)) return wrong("sum", i);
    free(v);
    return 0;
}

static int collect(rig_worker *w)
{
    static const uint64_t sizes[] = {0, 1, 64, 65, 4099, 100000, 9000001};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        RIG_TRY(gather_bytes(w, sizes[i]));
    RIG_TRY(pstrain_barrier(w->s));
    if (w->rig->workers == 2) RIG_TRY(reduce_integers(w));
    RIG_TRY(reduce_floats(w, 3));
    RIG_TRY(reduce_floats(w, 300001));
    return pstrain_close(w->s);
}

TEST(test_collectives)
{
    rig_job(1, 2, collect);
    rig_job(0, 3, collect);
    rig_job(0, 1, collect);
}

/* Workers that call different things: an error for each, and then they go on. */
static int disagree(rig_worker *w)
{
    int32_t x = 1;
    uint8_t bytes[8] = {0}, out[16];
    if (w->rank == 0)
        rig_refused(pstrain_barrier(w->s), PSTRAIN_ERR_ARG,
                    "worker 0 calls pstrain_barrier with 0 bytes, but worker 1 calls "
                    "pstrain_all_gather with 8 bytes");
    else
        rig_refused(pstrain_all_gather(w->s, bytes, 8, out), PSTRAIN_ERR_ARG,
                    "worker 1 calls pstrain_all_gather");
    rig_refused(pstrain_all_gather(w->s, bytes, 1 + (uint64_t)w->rank, out),
                PSTRAIN_ERR_ARG, "with 2 bytes");
    rig_refused(pstrain_all_reduce(w->s, &x, 1, w->rank ? PSTRAIN_INT32 : PSTRAIN_FLOAT32,
                                   PSTRAIN_SUM),
                PSTRAIN_ERR_ARG, "another type");
    rig_refused(pstrain_broadcast(w->s, bytes, 8, 2), PSTRAIN_ERR_ARG, "root 2 of 2");
    rig_refused(pstrain_all_gather(w->s, NULL, 8, out), PSTRAIN_ERR_ARG, "NULL");
    RIG_TRY(pstrain_all_reduce(w->s, &x, 1, PSTRAIN_INT32, PSTRAIN_SUM));
    if (x != 2) return wrong("sum", 0);
    return pstrain_close(w->s);
}

TEST(test_disagree)
{
    rig_job(1, 2, disagree);
}

/* --- the reducer ------------------------------------------------------------------- */

static int open_reducer(rig_worker *w, const char *codec)
{
    const pstrain_reducer o = {.struct_size = sizeof o,
                               .bytes = 2 << 20, // eight slots
                               .settings = &codec,
                               .n_settings = 1};
    RIG_TRY(pstrain_open_reducer(w->s, &o));
    return pstrain_start(w->s);
}

enum { ARRAYS = 40 };

/* Sizes around a slot's, and one larger than all slots together. */
static uint64_t size_of(int k)
{
    static const uint64_t sizes[] = {1, 65535, 65536, 131070, 5, 700001, 0, 3000};
    return sizes[k % 8];
}

static void fill(float *v, int rank, int k)
{
    for (uint64_t i = 0; i < size_of(k); i++)
        v[i] = value(rank, i + (uint64_t)k);
}

static int check(const rig_worker *w, const float *v, int k)
{
    for (uint64_t i = 0; i < size_of(k); i++)
        if (v[i] != sum_of(w->rig->workers, i + (uint64_t)k)) return wrong("array", i);
    return 0;
}

/* One thread begins all sums at once and then waits for them in order. */
static int reduce_all(rig_worker *w, float **v)
{
    uint64_t tickets[ARRAYS];
    for (int k = 0; k < ARRAYS; k++) {
        fill(v[k], w->rank, k);
        RIG_TRY(pstrain_reduce_begin(w->s, v[k], size_of(k), &tickets[k]));
        if (tickets[k] != (uint64_t)k + 1) return wrong("ticket", tickets[k]);
    }
    for (int k = 0; k < ARRAYS; k++) {
        RIG_TRY(pstrain_reduce_end(w->s, tickets[k]));
        RIG_TRY(check(w, v[k], k));
    }
    return 0;
}

typedef struct waiter {
    rig_worker *w;
    float **v;
    _Atomic uint64_t begun; // tickets
    int status;
} waiter;

static void *wait_for_all(void *arg)
{
    waiter *x = arg;
    for (uint64_t k = 0; k < ARRAYS && !x->status; k++) {
        while (x->begun < ARRAYS + k + 1)
            ;
        x->status = pstrain_reduce_end(x->w->s, ARRAYS + k + 1);
        if (!x->status) x->status = check(x->w, x->v[k], (int)k);
    }
    return NULL;
}

/* One thread begins sums, another waits for them, and this one calls collectives in
 * between. */
static int reduce_by_threads(rig_worker *w, float **v)
{
    waiter x = {.w = w, .v = v};
    pthread_t thread;
    int status = 0;
    if (pthread_create(&thread, NULL, wait_for_all, &x)) return PSTRAIN_ERR_NOMEM;
    for (int k = 0; k < ARRAYS && !status; k++) {
        uint64_t ticket;
        fill(v[k], w->rank, k);
        status = pstrain_reduce_begin(w->s, v[k], size_of(k), &ticket);
        x.begun = ticket;
        if (!status && k % 8 == 0) status = pstrain_barrier(w->s);
    }
    if (status) x.begun = UINT64_MAX;
    pthread_join(thread, NULL);
    return status ? status : x.status;
}

static int reduce(rig_worker *w)
{
    float *v[ARRAYS];
    for (int k = 0; k < ARRAYS; k++)
        v[k] = malloc((size_of(k) + 1) * sizeof(float));
    RIG_TRY(open_reducer(w, "exchange.codec=none"));
    rig_refused(pstrain_reduce_end(w->s, 1), PSTRAIN_ERR_ARG, "no such ticket");
    rig_refused(pstrain_begin(w->s, NULL), PSTRAIN_ERR_ARG, "no steps");
    if (pstrain_params(w->s)) return wrong("arena", 0);
    if (w->rig->workers > 1) {
        RIG_TRY(reduce_all(w, v));
        RIG_TRY(reduce_by_threads(w, v));
        pstrain_stats stats = {.struct_size = sizeof stats};
        RIG_TRY(pstrain_stats_get(w->s, &stats));
        if (stats.bytes_sent == 0) return wrong("figures", 0);
    }
    for (int k = 0; k < ARRAYS; k++)
        free(v[k]);
    return pstrain_close(w->s);
}

TEST(test_reducer)
{
    static const char *const no_shm[] = {"exchange.shm=off"};
    rig_job(1, 2, reduce);
    rig_job(2, 3, reduce, .settings = no_shm, .n_settings = 1);
    rig_job(0, 1, reduce);
}

/* Sums differ much from one use of a slot to the next, and must not mix. */
static int reduce_coded(rig_worker *w)
{
    enum { N = 100000 };
    float *v = malloc(N * sizeof *v);
    RIG_TRY(open_reducer(w, w->rig->ctx));
    for (int k = 0; k < 20; k++) {
        const float size = k % 2 ? 1000 : 1;
        uint64_t ticket;
        for (uint64_t i = 0; i < N; i++)
            v[i] = size;
        RIG_TRY(pstrain_reduce_begin(w->s, v, N, &ticket));
        RIG_TRY(pstrain_reduce_end(w->s, ticket));
        for (uint64_t i = 0; i < N; i++)
            if (!(v[i] > 1.98f * size && v[i] < 2.02f * size)) return wrong("coded", i);
    }
    free(v);
    return pstrain_close(w->s);
}

TEST(test_coded)
{
    static char int8[] = "exchange.codec=int8", bf16[] = "exchange.codec=bf16";
    rig_job(1, 2, reduce_coded, .ctx = int8);
    rig_job(2, 2, reduce_coded, .ctx = bf16);
}

static int sizes_differ(rig_worker *w)
{
    float v[100] = {0};
    uint64_t ticket;
    RIG_TRY(open_reducer(w, "exchange.codec=none"));
    RIG_TRY(pstrain_reduce_begin(w->s, v, 50 + (uint64_t)w->rank, &ticket));
    return pstrain_reduce_end(w->s, ticket);
}

static int without_servers(rig_worker *w)
{
    return open_reducer(w, "exchange.codec=none");
}

static int feeds_back(rig_worker *w)
{
    return open_reducer(w, "exchange.codec=topk");
}

static int by_hosts(rig_worker *w)
{
    return open_reducer(w, "exchange.levels=2");
}

static int of_many_bytes(rig_worker *w)
{
    const pstrain_reducer o = {.struct_size = sizeof o, .bytes = UINT64_MAX};
    return pstrain_open_reducer(w->s, &o);
}

TEST(test_reducer_errors)
{
    rig r = {.servers = 1, .workers = 2, .run = sizes_differ, .fails = true};
    rig_run(&r);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(r.worker[i].status, PSTRAIN_ERR_PEER);
        assert_non_null(strstr(r.worker[i].text, "other numbers"));
    }
    r = (rig){.servers = 0, .workers = 2, .run = without_servers, .fails = true};
    rig_run(&r);
    assert_non_null(strstr(r.worker[0].text, "no servers"));
    r = (rig){.servers = 1, .workers = 1, .run = feeds_back, .fails = true};
    rig_run(&r);
    assert_int_equal(r.worker[0].status, PSTRAIN_ERR_CONFIG);
    assert_non_null(strstr(r.worker[0].text, "topk needs an optimizer"));
    r = (rig){.servers = 1, .workers = 1, .run = of_many_bytes, .fails = true};
    rig_run(&r);
    assert_int_equal(r.worker[0].status, PSTRAIN_ERR_CONFIG);
    assert_non_null(strstr(r.worker[0].text, "at most 4398046511104 are possible"));
    r = (rig){.servers = 1, .workers = 2, .run = by_hosts, .fails = true};
    rig_run(&r);
    for (int i = 0; i < 2; i++)
        assert_non_null(strstr(r.worker[i].text, "exchange.levels 2 sums whole steps"));
}
