/* libpstrain: rows of embedding tables. First rows are 1, the rate is 1/2 and gradients
 * are small whole numbers, so that all sums are exact and rows are closed forms. */
#include "check.h"
#include "pstrain_rig.h"
#include "row_partition.h"

enum { STEPS = 5, DIM = 3, WIDE = 20000, N = 7, SHARED = 4 };

#define TABLE(of, width)                                                                 \
    {                                                                                    \
        .name = (of), .dim = (width), .optimizer = "sgd", .lr = 0.5, .init = "constant", \
        .scale = 1                                                                       \
    }
static const pstrain_rows_table tables[] = {TABLE("bags", DIM), TABLE("rows", WIDE)};

/* n ids, whose rows come to `to`; after them, more of the lookup. */
#define LOOKUP(of, n, to, ...)                                                           \
    {                                                                                    \
        .struct_size = sizeof(pstrain_rows_lookup), .ids = (of), .n_ids = (n),           \
        .out = (to), __VA_ARGS__                                                         \
    }

/* A row's change in a step: rank r looks up ids r .. r + N - 1 of 0 .. N + 2. */
static int lookups_of(int workers, int64_t id)
{
    int n = 0;
    for (int r = 0; r < workers; r++)
        n += id >= r && id < r + N;
    return n;
}

static int check_rows(const float *rows, const int64_t *ids, int n, int dim, int workers,
                      int steps)
{
    for (int i = 0; i < n; i++)
        for (int k = 0; k < dim; k++)
            if (rows[i * dim + k] !=
                1 - 0.5f * (float)(steps * lookups_of(workers, ids[i])))
                return PSTRAIN_ERR_INTERNAL;
    return 0;
}

/* Gradients of both lookups of a call, which do not count: of one table, then of all. */
static int bad_batch(rig_worker *w, uint64_t ticket, uint64_t again, const float *grads)
{
    RIG_TRY(pstrain_rows_gradient(w->s, ticket, 0, grads, NULL));
    RIG_TRY(pstrain_rows_gradient(w->s, again, 0, grads, NULL));
    RIG_TRY(pstrain_rows_forget(w->s, again));
    return pstrain_rows_drop_gradients(w->s, -1);
}

/* Looks both tables up in one call, and again one of them in a call of its own. Worker 0
 * never asks ahead, worker 1 always, worker 2 in every second step, and for too much. */
static int one_step(rig_worker *w, int step)
{
    int64_t ids[N], offsets[N];
    static const double rates[2] = {0.5, 0.5};
    float bags[N * DIM], weights[N];
    float *wide = calloc((size_t)N * WIDE, sizeof *wide);
    uint64_t ticket, again;
    if (!wide) return PSTRAIN_ERR_NOMEM;
    for (int i = 0; i < N; i++) {
        ids[i] = w->rank + i;
        offsets[i] = i;
        weights[i] = 1;
    }
    pstrain_rows_lookup both[2] = {LOOKUP(ids, N, wide, .table = 1),
                                   LOOKUP(ids, N, bags, .mode = PSTRAIN_ROWS_SUM,
                                          .offsets = offsets, .n_bags = N,
                                          .weights = weights)};
    int status = pstrain_rows_pull(w->s, both, 2, 1, &ticket);
    if (!status) status = check_rows(wide, ids, N, WIDE, w->rig->workers, step);
    if (!status) status = check_rows(bags, ids, N, DIM, w->rig->workers, step);
    if (!status) status = pstrain_rows_pull(w->s, both + 1, 1, 1, &again);
    if (!status) status = bad_batch(w, ticket, again, wide);
    if (!status && w->rank > 0 && step % w->rank == 0)
        status = pstrain_rows_prefetch(w->s, both, 2);
    if (!status && w->rank == 2 && step % 2 == 0)
        status = pstrain_rows_prefetch(w->s, both + 1, 1);
    for (int i = 0; i < N * WIDE; i++)
        wide[i] = 2; // times the share of 1 / 2
    if (!status) status = pstrain_rows_gradient(w->s, ticket, 0, wide, NULL);
    if (!status) status = pstrain_rows_gradient(w->s, ticket, 1, wide, weights);
    if (!status) status = pstrain_rows_drop_gradients(w->s, 0);
    if (!status) status = pstrain_rows_gradient(w->s, ticket, 1, wide, weights);
    if (!status && weights[0] != 2 * DIM * bags[0]) status = PSTRAIN_ERR_INTERNAL;
    if (!status) status = pstrain_rows_push(w->s, 0.5f, rates);
    free(wide);
    return status;
}

/* All rows, page by page. */
static int check_saved(rig_worker *w, int table, int dim, int steps)
{
    pstrain_rows_page page = {.struct_size = sizeof page};
    uint64_t n = 0;
    do {
        RIG_TRY(pstrain_rows_save(w->s, table, &page));
        RIG_TRY(
            check_rows(page.values, page.ids, (int)page.n, dim, w->rig->workers, steps));
        n += page.n;
    } while (page.next);
    return n == (uint64_t)(N + w->rig->workers - 1) && page.steps == (uint64_t)steps
               ? 0
               : PSTRAIN_ERR_INTERNAL;
}

static int open_rows(rig_worker *w, const pstrain_rows_table *rows, int n)
{
    const pstrain_table table = {.struct_size = sizeof table,
                                 .rows = rows,
                                 .n_rows = n,
                                 .rows_size = sizeof *rows};
    RIG_TRY(pstrain_open(w->s, &table));
    return pstrain_start(w->s);
}

static int steps_of_rows(rig_worker *w)
{
    RIG_TRY(open_rows(w, tables, 2));
    for (int step = 0; step < STEPS; step++)
        RIG_TRY(one_step(w, step));
    RIG_TRY(check_saved(w, 0, DIM, STEPS));
    RIG_TRY(check_saved(w, 1, WIDE, STEPS));
    return pstrain_close(w->s);
}

TEST(rows_are_a_closed_form)
{
    static const char *const tcp[] = {"exchange.shm=off"};
    for (int servers = 1; servers <= 2; servers++) {
        rig r = {.servers = servers, .workers = 3, .run = steps_of_rows};
        if (servers == 2) r.settings = tcp;
        if (servers == 2) r.n_settings = 1;
        rig_run(&r);
    }
}

/* Three lookups of an id in one step, of which the last was asked for ahead. In float32
 * 1e8 + 1 - 1e8 is 0, and -1e8 + 1e8 + 1 is 1. */
static int in_order(rig_worker *w)
{
    static const float grads[3] = {1e8f, 1, -1e8f};
    static const double rates[2] = {0.5, 0.5};
    const int64_t ids[] = {5, 6};
    float out[2 * DIM], all[2 * DIM];
    const pstrain_rows_lookup one = LOOKUP(ids, 1, out), two = LOOKUP(ids, 2, out);
    uint64_t ticket;
    RIG_TRY(open_rows(w, tables, 2));
    RIG_TRY(pstrain_rows_prefetch(w->s, &two, 1));
    RIG_TRY(pstrain_rows_push(w->s, 1, rates));
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 2 * DIM; k++)
            all[k] = k < DIM ? grads[i] : 0;
        RIG_TRY(pstrain_rows_pull(w->s, i < 2 ? &one : &two, 1, 1, &ticket));
        RIG_TRY(pstrain_rows_gradient(w->s, ticket, 0, all, NULL));
    }
    RIG_TRY(pstrain_rows_push(w->s, 1, rates));
    RIG_TRY(pstrain_rows_pull(w->s, &one, 1, 0, &ticket));
    return out[0] == 1 ? pstrain_close(w->s) : PSTRAIN_ERR_INTERNAL;
}

TEST(sums_in_the_order_of_lookups)
{
    rig_job(1, 1, in_order);
}

/* Rank 0 loads; everybody reads, also what was asked for before that. */
static int loaded(rig_worker *w)
{
    int64_t ids[SHARED] = {5, INT64_MAX, 0, 77};
    float values[SHARED * DIM], out[SHARED * DIM];
    static const double rates[2] = {0.5, 0.5};
    for (int i = 0; i < SHARED * DIM; i++)
        values[i] = (float)i;
    const pstrain_rows_lookup all = LOOKUP(ids, SHARED, out);
    RIG_TRY(open_rows(w, tables, 2));
    RIG_TRY(pstrain_rows_prefetch(w->s, &all, 1));
    RIG_TRY(pstrain_rows_push(w->s, 1, rates));
    RIG_TRY(pstrain_barrier(w->s));
    if (w->rank == 0) RIG_TRY(pstrain_rows_load(w->s, 0, ids, SHARED, values, 0, 9));
    RIG_TRY(pstrain_barrier(w->s));
    RIG_TRY(pstrain_rows_forget_ahead(w->s));
    uint64_t ticket;
    for (int trains = 0; trains < 2; trains++) {
        RIG_TRY(pstrain_rows_pull(w->s, &all, 1, trains, &ticket));
        if (memcmp(out, values, sizeof out) != 0) return PSTRAIN_ERR_INTERNAL;
    }
    pstrain_rows_page page = {.struct_size = sizeof page};
    RIG_TRY(pstrain_rows_save(w->s, 0, &page));
    if (page.steps != 9 || pstrain_rows_width(w->s, 0) != DIM)
        return PSTRAIN_ERR_INTERNAL;
    return pstrain_close(w->s);
}

TEST(rows_that_were_loaded)
{
    rig_job(2, 2, loaded);
}

/* Pages that go back into an emptied table are the same pages; candidates among them. */
static int restored(rig_worker *w)
{
    static const int64_t ids[] = {5, 0, INT64_MAX, 77};
    static const float rows[2 * DIM] = {1, 2};
    static const pstrain_rows_age ages[] = {{3, 0}, {9, 0}, {8, 1}, {9, 2}};
    const pstrain_rows_page all = {.struct_size = sizeof all,
                                   .n = 2,
                                   .ids = ids,
                                   .values = rows,
                                   .steps = 4,
                                   .n_candidates = 2,
                                   .ages = ages,
                                   .clock = 9};
    RIG_TRY(open_rows(w, tables, 2));
    for (int k = 0; k < 2; k++)
        RIG_TRY(pstrain_rows_restore(w->s, 0, &all, 1)); // the second time it replaces
    pstrain_rows_page page = {.struct_size = sizeof page}, bad = all;
    uint64_t n = 0, m = 0;
    do {
        RIG_TRY(pstrain_rows_save(w->s, 0, &page));
        for (uint64_t i = 0; i < page.n + page.n_candidates; i++)
            for (int k = 0; k < 4; k++)
                if (page.ids[i] == ids[k] &&
                    memcmp(&page.ages[i], &ages[k], sizeof ages[k]) != 0)
                    return PSTRAIN_ERR_INTERNAL;
        n += page.n;
        m += page.n_candidates;
        if (page.clock != 9 || page.steps != 4) return PSTRAIN_ERR_INTERNAL;
    } while (page.next);
    bad.clock = 8;
    rig_refused(pstrain_rows_restore(w->s, 0, &bad, 1), PSTRAIN_ERR_ARG,
                "its version 9 is above the clock 8");
    bad = all;
    bad.n = 3;
    bad.n_candidates = 1;
    rig_refused(pstrain_rows_restore(w->s, 0, &bad, 1), PSTRAIN_ERR_ARG,
                "count of gradients 1 is not that of a row");
    return n == 2 && m == 2 ? pstrain_close(w->s) : PSTRAIN_ERR_INTERNAL;
}

TEST(pages_go_back)
{
    rig_job(2, 1, restored);
}

/* One partition with more rows than a page has, as they were loaded, by rising id. */
static int large_partition(rig_worker *w)
{
    enum { ROWS = 150, FIRST = 7 };
    static int64_t ids[ROWS];
    static float values[ROWS * WIDE];
    const uint64_t salt = ps_row_hash_salt(1);
    for (int64_t n = 0, id = 0; n < ROWS; id++)
        if (ps_row_partition(ps_row_hash(salt, (uint64_t)id)) == FIRST) ids[n++] = id;
    for (int i = 0; i < ROWS * WIDE; i++)
        values[i] = (float)i;
    RIG_TRY(open_rows(w, tables, 2));
    RIG_TRY(pstrain_rows_load(w->s, 1, ids, ROWS, values, 0, 0));
    pstrain_rows_page page = {.struct_size = sizeof page};
    uint64_t at = 0, pages = 0;
    do {
        RIG_TRY(pstrain_rows_save(w->s, 1, &page));
        if (page.n * WIDE * sizeof *values > 4 << 20 || at + page.n > ROWS ||
            memcmp(page.ids, ids + at, page.n * sizeof *ids) != 0 ||
            memcmp(page.values, values + at * WIDE, page.n * WIDE * sizeof *values) != 0)
            return PSTRAIN_ERR_INTERNAL;
        at += page.n;
        pages += page.n > 0;
    } while (page.next);
    if (at != ROWS || pages != 3) return PSTRAIN_ERR_INTERNAL;
    return pstrain_close(w->s);
}

TEST(rows_of_a_large_partition)
{
    rig_job(2, 1, large_partition);
}

/* Where a rank has no samples: nothing is looked up, and arrays without elements are
 * NULL.
 */
static int empty(rig_worker *w)
{
    const double rates[2] = {0.5, 0.5};
    const pstrain_rows_lookup none = {.struct_size = sizeof none};
    uint64_t ticket;
    RIG_TRY(open_rows(w, tables, 2));
    RIG_TRY(pstrain_rows_pull(w->s, &none, 1, 1, &ticket));
    RIG_TRY(pstrain_rows_gradient(w->s, ticket, 0, NULL, NULL));
    RIG_TRY(pstrain_rows_push(w->s, 1, rates));
    return pstrain_close(w->s);
}

TEST(a_batch_without_samples)
{
    rig_job(1, 1, empty);
}

/* Bytes of a worker in ROUNDS steps: ids, rows, gradients, and what belongs to messages.
 */
static int bytes_of_table(rig_worker *w, int table)
{
    enum { MANY = 3000, ROW = 16, ROUNDS = 5 };
    static const uint64_t row_bytes[] = {4 * ROW, 2 * ROW + 2, ROW + 4};
    static const double rates[3] = {0.5, 0.5, 0.5};
    static int64_t ids[MANY];
    static float out[MANY * ROW];
    pstrain_stats stats = {.struct_size = sizeof stats};
    uint64_t ticket, before = 0;
    for (int i = 0; i < MANY; i++)
        ids[i] = INT64_C(1000003) * i;
    const pstrain_rows_lookup all = LOOKUP(ids, MANY, out, .table = table);
    for (int step = 0; step <= ROUNDS; step++) {
        RIG_TRY(pstrain_rows_pull(w->s, &all, 1, 1, &ticket)); // after the step before it
        RIG_TRY(pstrain_stats_get(w->s, &stats));
        if (step == 0) before = stats.bytes_sent + stats.bytes_received;
        RIG_TRY(pstrain_rows_gradient(w->s, ticket, 0, out, NULL));
        RIG_TRY(pstrain_rows_push(w->s, 1, rates));
    }
    const double got =
        (double)(stats.bytes_sent + stats.bytes_received - before) / ROUNDS / MANY;
    const double least = 8 + 2 * (double)row_bytes[table];
    const double most = 1.05 * (8 * ROW + 8) * (table == 2 ? 0.35 : 1);
    if (got >= least && got <= 1.02 * least && got <= most) return 0;
    fprintf(stderr, "table %d: %g bytes for a row, %g are the least\n", table, got,
            least);
    return PSTRAIN_ERR_INTERNAL;
}

static int bytes_by_codec(rig_worker *w)
{
    static const char *const codecs[] = {NULL, "fp16", "int8"};
    pstrain_rows_table all[3];
    for (int i = 0; i < 3; i++) {
        all[i] = tables[0];
        all[i].name = codecs[i] ? codecs[i] : "none";
        all[i].dim = 16;
        all[i].codec = codecs[i];
    }
    RIG_TRY(open_rows(w, all, 3));
    for (int i = 0; i < 3; i++)
        RIG_TRY(bytes_of_table(w, i));
    return pstrain_close(w->s);
}

TEST(bytes_of_codecs)
{
    static const char *const tcp[] = {"exchange.shm=off"};
    rig_job(2, 1, bytes_by_codec, .settings = tcp, .n_settings = 1);
}

static char manifest[1000]; // rank 0's: of the point that is gone back to

/* Rank 0 sets a point, which may be the one that is gone back to. */
static int keep_point(rig_worker *w, int number, bool back)
{
    pstrain_rows_point point = {.struct_size = sizeof point, .point = (uint64_t)number};
    if (w->rank == 0) RIG_TRY(pstrain_rows_keep(w->s, &point));
    if (w->rank == 0 && back) snprintf(manifest, sizeof manifest, "%s", point.manifest);
    return pstrain_barrier(w->s);
}

/* Of a job whose servers keep each other's rows: points after all steps, one of which is
 * gone back to. */
static int kept_twice(rig_worker *w)
{
    RIG_TRY(open_rows(w, tables, 2));
    for (int step = 0, back = 0; step < STEPS; step++) {
        RIG_TRY(one_step(w, step));
        RIG_TRY(keep_point(w, 100 + step, step == 1));
        if (step != 2 || back++) continue;
        RIG_TRY(pstrain_rows_return(w->s, "", manifest));
        RIG_TRY(pstrain_barrier(w->s));
        step = 1;
    }
    RIG_TRY(check_saved(w, 0, DIM, STEPS));
    RIG_TRY(check_saved(w, 1, WIDE, STEPS));
    return pstrain_close(w->s);
}

TEST(rows_that_are_kept_twice)
{
    static const char *const buddy[] = {"rows.buddy=true"};
    rig_job(2, 2, kept_twice, .settings = buddy, .n_settings = 1);
}

/* A job that has gone back ends while rows of a step are on their way that it does not
 * make. */
static int ends_after_going_back(rig_worker *w)
{
    float out[DIM];
    uint64_t ticket;
    const int64_t id = 5;
    const pstrain_rows_lookup one = LOOKUP(&id, 1, out);
    RIG_TRY(open_rows(w, tables, 2));
    RIG_TRY(keep_point(w, 1, true));
    for (int step = 0; step < 3; step++)
        RIG_TRY(one_step(w, step));
    RIG_TRY(pstrain_barrier(w->s));
    RIG_TRY(pstrain_rows_return(w->s, "", manifest));
    RIG_TRY(pstrain_barrier(w->s));
    RIG_TRY(pstrain_rows_pull(w->s, &one, 1, 1, &ticket));
    RIG_TRY(pstrain_rows_prefetch(w->s, &one, 1));
    return out[0] == 1 ? pstrain_close(w->s) : PSTRAIN_ERR_INTERNAL;
}

TEST(the_end_after_going_back)
{
    rig_job(2, 2, ends_after_going_back);
}

/* One rank has pushed a step that the other has not made. What it then asks for ahead is
 * of a step that nobody makes. */
static int goes_back_a_push_apart(rig_worker *w)
{
    const int *ahead = w->rig->ctx;
    float out[DIM];
    uint64_t ticket;
    const int64_t id = 5;
    const pstrain_rows_lookup one = LOOKUP(&id, 1, out);
    RIG_TRY(open_rows(w, tables, 2));
    RIG_TRY(keep_point(w, 1, true));
    for (int step = 0; step < 2 + (w->rank == *ahead); step++)
        RIG_TRY(one_step(w, step));
    RIG_TRY(pstrain_rows_return(w->s, "", manifest));
    RIG_TRY(pstrain_rows_prefetch(w->s, &one, 1));
    RIG_TRY(pstrain_rows_pull(w->s, &one, 1, 0, &ticket));
    return out[0] == 1 ? pstrain_close(w->s) : PSTRAIN_ERR_INTERNAL;
}

TEST(ranks_that_are_a_push_apart_go_back)
{
    for (int ahead = 0; ahead < 2; ahead++)
        rig_job(2, 2, goes_back_a_push_apart, .ctx = &ahead);
}

/* What a lookup gives before any gradient, without a job. */
static int first_rows(rig_worker *w)
{
    static const char *const inits[] = {"uniform", "normal", "constant"};
    const int64_t ids[] = {0, 5, INT64_MAX, 5};
    float got[SHARED * DIM], wanted[SHARED * DIM];
    uint64_t ticket;
    pstrain_rows_table all[] = {tables[0], tables[0], tables[0]};
    static const char *const names[] = {"a", "b", "c"};
    for (int i = 0; i < 3; i++) {
        all[i].name = names[i];
        all[i].init = inits[i];
        all[i].seed = 77;
    }
    RIG_TRY(open_rows(w, all, 3));
    for (int i = 0; i < 3; i++) {
        const pstrain_rows_lookup l = LOOKUP(ids, SHARED, wanted, .table = i);
        RIG_TRY(pstrain_rows_pull(w->s, &l, 1, 0, &ticket));
        RIG_TRY(pstrain_rows_first(&all[i], sizeof all[i], i, ids, SHARED, got));
        if (memcmp(got, wanted, sizeof got) != 0) return PSTRAIN_ERR_INTERNAL;
    }
    all[0].init = "ones";
    rig_refused(pstrain_rows_first(&all[0], sizeof all[0], 0, ids, SHARED, got),
                PSTRAIN_ERR_ARG, "its init is ones");
    rig_refused(pstrain_rows_first(NULL, 0, 0, ids, SHARED, got), PSTRAIN_ERR_ARG,
                "NULL");
    return pstrain_close(w->s);
}

TEST(first_rows_without_a_job)
{
    rig_job(1, 1, first_rows);
}

/* Nothing of it changes anything. */
static int refusals(rig_worker *w)
{
    int64_t ids[2] = {3, -1}, offsets[2] = {0, 3};
    float out[2 * DIM];
    uint64_t ticket;
    const double rates[2] = {0.5, -1};
    pstrain_rows_lookup l = LOOKUP(ids, 2, out);
    rig_refused(pstrain_rows_pull(w->s, &l, 1, 1, &ticket), PSTRAIN_ERR_ARG, "");
    RIG_TRY(open_rows(w, tables, 2));
    rig_refused(pstrain_rows_pull(w->s, &l, 1, 1, &ticket), PSTRAIN_ERR_ARG,
                "table bags: id -1 at place 1 is negative");
    l.n_rows = 3;
    rig_refused(pstrain_rows_pull(w->s, &l, 1, 1, &ticket), PSTRAIN_ERR_ARG,
                "id 3 at place 0 is not below 3");
    l.n_rows = 0;
    ids[1] = 4;
    l.mode = PSTRAIN_ROWS_MEAN;
    rig_refused(pstrain_rows_pull(w->s, &l, 1, 1, &ticket), PSTRAIN_ERR_ARG, "no bags");
    l.offsets = offsets;
    l.n_bags = 2;
    rig_refused(pstrain_rows_pull(w->s, &l, 1, 1, &ticket), PSTRAIN_ERR_ARG,
                "table bags");
    const pstrain_rows_lookup twice[2] = {l, l};
    rig_refused(pstrain_rows_pull(w->s, twice, 2, 1, &ticket), PSTRAIN_ERR_ARG, "twice");
    l.table = 2;
    rig_refused(pstrain_rows_pull(w->s, &l, 1, 1, &ticket), PSTRAIN_ERR_ARG,
                "table 2 of 2");
    l.table = 0;
    l.mode = PSTRAIN_ROWS_EACH;
    for (int i = 0; i < 4; i++)
        RIG_TRY(pstrain_rows_prefetch(w->s, &l, 1));
    rig_refused(pstrain_rows_prefetch(w->s, &l, 1), PSTRAIN_ERR_ARG,
                "prefetch all tables in one call");
    rig_refused(pstrain_rows_pull(w->s, &l, 1, 1, &ticket), PSTRAIN_ERR_ARG,
                "after a prefetch");
    RIG_TRY(pstrain_rows_pull(w->s, &l, 1, 0, &ticket)); // without gradients
    rig_refused(pstrain_rows_gradient(w->s, 1, 0, out, NULL), PSTRAIN_ERR_ARG,
                "not looked up in step 0 (ticket 1, lookup 0)");
    rig_refused(pstrain_rows_drop_gradients(w->s, 2), PSTRAIN_ERR_ARG,
                "gradients of table 2 of 2");
    rig_refused(pstrain_rows_push(w->s, 1, rates), PSTRAIN_ERR_ARG, "rate of table rows");
    ids[0] = -7;
    rig_refused(pstrain_rows_load(w->s, 1, ids, 2, out, 0, 0), PSTRAIN_ERR_ARG,
                "table rows: id -7 of 2 to load is negative");
    ids[0] = 3;
    RIG_TRY(pstrain_rows_push(w->s, 1, (const double[]){0.5, 0.5})); // asked in vain
    RIG_TRY(pstrain_rows_prefetch(w->s, &l, 1));                     // and the end comes
    return pstrain_close(w->s);
}

TEST(what_is_refused)
{
    rig_job(1, 1, refusals);
}

static int tables_differ(rig_worker *w)
{
    pstrain_rows_table own = tables[0];
    own.dim += (uint32_t)w->rank;
    const int status = open_rows(w, &own, 1);
    return status == PSTRAIN_ERR_PEER ? status : PSTRAIN_ERR_INTERNAL;
}

TEST(ranks_with_other_tables)
{
    rig r = {.servers = 1, .workers = 2, .run = tables_differ, .fails = true};
    rig_run(&r);
    for (int i = 0; i < 2; i++)
        if (!strstr(r.worker[i].text, "embedding table 0, bags: dim: 3 and 4"))
            fail_msg("%s", r.worker[i].text);
}

static int without_servers(rig_worker *w)
{
    const int status = open_rows(w, tables, 1);
    return status == PSTRAIN_ERR_CONFIG ? status : PSTRAIN_ERR_INTERNAL;
}

TEST(they_need_servers)
{
    rig r = {.servers = 0, .workers = 1, .run = without_servers, .fails = true};
    rig_run(&r);
    if (!strstr(r.worker[0].text, "embedding tables need servers"))
        fail_msg("%s", r.worker[0].text);
}

TEST(what_they_do_not_go_with)
{
    static const char *const cases[][2] = {
        {"exchange.levels=2", "embedding tables do not go with exchange.levels 2"},
        {"loss_scale.use=on", "embedding tables do not go with loss_scale.use on"},
    };
    for (int i = 0; i < 2; i++) {
        rig r = {.servers = 1,
                 .workers = 1,
                 .run = without_servers,
                 .fails = true,
                 .settings = &cases[i][0],
                 .n_settings = 1};
        rig_run(&r);
        if (!strstr(r.worker[0].text, cases[i][1])) fail_msg("%s", r.worker[0].text);
    }
}
