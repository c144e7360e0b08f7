/* Whose memory it is: what the programs take from malloc and its kin counts for the
 * process of the task that takes it, until somebody frees it. What the world itself holds
 * (its sources are built with the real calls), shared memory and what shared libraries
 * take are not counted. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "procstat.h"
#include "world.h"

void *__real_malloc(size_t);
void *__real_calloc(size_t, size_t);
void *__real_realloc(void *, size_t);
void *__real_aligned_alloc(size_t, size_t);
int __real_posix_memalign(void **, size_t, size_t);
char *__real_strdup(const char *);
void __real_free(void *);

enum { PLACES = 1 << 19 };

typedef struct block {
    void *at; // NULL: the place is free
    uint64_t bytes;
    const void *by; // the instruction after the call
    int owner;      // index of a process
} block;

static block blocks[PLACES]; // by address; the next free place after it
static int n_blocks;
static struct {
    uint64_t bytes, peak;
} used[WORLD_PROCESSES];

static size_t place_of(const void *p)
{
    return (size_t)((uintptr_t)p / 16 * UINT64_C(0x9e3779b97f4a7c15) >> 45);
}
_Static_assert(PLACES == 1 << (64 - 45), "place_of takes the first bits");

/* bytes: as asked for. What malloc makes of them is not the same in each run. */
static void *note(void *p, size_t bytes, const void *by)
{
    const world_process *owner = world_running();
    if (!p || !owner || owner->index == 0) return p;
    if (n_blocks++ > PLACES / 2) world_wrong("too many blocks of memory");
    size_t i = place_of(p);
    while (blocks[i].at)
        i = (i + 1) % PLACES;
    blocks[i] = (block){p, bytes, by, owner->index};
    const int o = owner->index;
    used[o].bytes += blocks[i].bytes;
    if (used[o].peak < used[o].bytes) used[o].peak = used[o].bytes;
    return p;
}

static void forget(const void *p)
{
    size_t i = place_of(p);
    while (blocks[i].at && blocks[i].at != p)
        i = (i + 1) % PLACES;
    if (!p || !blocks[i].at) return; // of before, or not of malloc's here
    used[blocks[i].owner].bytes -= blocks[i].bytes;
    n_blocks--;
    // Those behind it that would not be found any more move up.
    for (size_t k = (i + 1) % PLACES; blocks[k].at; k = (k + 1) % PLACES) {
        const size_t should = place_of(blocks[k].at);
        if ((k - should) % PLACES < (k - i) % PLACES) continue;
        blocks[i] = blocks[k];
        i = k;
    }
    blocks[i].at = NULL;
}

#define CALLER __builtin_return_address(0)

void *__wrap_malloc(size_t bytes)
{
    return note(__real_malloc(bytes), bytes, CALLER);
}

void *__wrap_calloc(size_t n, size_t bytes)
{
    return note(__real_calloc(n, bytes), n * bytes, CALLER);
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return note(__real_aligned_alloc(alignment, bytes), bytes, CALLER);
}

int __wrap_posix_memalign(void **out, size_t alignment, size_t bytes)
{
    const int code = __real_posix_memalign(out, alignment, bytes);
    if (code == 0) note(*out, bytes, CALLER);
    return code;
}

char *__wrap_strdup(const char *text)
{
    return note(__real_strdup(text), strlen(text) + 1, CALLER);
}

void *__wrap_realloc(void *p, size_t bytes)
{
    void *now = __real_realloc(p, bytes);
    if (now) forget(p);
    return note(now, bytes, CALLER);
}

void __wrap_free(void *p)
{
    forget(p);
    __real_free(p);
}

uint64_t __wrap_ps_procstat_rss(void)
{
    return used[world_self()->index].bytes;
}

uint64_t __wrap_ps_procstat_peak_rss(void)
{
    return used[world_self()->index].peak;
}

/* A death, and who comes again, take some more for a while. */
enum { MORE_BYTES = 256 << 10 };

void world_memory_judge(world_memory *m, bool disturbed)
{
    static const char *const roles[] = {"server", "worker"};
    for (int r = 0; r < 2; r++) {
        uint64_t most = 0;
        const world_process *p, *who = NULL;
        for (int i = 0; (p = world_process_at(i)); i++)
            if (strncmp(p->name, roles[r], strlen(roles[r])) == 0 && used[i].peak > most)
                most = used[i].peak, who = p;
        if (!disturbed) m->peak[r] = most;
        const uint64_t bound = m->peak[r] + m->peak[r] / 2 + MORE_BYTES;
        if (m->peak[r] > 0 && most > bound)
            world_wrong(
                "%s has had %llu bytes, and without faults none had more than %llu",
                who->name, (unsigned long long)most, (unsigned long long)m->peak[r]);
    }
}

extern const char __executable_start[];

void world_memory_check_freed(const world_process *p)
{
    if (used[p->index].bytes == 0) return;
    const block *most = NULL;
    for (int i = 0; i < PLACES; i++)
        if (blocks[i].at && blocks[i].owner == p->index &&
            (!most || blocks[i].bytes > most->bytes))
            most = &blocks[i];
    world_wrong(
        "%s has ended and not freed %llu bytes, of which %llu by 0x%llx", p->name,
        (unsigned long long)used[p->index].bytes,
        (unsigned long long)(most ? most->bytes : 0),
        (unsigned long long)(most ? (const char *)most->by - __executable_start : 0));
}
