#include "shard_rows_arena.h"

#include <inttypes.h>
#include <string.h>

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
        const ps_rows_place *at = &pull->places[t];
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

uint64_t ps_rows_arena_join(void *arena, const ps_rows_push *push,
                            const ps_rows_pull *pulls, const ps_row_table *tables,
                            uint32_t n_tables, bool inlined, float *out)
{
    const float *from = push->grads;
    uint64_t sum = 0;
    for (uint32_t t = 0; t < n_tables; t++)
        for (uint32_t i = 0; i < push->n_pulls; i++) {
            const uint64_t n = (uint64_t)pulls[i].counts[t] * tables[t].spec.dim;
            const bool shared = pulls[i].places != NULL;
            if (!push->has[i * n_tables + t] || n == 0 || (inlined && shared)) continue;
            if (out)
                memcpy(out + sum,
                       shared ? ps_rows_arena_at(arena, pulls[i].places[t].grads) : from,
                       n * sizeof *out);
            if (!shared) from += n;
            sum += n;
        }
    return sum;
}
