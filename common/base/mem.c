#include "mem.h"

#include <errno.h>
#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGE_PAGE = 2 << 20 };
#ifndef MADV_COLLAPSE // Linux 6.1; glibc 2.37 names it
#define MADV_COLLAPSE 25
#endif

ps_err ps_mem_zalloc(void *out, size_t count, size_t size, const char *what)
{
    void *p = NULL;
    if (size == 0 || count <= SIZE_MAX / size)
        p = calloc(count ? count : 1, size ? size : 1);
    if (!p)
        return ps_err_set(PS_ERR_NOMEM, "%s: no memory for %zu x %zu bytes", what, count,
                          size);
    memcpy(out, &p, sizeof p);
    return PS_OK;
}

ps_err ps_mem_zalloc_aligned(void *out, size_t bytes, const char *what)
{
    void *p = NULL;
    size_t rounded = (bytes / 64 + 1) * 64;
    if (bytes < SIZE_MAX - 128) p = aligned_alloc(64, rounded);
    if (!p) return ps_err_set(PS_ERR_NOMEM, "%s: no memory for %zu bytes", what, bytes);
    memset(p, 0, rounded);
    memcpy(out, &p, sizeof p);
    return PS_OK;
}

/* From a large page on, whole ones: the optimizer took 1.5 times as long when the end lay
 * in small pages. 0: more than can be counted. */
static size_t whole_pages(size_t bytes)
{
    if (bytes < LARGE_PAGE) return bytes ? bytes : 1;
    const size_t n = bytes / LARGE_PAGE + (bytes % LARGE_PAGE != 0);
    return n > SIZE_MAX / LARGE_PAGE ? 0 : n * LARGE_PAGE;
}

ps_err ps_mem_zalloc_large(void *out, size_t bytes, const char *what)
{
    if (bytes < LARGE_PAGE) return ps_mem_zalloc_aligned(out, bytes, what);
    void *p = NULL;
    const size_t whole = whole_pages(bytes);
    if (whole == 0 || posix_memalign(&p, LARGE_PAGE, whole) != 0)
        return ps_err_set(PS_ERR_NOMEM, "%s: no memory for %zu bytes", what, bytes);
    (void)madvise(p, whole, MADV_HUGEPAGE); // best effort: small pages work too
    memset(p, 0, whole);
    memcpy(out, &p, sizeof p);
    return PS_OK;
}

ps_err ps_mem_map_zeroed(void *out, size_t bytes, const char *what)
{
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return ps_err_set(PS_ERR_NOMEM, "%s: no memory for %zu bytes", what, bytes);
    memcpy(out, &p, sizeof p);
    return PS_OK;
}

void ps_mem_unmap(void *p, size_t bytes)
{
    if (p) munmap(p, bytes ? bytes : 1);
}

ps_err ps_mem_strdup(char **out, const char *text)
{
    *out = strdup(text);
    return *out ? PS_OK : ps_err_set(PS_ERR_NOMEM, "no memory for a string");
}

ps_err ps_mem_room(void *array, uint32_t n, uint32_t *room, size_t size, const char *what)
{
    char *old, *now;
    if (n < *room) return PS_OK;
    memcpy(&old, array, sizeof old);
    const uint32_t more = *room == 0 ? 8 : *room <= UINT32_MAX / 2 ? 2 * *room : 0;
    now = more > 0 ? realloc(old, more * size) : NULL;
    if (!now)
        return ps_err_set(PS_ERR_NOMEM, "%s: no memory for a list of more than %u", what,
                          *room);
    memset(now + *room * size, 0, (more - *room) * size);
    memcpy(array, &now, sizeof now);
    *room = more;
    return PS_OK;
}

void ps_mem_keep_freed(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

void ps_mem_give_back(void)
{
    malloc_trim(0);
}

/* Maps the memory where large pages can begin. MAP_FAILED: see errno. */
static void *map_aligned(int fd, size_t bytes, int flags)
{
    const size_t room = bytes + LARGE_PAGE;
    char *p = mmap(NULL, room, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return p;
    const size_t before = (LARGE_PAGE - (uintptr_t)p % LARGE_PAGE) % LARGE_PAGE;
    void *at = mmap(p + before, bytes, PROT_READ | PROT_WRITE, MAP_FIXED | flags, fd, 0);
    if (at == MAP_FAILED) {
        const int reason = errno;
        munmap(p, room);
        errno = reason;
        return at;
    }
    if (before > 0) munmap(p, before);
    munmap(p + before + bytes, LARGE_PAGE - before);
    return at;
}

ps_err ps_mem_map_large(void *out, size_t bytes, const char *what)
{
    void *p = map_aligned(-1, bytes, MAP_PRIVATE | MAP_ANONYMOUS);
    if (p == MAP_FAILED)
        return ps_err_errno(PS_ERR_NOMEM, "%s: mapping %zu bytes", what, bytes);
    (void)madvise(p, bytes, MADV_HUGEPAGE); // best effort: small pages work too
    memcpy(out, &p, sizeof p);
    return PS_OK;
}

static ps_err map_all(ps_shared_mem *mem, int fd, size_t bytes, int flags,
                      const char *what)
{
    const size_t whole = whole_pages(bytes);
    void *p = bytes < LARGE_PAGE
                  ? mmap(NULL, whole, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0)
                  : map_aligned(fd, whole, MAP_SHARED | flags);
    if (p == MAP_FAILED) {
        close(fd);
        return ps_err_errno(PS_ERR_NOMEM, "%s: mapping %zu bytes", what, bytes);
    }
    *mem = (ps_shared_mem){.base = p, .bytes = bytes, .fd = fd};
    return PS_OK;
}

/* A sealed memfd. flags: of the mapping. */
static ps_err map_memfd(ps_shared_mem *mem, size_t bytes, int flags, const char *what)
{
    *mem = (ps_shared_mem){.fd = -1};
    const size_t whole = whole_pages(bytes);
    int fd = memfd_create(what, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return ps_err_errno(PS_ERR_NOMEM, "%s: memfd_create", what);
    if (ftruncate(fd, (off_t)whole) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        const ps_err kind = errno == EFBIG ? PS_ERR_IO : PS_ERR_NOMEM; // EFBIG: ulimit -f
        ps_err err = ps_err_errno(kind, "%s: %zu bytes of memfd", what, bytes);
        close(fd);
        return err;
    }
    return map_all(mem, fd, bytes, flags, what);
}

ps_err ps_shared_mem_init_sparse(ps_shared_mem *mem, size_t bytes, const char *what)
{
    return map_memfd(mem, bytes, MAP_NORESERVE, what);
}

ps_err ps_shared_mem_init(ps_shared_mem *mem, size_t bytes, const char *what)
{
    const size_t whole = whole_pages(bytes);
    PS_TRY(map_memfd(mem, bytes, MAP_POPULATE, what));
    // Best effort: this works where /sys/kernel/mm/transparent_hugepage/shmem_enabled is
    // never, as it is by default.
    if (bytes >= LARGE_PAGE) (void)madvise(mem->base, whole, MADV_COLLAPSE);
    return PS_OK;
}

ps_err ps_shared_mem_attach(ps_shared_mem *mem, int fd, size_t bytes, const char *what)
{
    *mem = (ps_shared_mem){.fd = -1};
    const int wanted = F_SEAL_SHRINK | F_SEAL_GROW;
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;
    if (seals < 0 || (seals & wanted) != wanted || fstat(fd, &st) != 0) {
        close(fd);
        return ps_err_set(PS_ERR_PEER, "%s: the segment is not sealed against resizing",
                          what);
    }
    if (st.st_size < 0 || (size_t)st.st_size != whole_pages(bytes)) {
        close(fd);
        return ps_err_set(PS_ERR_PEER,
                          "%s: the segment has %lld bytes, %zu were expected", what,
                          (long long)st.st_size, whole_pages(bytes));
    }
    // The pages exist already. Those that this process does not touch (a server reads
    // only its own chunks) should not count as its memory.
    return map_all(mem, fd, bytes, 0, what);
}

ps_err ps_shared_mem_init_private(ps_shared_mem *mem, size_t bytes, const char *what)
{
    *mem = (ps_shared_mem){.bytes = bytes, .fd = -1};
    if (bytes < LARGE_PAGE) return ps_mem_map_zeroed(&mem->base, bytes, what);
    return ps_mem_zalloc_large(&mem->base, bytes, what);
}

ps_err ps_shared_mem_show(const ps_shared_mem *mem, const ps_shared_mem *other,
                          const char *what)
{
    const void *at = mmap(mem->base, whole_pages(mem->bytes), PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, other->fd, 0);
    if (at != MAP_FAILED) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "%s: mapping %zu bytes", what, mem->bytes);
}

void ps_shared_mem_fini(ps_shared_mem *mem)
{
    if (!mem->base) return;
    if (mem->fd < 0 && mem->bytes >= LARGE_PAGE)
        free(mem->base);
    else
        munmap(mem->base, whole_pages(mem->bytes));
    if (mem->fd >= 0) close(mem->fd);
    *mem = (ps_shared_mem){.fd = -1};
}
