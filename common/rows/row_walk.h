/* Takes the rows of a store to another one, piece by piece, so that neither holds more
 * than a piece of them twice: all rows and candidates, or what has changed between the
 * last two points.
 *
 *   piece:  table u32, 0 u32; then, one after another, of each id:
 *           id u64, version u32, count u32, and its row (width float32) where count is 0
 *   count:  0: a row; PS_ROW_GONE: there is none any more; else as ps_row_view's
 *
 * A piece of changes says what an id is now, so it may come twice. */
#ifndef PS_ROW_WALK_H
#define PS_ROW_WALK_H

#include "row_store.h"

#define PS_ROW_GONE UINT32_MAX

typedef struct ps_row_walk {
    const ps_row_store *store; // NULL: it has ended
    bool changes;
    uint32_t table;
    bool begun; // of the table
    // Of all rows: those of some partitions
    uint32_t partition; // the first one behind them
    ps_row_view *views;
    uint64_t n, at;
    // Of changes
    ps_row_undo_cursor cursor;
    bool waits; // `next` has found no room
    ps_row_view next;
} ps_row_walk;

/* Whether the store knows what has changed between its last two points. */
bool ps_row_walk_can_tell_changes(const ps_row_store *store);

/* store: borrowed for the walk's life; nothing changes it meanwhile. changes: between its
 * last two points, else all. */
void ps_row_walk_begin(ps_row_walk *walk, const ps_row_store *store, bool changes);
void ps_row_walk_end(ps_row_walk *walk); // safe on a zeroed one

/* Bytes of a piece: `wanted`, or more where the store's longest row does not fit. */
uint64_t ps_row_walk_room(const ps_row_store *store, uint64_t wanted);

/* Writes the next piece, at most `room` bytes (ps_row_walk_room). *bytes 0: there are no
 * more. NOMEM. */
ps_err ps_row_walk_next(ps_row_walk *walk, void *piece, uint64_t room, uint64_t *bytes);

/* Does what a piece says. PROTOCOL: it is malformed, or has an id of other partitions.
 * NOMEM. */
ps_err ps_row_store_put(ps_row_store *store, const void *piece, uint64_t bytes);

#endif
