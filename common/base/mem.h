/* Memory: allocation that fails with an error instead of aborting, and shared arenas. */
#ifndef PS_MEM_H
#define PS_MEM_H

#include <stddef.h>
#include <stdint.h>

#include "err.h"

/* Zeroed memory of count elements of size bytes; *out is owned by the caller (free()).
 * what names the thing in the error message. count * size may not overflow; 0 gives a
 * unique pointer. */
ps_err ps_mem_zalloc(void *out, size_t count, size_t size, const char *what);
/* The same of count elements of what *out points to. */
#define PS_NEW(out, count, what) ps_mem_zalloc(out, count, sizeof **(out), what)

/* The same, aligned to 64 bytes (a cache line, an AVX-512 vector); free(). */
ps_err ps_mem_zalloc_aligned(void *out, size_t bytes, const char *what);

/* The same for arrays that are streamed through: in large pages where the system grants
 * them. */
ps_err ps_mem_zalloc_large(void *out, size_t bytes, const char *what);

/* Zeroed pages that take memory only once they are touched. Release them by ps_mem_unmap
 * with the same number of bytes. */
ps_err ps_mem_map_zeroed(void *out, size_t bytes, const char *what);
void ps_mem_unmap(void *p, size_t bytes); // NULL: nothing
/* The same in large pages where the system grants them; bytes: a multiple of 4,096. */
ps_err ps_mem_map_large(void *out, size_t bytes, const char *what);

ps_err ps_mem_strdup(char **out, const char *text);

/* Makes room for one more in an array of n: doubles it where it is full. array: the
 * address of its pointer, NULL at first; *room: how many it has room for. What is new is
 * zeroed. NOMEM names what; the array stays. */
ps_err ps_mem_room(void *array, uint32_t n, uint32_t *room, size_t size,
                   const char *what);

/* For main functions: lets malloc keep freed memory instead of giving it back to the
 * system. Received payloads are freed and allocated again every step, and oneDNN's sgemm
 * does the same with its workspace in every call. Memory that was given back costs a page
 * fault for every 4 KiB (keeping it: +44% goodput at 1 MB). */
void ps_mem_keep_freed(void);
/* Gives back what was kept, when a job has ended that this process joins again: the next
 * one's threads do not use all of it, and each restart would add some. */
void ps_mem_give_back(void);

/* A zeroed mapping that other processes can be given: memfd, sealed against shrinking and
 * growing. Page-aligned; populated, so that no step pays for page faults; from 2 MiB on
 * whole large pages where the system grants them (a step reads and writes all of it, and
 * the processor fetches ahead only within a page). */
typedef struct ps_shared_mem {
    void *base;   // NULL when not open
    size_t bytes; // that were asked for
    int fd;
} ps_shared_mem;

ps_err ps_shared_mem_init(ps_shared_mem *mem, size_t bytes, const char *what);
/* The same, of which pages take memory only once they are touched. */
ps_err ps_shared_mem_init_sparse(ps_shared_mem *mem, size_t bytes, const char *what);
/* The same for memory that no other process maps: fd is -1. */
ps_err ps_shared_mem_init_private(ps_shared_mem *mem, size_t bytes, const char *what);
/* Maps the memory that a peer passed. First checks the seals (F_SEAL_SHRINK and
 * F_SEAL_GROW) and that the size is what bytes need. Takes fd in every case. */
ps_err ps_shared_mem_attach(ps_shared_mem *mem, int fd, size_t bytes, const char *what);
/* From now on mem's addresses show the other's memory, of as many bytes; what they showed
 * is gone. Of both other processes may have the memory. IO. */
ps_err ps_shared_mem_show(const ps_shared_mem *mem, const ps_shared_mem *other,
                          const char *what);
void ps_shared_mem_fini(ps_shared_mem *mem); // safe on a zeroed or failed one

#endif
