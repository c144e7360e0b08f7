#include "link_shm.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

/* Of a ring, fewer where many workers share the caches. With 64, which a worker fills while
 * another one waits for a core, 25 MB took 1.5 times the processor time. */
enum { SLOTS_MOST = 16, SLOTS_LEAST = 4, BOARD_SLOTS = 256 };

typedef struct link_ring {
    _Alignas(64) _Atomic uint64_t tail;
    _Alignas(64) _Atomic uint64_t head;
    _Alignas(64) ps_link_head pieces[]; // (slots), then their bytes
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
    uint64_t put, taken;         // this end's positions
    uint64_t freed;              // pieces put whose slots are free again
    uint8_t slot_of[SLOTS_MOST]; // of a piece, by its position
    uint8_t free[SLOTS_MOST];    // (n_free) slots; the last one is used first
    uint64_t n_free;
    uint64_t untold; // pieces taken since the other may have been woken for room
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
    return sizeof(link_ring) +
           ring_slots(n_here) * (sizeof(ps_link_head) + PS_LINK_PIECE);
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

static uint8_t *ring_bytes_of(link_ring *ring, uint64_t n_slots, uint32_t slot)
{
    return (uint8_t *)(ring->pieces + n_slots) + (uint64_t)slot * PS_LINK_PIECE;
}

/* The slot that was freed last is used next: two workers that keep pace use a few, which
 * stay in the cores' own caches. */
static uint8_t *link_shm_room(ps_link *base, uint32_t bytes)
{
    link_shm *l = (link_shm *)base;
    const uint64_t head = atomic_load(&l->out->head);
    if (head - l->freed <= l->put - l->freed)
        while (l->freed != head)
            l->free[l->n_free++] = l->slot_of[l->freed++ % l->n_slots];
    return l->n_free ? ring_bytes_of(l->out, l->n_slots, l->free[l->n_free - 1]) : NULL;
}

static ps_err link_shm_put(ps_link *base, const ps_link_head *h)
{
    link_shm *l = (link_shm *)base;
    const uint64_t at = l->put % l->n_slots;
    l->slot_of[at] = l->free[--l->n_free];
    l->out->pieces[at] = *h;
    l->out->pieces[at].slot = l->slot_of[at];
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
    memcpy(h, &l->in->pieces[l->taken % l->n_slots], sizeof *h);
    if (h->slot >= l->n_slots) return link_shm_nonsense(l);
    *bytes = ring_bytes_of(l->in, l->n_slots, h->slot);
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
    for (l->n_free = 0; l->n_free < l->n_slots; l->n_free++)
        l->free[l->n_free] = (uint8_t)(l->n_slots - 1 - l->n_free);
    *out = &l->base;
    return PS_OK;
}
