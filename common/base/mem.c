#include "mem.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { LARGE_PAGE = 2 << 20 };

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

ps_err ps_mem_zalloc_large(void *out, size_t bytes, const char *what)
{
    if (bytes < LARGE_PAGE) return ps_mem_zalloc_aligned(out, bytes, what);
    void *p = NULL;
    // Whole large pages: the optimizer took 1.5 times as long when the end lay in small
    // pages.
    size_t whole = bytes / LARGE_PAGE * LARGE_PAGE;
    if (whole < bytes) whole += LARGE_PAGE;
    if (whole < bytes || posix_memalign(&p, LARGE_PAGE, whole) != 0)
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

void ps_mem_keep_freed(void)
{
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
}

static ps_err map_all(ps_shared_mem *mem, int fd, size_t bytes, int flags,
                      const char *what)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0);
    if (p == MAP_FAILED) {
        close(fd);
        return ps_err_errno(PS_ERR_NOMEM, "%s: mapping %zu bytes", what, bytes);
    }
    *mem = (ps_shared_mem){.base = p, .bytes = bytes, .fd = fd};
    return PS_OK;
}

ps_err ps_shared_mem_init(ps_shared_mem *mem, size_t bytes, const char *what)
{
    *mem = (ps_shared_mem){.fd = -1};
    if (bytes == 0) bytes = 1;
    int fd = memfd_create(what, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (fd < 0) return ps_err_errno(PS_ERR_NOMEM, "%s: memfd_create", what);
    if (ftruncate(fd, (off_t)bytes) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
        ps_err err = ps_err_errno(PS_ERR_NOMEM, "%s: %zu bytes of memfd", what, bytes);
        close(fd);
        return err;
    }
    return map_all(mem, fd, bytes, MAP_POPULATE, what);
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
    if (st.st_size < 0 || (size_t)st.st_size != bytes) {
        close(fd);
        return ps_err_set(PS_ERR_PEER,
                          "%s: the segment has %lld bytes, %zu were expected", what,
                          (long long)st.st_size, bytes);
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

void ps_shared_mem_fini(ps_shared_mem *mem)
{
    if (!mem->base) return;
    if (mem->fd < 0 && mem->bytes >= LARGE_PAGE)
        free(mem->base);
    else
        ps_mem_unmap(mem->base, mem->bytes);
    if (mem->fd >= 0) close(mem->fd);
    *mem = (ps_shared_mem){.fd = -1};
}
