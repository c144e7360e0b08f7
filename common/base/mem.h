/* Memory: allocation that fails with an error instead of aborting, and shared arenas. */
#ifndef PS_MEM_H
#define PS_MEM_H

#include <stddef.h>

#include "err.h"

/* Zeroed memory of count elements of size bytes; *out is owned by the caller (free()).
 * what names the thing in the message. count * size may not overflow; 0 gives a unique
 * pointer. */
ps_err ps_mem_zalloc(void *out, size_t count, size_t size, const char *what);

/* The same, aligned to 64 bytes (a cache line, an AVX-512 vector); free(). */
ps_err ps_mem_zalloc_aligned(void *out, size_t bytes, const char *what);

/* The same for what is streamed through: large pages where the system grants them. */
ps_err ps_mem_zalloc_large(void *out, size_t bytes, const char *what);

/* Zeroed pages that take memory only once they are touched; ps_mem_unmap with as many
 * bytes. */
ps_err ps_mem_map_zeroed(void *out, size_t bytes, const char *what);
void ps_mem_unmap(void *p, size_t bytes); // NULL: nothing

ps_err ps_mem_strdup(char **out, const char *text);

/* For main functions: lets malloc keep freed memory instead of giving it back to the
 * system. Received payloads are freed and allocated again every step: given back, they
 * would cost a page fault for every 4 KiB (+44% goodput at 1 MB); so would the workspace
 * that oneDNN's sgemm takes and frees in every call. */
void ps_mem_keep_freed(void);

/* A zeroed mapping that other processes can be given: memfd, sealed against shrinking and
 * growing. Page-aligned; populated, so that no step pays for page faults. */
typedef struct ps_shared_mem {
    void *base; // NULL when not open
    size_t bytes;
    int fd;
} ps_shared_mem;

ps_err ps_shared_mem_init(ps_shared_mem *mem, size_t bytes, const char *what);
/* In its place where nobody else will map it: fd -1, whole pages too, large ones where
 * the system grants them (a step reads and writes all of it, and the processor fetches
 * ahead within a page only). */
ps_err ps_shared_mem_init_private(ps_shared_mem *mem, size_t bytes, const char *what);
/* Maps what a peer passed. Checks the seals (F_SEAL_SHRINK and F_SEAL_GROW) and that the
 * size is exactly bytes, before a byte is touched. Takes fd in every case. */
ps_err ps_shared_mem_attach(ps_shared_mem *mem, int fd, size_t bytes, const char *what);
void ps_shared_mem_fini(ps_shared_mem *mem); // safe on a zeroed or failed one

#endif
