/* Memory for rows and their index, in large pages, and rows in it; rows beyond a bound
 * may lie in a file.
 *
 * All tables of a shard take their pieces from one ps_row_memory, so that a small table
 * does not keep a large page for itself. Random rows of 3 GiB are read 1.7 times as fast
 * as from small pages. Memory goes back to the system when all tables are gone. The file
 * is mapped, has no name, and ends with the process: the system keeps in memory what it
 * has room for. */
#ifndef PS_ROW_MEMORY_H
#define PS_ROW_MEMORY_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

/* What is free in the last chunk. */
typedef struct ps_row_piece {
    char *at, *end;
} ps_row_piece;

/* Rows beyond `bytes` lie in a file in the folder; NULL: all are in memory. */
typedef struct ps_row_disk {
    const char *folder;
    uint64_t bytes;
} ps_row_disk;

typedef struct ps_row_memory {
    void **chunks; // owned; those of the file, too
    uint32_t n_chunks, room;
    ps_row_piece here, there; // in memory, in the file
    char *folder;             // of the file; NULL: there is none
    int fd;
    uint64_t file_bytes;
    uint64_t most, left; // bytes of rows in memory, where there is a file; still free
} ps_row_memory;

void ps_row_memory_init(ps_row_memory *memory);
void ps_row_memory_fini(ps_row_memory *memory); // safe on a zeroed one

/* For rows to come. Copies what it needs. IO names the folder. */
ps_err ps_row_memory_use_disk(ps_row_memory *memory, const ps_row_disk *disk);

/* Zeroed, aligned to 64 bytes; the memory's. NOMEM names what. */
ps_err ps_row_memory_take(ps_row_memory *memory, uint64_t bytes, const char *what,
                          void *out);

/* Rows of one width, by number. */
typedef struct ps_row_slab {
    ps_row_memory *memory; // borrowed
    bool on_disk;          // its rows lie in the file
    float **blocks;        // of 1 << shift rows each
    uint32_t n_blocks, room;
    uint32_t shift, stride; // stride: float32 from row to row
    uint32_t used;          // rows that were ever taken
    uint32_t free;          // a free one + 1, which begins with the next one + 1; 0: none
} ps_row_slab;

void ps_row_slab_init(ps_row_slab *slab, uint32_t width, ps_row_memory *memory,
                      bool on_disk);
void ps_row_slab_fini(ps_row_slab *slab); // safe on a zeroed one

/* Whether there is memory for one more: always, where no rows lie on a disk. */
bool ps_row_slab_has_room(const ps_row_slab *slab);
/* *slot becomes a row's number; what the row holds is undefined. NOMEM, IO. */
ps_err ps_row_slab_take(ps_row_slab *slab, uint32_t *slot);
void ps_row_slab_give(ps_row_slab *slab, uint32_t slot);

static inline float *ps_row_slab_row(const ps_row_slab *slab, uint32_t slot)
{
    return slab->blocks[slot >> slab->shift] +
           (uint64_t)(slot & ((1u << slab->shift) - 1)) * slab->stride;
}

#endif
