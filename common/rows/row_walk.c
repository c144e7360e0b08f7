#include "row_walk.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { HEAD_BYTES = 8, ID_BYTES = 16 };

bool ps_row_walk_can_tell_changes(const ps_row_store *store)
{
    bool can = store->base != 0;
    for (uint32_t t = 0; t < store->n && store->changed; t++)
        can &= store->tables[t].undo.n == PS_ROW_MARKS;
    return can;
}

void ps_row_walk_begin(ps_row_walk *w, const ps_row_store *store, bool changes)
{
    ps_row_walk_end(w);
    *w = (ps_row_walk){.store = store, .changes = changes};
    if (changes && !store->changed) w->table = store->n;
}

void ps_row_walk_end(ps_row_walk *w)
{
    free(w->views);
    *w = (ps_row_walk){0};
}

static uint64_t walk_row_bytes(const ps_row_table *table)
{
    return ps_row_spec_width(&table->spec) * sizeof(float);
}

uint64_t ps_row_walk_room(const ps_row_store *store, uint64_t wanted)
{
    for (uint32_t t = 0; t < store->n; t++) {
        const uint64_t least = HEAD_BYTES + ID_BYTES + walk_row_bytes(&store->tables[t]);
        if (wanted < least) wanted = least;
    }
    return wanted;
}

/* The next id of all; *found false: the table has no more. */
static ps_err walk_every_row(ps_row_walk *w, const ps_row_table *table, bool *found)
{
    while (w->at == w->n && w->partition < table->end_partition) {
        uint32_t end = ps_row_index_group_end(&table->index, w->partition);
        if (end > table->end_partition) end = table->end_partition;
        free(w->views);
        w->views = NULL;
        w->n = w->at = 0;
        PS_TRY(ps_row_table_list(table, w->partition, end, 0, &w->views, &w->n));
        w->partition = end;
    }
    *found = w->at < w->n;
    if (*found) w->next = w->views[w->at++];
    return PS_OK;
}

static bool walk_changes(ps_row_walk *w, const ps_row_table *table)
{
    ps_row_entry before;
    if (!ps_row_undo_next(&w->cursor, &before)) return false;
    if (!ps_row_table_view(table, before.id, &w->next))
        w->next = (ps_row_view){.id = before.id, .count = PS_ROW_GONE};
    return true;
}

static void walk_begin_table(ps_row_walk *w, const ps_row_table *table)
{
    w->begun = true;
    w->partition = table->first_partition;
    w->n = w->at = 0;
    // The newest mark is the newest point's; the other one's records lead to that.
    if (w->changes) w->cursor = ps_row_undo_cursor_at(&table->undo, table->undo.n - 2);
}

static ps_err walk_take(ps_row_walk *w, const ps_row_table *table, bool *found)
{
    *found = true;
    if (w->waits) return PS_OK;
    if (!w->changes) return walk_every_row(w, table, found);
    *found = walk_changes(w, table);
    return PS_OK;
}

static uint64_t walk_write(const ps_row_table *table, const ps_row_view *v, uint8_t *to)
{
    const uint64_t row = v->row ? walk_row_bytes(table) : 0;
    memcpy(to, &v->id, sizeof v->id);
    memcpy(to + 8, &v->version, sizeof v->version);
    memcpy(to + 12, &v->count, sizeof v->count);
    if (row) memcpy(to + ID_BYTES, v->row, row);
    return ID_BYTES + row;
}

/* Of one table; *bytes HEAD_BYTES: it has no more. */
static ps_err walk_piece(ps_row_walk *w, const ps_row_table *table, uint8_t *piece,
                         uint64_t room, uint64_t *bytes)
{
    const uint32_t head[2] = {w->table, 0};
    memcpy(piece, head, sizeof head);
    *bytes = HEAD_BYTES;
    if (!w->begun) walk_begin_table(w, table);
    for (;;) {
        bool found;
        PS_TRY(walk_take(w, table, &found));
        if (!found) return PS_OK;
        w->waits = *bytes + ID_BYTES + walk_row_bytes(table) > room;
        if (w->waits) return PS_OK;
        *bytes += walk_write(table, &w->next, piece + *bytes);
    }
}

ps_err ps_row_walk_next(ps_row_walk *w, void *piece, uint64_t room, uint64_t *bytes)
{
    for (; w->table < w->store->n; w->table++, w->begun = false) {
        PS_TRY(walk_piece(w, &w->store->tables[w->table], piece, room, bytes));
        if (*bytes > HEAD_BYTES) return PS_OK;
    }
    *bytes = 0;
    return PS_OK;
}

/* ---- the other end ---- */

static ps_err put_malformed(uint64_t bytes)
{
    return ps_err_set(PS_ERR_PROTOCOL,
                      "a piece of rows of %" PRIu64 " bytes that is malformed", bytes);
}

/* The first id in `left` bytes; *took: its bytes. */
static ps_err put_one(ps_row_table *table, const uint8_t *from, uint64_t left,
                      uint64_t *took)
{
    const uint64_t row = walk_row_bytes(table);
    ps_row_view v;
    if (left < ID_BYTES) return put_malformed(left);
    memcpy(&v.id, from, sizeof v.id);
    memcpy(&v.version, from + 8, sizeof v.version);
    memcpy(&v.count, from + 12, sizeof v.count);
    *took = ID_BYTES + (v.count == 0 ? row : 0);
    if (left < *took || (v.count != PS_ROW_GONE && v.count >= PS_ROW_CANDIDATE))
        return put_malformed(left);
    PS_TRY(ps_row_table_check_ids(table, 1, &v.id));
    if (v.count == PS_ROW_GONE) return ps_row_table_remove(table, v.id);
    v.row = v.count == 0 ? (const float *)(const void *)(from + ID_BYTES) : NULL;
    return ps_row_table_put(table, &v);
}

ps_err ps_row_store_put(ps_row_store *store, const void *piece, uint64_t bytes)
{
    uint32_t head[2];
    uint64_t took = 0;
    if (bytes < HEAD_BYTES) return put_malformed(bytes);
    memcpy(head, piece, sizeof head);
    if (head[0] >= store->n || head[1] != 0) return put_malformed(bytes);
    for (uint64_t at = HEAD_BYTES; at < bytes; at += took)
        PS_TRY(put_one(&store->tables[head[0]], (const uint8_t *)piece + at, bytes - at,
                       &took));
    return PS_OK;
}
