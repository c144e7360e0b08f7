/* rows.buddy: how a shard's rows get to its twin in the next server, and back after its
 * death (wire.h draws the messages, shard_twin_keep.h is the other end).
 *
 * A point is kept twice once the twin has answered that it has all of it: only then is
 * the KEEP_ROWS answered that set it. Meanwhile the shard applies no step to the rows, so
 * nothing changes that is still to be told; it answers lookups, and chunks go on. A point
 * is told by what has changed since the one before, where the twin has that one, else by
 * all rows. */
#ifndef PS_SHARD_TWIN_FEED_H
#define PS_SHARD_TWIN_FEED_H

#include "row_store.h"
#include "shard_state.h"

typedef struct ps_twin_feed ps_twin_feed;

/* own: the shard's tables. *out is owned by the caller; NULL after a failure. NET, NOMEM,
 * PEER. */
ps_err ps_twin_feed_create(const ps_shard *s, const ps_row_store *own,
                           ps_twin_feed **out);
/* Closes the connection: before the context ends. feed may be NULL. */
void ps_twin_feed_close(ps_twin_feed *feed);
void ps_twin_feed_destroy(ps_twin_feed **feed);

/* Begins to tell the twin the newest point of the store, which stays as it is until that
 * is done. Only one of the two at a time. */
ps_err ps_twin_feed_tell(ps_twin_feed *feed, ps_shard *s, const ps_row_store *store);
/* Begins to fetch the rows at a point. like: a store with the same tables and partitions,
 * which stays until that is done. */
ps_err ps_twin_feed_fetch(ps_twin_feed *feed, ps_shard *s, const ps_row_store *like,
                          uint64_t point);

/* For ps_zsock_poll: answers, and events of the connection. */
void *ps_twin_feed_socket(ps_twin_feed *feed);
void *ps_twin_feed_monitor(ps_twin_feed *feed);
/* Reads the events; over a new connection, sends again what is not answered. */
ps_err ps_twin_feed_mend(ps_twin_feed *feed, ps_shard *s);
/* Takes what the twin has answered, and goes on; *done: all is told, or fetched. */
ps_err ps_twin_feed_hear(ps_twin_feed *feed, ps_shard *s, bool *done);
/* The tables at the point that were fetched, owned by the caller; NULL: the twin has them
 * not. */
ps_row_store *ps_twin_feed_take_fetched(ps_twin_feed *feed);

/* The server that has the twin. */
uint32_t ps_twin_feed_server(const ps_twin_feed *feed);

#endif
