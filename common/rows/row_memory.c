#include "row_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mem.h"
#include "new_file.h"

enum { CHUNK_BYTES = 16 << 20, BLOCK_BYTES = 256 << 10, LINE_BYTES = 64 };
static const uint32_t SLOTS_MOST =
    0x3ffffffe; // the index adds 1, and has two bits of its own

void ps_row_memory_init(ps_row_memory *memory)
{
    *memory = (ps_row_memory){.fd = -1};
}

void ps_row_memory_fini(ps_row_memory *memory)
{
    for (uint32_t i = 0; i < memory->n_chunks; i++)
        ps_mem_unmap(memory->chunks[i], CHUNK_BYTES);
    if (memory->folder) close(memory->fd);
    free(memory->folder);
    free(memory->chunks);
    ps_row_memory_init(memory);
}

ps_err ps_row_memory_use_disk(ps_row_memory *memory, const ps_row_disk *disk)
{
    static atomic_uint files; // each shard has its own
    char path[PATH_MAX];
    if (!disk->folder) return PS_OK;
    if (snprintf(path, sizeof path, "%s/rows-%d-%u", disk->folder, (int)getpid(),
                 atomic_fetch_add(&files, 1)) >= (int)sizeof path)
        return ps_err_set(PS_ERR_ARG, "server.rows_disk: %s: too long a path",
                          disk->folder);
    if (ps_new_file_unnamed(path, &memory->fd) != PS_OK)
        return ps_err_prefix(PS_ERR_IO, "server.rows_disk");
    const ps_err err = ps_mem_strdup(&memory->folder, disk->folder);
    if (err != PS_OK) close(memory->fd);
    memory->most = memory->left = disk->bytes;
    return err;
}

/* The file's next chunk. A disk without room is an error here, not a signal later. */
static ps_err memory_map_file(ps_row_memory *memory, char **chunk)
{
    errno = posix_fallocate(memory->fd, (off_t)memory->file_bytes, CHUNK_BYTES);
    if (errno != 0)
        return ps_err_errno(PS_ERR_IO, "server.rows_disk: %s: no room for more rows",
                            memory->folder);
    void *p = mmap(NULL, CHUNK_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, memory->fd,
                   (off_t)memory->file_bytes);
    if (p == MAP_FAILED)
        return ps_err_errno(PS_ERR_NOMEM, "server.rows_disk: %s: mapping a file",
                            memory->folder);
    (void)madvise(p, CHUNK_BYTES, MADV_RANDOM); // a row's neighbours are strangers
    memory->file_bytes += CHUNK_BYTES;
    *chunk = p;
    return PS_OK;
}

static ps_err memory_take(ps_row_memory *memory, bool on_disk, uint64_t bytes,
                          const char *what, void *out)
{
    ps_row_piece *piece = on_disk ? &memory->there : &memory->here;
    bytes = (bytes + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
    if (bytes > CHUNK_BYTES)
        return ps_err_set(PS_ERR_INTERNAL, "%s: a piece of %llu bytes", what,
                          (unsigned long long)bytes);
    if (bytes > (uint64_t)(piece->end - piece->at)) {
        char *chunk;
        PS_TRY(ps_mem_room(&memory->chunks, memory->n_chunks, &memory->room,
                           sizeof(void *), what));
        PS_TRY(on_disk ? memory_map_file(memory, &chunk)
                       : ps_mem_map_large(&chunk, CHUNK_BYTES, what));
        memory->chunks[memory->n_chunks++] = chunk;
        *piece = (ps_row_piece){chunk, chunk + CHUNK_BYTES};
    }
    memcpy(out, &piece->at, sizeof piece->at);
    piece->at += bytes;
    return PS_OK;
}

ps_err ps_row_memory_take(ps_row_memory *memory, uint64_t bytes, const char *what,
                          void *out)
{
    return memory_take(memory, false, bytes, what, out);
}

/* Rows of a cache line or more begin at 16 bytes. */
void ps_row_slab_init(ps_row_slab *slab, uint32_t width, ps_row_memory *memory,
                      bool on_disk)
{
    const uint32_t stride = width < 16 ? width : (width + 3) / 4 * 4;
    *slab = (ps_row_slab){.memory = memory, .on_disk = on_disk, .stride = stride};
    while (((uint64_t)stride * sizeof(float) << (slab->shift + 1)) <= BLOCK_BYTES)
        slab->shift++;
}

void ps_row_slab_fini(ps_row_slab *slab)
{
    free(slab->blocks);
    *slab = (ps_row_slab){0};
}

static uint64_t slab_block_bytes(const ps_row_slab *slab)
{
    return (uint64_t)slab->stride * sizeof(float) << slab->shift;
}

static bool slab_is_full(const ps_row_slab *slab)
{
    return slab->free == 0 && slab->used == (uint64_t)slab->n_blocks << slab->shift;
}

bool ps_row_slab_has_room(const ps_row_slab *slab)
{
    const ps_row_memory *memory = slab->memory;
    return !memory->folder || !slab_is_full(slab) ||
           memory->left >= slab_block_bytes(slab);
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
    if (slab_is_full(slab)) {
        const uint64_t bytes = slab_block_bytes(slab);
        PS_TRY(ps_mem_room(&slab->blocks, slab->n_blocks, &slab->room, sizeof(void *),
                           "rows"));
        PS_TRY(memory_take(slab->memory, slab->on_disk, bytes, "rows",
                           &slab->blocks[slab->n_blocks]));
        slab->n_blocks++;
        if (!slab->on_disk && slab->memory->folder) slab->memory->left -= bytes;
    }
    *slot = slab->used++;
    return PS_OK;
}

void ps_row_slab_give(ps_row_slab *slab, uint32_t slot)
{
    memcpy(ps_row_slab_row(slab, slot), &slab->free, sizeof slab->free);
    slab->free = slot + 1;
}
