#include "ps_comm_mend.h"

#include "log.h"
#include "ps_comm_send.h"
#include "zsock.h"

ps_err ps_comm_mend_news(ps_comm *c, ps_comm_link *l)
{
    ps_zsock_event event, last = PS_ZSOCK_NOTHING;
    while ((event = ps_zsock_monitor_read(l->monitor, NULL)) != PS_ZSOCK_NOTHING)
        last = event;
    if (last == PS_ZSOCK_NOTHING) return PS_OK;
    // Credit that was used on a lost connection does not come back.
    l->open = false;
    if (atomic_load(&l->lost_ns) == 0) atomic_store(&l->lost_ns, ps_clock_awake_ns());
    return last == PS_ZSOCK_CONNECTED ? ps_comm_send_hello(c, l) : PS_OK;
}

/* All that the shard has not answered waits again. Returns of how many chunks. */
static uint32_t repeat_unanswered(ps_comm *c, ps_comm_link *l)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->plan->n_chunks; i++) {
        ps_comm_chunk *chunk = &c->chunks[i];
        if (&c->links[c->plan->chunks[i].shard] != l) continue;
        chunk->init_due = chunk->first;
        if (!chunk->first && !chunk->unanswered) continue;
        ps_comm_send_soon(c, i);
        n++;
    }
    return n;
}

ps_err ps_comm_mend_ready(ps_comm *c, ps_comm_link *l, uint64_t number)
{
    if (l->open || number != l->n_hellos) return PS_OK; // of an earlier connection
    l->open = true;
    l->on_the_way = 0;
    if (!c->rings) l->n_groups = 0; // what is in a ring is not lost
    uint64_t lost_ns = atomic_exchange(&l->lost_ns, 0);
    if (!l->known) {
        l->known = true;
        atomic_fetch_add(&c->n_ready, 1);
        ps_comm_progress(c, PS_COMM_WAIT_ANY);
        return PS_OK;
    }
    const uint32_t repeated = repeat_unanswered(c, l);
    PS_WARN("connection-mended", "to=shard-%u at=%s after_ms=%.0f repeated=%u",
            (uint32_t)(l - c->links), l->endpoint,
            (double)(ps_clock_awake_ns() - lost_ns) * 1e-6, repeated);
    l->said_bye = l->left;
    return PS_OK;
}
