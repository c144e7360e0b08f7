#include "shard_orders.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "fault_point.h"
#include "shard_apply.h"
#include "shard_hello.h"
#include "shard_reply.h"
#include "trace.h"

ps_verdict ps_shard_orders_push(const ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                uint64_t number)
{
    const uint64_t clock = ps_shard_turn_of(s, c->chunk->fragment, rank)->clock;
    if (c->policy.version < 0 || number > clock) return PS_VERDICT_REFUSE;
    if (number < clock) return PS_VERDICT_ANSWER;
    if (ps_rank_set_has(&c->policy.arrived, rank)) return PS_VERDICT_DROP;
    ps_rank_set_add(&c->policy.arrived, rank);
    return PS_VERDICT_TAKE;
}

ps_err ps_shard_orders_taken(ps_shard *s, const ps_shard_chunk *c, uint32_t rank)
{
    const uint32_t fragment = c->chunk->fragment;
    ps_shard_turn *turn = ps_shard_turn_of(s, fragment, rank);
    if (++turn->n_in < s->n_in_fragment[fragment]) return PS_OK;
    turn->n_in = 0;
    turn->number = turn->clock;
    const ps_coord_link_push push = {.rank = rank,
                                     .fragment = fragment,
                                     .number = turn->clock,
                                     .n_workers = s->rules.n_workers,
                                     .n_shards = s->o.plan->n_shards,
                                     .n_holders = s->n_holders[fragment]};
    return ps_coord_link_pushed(s->link, &push);
}

static bool shard_orders_concerns(const ps_sync_order *o, const ps_shard_chunk *c)
{
    return c->chunk->fragment == o->fragment;
}

/* --- what an order applies ------------------------------------------------------------
 */

/* The pushes, in rank order, in the shard's scratch arrays. Returns their number. */
static int list_pushes(ps_shard *s, const ps_shard_chunk *c, const ps_sync_order *o)
{
    int n = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        const ps_shard_peer *p = &s->peers[e->rank];
        if (!e->applied) continue;
        s->payloads[n] = p->shm ? (const void *)(p->grads + c->chunk->offset)
                                : zmq_msg_data(&c->pushes[e->rank]);
        s->grads[n] = s->payloads[n];
        s->factors[n] = e->factor;
        s->compensations[n] = c->coded.told ? e->compensation : 0;
        s->bases[n] = c->coded.told ? ps_coded_chunk_told(&c->coded, e->rank) : NULL;
        s->numbers[n] = ps_shard_turn_of(s, o->fragment, e->rank)->number;
        s->ranks[n++] = e->rank;
    }
    return n;
}

/* The arenas that get the new weights. */
static int list_copies(ps_shard *s, const ps_shard_chunk *c, const ps_sync_order *o)
{
    int n = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_shard_peer *p = &s->peers[o->entries[i].rank];
        if (o->entries[i].answered && p->shm)
            s->copies[n++] = p->params + c->chunk->offset;
    }
    return n;
}

static ps_aggregate_step shard_orders_step_of(ps_shard *s, const ps_shard_chunk *c,
                                              const ps_sync_order *o, double grad_scale)
{
    ps_aggregate_step step = {
        .factor = 1,
        .rule = &s->rule,
        .step = o->step,
        .now = ps_step_rule_optimizer_step(&s->rule, o->step, grad_scale),
        .check = true,
        .copies = s->copies,
        .n_copies = list_copies(s, c, o),
        .bypass_caches = s->bypass_caches,
    };
    step.now.t = o->version + 1; // updates, which may be more than steps
    return step;
}

static void add_pushes(ps_shard *s, ps_aggregate_step *step, int n)
{
    step->grads = s->grads;
    step->n_grads = n;
    step->factors = s->factors;
    step->compensations = s->compensations;
    step->bases = s->bases;
    step->ranks = s->ranks;
}

static void add_sum(ps_aggregate_step *step, const float *const *sum)
{
    step->grads = sum;
    step->n_grads = 1;
    step->summed = true;
}

static ps_err shard_orders_sum_coded(ps_shard *s, ps_shard_chunk *c,
                                     const ps_sync_order *o, int n, float *sum)
{
    const uint64_t since_ns = ps_clock_ns();
    const ps_coded_pushes pushes = {.payloads = s->payloads,
                                    .n = n,
                                    .step = o->step,
                                    .numbers = s->numbers,
                                    .factors = s->factors,
                                    .compensations = s->compensations,
                                    .ranks = s->ranks,
                                    .check = s->rule.refuses};
    ps_err err = ps_coded_chunk_sum(&c->coded, &c->memory, &pushes, sum, s->decoded);
    ps_counter_add_since(&s->sum_ns, since_ns);
    return err;
}

/* With clipping: the sum is kept until the norm of all chunks is known. */
static ps_err sum_chunk(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o)
{
    const uint64_t begin_ns = ps_trace_now(), since_ns = ps_clock_ns();
    const int n = list_pushes(s, c, o);
    ps_aggregate_step step = shard_orders_step_of(s, c, o, 1.0);
    if (c->coded.coded) {
        const float *sum = c->memory.sum;
        PS_TRY(shard_orders_sum_coded(s, c, o, n, c->memory.sum));
        add_sum(&step, &sum);
        ps_aggregate_note_absent(&c->memory, &step);
    } else {
        add_pushes(s, &step, n);
        PS_TRY(ps_aggregate_sum(&c->memory, &step));
        ps_counter_add_since(&s->sum_ns, since_ns);
    }
    ps_shard_apply_judge(s, c);
    ps_trace_add_chunk(PS_TRACE_SUM, begin_ns, o->version, c->index, PS_TRACE_NONE);
    return PS_OK;
}

/* The new weights. grad_scale: of the sum that is kept; without clipping 1. */
static ps_err shard_orders_apply(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o,
                                 double grad_scale)
{
    const uint64_t begin_ns = ps_trace_now();
    const float *sum = s->clip ? c->memory.sum : s->sum;
    ps_aggregate_step step = shard_orders_step_of(s, c, o, grad_scale);
    if (s->clip) {
        add_sum(&step, &sum);
        step.check = false; // done when it was summed
    } else {
        const int n = list_pushes(s, c, o);
        if (c->coded.coded) PS_TRY(shard_orders_sum_coded(s, c, o, n, s->sum));
        if (c->coded.coded)
            add_sum(&step, &sum);
        else
            add_pushes(s, &step, n);
    }
    const uint64_t since_ns = ps_clock_ns();
    PS_TRY(ps_aggregate_apply(&c->memory, &step));
    ps_counter_add_since(&s->apply_ns, since_ns);
    ps_trace_add_chunk(PS_TRACE_APPLY, begin_ns, o->version, c->index, PS_TRACE_NONE);
    ps_policy_moved(&c->policy);
    return PS_OK;
}

/* --- orders ---------------------------------------------------------------------------
 */

static void shard_orders_release(ps_shard_chunk *c, uint32_t rank)
{
    zmq_msg_close(&c->pushes[rank]);
    zmq_msg_init(&c->pushes[rank]);
}

static ps_err obey_in_chunk(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o,
                            double grad_scale)
{
    if (o->applies) PS_TRY(shard_orders_apply(s, c, o, grad_scale));
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        if (e->answered) ps_rank_set_remove(&c->policy.arrived, e->rank);
        if (e->answered) PS_TRY(ps_shard_reply_ordered(s, c, e->rank, o->applies));
        shard_orders_release(c, e->rank);
    }
    return PS_OK;
}

/* Whether all pushes are here that the order speaks of. */
static ps_err check_order(const ps_shard *s, const ps_sync_order *o)
{
    uint32_t n_applied = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        const uint32_t rank = o->entries[i].rank;
        n_applied += o->entries[i].applied;
        for (uint32_t k = 0; k < s->n_chunks; k++)
            if (shard_orders_concerns(o, &s->chunks[k]) &&
                !ps_rank_set_has(&s->chunks[k].policy.arrived, rank))
                return ps_err_set(PS_ERR_PROTOCOL,
                                  "an order for a push of worker %u that is not here",
                                  rank);
    }
    if (o->applies && (n_applied == 0 || o->share == 0))
        return ps_err_set(PS_ERR_PROTOCOL, "an order without pushes");
    return PS_OK;
}

/* Pushes that an earlier order has applied count: they wait for their answer. */
static uint32_t shard_orders_flags_of(const ps_shard_turn *turn, const ps_sync_order *o,
                                      const ps_sync_entry *e)
{
    const bool dropped = !e->applied && !turn->applied;
    return (o->rest ? PS_WIRE_REST : 0u) | (o->over ? PS_WIRE_OVER : 0u) |
           (dropped ? PS_WIRE_DROPPED : 0u);
}

/* Makes the new weights and answers. grad_scale: as apply's. */
static ps_err shard_orders_carry_out(ps_shard *s, const ps_sync_order *o,
                                     double grad_scale)
{
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        ps_shard_turn *turn = ps_shard_turn_of(s, o->fragment, e->rank);
        if (e->answered) turn->rest = shard_orders_flags_of(turn, o, e);
        if (e->answered) turn->clock++;
        turn->applied = e->applied && !e->answered;
    }
    for (uint32_t i = s->n_chunks; i-- > 0;)
        if (shard_orders_concerns(o, &s->chunks[i]))
            PS_TRY(obey_in_chunk(s, &s->chunks[i], o, grad_scale));
    ps_counter_set(&s->steps, o->step);
    return ps_shard_reply_flush(s);
}

/* The worker is dead. A process that takes its place says HELLO anew, and shares no
 * memory. What the dead one has pushed has lower numbers. */
static ps_err forget_worker(ps_shard *s, uint32_t rank, uint64_t next)
{
    ps_shard_peer *p = &s->peers[rank];
    const ps_shard_peer before = *p;
    s->n_rings -= p->rings.bell != NULL;
    *p = (ps_shard_peer){.dead = true};
    memcpy(p->id, before.id, sizeof p->id);
    for (uint32_t f = 0; f < s->o.plan->fragments.n; f++)
        *ps_shard_turn_of(s, f, rank) = (ps_shard_turn){.clock = next};
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        ps_rank_set_remove(&s->chunks[i].policy.arrived, rank);
        shard_orders_release(&s->chunks[i], rank);
    }
    return before.hello ? ps_shard_hello(s, &before.hello_header) : PS_OK;
}

static ps_err begin_order(ps_shard *s, const ps_sync_order *o)
{
    if (o->back > 0) {
        if (o->n != 1)
            return ps_err_set(PS_ERR_PROTOCOL, "an order for %u dead workers", o->n);
        return forget_worker(s, o->entries[0].rank, o->back);
    }
    if (o->fragment >= s->o.plan->fragments.n)
        return ps_err_set(PS_ERR_PROTOCOL, "an order for fragment %u of %u", o->fragment,
                          s->o.plan->fragments.n);
    PS_TRY(check_order(s, o));
    if (!o->applies || !s->clip) return shard_orders_carry_out(s, o, 1.0);
    for (uint32_t i = s->n_chunks; i-- > 0;)
        if (shard_orders_concerns(o, &s->chunks[i]))
            PS_TRY(sum_chunk(s, &s->chunks[i], o));
    s->order = *o;
    s->order_waits = true;
    return ps_shard_apply_ask_norm(s, o->version);
}

/* The limit holds for the mean gradient of the samples that the pushes stand for. */
static ps_err shard_orders_take_norm(ps_shard *s)
{
    int got;
    uint64_t version;
    double norm;
    ps_step_decision decision;
    PS_TRY(ps_coord_link_gradnorm_recv(s->link, &got, &version, &norm));
    if (!got) return PS_OK;
    PS_TRY(
        ps_step_rule_decide(&s->rule, isfinite(norm), norm / s->order.share, &decision));
    s->order_waits = false;
    return shard_orders_carry_out(s, &s->order, decision.grad_scale);
}

ps_err ps_shard_orders_obey(ps_shard *s)
{
    for (;;) {
        ps_sync_order order;
        bool got;
        if (s->order_waits) PS_TRY(shard_orders_take_norm(s));
        if (s->order_waits) return PS_OK;
        PS_TRY(
            ps_coord_link_order(s->link, s->entries, s->rules.n_workers, &order, &got));
        if (!got) return PS_OK;
        PS_FAULT_POINT("order.taken");
        PS_TRY(begin_order(s, &order));
    }
}
