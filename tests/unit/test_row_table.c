/* A table against a plain model of it: an array of all ids that the test uses, with the
 * formulas written out, copied whole for every mark. */
#include "row_table.h"

#include <math.h>

#include "check.h"
#include "row_init.h"

enum { N_IDS = 3000, MAX_WIDTH = 48, N_RANKS = 3, MAX_PULL = 200, NUMBER = 3 };

typedef struct model_row {
    bool is_row;
    uint32_t count, version;
    float row[MAX_WIDTH];
} model_row;

typedef struct model {
    ps_row_spec spec;
    uint64_t step, seed;
    model_row rows[N_IDS];
    uint64_t marked[2];
    int n_marks;
    model_row kept[2][N_IDS];
} model;

static model m;

static uint64_t draw(uint64_t below)
{
    m.seed += 0x9e3779b97f4a7c15u;
    return ps_row_mix(m.seed) % below;
}

static float draw_gradient(void)
{
    if (draw(50) == 0) return -0.0f;
    return ((float)draw(2001) - 1000.0f) / 1024.0f;
}

static uint64_t all_ids[N_IDS];
static uint32_t partitions[N_IDS]; // theirs

/* Ids of any size, in the first partitions. */
static void choose_ids(uint32_t n_partitions)
{
    const uint64_t salt = ps_row_hash_salt(NUMBER);
    uint64_t next = 0;
    for (uint32_t i = 0; i < N_IDS; i++) {
        do {
            all_ids[i] = next % 3 == 0 ? next : ps_row_mix(next);
            next++;
            partitions[i] = ps_row_partition(ps_row_hash(salt, all_ids[i]));
        } while (partitions[i] >= n_partitions);
    }
}

static uint64_t id_of(uint32_t i)
{
    return all_ids[i];
}

static uint32_t partition_of(uint32_t i)
{
    return partitions[i];
}

static uint32_t width(void)
{
    return ps_row_spec_width(&m.spec);
}

static bool is_there(const model_row *r)
{
    return r->is_row || r->count > 0;
}

static void model_begin_row(model_row *r, uint64_t id)
{
    const bool sums =
        m.spec.optimizer == PS_ROW_ADAGRAD || m.spec.optimizer == PS_ROW_ROWWISE_ADAGRAD;
    r->is_row = true;
    r->count = 0;
    ps_row_init_fill(&m.spec, id, r->row);
    for (uint32_t i = m.spec.dim; i < width(); i++)
        r->row[i] = sums ? (float)m.spec.initial_accumulator : 0;
}

static void model_step_row(float *p, const float *g, double lr, double t)
{
    const uint32_t d = m.spec.dim;
    const float eps = (float)m.spec.eps, b1 = (float)(1 - m.spec.beta1),
                b2 = (float)(1 - m.spec.beta2);
    const double adam = lr * sqrt(1 - pow(m.spec.beta2, t)) / (1 - pow(m.spec.beta1, t));
    const float decayed = (float)(-lr / (1 + (t - 1) * m.spec.lr_decay));
    double squares = 0;
    for (uint32_t i = 0; i < d; i++)
        squares += (double)g[i] * (double)g[i];
    if (m.spec.optimizer == PS_ROW_ROWWISE_ADAGRAD) p[d] += (float)(squares / d);
    for (uint32_t i = 0; i < d; i++) {
        switch (m.spec.optimizer) {
        case PS_ROW_SGD:
            p[i] = fmaf((float)-lr, g[i], p[i]);
            break;
        case PS_ROW_ADAGRAD:
            p[d + i] += g[i] * g[i];
            p[i] = fmaf(decayed, g[i] / (sqrtf(p[d + i]) + eps), p[i]);
            break;
        case PS_ROW_SPARSE_ADAM:
            p[d + i] += (g[i] - p[d + i]) * b1;
            p[2 * d + i] += (g[i] * g[i] - p[2 * d + i]) * b2;
            p[i] += (float)-adam * (p[d + i] / (sqrtf(p[2 * d + i]) + eps));
            break;
        case PS_ROW_ROWWISE_ADAGRAD:
            p[i] = fmaf((float)-lr / (sqrtf(p[d]) + eps), g[i], p[i]);
            break;
        }
    }
}

static void model_expire(void)
{
    uint32_t every = m.spec.expire / 4 ? m.spec.expire / 4 : 1;
    for (uint32_t i = 0; i < N_IDS; i++) {
        model_row *r = &m.rows[i];
        if (m.spec.expire && is_there(r) && partition_of(i) % every == m.step % every &&
            r->version + m.spec.expire <= m.step + 1)
            *r = (model_row){0};
    }
}

/* One after another, the oldest first. */
static void model_evict(void)
{
    const uint64_t most =
        m.spec.max_bytes / ps_row_spec_row_bytes(&m.spec) / PS_ROW_PARTITIONS;
    static uint32_t counts[PS_ROW_PARTITIONS];
    memset(counts, 0, sizeof counts);
    for (uint32_t i = 0; i < N_IDS; i++)
        counts[partition_of(i)] += is_there(&m.rows[i]);
    for (uint32_t p = 0; p < PS_ROW_PARTITIONS; p++) {
        if (counts[p] <= most) continue;
        for (; counts[p] > most - most / 8; counts[p]--) {
            model_row *oldest = NULL;
            uint64_t oldest_id = 0;
            for (uint32_t i = 0; i < N_IDS; i++) {
                model_row *r = &m.rows[i];
                if (partition_of(i) != p || !is_there(r)) continue;
                if (oldest && (oldest->version < r->version ||
                               (oldest->version == r->version && oldest_id < id_of(i))))
                    continue;
                oldest = r;
                oldest_id = id_of(i);
            }
            assert_non_null(oldest);
            *oldest = (model_row){0};
        }
    }
}

/* What each rank has pulled and pushed in a step. */
static uint32_t pulled[N_RANKS][MAX_PULL];
static uint32_t n_pulled[N_RANKS];
static float gradients[N_RANKS][MAX_PULL * MAX_WIDTH];

static void draw_step(uint32_t among)
{
    static bool taken[N_IDS];
    for (int r = 0; r < N_RANKS; r++) {
        memset(taken, 0, sizeof taken);
        n_pulled[r] = 0;
        for (uint64_t n = draw(MAX_PULL + 1); n > 0; n--) {
            const uint32_t i = (uint32_t)draw(among);
            if (!taken[i]) pulled[r][n_pulled[r]++] = i;
            taken[i] = true;
        }
        for (uint32_t i = 0; i < n_pulled[r] * m.spec.dim; i++)
            gradients[r][i] = draw_gradient();
    }
}

static void model_apply(const ps_row_update *u, bool skips_rank_1)
{
    static float sums[N_IDS][MAX_WIDTH];
    static bool touched[N_IDS];
    memset(sums, 0, sizeof sums);
    memset(touched, 0, sizeof touched);
    for (int r = 0; r < N_RANKS; r++)
        for (uint32_t k = 0; k < n_pulled[r]; k++) {
            touched[pulled[r][k]] = true;
            for (uint32_t d = 0; d < m.spec.dim; d++)
                if (r != 1 || !skips_rank_1)
                    sums[pulled[r][k]][d] += gradients[r][k * m.spec.dim + d];
        }
    for (uint32_t i = 0; i < N_IDS; i++) {
        model_row *r = &m.rows[i];
        if (!touched[i]) continue;
        r->version = (uint32_t)m.step + 1;
        if (!r->is_row && ++r->count >= m.spec.admit) model_begin_row(r, id_of(i));
        if (r->is_row) model_step_row(r->row, sums[i], u->lr, (double)u->t);
    }
    model_expire();
    if (m.spec.max_bytes) model_evict();
    m.step++;
}

static void table_step(ps_row_table *t, ps_row_step *step, const ps_row_update *u,
                       bool skips_rank_1)
{
    const float *grads[N_RANKS];
    ps_row_step_clear(step);
    for (int k = 0; k < N_RANKS; k++) {
        // in any order of arrival, every other time in that of the ranks
        const uint32_t r = (uint32_t)(k + m.step % 2 * m.step) % N_RANKS;
        static uint64_t ids[MAX_PULL];
        for (uint32_t i = 0; i < n_pulled[r]; i++)
            ids[i] = id_of(pulled[r][i]);
        assert_ok(ps_row_step_pull(step, r, n_pulled[r], ids));
        grads[r] = r == 1 && skips_rank_1 ? NULL : gradients[r];
    }
    assert_ok(ps_row_table_apply(t, step, u, grads));
}

static void compare_rows(ps_row_table *t)
{
    static uint64_t ids[N_IDS];
    static float got[N_IDS * MAX_WIDTH], fresh[MAX_WIDTH];
    uint64_t rows = 0, candidates = 0;
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = id_of(i);
    ps_row_table_read(t, N_IDS, ids, got);
    for (uint32_t i = 0; i < N_IDS; i++) {
        ps_row_init_fill(&m.spec, ids[i], fresh);
        const float *wanted = m.rows[i].is_row ? m.rows[i].row : fresh;
        if (memcmp(got + i * m.spec.dim, wanted, m.spec.dim * sizeof *got) != 0)
            fail_msg("step %d, id %d: %g, not %g", (int)m.step, (int)i,
                     (double)got[i * m.spec.dim], (double)wanted[0]);
        rows += m.rows[i].is_row;
        candidates += m.rows[i].count > 0;
    }
    assert_int_equal(ps_row_table_stats(t)->rows, rows);
    assert_int_equal(ps_row_table_stats(t)->candidates, candidates);
}

/* State, versions and counts, too. */
static void compare_lists(const ps_row_table *t)
{
    uint32_t there = 0, p = 0;
    ps_row_view *views;
    uint64_t n;
    for (uint32_t i = 0; i < N_IDS; i++)
        there += is_there(&m.rows[i]);
    assert_ok(ps_row_table_list(t, 0, PS_ROW_PARTITIONS, 0, &views, &n));
    assert_int_equal(n, there);
    for (uint64_t k = 0; k < n; k++) {
        const ps_row_view *v = &views[k];
        uint32_t i = 0;
        while (i < N_IDS && id_of(i) != v->id)
            i++;
        assert_true(i < N_IDS && partition_of(i) >= p);
        assert_true(k == 0 || partition_of(i) > p || views[k - 1].id < v->id);
        p = partition_of(i);
        assert_int_equal(v->version, m.rows[i].version);
        assert_int_equal(v->count, m.rows[i].count);
        assert_int_equal(v->row != NULL, m.rows[i].is_row);
        if (v->row) assert_memory_equal(v->row, m.rows[i].row, width() * sizeof *v->row);
    }
    free(views);
}

static void mark(ps_row_table *t)
{
    if (m.n_marks == 2) {
        m.marked[0] = m.marked[1];
        memcpy(m.kept[0], m.kept[1], sizeof m.kept[0]);
        m.n_marks = 1;
    }
    m.marked[m.n_marks] = m.step;
    memcpy(m.kept[m.n_marks++], m.rows, sizeof m.rows);
    ps_row_table_mark(t, m.step, m.step);
}

static void undo(ps_row_table *t)
{
    if (m.n_marks == 0) return;
    const int k = (int)draw((uint64_t)m.n_marks);
    assert_ok(ps_row_table_undo(t, m.marked[k]));
    memcpy(m.rows, m.kept[k], sizeof m.rows);
    m.step = m.marked[k];
    m.n_marks = k + 1;
}

static uint64_t new_records(const ps_row_table *t)
{
    uint64_t n = 0;
    ps_row_entry before;
    if (t->undo.n == 0) return 0;
    ps_row_undo_cursor c = ps_row_undo_cursor_at(&t->undo, t->undo.n - 1);
    while (ps_row_undo_next(&c, &before))
        n += before.slot == 0;
    return n;
}

/* A table that owns all ids, and a step of its own. */
typedef struct rig {
    ps_row_memory memory;
    ps_row_table t;
    ps_row_step step;
} rig;

static ps_row_disk disk; // of all rigs

static void rig_open(rig *r, const ps_row_spec *spec, ps_row_key key, uint32_t ranks)
{
    ps_row_memory_init(&r->memory);
    assert_ok(ps_row_memory_use_disk(&r->memory, &disk));
    assert_ok(ps_row_table_init(&r->t, spec, key, 0, PS_ROW_PARTITIONS, &r->memory));
    assert_ok(ps_row_step_init(&r->step, ranks, key));
}

static void rig_close(rig *r)
{
    ps_row_step_fini(&r->step);
    ps_row_table_fini(&r->t);
    ps_row_memory_fini(&r->memory);
}

static uint64_t mark_every = 12, most_records;

static void follow(const ps_row_spec *spec, uint64_t seed, int actions)
{
    rig r;
    const ps_row_key key = {seed, ps_row_mix(seed)};
    memset(&m, 0, sizeof m);
    m.spec = *spec;
    m.seed = seed;
    assert_ok(ps_row_spec_check(spec));
    rig_open(&r, spec, key, N_RANKS);
    for (int a = 0; a < actions; a++) {
        const uint64_t what = draw(mark_every);
        const ps_row_update u = {
            .lr = 0.01 * (double)(1 + draw(3)), .t = m.step + 1, .step = m.step};
        if (what == 0) {
            mark(&r.t);
        } else if (what == 1) {
            undo(&r.t);
        } else {
            const bool skips = draw(10) == 0;
            draw_step(draw(4) ? N_IDS : 300);
            table_step(&r.t, &r.step, &u, skips);
            model_apply(&u, skips);
        }
        const uint64_t records = new_records(&r.t);
        if (records > most_records) most_records = records;
        if (a % 8 == 0) compare_rows(&r.t);
    }
    compare_rows(&r.t);
    compare_lists(&r.t);
    rig_close(&r);
}

static ps_row_spec spec_of(ps_row_optimizer optimizer, uint32_t dim)
{
    ps_row_spec spec = ps_row_spec_default(optimizer);
    snprintf(spec.name, sizeof spec.name, "user");
    spec.number = NUMBER; // of all tests
    choose_ids(PS_ROW_PARTITIONS);
    spec.dim = dim;
    spec.seed = 0x123456789abcdefu;
    return spec;
}

TEST(every_optimizer)
{
    for (int o = 0; o <= PS_ROW_ROWWISE_ADAGRAD; o++)
        for (uint64_t seed = 1; seed <= 3; seed++) {
            ps_row_spec spec =
                spec_of((ps_row_optimizer)o, (uint32_t[]){5, 16, 1}[seed - 1]);
            spec.lr_decay = 0.1;
            spec.initial_accumulator = 0.2;
            spec.init = (ps_row_init)(seed - 1);
            follow(&spec, seed, 40);
        }
}

TEST(a_sum_that_is_not_finite_changes_nothing)
{
    rig r;
    const ps_row_spec spec = spec_of(PS_ROW_ADAGRAD, 2);
    const uint64_t ids[] = {7, 8};
    float grads[] = {1, 2, 3, INFINITY}, before[4], after[4];
    const float *const of_ranks[] = {grads};
    const ps_row_update update = {.lr = 1, .t = 1};
    rig_open(&r, &spec, PS_ROW_KEY_PLAIN, 1);
    assert_ok(ps_row_step_pull(&r.step, 0, 2, ids));
    assert_true(ps_row_table_changes(&r.t, &r.step, 0, 8));
    assert_false(ps_row_table_changes(&r.t, &r.step, 0, 9));
    ps_row_table_read(&r.t, 2, ids, before);
    assert_error(ps_row_table_apply(&r.t, &r.step, &update, of_ranks), PS_ERR_NUMERIC,
                 "table 'user': the gradient of id 8");
    ps_row_table_read(&r.t, 2, ids, after);
    assert_memory_equal(before, after, sizeof before);
    assert_int_equal(ps_row_table_stats(&r.t)->rows, 0);
    assert_error(ps_row_table_undo(&r.t, 0), PS_ERR_PROTOCOL, "step 0");
    rig_close(&r);
}

/* After the last version that a row can have, none is taken for an older one. */
TEST(steps_end_with_the_versions)
{
    rig r;
    ps_row_spec spec = spec_of(PS_ROW_SGD, 1);
    const uint64_t id = 7;
    const float grad = 1;
    const float *const of_ranks[] = {&grad};
    float before, after;
    spec.expire = 100;
    rig_open(&r, &spec, PS_ROW_KEY_PLAIN, 1);
    assert_ok(ps_row_step_pull(&r.step, 0, 1, &id));
    ps_row_update update = {.lr = 1, .t = 1, .step = UINT32_MAX - 1};
    assert_ok(ps_row_table_apply(&r.t, &r.step, &update, of_ranks));
    assert_int_equal(ps_row_table_stats(&r.t)->rows, 1);
    ps_row_table_read(&r.t, 1, &id, &before);
    for (update.step = UINT32_MAX; update.step < UINT64_C(1) << 33; update.step *= 2) {
        assert_error(ps_row_table_apply(&r.t, &r.step, &update, of_ranks),
                     PS_ERR_UNSUPPORTED, "table 'user' has made ");
        ps_row_table_read(&r.t, 1, &id, &after);
        assert_memory_equal(&before, &after, sizeof before);
        assert_int_equal(ps_row_table_stats(&r.t)->rows, 1);
    }
    rig_close(&r);
}

TEST(a_bound_ends_the_job)
{
    enum { N = 3 * PS_ROW_PARTITIONS };
    static uint64_t ids[N];
    static float grads[N];
    rig r;
    ps_row_spec spec = spec_of(PS_ROW_SGD, 1);
    const float *const of_ranks[] = {grads};
    spec.max_bytes = 2 * PS_ROW_PARTITIONS * ps_row_spec_row_bytes(&spec);
    for (uint64_t i = 0; i < N; i++)
        ids[i] = i;
    rig_open(&r, &spec, PS_ROW_KEY_PLAIN, 1);
    for (uint64_t s = 0; s < 3; s++) {
        const ps_row_update update = {.lr = 1, .t = s + 1, .step = s};
        ps_row_step_clear(&r.step);
        assert_ok(
            ps_row_step_pull(&r.step, 0, PS_ROW_PARTITIONS, ids + s * PS_ROW_PARTITIONS));
        const ps_err err = ps_row_table_apply(&r.t, &r.step, &update, of_ranks);
        assert_int_equal(err, s < 2 ? PS_OK : PS_ERR_NOMEM);
    }
    assert_non_null(strstr(ps_err_message(), "table 'user' has reached max_bytes"));
    rig_close(&r);
}

/* Rows that a PULL of the next step may be answered with before this step is applied. */
static void check_changes(ps_row_table *t, ps_row_step *step, const ps_row_update *u)
{
    static bool said[N_IDS];
    static float before[N_IDS * MAX_WIDTH], after[N_IDS * MAX_WIDTH];
    static uint64_t ids[N_IDS];
    uint32_t quiet = 0;
    for (uint32_t i = 0; i < N_IDS; i++) {
        ids[i] = id_of(i);
        said[i] = ps_row_table_changes(t, step, m.step, ids[i]);
        quiet += !said[i];
    }
    assert_true(quiet > N_IDS / 10);
    ps_row_table_read(t, N_IDS, ids, before);
    const float *const none[N_RANKS] = {NULL};
    assert_ok(ps_row_table_apply(t, step, u, none));
    ps_row_table_read(t, N_IDS, ids, after);
    for (uint32_t i = 0; i < N_IDS; i++)
        assert_true(said[i] || memcmp(before + i * m.spec.dim, after + i * m.spec.dim,
                                      m.spec.dim * sizeof *after) == 0);
}

TEST(rows_that_a_step_cannot_change)
{
    rig r;
    memset(&m, 0, sizeof m);
    m.spec = spec_of(PS_ROW_SGD, 2);
    m.spec.expire = 8;
    m.spec.full = PS_ROW_FULL_EVICT;
    m.spec.max_bytes = 6 * PS_ROW_PARTITIONS * ps_row_spec_row_bytes(&m.spec);
    rig_open(&r, &m.spec, PS_ROW_KEY_PLAIN, N_RANKS);
    for (; m.step < 40; m.step++) {
        const ps_row_update u = {.lr = 1, .t = m.step + 1, .step = m.step};
        if (m.step % 4 == 3) { // three ids, and none has a gradient but 0
            const uint64_t ids[] = {id_of(1), id_of(2), id_of(3)};
            ps_row_step_clear(&r.step);
            assert_ok(ps_row_step_pull(&r.step, 2, 3, ids));
            check_changes(&r.t, &r.step, &u);
        } else {
            draw_step(N_IDS);
            table_step(&r.t, &r.step, &u, false);
        }
    }
    assert_true(ps_row_table_stats(&r.t)->expired > 100);
    rig_close(&r);
}

TEST(admission)
{
    ps_row_spec spec = spec_of(PS_ROW_ADAGRAD, 4);
    for (uint64_t seed = 11; seed <= 13; seed++) {
        spec.admit = (uint32_t)seed - 9;
        follow(&spec, seed, 60);
    }
}

TEST(expiry)
{
    ps_row_spec spec = spec_of(PS_ROW_SGD, 4);
    for (uint64_t seed = 21; seed <= 24; seed++) {
        spec.expire = (uint32_t[]){1, 3, 9, 40}[seed - 21];
        spec.admit = seed % 2 ? 2 : 1;
        follow(&spec, seed, 80);
    }
}

TEST(eviction)
{
    ps_row_spec spec = spec_of(PS_ROW_ADAGRAD, 4);
    spec.full = PS_ROW_FULL_EVICT;
    for (uint64_t seed = 31; seed <= 34; seed++) {
        spec.max_bytes =
            PS_ROW_PARTITIONS * ps_row_spec_row_bytes(&spec) * (seed % 2 + 1);
        spec.expire = seed > 32 ? 5 : 0;
        follow(&spec, seed, 60);
    }
    choose_ids(50); // 60 ids each
    spec.max_bytes = 25 * PS_ROW_PARTITIONS * ps_row_spec_row_bytes(&spec);
    follow(&spec, 35, 60);
}

/* 1,024 rows fit into memory, or none. */
enum { ROWS_HERE = 1024, ROWS_HERE_BYTES = ROWS_HERE * MAX_WIDTH * (int)sizeof(float) };

TEST(rows_on_a_disk)
{
    ps_row_spec spec = spec_of(PS_ROW_SPARSE_ADAM, 16);
    disk.folder = "/tmp";
    for (uint64_t seed = 51; seed <= 56; seed++) {
        disk.bytes = seed % 3 ? ROWS_HERE_BYTES : 0;
        spec.expire = seed > 53 ? 9 : 0;
        spec.admit = seed % 2;
        follow(&spec, seed, 80);
    }
    disk = (ps_row_disk){0};
}

static uint32_t rows_in_memory(const rig *r, uint32_t first, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t i = first; i < end; i++) {
        const uint64_t hash = ps_row_index_hash(&r->t.index, id_of(i));
        const ps_row_entry *e = ps_row_index_find(&r->t.index, hash, id_of(i));
        n += e && !(e->slot & PS_ROW_COLD);
    }
    return n;
}

/* Rows that have gradients from some step on are soon in memory, in others' place. */
TEST(warm_rows_are_in_memory)
{
    static uint64_t ids[N_IDS];
    static float values[N_IDS * 16], grads[N_IDS * 16];
    const float *const of_ranks[] = {grads};
    rig r;
    ps_row_spec spec = spec_of(PS_ROW_SPARSE_ADAM, 16);
    disk = (ps_row_disk){"/tmp", ROWS_HERE_BYTES};
    rig_open(&r, &spec, PS_ROW_KEY_PLAIN, 1);
    for (uint32_t i = 0; i < N_IDS; i++)
        ids[i] = id_of(i);
    assert_ok(ps_row_table_set(&r.t, N_IDS, ids, values, 1));
    assert_int_equal(rows_in_memory(&r, 0, N_IDS), 0);
    for (uint64_t s = 1; s < 20; s++) {
        const ps_row_update update = {.lr = 1, .t = s, .step = s};
        const uint32_t first = s == 1 ? 0 : N_IDS - 1000, n = s == 1 ? ROWS_HERE : 1000;
        ps_row_step_clear(&r.step);
        assert_ok(ps_row_step_pull(&r.step, 0, n, ids + first));
        assert_ok(ps_row_table_apply(&r.t, &r.step, &update, of_ranks));
        if (s == 1) assert_int_equal(rows_in_memory(&r, 0, ROWS_HERE), ROWS_HERE);
    }
    assert_int_equal(rows_in_memory(&r, N_IDS - 1000, N_IDS), 1000);
    assert_int_equal(rows_in_memory(&r, 0, N_IDS), ROWS_HERE);
    rig_close(&r);
    disk.folder = "/tmp/no/such/folder";
    ps_row_memory_init(&r.memory);
    assert_error(ps_row_memory_use_disk(&r.memory, &disk), PS_ERR_IO,
                 "server.rows_disk: /tmp/no/such/folder");
    disk = (ps_row_disk){0};
}

/* Between marks that are seldom, ids come and go: their number is that of 30 steps. */
TEST(a_log_of_ids_that_are_gone_stays_short)
{
    ps_row_spec spec = spec_of(PS_ROW_SGD, 4);
    mark_every = 60;
    most_records = 0;
    for (uint64_t seed = 41; seed <= 44; seed++) {
        spec.expire = seed > 42 ? 2 : 1;
        spec.admit = seed % 2 ? 2 : 1;
        follow(&spec, seed, 400);
    }
    spec.expire = 0;
    spec.full = PS_ROW_FULL_EVICT;
    spec.max_bytes = PS_ROW_PARTITIONS * ps_row_spec_row_bytes(&spec);
    follow(&spec, 45, 200);
    assert_true(most_records > N_IDS && most_records < 3 * N_IDS);
    mark_every = 12;
}

/* Also where a row of an older version was put in its place, and then was trained. */
TEST(an_id_that_was_put_after_the_mark_goes_with_it)
{
    enum { AT = 10, STEPS = 50 };
    static float grads[MAX_PULL];
    const float *const of_ranks[] = {grads};
    const float row = 0.5f;
    const ps_row_view put = {.id = 7, .version = 3, .row = &row};
    ps_row_spec spec = spec_of(PS_ROW_SGD, 1);
    rig r;
    ps_row_view found;
    uint64_t ids[MAX_PULL] = {put.id}, next = 1000;
    spec.expire = 2;
    rig_open(&r, &spec, PS_ROW_KEY_PLAIN, 1);
    ps_row_table_mark(&r.t, AT, AT);
    assert_ok(ps_row_table_put(&r.t, &put));
    for (uint64_t s = AT; s < AT + STEPS; s++) {
        const ps_row_update update = {.lr = 1, .t = s + 1, .step = s};
        ps_row_step_clear(&r.step);
        assert_ok(ps_row_step_pull(&r.step, 0, s == AT ? 1 : MAX_PULL, ids));
        assert_ok(ps_row_table_apply(&r.t, &r.step, &update, of_ranks));
        for (int i = 0; i < MAX_PULL; i++)
            ids[i] = next++;
    }
    assert_false(ps_row_table_view(&r.t, put.id, &found)); // it has expired
    assert_ok(ps_row_table_undo(&r.t, AT));
    assert_false(ps_row_table_view(&r.t, put.id, &found));
    assert_int_equal(ps_row_table_stats(&r.t)->rows, 0);
    rig_close(&r);
}
