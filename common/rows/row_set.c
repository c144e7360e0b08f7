#include "row_set.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { SET_LEAST = 64, SET_AHEAD = 64 };
static const uint64_t SET_MOST = (uint64_t)1 << 31;

void ps_row_set_init(ps_row_set *set, ps_row_key key)
{
    *set = (ps_row_set){.key = key};
}

void ps_row_set_fini(ps_row_set *set)
{
    free(set->ids);
    free(set->slots);
    *set = (ps_row_set){.key = set->key};
}

void ps_row_set_clear(ps_row_set *set)
{
    if (set->n > 0) memset(set->slots, 0, ((size_t)set->mask + 1) * sizeof *set->slots);
    set->n = 0;
}

static uint32_t set_start(const ps_row_set *set, uint64_t id)
{
    return (uint32_t)ps_row_keyed(set->key, id) & set->mask;
}

/* Room for n ids, in a hash table that is at most half full. */
static ps_err set_reserve(ps_row_set *set, uint64_t n)
{
    if (n <= set->room) return PS_OK;
    if (n >= SET_MOST)
        return ps_err_set(PS_ERR_ARG, "%llu ids in one batch of a table: at most 2^31",
                          (unsigned long long)n);
    uint64_t room = SET_LEAST;
    while (room < n)
        room *= 2;
    uint32_t *slots;
    PS_TRY(PS_NEW(&slots, 2 * room, "ids of a batch"));
    uint64_t *ids = realloc(set->ids, room * sizeof *ids);
    if (!ids) {
        free(slots);
        return ps_err_set(PS_ERR_NOMEM, "ids of a batch: no memory for %llu",
                          (unsigned long long)room);
    }
    free(set->slots);
    set->ids = ids;
    set->slots = slots;
    set->room = (uint32_t)room;
    set->mask = (uint32_t)(2 * room - 1);
    for (uint32_t i = 0; i < set->n; i++) {
        uint32_t at = set_start(set, ids[i]);
        while (slots[at])
            at = (at + 1) & set->mask;
        slots[at] = i + 1;
    }
    return PS_OK;
}

/* The place of an id, which begins to be looked for at a slot; adds it. */
static uint32_t set_place(ps_row_set *set, uint32_t at, uint64_t id)
{
    for (;; at = (at + 1) & set->mask) {
        const uint32_t found = set->slots[at];
        if (found == 0) break;
        if (set->ids[found - 1] == id) return found - 1;
    }
    set->ids[set->n] = id;
    set->slots[at] = ++set->n;
    return set->n - 1;
}

ps_err ps_row_set_add(ps_row_set *set, uint64_t n, const uint64_t *ids,
                      uint32_t *positions)
{
    for (uint64_t begin = 0; begin < n; begin += SET_AHEAD) {
        const uint64_t count = n - begin < SET_AHEAD ? n - begin : SET_AHEAD;
        uint32_t starts[SET_AHEAD];
        PS_TRY(set_reserve(set, (uint64_t)set->n + count));
        for (uint64_t i = 0; i < count; i++) {
            starts[i] = set_start(set, ids[begin + i]);
            __builtin_prefetch(&set->slots[starts[i]], 1);
        }
        for (uint64_t i = 0; i < count; i++)
            positions[begin + i] = set_place(set, starts[i], ids[begin + i]);
    }
    return PS_OK;
}

bool ps_row_set_has(const ps_row_set *set, uint64_t id)
{
    if (set->n == 0) return false;
    for (uint32_t at = set_start(set, id); set->slots[at]; at = (at + 1) & set->mask)
        if (set->ids[set->slots[at] - 1] == id) return true;
    return false;
}

void ps_row_batch_init(ps_row_batch *batch)
{
    *batch = (ps_row_batch){0};
    ps_row_set_init(&batch->set, PS_ROW_KEY_PLAIN);
}

void ps_row_batch_fini(ps_row_batch *batch)
{
    ps_row_set_fini(&batch->set);
    free(batch->ids);
    free(batch->begin);
    free(batch->row);
    free(batch->place);
    ps_row_batch_init(batch);
}

ps_err ps_row_room(void *items, uint64_t *room, uint64_t n, size_t size)
{
    void *old;
    if (n <= *room) return PS_OK;
    memcpy(&old, items, sizeof old);
    free(old);
    *room = 0;
    old = NULL;
    memcpy(items, &old, sizeof old);
    PS_TRY(ps_mem_zalloc(items, n + n / 4, size, "rows of a batch"));
    *room = n + n / 4;
    return PS_OK;
}

/* The rows of the look-ups that are no padding, as places in the set. */
static ps_err batch_find(ps_row_batch *batch, const uint64_t *ids,
                         const uint64_t *padding)
{
    ps_row_set_clear(&batch->set);
    if (!padding) return ps_row_set_add(&batch->set, batch->n_lookups, ids, batch->row);
    for (uint64_t at = 0; at < batch->n_lookups;) {
        uint64_t end = at;
        while (end < batch->n_lookups && ids[end] != *padding)
            end++;
        PS_TRY(ps_row_set_add(&batch->set, end - at, ids + at, batch->row + at));
        for (; end < batch->n_lookups && ids[end] == *padding; end++)
            batch->row[end] = PS_ROW_PADDING;
        at = end;
    }
    return PS_OK;
}

/* Puts the ids in the order of the shards; place says where each of the set went. */
static void batch_order(ps_row_batch *batch, uint64_t salt, uint32_t n_shards)
{
    const ps_row_set *set = &batch->set;
    uint32_t *begin = batch->begin;
    memset(begin, 0, (n_shards + 1) * sizeof *begin);
    for (uint32_t i = 0; i < set->n; i++) {
        const uint64_t place = ps_row_hash(salt, set->ids[i]);
        batch->place[i] = ps_row_shard(ps_row_partition(place), n_shards);
        begin[batch->place[i] + 1]++;
    }
    for (uint32_t s = 0; s < n_shards; s++)
        begin[s + 1] += begin[s];
    for (uint32_t i = 0; i < set->n; i++) {
        batch->place[i] = begin[batch->place[i]]++;
        batch->ids[batch->place[i]] = set->ids[i];
    }
    memmove(begin + 1, begin, n_shards * sizeof *begin);
    begin[0] = 0;
}

ps_err ps_row_batch_split(ps_row_batch *batch, uint32_t table, uint32_t n_shards,
                          uint64_t n, const uint64_t *ids, const uint64_t *padding)
{
    batch->n_lookups = batch->n_rows = 0;
    PS_TRY(ps_row_room(&batch->row, &batch->row_room, n, sizeof *batch->row));
    PS_TRY(ps_row_room(&batch->begin, &batch->begin_room, (uint64_t)n_shards + 1,
                       sizeof *batch->begin));
    batch->n_lookups = n;
    PS_TRY(batch_find(batch, ids, padding));
    const uint32_t n_rows = batch->set.n;
    PS_TRY(ps_row_room(&batch->ids, &batch->ids_room, n_rows, sizeof *batch->ids));
    PS_TRY(ps_row_room(&batch->place, &batch->place_room, (uint64_t)n_rows + 1,
                       sizeof *batch->place));
    batch_order(batch, ps_row_hash_salt(table), n_shards);
    batch->place[n_rows] = PS_ROW_PADDING;
    batch->n_rows = n_rows;
    if (n_shards > 1)
        for (uint64_t i = 0; i < n; i++)
            if (batch->row[i] != PS_ROW_PADDING)
                batch->row[i] = batch->place[batch->row[i]];
    return PS_OK;
}
