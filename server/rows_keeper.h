/* Embedding tables of shards whose job has failed, until the process has joined it again:
 * then they go back to a point that the workers choose. Owned by the process's main
 * thread. */
#ifndef PS_ROWS_KEEPER_H
#define PS_ROWS_KEEPER_H

#include "row_store.h"

typedef struct ps_rows_keeper ps_rows_keeper;

/* *out is owned by the caller. NOMEM. */
ps_err ps_rows_keeper_create(ps_rows_keeper **out);
void ps_rows_keeper_destroy(ps_rows_keeper **keeper);

/* Of the functions below, keeper may be NULL: it has nothing, and keeps nothing. */

/* What the shard of that number has given; owned by the caller; NULL: nothing. */
ps_row_store *ps_rows_keeper_take(ps_rows_keeper *keeper, uint32_t shard);
/* Takes the store; *store becomes NULL. */
void ps_rows_keeper_give(ps_rows_keeper *keeper, uint32_t shard, ps_row_store **store);
/* The points that each of n shards from `first` on can go back to; returns how many. */
uint32_t ps_rows_keeper_points(const ps_rows_keeper *keeper, uint32_t first, uint32_t n,
                               uint64_t out[PS_ROW_MARKS]);

#endif
