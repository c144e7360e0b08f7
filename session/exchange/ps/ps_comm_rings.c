#include "param_groups.h"
#include "ps_comm_state.h"
#include "shm_pass.h"
#include "trace.h"

/* Where cores are short, a shard is woken when gradients of that many bytes wait for it,
 * or with the last one of the step: a wake-up takes about 20 us of a core. Elsewhere it
 * is woken with each gradient, and ends earlier. */
enum { HELD_BYTES = 256 << 10 };

static int comm_rings_n_groups(const ps_comm *c)
{
    const ps_param_groups *g = c->o.rule->optimizer.groups;
    return g ? g->n : 0;
}

/* Where only some shards are here the thread's sockets limit a step anyway, and two
 * threads would share what they count. */
static bool comm_rings_possible(const ps_comm *c)
{
    const ps_roster *roster = ps_member_roster(c->o.member);
    const ps_exchange_settings *x = &c->o.settings;
    if (x->shm == PS_SWITCH_OFF || x->codec.codec != PS_CODEC_NONE || c->o.params->fd < 0)
        return false;
    for (int s = 0; s < roster->n_servers; s++)
        if (roster->servers[s].n_endpoints > PS_SHM_WAKES_MAX ||
            !ps_roster_same_host(&roster->workers[c->o.rank], &roster->servers[s]))
            return false;
    return true;
}

ps_err ps_comm_rings_open(ps_comm *c)
{
    if (!comm_rings_possible(c)) return PS_OK;
    PS_TRY(ps_shared_mem_init(
        &c->ring_memory, ps_wire_rings_bytes(c->plan, comm_rings_n_groups(c)), "rings"));
    for (uint32_t i = 0; i < c->n_links; i++)
        c->links[i].rings =
            ps_wire_rings_at(c->ring_memory.base, c->plan, comm_rings_n_groups(c), i);
    return PS_OK;
}

void ps_comm_rings_agree(ps_comm *c)
{
    c->rings = c->ring_memory.base != NULL;
    for (uint32_t i = 0; i < c->n_links; i++)
        c->rings = c->rings && c->links[i].shm;
    if (!c->rings) return;
    const ps_roster *roster = ps_member_roster(c->o.member);
    c->bell = c->ring_memory.base;
    c->spin_ns =
        ps_roster_spin_ns(roster, &roster->workers[c->o.rank], c->o.settings.threads);
}

static ps_err comm_rings_push(ps_comm *c, uint32_t chunk, uint64_t step)
{
    const ps_chunk *plan = &c->plan->chunks[chunk];
    ps_comm_link *l = &c->links[plan->shard];
    PS_TRY(ps_comm_send_groups(c, l));
    const uint64_t begin_ns = ps_trace_now();
    if (ps_comm_is_paced(c)) ps_comm_pace_given(c, plan->shard);
    ps_wire_header h = ps_comm_header(c, PS_MSG_PUSH);
    h.step = step;
    h.chunk = chunk;
    h.count = plan->count;
    const uint32_t step_of = atomic_load(&c->steps_of[step % 2]);
    const bool idle = ps_chunk_is_idle(plan, c->o.table, step_of);
    const uint64_t bytes = idle ? 0 : plan->count * sizeof(float);
    h.codec = idle ? PS_CODEC_IDLE : PS_CODEC_SHM;
    h.push.groups = ps_comm_groups_sent(c, l);
    h.push.step_of = step_of;
    uint64_t sent = 0;
    atomic_store(&c->chunks[chunk].in_ring, true); // before weights can be here
    atomic_fetch_add(&c->n_pushed, 1);
    PS_TRY(ps_wire_ring_put(&l->rings.to_shard, &h, NULL, 0, &sent));
    ps_counter_add(&c->bytes_sent, sent);
    ps_counter_add(&c->raw_bytes, sent);
    ps_counter_add(&c->shm_sent, bytes);
    l->held_bytes += idle ? 1 : bytes; // the shard has to be woken for it, too
    ps_trace_add_chunk(PS_TRACE_SEND, begin_ns, step, chunk, plan->shard);
    if (ps_comm_is_paced(c)) ps_comm_pace_sent(c, plan->shard, step);
    return PS_OK;
}

static void comm_rings_wake(ps_comm *c, uint64_t held_least)
{
    for (uint32_t i = 0; i < c->n_links; i++) {
        ps_comm_link *l = &c->links[i];
        if (l->held_bytes < held_least) continue;
        l->held_bytes = 0;
        if (ps_shm_ring_must_wake(&l->rings.to_shard)) ps_event_set(&l->wake);
    }
}

ps_err ps_comm_rings_push(ps_comm *c, uint64_t step, const uint32_t *chunks, uint32_t n,
                          bool more)
{
    const bool cores_are_short = c->spin_ns == 0;
    for (uint32_t i = 0; i < n; i++)
        PS_TRY(comm_rings_push(c, chunks[i], step));
    if (n > 0) comm_rings_wake(c, more && cores_are_short ? HELD_BYTES : 1);
    return PS_OK;
}

bool ps_comm_rings_want_all(ps_comm *c)
{
    const uint32_t n = atomic_load(&c->n_pushed);
    if (!c->rings || n == c->n_taken) return false;
    ps_wire_bell *bell = c->ring_memory.base;
    atomic_store(&bell->n_asked, n);
    return true;
}

ps_err ps_comm_rings_take(ps_comm *c)
{
    for (uint32_t i = 0; i < c->n_links; i++)
        PS_TRY(ps_comm_receive_ring(c, &c->links[i]));
    return PS_OK;
}
