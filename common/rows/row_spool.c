#include "row_spool.h"

#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "file_at.h"
#include "mem.h"
#include "new_file.h"

enum {
    PIECE_BYTES = 1 << 20, // of rows that are written, or given, at once
    RUN_BYTES = 4 << 10,   // of ids, and of rows, that a run has in memory
    RUN_IDS = RUN_BYTES / sizeof(int64_t)
};

/* How many rows fit into a piece; at least one. */
static uint64_t spool_piece_rows(uint32_t dim)
{
    const uint64_t n = PIECE_BYTES / (dim * sizeof(float));
    return n > 0 ? n : 1;
}

/* --- what comes -------------------------------------------------------------------- */

ps_err ps_row_spool_open(ps_row_spool *spool, const char *path, int n_tables)
{
    char beside[PATH_MAX];
    *spool = (ps_row_spool){
        .path = path, .ids_fd = -1, .rows_fd = -1, .n_tables = n_tables, .last = -1};
    if (snprintf(beside, sizeof beside, "%s.spool", path) >= (int)sizeof beside)
        return ps_err_set(PS_ERR_ARG, "%s: too long a path", path);
    PS_TRY(PS_NEW(&spool->tables, (size_t)n_tables, path));
    PS_TRY(ps_new_file_unnamed(beside, &spool->ids_fd));
    return ps_new_file_unnamed(beside, &spool->rows_fd);
}

void ps_row_spool_close(ps_row_spool *spool)
{
    if (spool->ids_fd >= 0) close(spool->ids_fd);
    if (spool->rows_fd >= 0) close(spool->rows_fd);
    for (int t = 0; spool->tables && t < spool->n_tables; t++)
        free(spool->tables[t].runs);
    free(spool->tables);
    free(spool->packed);
    *spool = (ps_row_spool){.ids_fd = -1, .rows_fd = -1};
}

static ps_err spool_note_runs(const char *path, ps_row_spool_table *t, uint64_t n,
                              const int64_t *ids)
{
    for (uint64_t i = 0; i < n; i++) {
        if (t->n_runs == 0 || ids[i] <= t->last_id) {
            PS_TRY(ps_mem_room(&t->runs, t->n_runs, &t->room, sizeof *t->runs, path));
            t->runs[t->n_runs++] = (ps_row_run){t->n, t->n};
        }
        t->runs[t->n_runs - 1].end = ++t->n;
        t->last_id = ids[i];
    }
    return PS_OK;
}

static ps_err spool_write_rows(ps_row_spool *s, uint32_t dim, uint64_t n,
                               const float *values, uint32_t width)
{
    const uint64_t most = spool_piece_rows(dim);
    const uint64_t row = dim * sizeof(float);
    for (uint64_t at = 0, some; at < n; at += some) {
        some = n - at < most ? n - at : most;
        for (uint64_t i = 0; i < some; i++)
            memcpy(s->packed + i * dim, values + (at + i) * width, row);
        PS_TRY(
            ps_file_write_at(s->rows_fd, s->path, s->rows_bytes, s->packed, some * row));
        s->rows_bytes += some * row;
    }
    return PS_OK;
}

static ps_err spool_begin_table(ps_row_spool *s, int table, uint32_t dim)
{
    s->last = table;
    s->tables[table] = (ps_row_spool_table){
        .dim = dim, .ids_at = s->ids_bytes, .rows_at = s->rows_bytes};
    free(s->packed);
    s->packed = NULL;
    return ps_mem_zalloc(&s->packed, spool_piece_rows(dim), dim * sizeof *s->packed,
                         s->path);
}

ps_err ps_row_spool_add(ps_row_spool *s, int table, uint32_t dim, uint64_t n,
                        const int64_t *ids, const float *values, uint32_t width)
{
    if (table != s->last) PS_TRY(spool_begin_table(s, table, dim));
    PS_TRY(spool_note_runs(s->path, &s->tables[table], n, ids));
    PS_TRY(ps_file_write_at(s->ids_fd, s->path, s->ids_bytes, ids, n * sizeof *ids));
    s->ids_bytes += n * sizeof *ids;
    return spool_write_rows(s, dim, n, values, width);
}

/* --- what goes --------------------------------------------------------------------- */

typedef struct merge_run {
    uint64_t at, end;           // rows that are left
    uint64_t ids_end, rows_end; // up to which the run's pieces go
    int64_t *ids;               // (RUN_IDS) that end there
    float *rows;                // (run_rows, dim)
} merge_run;

typedef struct merge {
    const ps_row_spool *spool;
    const ps_row_spool_table *table;
    merge_run *runs; // (table->n_runs)
    int64_t *run_ids;
    float *run_rows;
    uint64_t rows_each; // in a run's piece; 0: rows are too large, and read one by one
    uint32_t *heap;     // (n) runs, the one with the least id first
    uint32_t n;
    int64_t *ids; // (most) that are given at once
    float *rows;  // (most, dim)
    uint64_t most;
} merge;

static int64_t merge_id(const merge *m, uint32_t run)
{
    const merge_run *r = &m->runs[run];
    return r->ids[RUN_IDS - (r->ids_end - r->at)];
}

/* A piece is read to the end of its room, which may begin with old ones. */
static ps_err merge_read_ids(const merge *m, merge_run *r)
{
    if (r->at < r->ids_end) return PS_OK;
    const uint64_t left = r->end - r->at, n = left < RUN_IDS ? left : RUN_IDS;
    r->ids_end = r->at + n;
    return ps_file_read_at(m->spool->ids_fd, m->spool->path,
                           m->table->ids_at + r->at * sizeof *r->ids,
                           r->ids + RUN_IDS - n, n * sizeof *r->ids);
}

static ps_err merge_read_rows(const merge *m, uint64_t at, uint64_t n, float *out)
{
    const uint64_t bytes = m->table->dim * sizeof *out;
    return ps_file_read_at(m->spool->rows_fd, m->spool->path,
                           m->table->rows_at + at * bytes, out, n * bytes);
}

static ps_err merge_take_row(const merge *m, merge_run *r, float *out)
{
    const uint32_t dim = m->table->dim;
    const uint64_t each = m->rows_each, left = r->end - r->at;
    if (each == 0) return merge_read_rows(m, r->at, 1, out);
    if (r->at == r->rows_end) {
        const uint64_t n = left < each ? left : each;
        PS_TRY(merge_read_rows(m, r->at, n, r->rows + (each - n) * dim));
        r->rows_end = r->at + n;
    }
    memcpy(out, r->rows + (each - (r->rows_end - r->at)) * dim, dim * sizeof *out);
    return PS_OK;
}

static void merge_sink(merge *m, uint32_t at)
{
    const uint32_t run = m->heap[at];
    const int64_t id = merge_id(m, run);
    for (uint32_t below; (below = 2 * at + 1) < m->n; at = below) {
        if (below + 1 < m->n &&
            merge_id(m, m->heap[below + 1]) < merge_id(m, m->heap[below]))
            below++;
        if (id <= merge_id(m, m->heap[below])) break;
        m->heap[at] = m->heap[below];
    }
    m->heap[at] = run;
}

static ps_err merge_init(merge *m, const ps_row_spool *spool, int table)
{
    const ps_row_spool_table *t = &spool->tables[table];
    const size_t n = t->n_runs;
    *m = (merge){.spool = spool,
                 .table = t,
                 .rows_each = RUN_BYTES / (t->dim * sizeof(float)),
                 .most = spool_piece_rows(t->dim)};
    PS_TRY(PS_NEW(&m->runs, n, spool->path));
    PS_TRY(PS_NEW(&m->heap, n, spool->path));
    PS_TRY(PS_NEW(&m->run_ids, n * RUN_IDS, spool->path));
    PS_TRY(PS_NEW(&m->run_rows, n * m->rows_each * t->dim, spool->path));
    PS_TRY(PS_NEW(&m->ids, m->most, spool->path));
    PS_TRY(PS_NEW(&m->rows, m->most * t->dim, spool->path));
    for (uint32_t i = 0; i < n; i++) {
        const ps_row_run run = t->runs[i];
        m->runs[i] = (merge_run){.at = run.begin,
                                 .end = run.end,
                                 .ids_end = run.begin,
                                 .rows_end = run.begin,
                                 .ids = m->run_ids + (size_t)i * RUN_IDS,
                                 .rows = m->run_rows + i * m->rows_each * t->dim};
        PS_TRY(merge_read_ids(m, &m->runs[i]));
        m->heap[m->n++] = i;
    }
    for (uint32_t i = m->n / 2; i-- > 0;)
        merge_sink(m, i);
    return PS_OK;
}

static void merge_fini(merge *m)
{
    free(m->runs);
    free(m->heap);
    free(m->run_ids);
    free(m->run_rows);
    free(m->ids);
    free(m->rows);
}

/* Moves the run with the least id on. */
static ps_err merge_next(merge *m, int64_t *id, float *row)
{
    merge_run *r = &m->runs[m->heap[0]];
    *id = merge_id(m, m->heap[0]);
    PS_TRY(merge_take_row(m, r, row));
    if (++r->at < r->end)
        PS_TRY(merge_read_ids(m, r));
    else
        m->heap[0] = m->heap[--m->n];
    if (m->n > 0) merge_sink(m, 0);
    return PS_OK;
}

static ps_err merge_all(merge *m, ps_row_spool_take *take, void *ctx)
{
    int64_t before = INT64_MIN;
    for (uint64_t first = 0, n; first < m->table->n; first += n) {
        for (n = 0; n < m->most && m->n > 0; n++) {
            PS_TRY(merge_next(m, &m->ids[n], m->rows + n * m->table->dim));
            if (m->ids[n] <= before)
                return ps_err_set(PS_ERR_FORMAT, "%s: id %" PRId64 " came twice",
                                  m->spool->path, before);
            before = m->ids[n];
        }
        PS_TRY(take(ctx, first, n, m->ids, m->rows));
    }
    return PS_OK;
}

ps_err ps_row_spool_merge(const ps_row_spool *spool, int table, ps_row_spool_take *take,
                          void *ctx)
{
    merge m;
    if (spool->tables[table].n == 0) return PS_OK;
    ps_err err = merge_init(&m, spool, table);
    if (err == PS_OK) err = merge_all(&m, take, ctx);
    merge_fini(&m);
    return err;
}
