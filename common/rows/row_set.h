/* Distinct ids in the order of their first appearance: of a batch in a worker, of a step
 * in a shard.
 *
 * A worker, for each table and batch:
 *
 *     ps_row_batch_split(&batch, spec.number, n_shards, n, ids, NULL);
 *     // PULL_ROWS to shard s: batch.ids[batch.begin[s] .. batch.begin[s + 1] - 1]
 *     // ROWS of shard s: to row batch.begin[s] and the following of the worker's `rows`
 *     ps_row_pool_forward(...);   // row_pool.h, with batch.row
 *     ps_row_pool_backward(...);  // gradients of the same rows, in the same order
 *     ps_floats_scale(grads, share, ...);
 *     // PUSH_ROWS to shard s: the gradients batch.begin[s] .. of the same rows
 */
#ifndef PS_ROW_SET_H
#define PS_ROW_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "err.h"
#include "row_partition.h"

typedef struct ps_row_set {
    ps_row_key key;
    uint64_t *ids; // (n), in the order of their first appearance
    uint32_t n, room;
    uint32_t *slots; // of the hash table: position + 1 in ids, 0: empty
    uint32_t mask;
} ps_row_set;

/* Takes no memory yet. */
void ps_row_set_init(ps_row_set *set, ps_row_key key);
void ps_row_set_fini(ps_row_set *set); // safe on a zeroed one

void ps_row_set_clear(ps_row_set *set); // keeps the memory

/* Adds n ids. positions (n) becomes where each is in set->ids. NOMEM; ARG above 2^31 ids;
 * some of them may be in the set then. */
ps_err ps_row_set_add(ps_row_set *set, uint64_t n, const uint64_t *ids,
                      uint32_t *positions);

/* Whether the id is in the set. */
bool ps_row_set_has(const ps_row_set *set, uint64_t id);

/* The look-ups of one table in one batch, as a worker asks for them. */
typedef struct ps_row_batch {
    uint64_t *ids;   // (n_rows) distinct ids, shard after shard; within a shard in the
                     // order of their first appearance
    uint32_t *begin; // (n_shards + 1) where the ids of each shard begin; begin[n_shards]
                     // is n_rows
    uint32_t n_rows;
    uint32_t *row; // (n_lookups) the place in ids of each look-up; PS_ROW_PADDING: none
    uint64_t n_lookups;
    ps_row_set set;  // without the shards' order
    uint32_t *place; // (set.n + 1) in ids, of each id of the set; then PS_ROW_PADDING
    uint64_t ids_room, begin_room, row_room, place_room;
} ps_row_batch;

#define PS_ROW_PADDING UINT32_MAX

/* Room for n items of that size. items: the address of their pointer, NULL at first; they
 * are the caller's, and zeroed and lost when they grow. NOMEM leaves none. */
ps_err ps_row_room(void *items, uint64_t *room, uint64_t n, size_t size);

void ps_row_batch_init(ps_row_batch *batch);
void ps_row_batch_fini(ps_row_batch *batch); // safe on a zeroed one

/* Makes the batch that of these n look-ups (any ids) of table number `table`. padding: of
 * look-ups with this id, if not NULL, no row is asked for. NOMEM; ARG above 2^31 ids. */
ps_err ps_row_batch_split(ps_row_batch *batch, uint32_t table, uint32_t n_shards,
                          uint64_t n, const uint64_t *ids, const uint64_t *padding);

#endif
