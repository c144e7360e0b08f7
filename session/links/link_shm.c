#include "link_shm.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* Of a ring: what a core's own cache holds, fewer where many workers share them. With 64 slots
 * 25 MB took 1.4 times the processor time, and longer still beside load. */
enum { SLOTS_MOST = 8, SLOTS_LEAST = 4, BOARD_SLOTS = 256 };

typedef struct link_slot {
    _Alignas(64) ps_link_head head;
    uint8_t bytes[PS_LINK_PIECE];
} link_slot;

typedef struct link_ring {
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
    link_slot slots[];
} link_ring;

struct ps_link_board {
    _Alignas(64) _Atomic uint32_t asleep;
    ps_bell bell;
    _Alignas(64) uint8_t rings[];
};

typedef struct link_shm {
    ps_link base;
    uint64_t n_slots;
    link_ring *out, *in;
    uint64_t put, taken; // this end's positions
    uint64_t untold;     // pieces taken since the other may have been woken for room
    ps_link_board *other;
    ps_event wake;
} link_shm;

static uint64_t ring_slots(int n_here)
{
    const int n = BOARD_SLOTS / n_here;
    return n > SLOTS_MOST ? SLOTS_MOST : n < SLOTS_LEAST ? SLOTS_LEAST : (uint64_t)n;
}

static uint64_t ring_bytes(int n_here)
{
    return sizeof(link_ring) + ring_slots(n_here) * sizeof(link_slot);
}

uint64_t ps_link_board_bytes(int n_here)
{
    return sizeof(ps_link_board) + (uint64_t)n_here * ring_bytes(n_here);
}

_Atomic uint32_t *ps_link_board_asleep(ps_link_board *board)
{
    return &board->asleep;
}

ps_bell *ps_link_board_bell(ps_link_board *board)
{
    return &board->bell;
}

static link_ring *ring_of(ps_link_board *board, int n_here, int place)
{
    void *at = board->rings + (uint64_t)place * ring_bytes(n_here);
    return at;
}

/* After a position has changed that the other may wait for. */
static void link_shm_wake(const link_shm *l)
{
    ps_link_board *other = l->other;
    if (atomic_load(&other->asleep) && atomic_exchange(&other->asleep, 0))
        ps_event_set(&l->wake);
    if (atomic_load(&other->bell.wanted) && atomic_exchange(&other->bell.wanted, 0))
        ps_bell_ring(&other->bell);
}

static ps_err link_shm_nonsense(const link_shm *l)
{
    return ps_err_set(PS_ERR_PROTOCOL,
                      "worker %d shows a position in shared memory that is not possible",
                      l->base.rank);
}

static uint8_t *link_shm_room(ps_link *base, uint32_t bytes)
{
    link_shm *l = (link_shm *)base;
    if (l->put - atomic_load(&l->out->head) >= l->n_slots) return NULL;
    return l->out->slots[l->put % l->n_slots].bytes;
}

static ps_err link_shm_put(ps_link *base, const ps_link_head *h)
{
    link_shm *l = (link_shm *)base;
    l->out->slots[l->put % l->n_slots].head = *h;
    atomic_store(&l->out->tail, ++l->put);
    link_shm_wake(l);
    return PS_OK;
}

static ps_err link_shm_front(ps_link *base, ps_link_head *h, const uint8_t **bytes)
{
    link_shm *l = (link_shm *)base;
    const uint64_t n = atomic_load(&l->in->tail) - l->taken;
    *bytes = NULL;
    if (n == 0) return PS_OK;
    if (n > l->n_slots) return link_shm_nonsense(l);
    const link_slot *slot = &l->in->slots[l->taken % l->n_slots];
    memcpy(h, &slot->head, sizeof *h);
    *bytes = slot->bytes;
    return PS_OK;
}

static ps_err link_shm_rest(ps_link *base)
{
    link_shm *l = (link_shm *)base;
    if (l->untold) link_shm_wake(l);
    l->untold = 0;
    return PS_OK;
}

/* One that sleeps because the ring is full is woken for half of it: woken for a piece it
 * would soon sleep again. */
static void link_shm_drop(ps_link *base)
{
    link_shm *l = (link_shm *)base;
    atomic_store(&l->in->head, ++l->taken);
    if (++l->untold >= l->n_slots / 2) (void)link_shm_rest(base);
}

static void link_shm_destroy(ps_link *base)
{
    link_shm *l = (link_shm *)base;
    ps_event_fini(&l->wake);
    free(l);
}

static const ps_link_ops link_shm_ops = {
    .room = link_shm_room,
    .put = link_shm_put,
    .front = link_shm_front,
    .drop = link_shm_drop,
    .rest = link_shm_rest,
    .destroy = link_shm_destroy,
};

ps_err ps_link_shm_create(const ps_link_shm_options *o, ps_link **out)
{
    link_shm *l;
    PS_TRY(PS_NEW(&l, 1, "a link"));
    *l = (link_shm){.base = {.ops = &link_shm_ops, .rank = o->rank},
                    .n_slots = ring_slots(o->n_here),
                    .out = ring_of(o->own, o->n_here, o->other_place),
                    .in = ring_of(o->other, o->n_here, o->own_place),
                    .other = o->other,
                    .wake = o->wake};
    *out = &l->base;
    return PS_OK;
}
