#include "row_memory.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

enum { CHUNK_BYTES = 16 << 20, BLOCK_BYTES = 256 << 10, LINE_BYTES = 64 };
static const uint32_t SLOTS_MOST =
    0x7ffffffe; // the index adds 1, and has a bit of its own

void ps_row_memory_init(ps_row_memory *memory)
{
    *memory = (ps_row_memory){0};
}

void ps_row_memory_fini(ps_row_memory *memory)
{
    for (uint32_t i = 0; i < memory->n_chunks; i++)
        ps_mem_unmap(memory->chunks[i], CHUNK_BYTES);
    free(memory->chunks);
    ps_row_memory_init(memory);
}

ps_err ps_row_memory_take(ps_row_memory *memory, uint64_t bytes, const char *what,
                          void *out)
{
    bytes = (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    if (bytes > CHUNK_BYTES)
        return ps_err_set(PS_ERR_INTERNAL, "%s: a piece of %llu bytes", what,
                          (unsigned long long)bytes);
    if (bytes > (uint64_t)(memory->end - memory->at)) {
        char *chunk;
        PS_TRY(ps_mem_room(&memory->chunks, memory->n_chunks, &memory->room,
                           sizeof(void *), what));
        PS_TRY(ps_mem_map_large(&chunk, CHUNK_BYTES, what));
        memory->chunks[memory->n_chunks++] = chunk;
        memory->at = chunk;
        memory->end = chunk + CHUNK_BYTES;
    }
    memcpy(out, &memory->at, sizeof memory->at);
    memory->at += bytes;
    return PS_OK;
}

/* Rows of a cache line or more begin at 16 bytes. */
void ps_row_slab_init(ps_row_slab *slab, uint32_t width, ps_row_memory *memory)
{
    const uint32_t stride = width < 16 ? width : (width + 3) / 4 * 4;
    *slab = (ps_row_slab){.memory = memory, .stride = stride};
    while (((uint64_t)stride * sizeof(float) << (slab->shift + 1)) <= BLOCK_BYTES)
        slab->shift++;
}

void ps_row_slab_fini(ps_row_slab *slab)
{
    free(slab->blocks);
    *slab = (ps_row_slab){0};
}

ps_err ps_row_slab_take(ps_row_slab *slab, uint32_t *slot)
{
    if (slab->free > 0) {
        *slot = slab->free - 1;
        memcpy(&slab->free, ps_row_slab_row(slab, *slot), sizeof slab->free);
        return PS_OK;
    }
    if (slab->used >= SLOTS_MOST)
        return ps_err_set(PS_ERR_NOMEM, "%u rows in one shard: use more of them",
                          slab->used);
    if (slab->used == (uint64_t)slab->n_blocks << slab->shift) {
        const uint64_t bytes = (uint64_t)slab->stride * sizeof(float) << slab->shift;
        PS_TRY(ps_mem_room(&slab->blocks, slab->n_blocks, &slab->room, sizeof(void *),
                           "rows"));
        PS_TRY(ps_row_memory_take(slab->memory, bytes, "rows",
                                  &slab->blocks[slab->n_blocks]));
        slab->n_blocks++;
    }
    *slot = slab->used++;
    return PS_OK;
}

void ps_row_slab_give(ps_row_slab *slab, uint32_t slot)
{
    memcpy(ps_row_slab_row(slab, slot), &slab->free, sizeof slab->free);
    slab->free = slot + 1;
}
