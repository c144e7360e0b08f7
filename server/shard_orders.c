/* The pace of a job whose workers go on at their own (sync_policy.h): the shard tells the
 * coordinator which pushes are in, and does what the coordinator orders. It decides
 * nothing. An order concerns all of its chunks of a fragment, so a push counts in the
 * same version everywhere. */
#include "shard_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fault_point.h"
#include "mem.h"
#include "sync_policy.h"
#include "trace.h"

/* Where a worker is with a fragment. */
typedef struct turn {
    uint64_t clock;  // number of its next push: its own version of the weights
    uint32_t n_in;   // chunks of that push that are here
    uint64_t number; // of the last push that is here whole
    bool applied;    // and was applied, by an order that did not answer it
    uint32_t rest;   // what the last answer said of it and about rests (wire.h)
} turn;

struct ps_shard_orders {
    turn *turns;                              // (fragments, workers)
    uint32_t n_in_fragment[PS_MAX_FRAGMENTS]; // chunks here
    uint32_t n_holders[PS_MAX_FRAGMENTS];     // shards that have chunks of it
    ps_sync_order order; // with clipping: it is summed, and waits for the norm
    bool order_waits;
    // Scratch, by rank.
    ps_sync_entry *entries;
    float *factors, *compensations;
    uint32_t *ranks;
    const float **bases;
    uint64_t *numbers;
};

static turn *turn_of(const ps_shard *s, uint32_t fragment, uint32_t rank)
{
    return &s->orders->turns[fragment * (uint32_t)s->o.n_workers + rank];
}

/* --- memory --------------------------------------------------------------------------
 */

/* Chunks are numbered fragment by fragment. */
static ps_err count_in_fragments(ps_shard *s)
{
    const ps_plan *plan = s->o.plan;
    uint32_t *seen; // by shard: fragment + 1 of the chunk that was seen last
    PS_TRY(PS_NEW(&seen, plan->n_shards, "chunk map"));
    for (uint32_t i = 0; i < plan->n_chunks; i++) {
        const ps_chunk *c = &plan->chunks[i];
        s->orders->n_in_fragment[c->fragment] += c->shard == s->index;
        s->orders->n_holders[c->fragment] += seen[c->shard] != c->fragment + 1;
        seen[c->shard] = c->fragment + 1;
    }
    free(seen);
    return PS_OK;
}

static ps_err orders_open(ps_shard *s)
{
    PS_TRY(PS_NEW(&s->orders, 1, "orders"));
    struct ps_shard_orders *o = s->orders;
    const size_t workers = (size_t)s->o.n_workers,
                 turns = (size_t)s->o.plan->fragments.n * workers;
    PS_TRY(PS_NEW(&o->turns, turns, "turns"));
    for (size_t i = 0; i < turns; i++)
        o->turns[i].clock = s->first_step;
    PS_TRY(PS_NEW(&o->entries, workers, "orders"));
    PS_TRY(PS_NEW(&o->factors, workers, "orders"));
    PS_TRY(PS_NEW(&o->compensations, workers, "orders"));
    PS_TRY(PS_NEW(&o->ranks, workers, "orders"));
    PS_TRY(PS_NEW(&o->bases, workers, "orders"));
    PS_TRY(PS_NEW(&o->numbers, workers, "orders"));
    return count_in_fragments(s);
}

static void orders_close(ps_shard *s)
{
    struct ps_shard_orders *o = s->orders;
    if (!o) return;
    free(o->turns);
    free(o->entries);
    free(o->factors);
    free(o->compensations);
    free(o->ranks);
    free(o->bases);
    free(o->numbers);
    free(o);
    s->orders = NULL;
}

/* --- pushes --------------------------------------------------------------------------
 */

static ps_verdict orders_push(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                              uint64_t number)
{
    const uint64_t clock = turn_of(s, c->chunk->fragment, rank)->clock;
    if (c->policy.version < 0 || number > clock) return PS_VERDICT_REFUSE;
    if (number < clock) return PS_VERDICT_ANSWER;
    if (ps_rank_set_has(&c->policy.arrived, rank)) return PS_VERDICT_DROP;
    ps_policy_arrived(&c->policy, rank);
    return PS_VERDICT_TAKE;
}

/* With the fragment's last chunk the coordinator is told. */
static ps_err orders_taken(ps_shard *s, ps_shard_chunk *c, uint32_t rank)
{
    const uint32_t fragment = c->chunk->fragment;
    turn *t = turn_of(s, fragment, rank);
    if (++t->n_in < s->orders->n_in_fragment[fragment]) return PS_OK;
    t->n_in = 0;
    t->number = t->clock;
    const ps_coord_link_push push = {.rank = rank,
                                     .fragment = fragment,
                                     .number = t->clock,
                                     .n_workers = s->rules.n_workers,
                                     .n_shards = s->o.plan->n_shards,
                                     .n_holders = s->orders->n_holders[fragment]};
    return ps_coord_link_pushed(s->link, &push);
}

/* One in shared memory may be computing on the weights that it got then: they stay. */
static ps_err orders_answer_again(ps_shard *s, ps_shard_chunk *c, uint32_t rank)
{
    return s->peers[rank].shm
               ? ps_shard_reply_send(s, c, rank, PS_MSG_WEIGHTS, PS_WIRE_COPY)
               : ps_shard_reply_out_of_turn(s, c, rank, PS_MSG_WEIGHTS);
}

/* A process that has taken a dead worker's place counts from that one's pushes on. */
static ps_verdict orders_pull(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                              uint64_t version)
{
    if (c->policy.version >= 0 && version == turn_of(s, c->chunk->fragment, rank)->clock)
        return PS_VERDICT_ANSWER;
    return ps_policy_pull(&c->policy, rank, version);
}

/* Workers count their own pushes, and the last one has led to the shard's version. */
static uint64_t orders_version(const ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                               uint64_t step)
{
    return step - turn_of(s, c->chunk->fragment, rank)->clock +
           (uint64_t)c->policy.version;
}

static void orders_stamp(const ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                         ps_wire_header *h)
{
    const turn *t = turn_of(s, c->chunk->fragment, rank);
    h->step = t->clock;
    h->weights.flags = t->rest;
}

static bool order_concerns(const ps_sync_order *o, const ps_shard_chunk *c)
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
        s->orders->factors[n] = e->factor;
        s->orders->compensations[n] = c->coded.known ? e->compensation : 0;
        s->orders->bases[n] =
            c->coded.known ? ps_coded_chunk_known(&c->coded, e->rank) : NULL;
        s->orders->numbers[n] = turn_of(s, o->fragment, e->rank)->number;
        s->orders->ranks[n++] = e->rank;
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

static ps_aggregate_step orders_step_of(ps_shard *s, const ps_shard_chunk *c,
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
    step->factors = s->orders->factors;
    step->compensations = s->orders->compensations;
    step->bases = s->orders->bases;
    step->ranks = s->orders->ranks;
}

static void add_sum(ps_aggregate_step *step, const float *const *sum)
{
    step->grads = sum;
    step->n_grads = 1;
    step->summed = true;
}

static ps_err orders_sum_coded(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o,
                               int n, float *sum)
{
    const uint64_t since_ns = ps_clock_ns();
    const ps_coded_pushes pushes = {.payloads = s->payloads,
                                    .n = n,
                                    .step = o->step,
                                    .numbers = s->orders->numbers,
                                    .factors = s->orders->factors,
                                    .compensations = s->orders->compensations,
                                    .ranks = s->orders->ranks,
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
    ps_aggregate_step step = orders_step_of(s, c, o, 1.0);
    if (c->coded.coded) {
        const float *sum = c->memory.sum;
        PS_TRY(orders_sum_coded(s, c, o, n, c->memory.sum));
        add_sum(&step, &sum);
        ps_aggregate_note_absent(&c->memory, &step);
    } else {
        add_pushes(s, &step, n);
        PS_TRY(ps_aggregate_sum(&c->memory, &step));
        ps_counter_add_since(&s->sum_ns, since_ns);
    }
    ps_shard_norm_note(s, c);
    ps_trace_add_chunk(PS_TRACE_SUM, begin_ns, o->version, c->index, PS_TRACE_NONE);
    return PS_OK;
}

/* The new weights. grad_scale: of the sum that is kept; without clipping 1. */
static ps_err orders_apply(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o,
                           double grad_scale)
{
    const uint64_t begin_ns = ps_trace_now();
    const float *sum = s->norm.clip ? c->memory.sum : s->sum;
    ps_aggregate_step step = orders_step_of(s, c, o, grad_scale);
    if (s->norm.clip) {
        add_sum(&step, &sum);
        step.check = false; // done when it was summed
    } else {
        const int n = list_pushes(s, c, o);
        if (c->coded.coded) PS_TRY(orders_sum_coded(s, c, o, n, s->sum));
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

static void orders_release(ps_shard_chunk *c, uint32_t rank)
{
    zmq_msg_close(&c->pushes[rank]);
    zmq_msg_init(&c->pushes[rank]);
}

/* Sends a chunk's present weights to a worker that an order answers. written: they are in
 * its shared memory already. Copied: the next order may come while these are on their
 * way. */
static ps_err answer_ordered(ps_shard *s, ps_shard_chunk *c, uint32_t rank, bool written)
{
    const ps_shard_peer *p = &s->peers[rank];
    if (p->shm && !written)
        memcpy(p->params + c->chunk->offset, c->memory.weights,
               c->chunk->count * sizeof(float));
    if (c->coded.coded)
        ps_coded_chunk_reply(&c->coded, rank, c->memory.weights,
                             turn_of(s, c->chunk->fragment, rank)->clock);
    else if (c->coded.known)
        memcpy(ps_coded_chunk_known(&c->coded, rank), c->memory.weights,
               c->chunk->count * sizeof(float));
    // BORROW means in turn. It leads to the ring, in which there is no payload, and a
    // change is copied anyway.
    return ps_shard_reply_send(s, c, rank, PS_MSG_WEIGHTS,
                               p->rings.bell || c->coded.coded ? PS_WIRE_BORROW
                                                               : PS_WIRE_COPY);
}

static ps_err obey_in_chunk(ps_shard *s, ps_shard_chunk *c, const ps_sync_order *o,
                            double grad_scale)
{
    if (o->applies) PS_TRY(orders_apply(s, c, o, grad_scale));
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        if (e->answered) ps_rank_set_remove(&c->policy.arrived, e->rank);
        if (e->answered) PS_TRY(answer_ordered(s, c, e->rank, o->applies));
        orders_release(c, e->rank);
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
            if (order_concerns(o, &s->chunks[k]) &&
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
static uint32_t orders_flags_of(const turn *t, const ps_sync_order *o,
                                const ps_sync_entry *e)
{
    const bool dropped = !e->applied && !t->applied;
    return (o->rest ? PS_WIRE_REST : 0u) | (o->over ? PS_WIRE_OVER : 0u) |
           (dropped ? PS_WIRE_DROPPED : 0u);
}

/* Makes the new weights and answers. grad_scale: as apply's. */
static ps_err orders_carry_out(ps_shard *s, const ps_sync_order *o, double grad_scale)
{
    for (uint32_t i = 0; i < o->n; i++) {
        const ps_sync_entry *e = &o->entries[i];
        turn *t = turn_of(s, o->fragment, e->rank);
        if (e->answered) t->rest = orders_flags_of(t, o, e);
        if (e->answered) t->clock++;
        t->applied = e->applied && !e->answered;
    }
    for (uint32_t i = s->n_chunks; i-- > 0;)
        if (order_concerns(o, &s->chunks[i]))
            PS_TRY(obey_in_chunk(s, &s->chunks[i], o, grad_scale));
    ps_counter_set(&s->steps, o->step);
    return ps_shard_reply_flush(s);
}

/* The worker is dead. A process that takes its place says HELLO anew, and shares no
 * memory. What the dead one has pushed has lower numbers. */
static void forget_worker(ps_shard *s, uint32_t rank, uint64_t back)
{
    ps_shard_peer *p = &s->peers[rank];
    const ps_shard_peer before = *p;
    s->n_rings -= p->rings.bell != NULL;
    *p = (ps_shard_peer){.dead = true,
                         .back = back,
                         .hello = before.hello,
                         .hello_header = before.hello_header};
    memcpy(p->id, before.id, sizeof p->id);
    for (uint32_t f = 0; f < s->o.plan->fragments.n; f++)
        *turn_of(s, f, rank) = (turn){.clock = back};
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        ps_rank_set_remove(&s->chunks[i].policy.arrived, rank);
        orders_release(&s->chunks[i], rank);
    }
}

static ps_err begin_order(ps_shard *s, const ps_sync_order *o)
{
    if (o->back > 0) {
        if (o->n != 1)
            return ps_err_set(PS_ERR_PROTOCOL, "an order for %u dead workers", o->n);
        forget_worker(s, o->entries[0].rank, o->back);
        return PS_OK;
    }
    if (o->fragment >= s->o.plan->fragments.n)
        return ps_err_set(PS_ERR_PROTOCOL, "an order for fragment %u of %u", o->fragment,
                          s->o.plan->fragments.n);
    PS_TRY(check_order(s, o));
    if (!o->applies || !s->norm.clip) return orders_carry_out(s, o, 1.0);
    for (uint32_t i = s->n_chunks; i-- > 0;)
        if (order_concerns(o, &s->chunks[i])) PS_TRY(sum_chunk(s, &s->chunks[i], o));
    s->orders->order = *o;
    s->orders->order_waits = true;
    return ps_shard_norm_ask(s, o->version);
}

/* The limit holds for the mean gradient of the samples that the pushes stand for. */
static ps_err orders_take_norm(ps_shard *s)
{
    int got;
    uint64_t version;
    double norm;
    ps_step_decision decision;
    PS_TRY(ps_coord_link_gradnorm_recv(s->link, &got, &version, &norm));
    if (!got) return PS_OK;
    PS_TRY(ps_step_rule_decide(&s->rule, isfinite(norm), norm / s->orders->order.share,
                               &decision));
    s->orders->order_waits = false;
    return orders_carry_out(s, &s->orders->order, decision.grad_scale);
}

static ps_err orders_hear(ps_shard *s)
{
    for (;;) {
        ps_sync_order order;
        bool got;
        if (s->orders->order_waits) PS_TRY(orders_take_norm(s));
        if (s->orders->order_waits) return PS_OK;
        PS_TRY(ps_coord_link_order(s->link, s->orders->entries, s->rules.n_workers,
                                   &order, &got));
        if (!got) return PS_OK;
        PS_FAULT_POINT("order.taken");
        PS_TRY(begin_order(s, &order));
    }
}

const ps_shard_pace_ops ps_shard_orders = {
    .by_worker = true,
    .open = orders_open,
    .close = orders_close,
    .push = orders_push,
    .taken = orders_taken,
    .answer_again = orders_answer_again,
    .pull = orders_pull,
    .version = orders_version,
    .stamp = orders_stamp,
    .hear = orders_hear,
};
