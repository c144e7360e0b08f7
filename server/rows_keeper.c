#include "rows_keeper.h"

#include <stdlib.h>

#include "mem.h"

struct ps_rows_keeper {
    struct keeper_entry { // one for each shard, however often the process joins again
        uint32_t shard;
        ps_row_store *store; // owned; NULL: it was taken
    } * entries;
    uint32_t n, room;
};

ps_err ps_rows_keeper_create(ps_rows_keeper **out)
{
    return PS_NEW(out, 1, "kept rows");
}

void ps_rows_keeper_destroy(ps_rows_keeper **keeper)
{
    ps_rows_keeper *k = *keeper;
    if (!k) return;
    for (uint32_t i = 0; i < k->n; i++)
        ps_row_store_destroy(&k->entries[i].store);
    free(k->entries);
    free(k);
    *keeper = NULL;
}

static struct keeper_entry *keeper_find(const ps_rows_keeper *k, uint32_t shard)
{
    for (uint32_t i = 0; k && i < k->n; i++)
        if (k->entries[i].shard == shard) return &k->entries[i];
    return NULL;
}

/* The shard's, also where it has given nothing yet. NULL: no memory. */
static struct keeper_entry *keeper_entry_of(ps_rows_keeper *k, uint32_t shard)
{
    struct keeper_entry *e = keeper_find(k, shard);
    if (e) return e;
    if (ps_mem_room(&k->entries, k->n, &k->room, sizeof *k->entries, "kept rows") !=
        PS_OK)
        return NULL;
    k->entries[k->n] = (struct keeper_entry){.shard = shard};
    return &k->entries[k->n++];
}

ps_row_store *ps_rows_keeper_take(ps_rows_keeper *k, uint32_t shard)
{
    struct keeper_entry *e = keeper_find(k, shard);
    ps_row_store *store = e ? e->store : NULL;
    if (e) e->store = NULL;
    return store;
}

void ps_rows_keeper_give(ps_rows_keeper *k, uint32_t shard, ps_row_store **store)
{
    ps_row_store *before = ps_rows_keeper_take(k, shard);
    ps_row_store_destroy(&before);
    const bool kept = k && *store && (*store)->n_points > 0;
    struct keeper_entry *e = kept ? keeper_entry_of(k, shard) : NULL;
    if (e) {
        e->store = *store;
        *store = NULL;
    }
    ps_row_store_destroy(store);
}

uint32_t ps_rows_keeper_points(const ps_rows_keeper *k, uint32_t first, uint32_t n,
                               uint64_t out[PS_ROW_MARKS])
{
    const struct keeper_entry *of_first = keeper_find(k, first);
    const ps_row_store *store = of_first ? of_first->store : NULL;
    uint32_t n_points = 0;
    for (uint32_t i = 0; store && i < store->n_points; i++) {
        const uint64_t point = store->points[i].point;
        uint32_t have = 1;
        for (uint32_t shard = first + 1; shard < first + n; shard++) {
            const struct keeper_entry *e = keeper_find(k, shard);
            have += e && e->store && ps_row_store_has(e->store, point);
        }
        if (have == n) out[n_points++] = point;
    }
    return n_points;
}
