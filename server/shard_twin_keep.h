/* rows.buddy: what a shard keeps for the shard of the same place in the server before it,
 * whose twin it is (wire.h draws the messages, shard_twin_feed.h is the other end): the
 * tables at the last two points of which it was told all. */
#ifndef PS_SHARD_TWIN_KEEP_H
#define PS_SHARD_TWIN_KEEP_H

#include "row_store.h"
#include "shard_state.h"

typedef struct ps_twin_keep ps_twin_keep;

/* own: the shard's tables. What its process has kept for that shard before is taken from
 * the keeper of rows. *out is owned by the caller; NULL after a failure. NOMEM. */
ps_err ps_twin_keep_create(const ps_shard *s, const ps_row_store *own,
                           ps_twin_keep **out);
/* Gives the tables to the keeper of rows. */
void ps_twin_keep_destroy(ps_twin_keep **keep, const ps_shard *s);

/* Takes a message of shard `from`, and answers it. keep NULL: rows.buddy is off.
 * PROTOCOL, NOMEM. */
ps_err ps_twin_keep_take(ps_twin_keep *keep, ps_shard *s, const ps_frame_view *v,
                         const ps_wire_frames *f, uint32_t from);

/* Bytes of a piece of rows, and of a message with one, that both ends have room for. */
uint64_t ps_twin_piece_bytes(const ps_row_store *store);
uint64_t ps_twin_body_bytes(uint32_t n_tables, uint64_t piece_bytes);

#endif
