#include "shard_rows_arena.h"

#include <inttypes.h>
#include <string.h>

#include "row_codec.h"

static bool arena_has(uint64_t place, uint64_t bytes, uint64_t aligned)
{
    return place % aligned == 0 && bytes <= PS_ROWS_ARENA_BYTES &&
           place <= PS_ROWS_ARENA_BYTES - bytes;
}

ps_err ps_rows_arena_ids(const void *arena, const ps_rows_pull *pull,
                         const ps_row_table *tables, uint32_t n_tables, uint64_t *ids)
{
    if (!arena)
        return ps_err_set(PS_ERR_PROTOCOL, "rows in an arena that is not mapped here");
    for (uint32_t t = 0; t < n_tables; t++) {
        const ps_rows_offsets *at = &pull->places[t];
        const uint64_t n = pull->counts[t], bytes = n * sizeof *ids;
        const uint64_t rows = n * tables[t].spec.dim * sizeof(float);
        if (n == 0) continue;
        if (!arena_has(at->ids, bytes, sizeof *ids) ||
            !arena_has(at->rows, rows, sizeof(float)) ||
            !arena_has(at->grads, rows, sizeof(float)))
            return ps_err_set(PS_ERR_PROTOCOL,
                              "%" PRIu64 " rows of table %s outside of its arena", n,
                              tables[t].spec.name);
        memcpy(ids, (const uint8_t *)arena + at->ids, bytes);
        ids += n;
    }
    return PS_OK;
}

uint64_t ps_rows_push_size(const ps_rows_push *push, const ps_rows_pull *pulls,
                           const ps_row_table *tables, uint32_t n_tables)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < push->n_pulls; i++)
        for (uint32_t t = 0; t < n_tables && !pulls[i].places; t++)
            if (push->has[i * n_tables + t])
                sum += ps_row_codec_size(&tables[t].spec, pulls[i].counts[t]);
    return sum;
}

ps_err ps_rows_join_gradients(void *arena, const ps_rows_push *push,
                              const ps_rows_pull *pulls, const ps_row_table *tables,
                              uint32_t n_tables, float *out, uint64_t *n)
{
    const float *from = push->grads;
    *n = 0;
    for (uint32_t t = 0; t < n_tables; t++)
        for (uint32_t i = 0; i < push->n_pulls; i++) {
            const ps_row_spec *spec = &tables[t].spec;
            const ps_rows_pull *pull = &pulls[i];
            const uint64_t rows = pull->counts[t], m = rows * spec->dim;
            if (!push->has[i * n_tables + t] || rows == 0) continue;
            if (out && pull->places)
                memcpy(out + *n, ps_rows_arena_at(arena, pull->places[t].grads),
                       m * sizeof *out);
            else if (out)
                PS_TRY(ps_row_codec_decode(spec, rows, ps_rows_pull_ids(pull, t), from,
                                           out + *n));
            if (!pull->places) from += ps_row_codec_size(spec, rows);
            *n += m;
        }
    return PS_OK;
}
