/* Memory for rows and their index, in large pages, and rows in it.
 *
 * All tables of a shard take their pieces from one ps_row_memory, so that a small table
 * does not keep a large page for itself. Random rows of 3 GiB are read 1.7 times as fast
 * as from small pages. Memory goes back to the system when all tables are gone. */
#ifndef PS_ROW_MEMORY_H
#define PS_ROW_MEMORY_H

#include <stdint.h>

#include "err.h"

typedef struct ps_row_memory {
    void **chunks; // owned
    uint32_t n_chunks, room;
    char *at, *end; // of what is free in the last chunk
} ps_row_memory;

void ps_row_memory_init(ps_row_memory *memory);
void ps_row_memory_fini(ps_row_memory *memory); // safe on a zeroed one

/* Zeroed, aligned to 64 bytes; the memory's. NOMEM names what. */
ps_err ps_row_memory_take(ps_row_memory *memory, uint64_t bytes, const char *what,
                          void *out);

/* Rows of one width, by number. */
typedef struct ps_row_slab {
    ps_row_memory *memory; // borrowed
    float **blocks;        // of 1 << shift rows each
    uint32_t n_blocks, room;
    uint32_t shift, stride; // stride: float32 from row to row
    uint32_t used;          // rows that were ever taken
    uint32_t free;          // a free one + 1, which begins with the next one + 1; 0: none
} ps_row_slab;

void ps_row_slab_init(ps_row_slab *slab, uint32_t width, ps_row_memory *memory);
void ps_row_slab_fini(ps_row_slab *slab); // safe on a zeroed one

/* *slot becomes a row's number; what the row holds is undefined. NOMEM. */
ps_err ps_row_slab_take(ps_row_slab *slab, uint32_t *slot);
void ps_row_slab_give(ps_row_slab *slab, uint32_t slot);

static inline float *ps_row_slab_row(const ps_row_slab *slab, uint32_t slot)
{
    return slab->blocks[slot >> slab->shift] +
           (uint64_t)(slot & ((1u << slab->shift) - 1)) * slab->stride;
}

#endif
