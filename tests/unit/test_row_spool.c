/* Rows that come in runs and go by rising id, against values that depend on table and id
 * alone. */
#include "row_spool.h"

#include "temp_files.h"

enum { WIDTH = 3000, TABLES = 5 }; // of which a table has fewer

static const struct {
    uint32_t dim;
    int runs, n; // ids of a run
} cases[TABLES] = {{1, 7, 4000}, {16, 300, 50}, {3, 0, 0}, {2500, 3, 40}, {16, 1, 9}};

static float value_of(int table, int64_t id, uint32_t k)
{
    return (float)(table + 1) * (float)(id % 65521) + (float)k;
}

/* Run r of m has every m-th id. A page has ids of two runs, and ends within one. */
static void add_table(ps_row_spool *spool, int t)
{
    enum { PAGE = 17 };
    const int total = cases[t].runs * cases[t].n;
    static float values[PAGE][WIDTH];
    int64_t ids[PAGE];
    for (int at = 0, some; at < total; at += some) {
        some = total - at < PAGE ? total - at : PAGE;
        for (int i = 0; i < some; i++) {
            const int run = (at + i) / cases[t].n, place = (at + i) % cases[t].n;
            ids[i] = (int64_t)(cases[t].runs - 1 - run) + (int64_t)place * cases[t].runs;
            for (uint32_t k = 0; k < cases[t].dim; k++)
                values[i][k] = value_of(t, ids[i], k);
        }
        assert_ok(ps_row_spool_add(spool, t, cases[t].dim, (uint64_t)some, ids, values[0],
                                   WIDTH));
    }
}

typedef struct seen {
    int table;
    int64_t n;
} seen;

static ps_err look(void *ctx, uint64_t first, uint64_t n, const int64_t *ids,
                   const float *rows)
{
    seen *s = ctx;
    assert_int_equal(first, s->n);
    for (uint64_t i = 0; i < n; i++, s->n++) {
        assert_int_equal(ids[i], s->n);
        for (uint32_t k = 0; k < cases[s->table].dim; k++)
            if (*rows++ != value_of(s->table, ids[i], k))
                fail_msg("table %d, id %lld, element %u", s->table, (long long)ids[i], k);
    }
    return PS_OK;
}

IN_FOLDER(rows_go_by_rising_id)
{
    ps_row_spool spool;
    assert_ok(ps_row_spool_open(&spool, temp_path("model.rows.safetensors"), TABLES));
    for (int t = 0; t < TABLES; t++)
        add_table(&spool, t);
    for (int t = 0; t < TABLES; t++) {
        seen s = {.table = t};
        assert_int_equal(spool.tables[t].n, cases[t].runs * cases[t].n);
        assert_true(spool.tables[t].n_runs <= (uint32_t)cases[t].runs);
        assert_ok(ps_row_spool_merge(&spool, t, look, &s));
        assert_int_equal(s.n, cases[t].runs * cases[t].n);
    }
    ps_row_spool_close(&spool);
}

IN_FOLDER(what_is_wrong_is_named)
{
    ps_row_spool spool;
    seen s = {.table = 4};
    assert_error(ps_row_spool_open(&spool, "/nowhere/rows", 1), PS_ERR_IO,
                 "/nowhere/rows");
    ps_row_spool_close(&spool);
    assert_ok(ps_row_spool_open(&spool, temp_path("rows"), TABLES));
    add_table(&spool, 4);
    add_table(&spool, 4);
    assert_error(ps_row_spool_merge(&spool, 4, look, &s), PS_ERR_FORMAT,
                 "id 0 came twice");
    ps_row_spool_close(&spool);
}
