/* Messages of rows of a worker of this host: ids, rows and gradients are in its arena
 * (rows_body.h), which it may change at any time. */
#ifndef PS_SHARD_ROWS_ARENA_H
#define PS_SHARD_ROWS_ARENA_H

#include "row_table.h"
#include "rows_body.h"

/* ids (pull->n) becomes a copy of a shared pull's. PROTOCOL: it names places outside of
 * the arena; NULL: the worker has none. */
ps_err ps_rows_arena_ids(const void *arena, const ps_rows_pull *pull,
                         const ps_row_table *tables, uint32_t n_tables, uint64_t *ids);

static inline float *ps_rows_arena_at(void *arena, uint64_t place)
{
    return (float *)(void *)((uint8_t *)arena + place);
}

/* What the gradients that are in a PUSH_ROWS itself take there, in float32. pulls
 * (push->n_pulls): those of the step. */
uint64_t ps_rows_push_size(const ps_rows_push *push, const ps_rows_pull *pulls,
                           const ps_row_table *tables, uint32_t n_tables);

/* out becomes the gradients of a step, wherever they are, as a PUSH_ROWS without arena
 * and codecs has them: *n float32. out NULL: counts them. NUMERIC, PROTOCOL as
 * ps_row_codec_decode. */
ps_err ps_rows_join_gradients(void *arena, const ps_rows_push *push,
                              const ps_rows_pull *pulls, const ps_row_table *tables,
                              uint32_t n_tables, float *out, uint64_t *n);

#endif
