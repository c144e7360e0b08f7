#include "shard_state.h"

#include <sched.h>

#include "clock.h"

bool ps_shard_rings_in_use(const ps_shard *s)
{
    return s->n_rings > 0 && s->n_first == s->n_chunks;
}

static bool has_ring(const ps_shard *s, uint32_t rank)
{
    return s->peers[rank].rings.bell != NULL;
}

/* A worker all of whose gradients are applied: without another one from it, no chunk can
 * become complete. So it alone has to wake the shard. n_workers: there is no such one; or
 * any worker's gradients may be applied at once; or they end the job, since a worker that
 * has left sends no more. */
static uint32_t find_needed(const ps_shard *s)
{
    const uint32_t n = s->rules.n_workers;
    if (s->pace->by_worker || s->n_left > 0) return n;
    for (uint32_t r = n; r-- > 0;)
        if (has_ring(s, r) && s->peers[r].n_pending == 0) return r;
    return n;
}

static bool has_sent(const ps_shard *s, uint32_t rank)
{
    return has_ring(s, rank) && !ps_shm_ring_is_empty(&s->peers[rank].rings.to_shard);
}

static bool is_anything_there(const ps_shard *s)
{
    const uint32_t n = s->rules.n_workers, needed = find_needed(s);
    if (needed < n) return has_sent(s, needed);
    for (uint32_t r = 0; r < n; r++)
        if (has_sent(s, r)) return true;
    return false;
}

void ps_shard_rings_look(const ps_shard *s)
{
    if (s->spin_ns == 0 || !ps_shard_rings_in_use(s)) return;
    const uint64_t end_ns = ps_clock_ns() + s->spin_ns;
    while (!is_anything_there(s) && ps_clock_ns() < end_ns)
        sched_yield(); // others may need the core
}

bool ps_shard_rings_sleep(ps_shard *s)
{
    if (!ps_shard_rings_in_use(s)) return true;
    const uint32_t n = s->rules.n_workers, needed = find_needed(s);
    if (needed < n) return ps_shm_ring_sleep(&s->peers[needed].rings.to_shard);
    bool nothing = true;
    for (uint32_t r = 0; r < n; r++)
        if (has_ring(s, r)) nothing &= ps_shm_ring_sleep(&s->peers[r].rings.to_shard);
    return nothing;
}

void ps_shard_rings_awake(ps_shard *s, bool woken)
{
    for (uint32_t r = 0; s->n_rings > 0 && r < s->rules.n_workers; r++)
        if (has_ring(s, r)) ps_shm_ring_awake(&s->peers[r].rings.to_shard);
    if (woken) ps_event_clear(&s->wake);
}

ps_err ps_shard_rings_next(ps_shard *s, uint32_t rank, ps_wire_frames *f, bool *got)
{
    ps_shard_peer *p = &s->peers[rank];
    *got = false;
    if (!has_ring(s, rank)) return PS_OK;
    ps_err err = ps_wire_ring_take(&p->rings.to_shard, p->id, sizeof p->id, f, got);
    return err == PS_ERR_PROTOCOL ? ps_err_prefix(err, "worker %u sent", rank) : err;
}

ps_err ps_shard_rings_put(ps_shard *s, uint32_t rank, const ps_wire_header *h)
{
    ps_shard_peer *p = &s->peers[rank];
    uint64_t sent = 0;
    ps_err err = ps_wire_ring_put(&p->rings.to_worker, h, NULL, 0, &sent);
    ps_counter_add(&s->bytes_sent, sent);
    if (err != PS_OK) return ps_err_prefix(err, "worker %u", rank);
    p->bell_due |= ps_wire_rings_wanted(&p->rings, h->chunk);
    return PS_OK;
}

void ps_shard_rings_wake(ps_shard *s)
{
    for (uint32_t r = 0; s->n_rings > 0 && r < s->rules.n_workers; r++) {
        if (s->peers[r].bell_due) ps_bell_ring(&s->peers[r].rings.bell->bell);
        s->peers[r].bell_due = false;
    }
}
