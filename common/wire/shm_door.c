#include "shm_door.h"

#include <errno.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "event.h"
#include "log.h"
#include "rows_body.h"
#include "thread.h"

/* A worker sends its offer at once after connecting. */
enum { OFFER_TIMEOUT_MS = 2000, FULL_PAUSE_MS = 100 };

typedef struct visitor {
    ps_shared_mem mapped[PS_SHM_FDS]; // params, grads; rings, rows, if it has some
    atomic_bool ready;                // set once, after the mappings
} visitor;

struct ps_shm_door {
    char name[PS_SHM_NAME_MAX];
    int listen_fd;
    ps_event stop;
    uint64_t nonce, arena_bytes;
    uint32_t n_workers;
    ps_shm_door_rings rings;
    visitor *visitors;
    ps_thread thread;
};

static const char *refusal_of(const ps_shm_door *door, const ps_shm_offer *offer)
{
    const char *refusal = NULL;
    if (offer->nonce != door->nonce)
        refusal = "of another job";
    else if (offer->rank >= door->n_workers)
        refusal = "of an unknown worker";
    else if (offer->bytes != door->arena_bytes)
        refusal = "arenas of another size";
    else if (offer->ring_bytes > 0 && offer->ring_bytes != door->rings.bytes)
        refusal = "rings of another size";
    else if (offer->row_bytes > 0 && offer->row_bytes != PS_ROWS_ARENA_BYTES)
        refusal = "an arena for rows of another size";
    else if (atomic_load(&door->visitors[offer->rank].ready))
        refusal = "this worker has handed in its arenas already";
    return refusal;
}

/* Takes the descriptors in every case. */
static ps_err map_arenas(ps_shm_door *door, const ps_shm_offer *offer,
                         const int fds[PS_SHM_FDS])
{
    static const char *const what[] = {"a params arena", "a grads arena", "rings",
                                       "an arena for rows"};
    const uint64_t bytes[] = {offer->bytes, offer->bytes, offer->ring_bytes,
                              offer->row_bytes};
    const char *refusal = refusal_of(door, offer);
    visitor *v = refusal ? NULL : &door->visitors[offer->rank];
    ps_shared_mem found[PS_SHM_FDS] = {0};
    ps_err err = refusal ? ps_err_set(PS_ERR_PEER, "%s", refusal) : PS_OK;
    for (int i = 0; i < PS_SHM_FDS; i++) {
        if (fds[i] < 0) continue;
        if (err == PS_OK)
            err = ps_shared_mem_attach(&found[i], fds[i], bytes[i], what[i]);
        else
            close(fds[i]);
    }
    if (err != PS_OK) {
        for (int i = 0; i < PS_SHM_FDS; i++)
            ps_shared_mem_fini(&found[i]);
        return err;
    }
    memcpy(v->mapped, found, sizeof found);
    atomic_store(&v->ready, true);
    return PS_OK;
}

static void shm_door_serve(ps_shm_door *door, int fd)
{
    ps_shm_offer offer = {0};
    int fds[PS_SHM_FDS];
    ps_err err = ps_shm_offer_recv(fd, ps_deadline_in_ms(OFFER_TIMEOUT_MS), &offer, fds);
    if (err == PS_OK) err = map_arenas(door, &offer, fds);
    if (err != PS_OK) PS_WARN_FEW("shm-refused", "reason=\"%s\"", ps_err_message());
    (void)ps_shm_answer_send(fd, err == PS_OK ? NULL : ps_err_message(),
                             door->rings.wakes,
                             offer.ring_bytes > 0 ? door->rings.n_wakes : 0);
    close(fd);
}

static void *door_main(void *arg)
{
    ps_shm_door *door = arg;
    struct pollfd items[] = {{.fd = door->listen_fd, .events = POLLIN},
                             {.fd = ps_event_fd(&door->stop), .events = POLLIN}};
    bool told = false;
    for (;;) {
        if (poll(items, 2, -1) < 0 && errno != EINTR) break;
        if (items[1].revents) break;
        int fd = -1;
        ps_err err = ps_shm_accept(door->listen_fd, &fd);
        if (err == PS_ERR_NOMEM) { // the worker waits until descriptors are free again
            if (!told) PS_WARN("shm-door", "reason=\"%s\" (ulimit -n)", ps_err_message());
            told = true;
            (void)poll(&items[1], 1, FULL_PAUSE_MS);
        } else if (err != PS_OK) {
            PS_ERROR("shm-door", "reason=\"%s\"", ps_err_message());
            break;
        }
        if (fd >= 0) shm_door_serve(door, fd);
    }
    return NULL;
}

ps_err ps_shm_door_create(uint64_t nonce, uint32_t n_workers, uint64_t arena_bytes,
                          const ps_shm_door_rings *rings, ps_shm_door **out)
{
    *out = NULL;
    ps_shm_door *door;
    PS_TRY(PS_NEW(&door, 1, "the shared-memory door"));
    *door = (ps_shm_door){.listen_fd = -1,
                          .nonce = nonce,
                          .arena_bytes = arena_bytes,
                          .n_workers = n_workers};
    if (rings) door->rings = *rings;
    ps_err err;
    PS_TRY_GOTO(PS_NEW(&door->visitors, n_workers, "the shared-memory door"), err, out);
    PS_TRY_GOTO(ps_shm_listen(door->name, &door->listen_fd), err, out);
    PS_TRY_GOTO(ps_event_init(&door->stop), err, out);
    PS_TRY_GOTO(ps_thread_start(&door->thread, "shm door", door_main, door), err, out);
    *out = door;
    return PS_OK;
out:
    ps_shm_door_destroy(&door);
    return err;
}

const char *ps_shm_door_name(const ps_shm_door *door)
{
    return door->name;
}

static void *door_mapped(const ps_shm_door *door, uint32_t rank, int which)
{
    if (!door || rank >= door->n_workers) return NULL;
    const visitor *v = &door->visitors[rank];
    return atomic_load(&v->ready) ? v->mapped[which].base : NULL;
}

float *ps_shm_door_params(const ps_shm_door *door, uint32_t rank)
{
    return door_mapped(door, rank, 0);
}

ps_err ps_shm_door_show_params(const ps_shm_door *door, uint32_t rank,
                               const ps_shared_mem *mem)
{
    return ps_shared_mem_show(mem, &door->visitors[rank].mapped[0], "the parameters");
}

float *ps_shm_door_grads(const ps_shm_door *door, uint32_t rank)
{
    return door_mapped(door, rank, 1);
}

void *ps_shm_door_rings_of(const ps_shm_door *door, uint32_t rank)
{
    return door_mapped(door, rank, 2);
}

void *ps_shm_door_rows(const ps_shm_door *door, uint32_t rank)
{
    return door_mapped(door, rank, 3);
}

void ps_shm_door_destroy(ps_shm_door **pointer)
{
    ps_shm_door *door = *pointer;
    if (!door) return;
    if (door->thread.runs) ps_event_set(&door->stop);
    ps_thread_join(&door->thread);
    for (uint32_t r = 0; door->visitors && r < door->n_workers; r++)
        for (int i = 0; i < PS_SHM_FDS; i++)
            ps_shared_mem_fini(&door->visitors[r].mapped[i]);
    free(door->visitors);
    if (door->listen_fd >= 0) close(door->listen_fd);
    ps_event_fini(&door->stop);
    free(door);
    *pointer = NULL;
}
