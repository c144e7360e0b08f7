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

enum { FIRST_BITS = 12 };

typedef struct block {
    void *at; // NULL: the place is free
    uint64_t bytes;
    const void *by; // the instruction after the call
    int owner;      // index of a process
} block;

// By address; the next free place after it. As few pages as will do: each seed is a
// process, and a page costs it microseconds.
static block *blocks;
static int place_bits;
static size_t n_places, n_blocks;
static struct {
    uint64_t bytes, peak;
} used[WORLD_PROCESSES];

static size_t place_of(const void *p)
{
    return (size_t)((uintptr_t)p / 16 * UINT64_C(0x9e3779b97f4a7c15) >>
                    (64 - place_bits));
}

static void put_block(const block *b)
{
    size_t i = place_of(b->at);
    while (blocks[i].at)
        i = (i + 1) % n_places;
    blocks[i] = *b;
}

static void grow_blocks(void)
{
    block *old = blocks;
    const size_t n = n_places;
    place_bits = n ? place_bits + 1 : FIRST_BITS;
    n_places = (size_t)1 << place_bits;
    blocks = __real_calloc(n_places, sizeof *blocks);
    if (!blocks) world_wrong("the world has no memory");
    for (size_t i = 0; i < n; i++)
        if (old[i].at) put_block(&old[i]);
    __real_free(old);
}

/* bytes: as asked for. What malloc makes of them is not the same in each run. */
static void *note(void *p, size_t bytes, const void *by)
{
    const world_process *owner = world_running();
    if (!p || !owner || owner->index == 0) return p;
    if (n_blocks++ >= n_places / 2) grow_blocks();
    const int o = owner->index;
    const block b = {p, bytes, by, o};
    put_block(&b);
    used[o].bytes += bytes;
    if (used[o].peak < used[o].bytes) used[o].peak = used[o].bytes;
    return p;
}

static void forget(const void *p)
{
    if (!p || n_places == 0) return;
    size_t i = place_of(p);
    while (blocks[i].at && blocks[i].at != p)
        i = (i + 1) % n_places;
    if (!blocks[i].at) return; // of before, or not of malloc's here
    used[blocks[i].owner].bytes -= blocks[i].bytes;
    n_blocks--;
    // Those behind it that would not be found any more move up.
    for (size_t k = (i + 1) % n_places; blocks[k].at; k = (k + 1) % n_places) {
        const size_t should = place_of(blocks[k].at);
        if ((k - should) % n_places < (k - i) % n_places) continue;
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

uint64_t world_memory_of(const world_process *p)
{
    return used[p->index].bytes;
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
    for (size_t i = 0; i < n_places; i++)
        if (blocks[i].at && blocks[i].owner == p->index &&
            (!most || blocks[i].bytes > most->bytes))
            most = &blocks[i];
    world_wrong(
        "%s has ended and not freed %llu bytes, of which %llu by 0x%llx", p->name,
        (unsigned long long)used[p->index].bytes,
        (unsigned long long)(most ? most->bytes : 0),
        (unsigned long long)(most ? (const char *)most->by - __executable_start : 0));
}
