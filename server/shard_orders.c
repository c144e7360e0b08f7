#include "shard_orders.h"

#include <inttypes.h>
#include <string.h>

#include "shard_reply.h"
#include "trace.h"

ps_verdict ps_shard_orders_push(const ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                uint64_t number)
{
    const uint64_t clock = s->peers[rank].clock;
    if (c->policy.version < 0 || number > clock) return PS_VERDICT_REFUSE;
    if (number < clock) return PS_VERDICT_ANSWER;
    if (ps_rank_set_has(&c->policy.arrived, rank)) return PS_VERDICT_DROP;
    ps_rank_set_add(&c->policy.arrived, rank);
    return PS_VERDICT_TAKE;
}

ps_err ps_shard_orders_taken(ps_shard *s, uint32_t rank)
{
    ps_shard_peer *p = &s->peers[rank];
    if (++p->n_in < s->n_chunks) return PS_OK;
    p->n_in = 0;
    return ps_coord_link_pushed(s->link, rank, p->clock, s->o.plan->n_shards);
}

/* The gradients that the order applies, and whose arenas get the new weights. */
static ps_aggregate_step step_of(ps_shard *s, const ps_shard_chunk *c,
                                 const ps_sync_order *o)
{
    ps_aggregate_step step = {
        .factor = 1,
        .rule = &s->rule,
        .step = o->step,
        .now = ps_step_rule_optimizer_step(&s->rule, o->step, 1.0),
        .check = true,
        .grads = s->grads,
        .factors = s->factors,
        .ranks = s->ranks,
        .copies = s->copies,
        .bypass_caches = s->bypass_caches,
    };
    step.now.t = o->version + 1; // updates, which may be more than steps
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        const ps_shard_peer *p = &s->peers[e->rank];
        if (e->answered && p->shm)
            s->copies[step.n_copies++] = p->params + c->chunk->offset;
        if (!e->applied) continue;
        s->grads[step.n_grads] =
            p->shm ? p->grads + c->chunk->offset : zmq_msg_data(&c->pushes[e->rank]);
        s->factors[step.n_grads] = e->factor;
        s->ranks[step.n_grads++] = e->rank;
    }
    return step;
}

static ps_err apply(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o)
{
    const uint64_t begin_ns = ps_trace_now(), since_ns = ps_clock_ns();
    const ps_aggregate_step step = step_of(s, c, o);
    if (step.n_grads == 0) return ps_err_set(PS_ERR_PROTOCOL, "an order without pushes");
    PS_TRY(ps_aggregate_apply(&c->memory, &step));
    ps_counter_add_since(&s->apply_ns, since_ns);
    ps_trace_add_chunk(PS_TRACE_APPLY, begin_ns, o->version, c->index, PS_TRACE_NONE);
    c->policy.version = (int64_t)o->version + 1;
    return PS_OK;
}

static void release(ps_shard_chunk *c, uint32_t rank)
{
    zmq_msg_close(&c->pushes[rank]);
    zmq_msg_init(&c->pushes[rank]);
}

static ps_err obey_in_chunk(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o)
{
    if (o->applies) PS_TRY(apply(s, c, o));
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        if (e->answered) ps_rank_set_remove(&c->policy.arrived, e->rank);
        if (e->answered) PS_TRY(ps_shard_reply_ordered(s, c, e->rank, o->applies));
        release(c, e->rank);
    }
    return PS_OK;
}

/* Whether all pushes are here that the order speaks of. */
static ps_err check_order(const ps_shard *s, const ps_sync_order *o)
{
    for (uint32_t i = 0; i < o->n; i++) {
        const uint32_t rank = o->entries[i].rank;
        for (uint32_t k = 0; k < s->n_chunks; k++)
            if (!ps_rank_set_has(&s->chunks[k].policy.arrived, rank))
                return ps_err_set(PS_ERR_PROTOCOL,
                                  "an order for a push of worker %u that is not here",
                                  rank);
    }
    return PS_OK;
}

static ps_err obey(ps_shard *s, const ps_sync_order *o)
{
    PS_TRY(check_order(s, o));
    for (uint32_t i = 0; i < o->n; i++) {
        ps_shard_peer *p = &s->peers[o->entries[i].rank];
        if (!o->entries[i].answered) continue;
        p->clock++;
        p->rest = (o->rest ? PS_WIRE_REST : 0u) | (o->over ? PS_WIRE_OVER : 0u);
    }
    for (uint32_t i = s->n_chunks; i-- > 0;)
        PS_TRY(obey_in_chunk(s, &s->chunks[i], o));
    ps_counter_set(&s->steps, o->step);
    return ps_shard_reply_flush(s);
}

ps_err ps_shard_orders_obey(ps_shard *s)
{
    for (;;) {
        ps_sync_order order;
        bool got;
        PS_TRY(
            ps_coord_link_order(s->link, s->entries, s->rules.n_workers, &order, &got));
        if (!got) return PS_OK;
        PS_TRY(obey(s, &order));
    }
}
