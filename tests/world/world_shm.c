/* Handing arenas to a process of the same host, in the world: what common/wire/shm_pass.h
 * promises. The memory is real: two mappings of it, in the one real process. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "bell.h"
#include "shm_pass.h"
#include "world.h"

enum {
    SHM_FDS = 1 << 22, // descriptors begin at WORLD_FD + SHM_FDS
    DOORS = 1024,
    PASSES = 4096
};

typedef struct door {
    const world_process *process;
    char name[PS_SHM_NAME_MAX];
} door;

typedef struct pass { // one offer, and one answer
    const door *at;
    const world_process *caller;
    bool accepted, offered, answered, refused;
    ps_shm_offer offer;
    int fds[PS_SHM_FDS];
    char refusal[248];
    int wakes[PS_SHM_WAKES_MAX], n;
    int end_fd; // ends the wait for an answer
} pass;

static door doors[DOORS];
static pass passes[PASSES];
static int n_doors, n_passes;

static pass *pass_of(int fd)
{
    return &passes[fd - WORLD_FD - SHM_FDS - DOORS];
}

static pass *waiting_at(const door *d)
{
    for (int i = 0; i < n_passes; i++)
        if (passes[i].at == d && !passes[i].accepted) return &passes[i];
    return NULL;
}

bool world_shm_readable(int fd)
{
    const int i = fd - WORLD_FD - SHM_FDS;
    return i >= 0 && i < n_doors && waiting_at(&doors[i]);
}

ps_err __wrap_ps_shm_listen(char name[PS_SHM_NAME_MAX], int *fd)
{
    if (n_doors == DOORS) world_wrong("too many doors for shared memory");
    door *d = &doors[n_doors];
    d->process = world_self();
    snprintf(d->name, sizeof d->name, "door-%d", n_doors);
    memcpy(name, d->name, sizeof d->name);
    *fd = WORLD_FD + SHM_FDS + n_doors++;
    return PS_OK;
}

ps_err __wrap_ps_shm_accept(int listen_fd, int *fd)
{
    pass *p = waiting_at(&doors[listen_fd - WORLD_FD - SHM_FDS]);
    *fd = -1;
    if (!p) return PS_OK;
    p->accepted = true;
    *fd = WORLD_FD + SHM_FDS + DOORS + (int)(p - passes);
    return PS_OK;
}

ps_err __wrap_ps_shm_connect(const char *name, ps_deadline deadline, int *fd)
{
    (void)deadline;
    for (int i = 0; i < n_doors; i++) {
        if (strcmp(doors[i].name, name) != 0 || doors[i].process->dead) continue;
        if (doors[i].process->host != world_self()->host)
            world_wrong("a door of another host is asked for shared memory");
        if (n_passes == PASSES) world_wrong("shared memory was passed too often");
        passes[n_passes] = (pass){.at = &doors[i], .caller = world_self()};
        *fd = WORLD_FD + SHM_FDS + DOORS + n_passes++;
        world_touch(doors[i].process);
        return PS_OK;
    }
    return ps_err_set(PS_ERR_PEER, "nobody listens at %s", name);
}

ps_err __wrap_ps_shm_offer_send(int fd, const ps_shm_offer *offer,
                                const int fds[PS_SHM_FDS])
{
    pass *p = pass_of(fd);
    p->offer = *offer;
    const uint64_t bytes[] = {offer->bytes, offer->bytes, offer->ring_bytes,
                              offer->row_bytes};
    for (int i = 0; i < PS_SHM_FDS; i++)
        p->fds[i] = bytes[i] > 0 ? fcntl(fds[i], F_DUPFD_CLOEXEC, 0) : -1;
    p->offered = true;
    world_touch(p->at->process);
    return PS_OK;
}

static bool is_offered(void *arg)
{
    const pass *p = arg;
    return p->offered || p->caller->dead;
}

ps_err __wrap_ps_shm_offer_recv(int fd, ps_deadline deadline, ps_shm_offer *offer,
                                int fds[PS_SHM_FDS])
{
    pass *p = pass_of(fd);
    if (!world_wait(is_offered, p, deadline.at_ns))
        return ps_err_set(PS_ERR_TIMEOUT, "no offer of shared memory");
    if (!p->offered) return ps_err_set(PS_ERR_PEER, "the other end has gone");
    *offer = p->offer;
    memcpy(fds, p->fds, sizeof p->fds);
    return PS_OK;
}

ps_err __wrap_ps_shm_answer_send(int fd, const char *refusal, const int *wakes, int n)
{
    pass *p = pass_of(fd);
    p->refused = refusal != NULL;
    snprintf(p->refusal, sizeof p->refusal, "%s", refusal ? refusal : "");
    p->n = n;
    memcpy(p->wakes, wakes, (size_t)n * sizeof *wakes);
    p->answered = true;
    world_touch(p->caller);
    return PS_OK;
}

static bool is_answered(void *arg)
{
    const pass *p = arg;
    return p->answered || p->at->process->dead ||
           (p->end_fd >= 0 && world_fd_readable(p->end_fd));
}

ps_err __wrap_ps_shm_answer_recv(int fd, int end_fd, ps_deadline deadline, int *wakes,
                                 int n)
{
    pass *p = pass_of(fd);
    p->end_fd = end_fd;
    if (!world_wait(is_answered, p, deadline.at_ns))
        return ps_err_set(PS_ERR_TIMEOUT, "no answer to an offer of shared memory");
    if (!p->answered) return ps_err_set(PS_ERR_PEER, "the other end has gone");
    if (p->refused) return ps_err_set(PS_ERR_PEER, "%s", p->refusal);
    if (p->n != n) return ps_err_set(PS_ERR_PEER, "%d wakes instead of %d", p->n, n);
    if (n > 0) memcpy(wakes, p->wakes, (size_t)n * sizeof *wakes);
    return PS_OK;
}

/* Perhaps of another process. */
void __wrap_ps_bell_ring(ps_bell *bell)
{
    atomic_fetch_add(&bell->sequence, 1);
    world_touch_all();
}
