#include "shard_rows_early.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "row_codec.h"
#include "shard_rows_arena.h"

ps_err ps_rows_early_init(ps_rows_early *e, const ps_rows_pull *pull, void *arena,
                          const ps_row_table *tables, uint32_t n_tables)
{
    *e = (ps_rows_early){.pull = *pull, .arena = pull->places ? arena : NULL};
    if (!e->arena) e->n_ready = e->n_out = ps_rows_ahead_head(pull->n);
    for (uint32_t t = 0; t < n_tables && !e->arena; t++)
        e->n_out += pull->counts[t] * ps_row_codec_row_bytes(&tables[t].spec);
    PS_TRY(PS_NEW(&e->out, e->n_out, "rows of the next step"));
    PS_TRY(ps_mem_zalloc(&e->late, pull->n, 1, "rows of the next step"));
    memset(e->late, 1, pull->n);
    return PS_OK;
}

void ps_rows_early_fini(ps_rows_early *e)
{
    free(e->out);
    free(e->late);
    *e = (ps_rows_early){0};
}

/* Reads those of the n ids whose flag is `which`: in an arena to their places, else to
 * what is ready. */
static ps_err early_read_table(ps_rows_early *e, ps_row_table *table, uint64_t n,
                               const uint64_t *ids, const uint8_t *late, uint8_t which,
                               float *places)
{
    const uint64_t dim = table->spec.dim;
    uint64_t *some, m = 0;
    float *rows;
    PS_TRY(PS_NEW(&some, n, "rows of the next step"));
    for (uint64_t i = 0; i < n; i++)
        if (late[i] == which) some[m++] = ids[i];
    const ps_err err = PS_NEW(&rows, m * dim, "rows of the next step");
    if (err != PS_OK) {
        free(some);
        return err;
    }
    ps_row_table_read(table, m, some, rows);
    if (e->arena) {
        ps_row_codec_round(&table->spec, m, NULL, 0, rows);
        const float *from = rows;
        for (uint64_t i = 0; i < n; i++)
            if (late[i] == which) {
                memcpy(places + i * dim, from, dim * sizeof *from);
                from += dim;
            }
    } else {
        const uint64_t bytes = m * ps_row_codec_row_bytes(&table->spec);
        ps_row_codec_encode(&table->spec, m, NULL, 0, rows);
        if (m > 0) memcpy(e->out + e->n_ready, rows, bytes);
        e->n_ready += bytes;
    }
    free(rows);
    free(some);
    return PS_OK;
}

static ps_err early_read_all(ps_rows_early *e, ps_row_table *tables, uint32_t n_tables,
                             uint8_t which)
{
    const uint64_t *ids = e->pull.ids;
    const uint8_t *late = e->late;
    float *places = NULL;
    for (uint32_t t = 0; t < n_tables; t++) {
        const uint64_t n = e->pull.counts[t];
        if (e->arena) places = ps_rows_arena_at(e->arena, e->pull.places[t].rows);
        if (n > 0) PS_TRY(early_read_table(e, &tables[t], n, ids, late, which, places));
        ids += n;
        late += n;
    }
    return PS_OK;
}

ps_err ps_rows_early_read(ps_rows_early *e, ps_row_table *tables, uint32_t n_tables,
                          const ps_row_step *touched, const ps_row_clock *clocks,
                          uint64_t s)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < n_tables; t++)
        for (const uint64_t end = at + e->pull.counts[t]; at < end; at++)
            e->late[at] = ps_row_table_changes(&tables[t], &touched[t],
                                               s + clocks[t].ahead, e->pull.ids[at]);
    for (uint64_t i = 0; i < e->pull.n && !e->arena; i++)
        e->out[i / 8] |= (uint8_t)(!e->late[i] << i % 8);
    return early_read_all(e, tables, n_tables, 0);
}

void ps_rows_early_count(const ps_rows_early *e, uint32_t n_tables, uint64_t *rows,
                         uint64_t *read)
{
    uint64_t at = 0;
    for (uint32_t t = 0; t < n_tables; t++) {
        rows[t] += e->pull.counts[t];
        for (const uint64_t end = at + e->pull.counts[t]; at < end; at++)
            read[t] += !e->late[at];
    }
}

ps_err ps_rows_early_rest(ps_rows_early *e, ps_row_table *tables, uint32_t n_tables)
{
    return early_read_all(e, tables, n_tables, 1);
}
