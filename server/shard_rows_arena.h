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

/* out (rows with a gradient) becomes the gradients of a step as a PUSH_ROWS without an
 * arena has them. pulls (push->n_pulls): those of the step. Returns how many numbers. out
 * NULL: counts them; with `inlined`, only those that the message itself has. */
uint64_t ps_rows_arena_join(void *arena, const ps_rows_push *push,
                            const ps_rows_pull *pulls, const ps_row_table *tables,
                            uint32_t n_tables, bool inlined, float *out);

#endif
