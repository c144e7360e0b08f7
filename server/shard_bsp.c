/* The pace of a job whose workers make each step together: a chunk's new weights are made
 * when every worker's push of the step is in; with clipping, loss scaling or LAMB, when
 * the coordinator has added up what all shards know of the step.
 *
 * Workers that have left in order while others still need them: in a job whose ranks make
 * other numbers of steps. A worker says BYE when it has had all answers, and pushes
 * nothing afterwards. So a chunk that waits for its push then waits for ever, and the job
 * ends at once instead of at net.step_timeout_ms. The error (ARG: trying the job again
 * would not help) names the worker that has left, the one that waits, and the step. */
#include "shard_state.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "fault_point.h"
#include "finite.h"
#include "gradnorm.h"
#include "lamb.h"
#include "trace.h"

/* The sums of the chunk with that index: one per block. With LAMB those of the updates
 * stand n_blocks behind. */
static double *shard_norm_sums(const ps_shard *s, uint32_t i)
{
    double *sums = s->norm.block_sums;
    for (uint32_t k = 0; k < i; k++)
        sums += s->norm.run_counts[k];
    return sums;
}

/* With clipping, stores the sums of squares of the blocks; none overflows in double, so
 * the norm is finite if the sum is. Without clipping, notes only whether the sum is
 * finite. */
void ps_shard_norm_note(ps_shard *s, const ps_shard_chunk *c)
{
    if (s->norm.clip)
        ps_gradnorm_chunk(s->o.table, c->chunk, c->memory.sum,
                          shard_norm_sums(s, (uint32_t)(c - s->chunks)));
    else if (!ps_finite_all(c->memory.sum, c->chunk->count))
        s->norm.block_sums[0] = NAN;
}

/* Sends the sums of squares of all of the shard's blocks to the coordinator. Without
 * clipping one number per shard, 0 or NaN, is enough: their norm says whether the
 * gradient is finite. */
ps_err ps_shard_norm_ask(ps_shard *s, uint64_t step)
{
    const uint32_t n_shards = s->o.plan->n_shards;
    if (s->norm.clip)
        return ps_coord_link_gradnorm_send(
            s->link, step, n_shards, ps_gradnorm_blocks(s->o.table), s->n_chunks,
            s->norm.run_first, s->norm.run_counts, s->norm.block_sums);
    const uint64_t place = s->index, one = 1;
    const double finite = s->norm.block_sums[0]; // 0 or NaN
    s->norm.block_sums[0] = 0;
    return ps_coord_link_gradnorm_send(s->link, step, n_shards, n_shards, 1, &place, &one,
                                       &finite);
}

static int shared_copies(ps_shard *s, const ps_shard_chunk *c)
{
    int n = 0;
    for (uint32_t r = 0; r < s->rules.n_workers; r++)
        if (s->peers[r].shm) s->copies[n++] = s->peers[r].params + c->chunk->offset;
    return n;
}

/* The step of the chunk; the caller adds the gradients. */
static ps_aggregate_step bsp_step_of(ps_shard *s, ps_shard_chunk *c, double grad_scale)
{
    const uint64_t step = (uint64_t)c->policy.version;
    return (ps_aggregate_step){
        .factor = s->mean ? (float)(1.0 / s->o.n_workers) : 1,
        .rule = &s->rule,
        .step = step,
        .now = ps_step_rule_optimizer_step(&s->rule, step, grad_scale),
        .check = true,
        .copies = s->copies,
        .n_copies = shared_copies(s, c),
        .bypass_caches = s->bypass_caches,
    };
}

static ps_aggregate_step step_by_pushes(ps_shard *s, ps_shard_chunk *c)
{
    for (uint32_t i = 0; i < s->n_senders; i++) {
        const uint32_t r = s->senders[i];
        s->grads[i] = s->peers[r].shm ? s->peers[r].grads + c->chunk->offset
                                      : zmq_msg_data(&c->pushes[r]);
    }
    ps_aggregate_step step = bsp_step_of(s, c, 1.0);
    step.grads = s->grads;
    step.n_grads = (int)s->n_senders;
    step.ranks = s->senders;
    return step;
}

static void release_pushes(ps_shard *s, ps_shard_chunk *c)
{
    for (uint32_t i = 0; i < s->n_senders; i++) {
        const uint32_t r = s->senders[i];
        s->peers[r].n_pending -= s->peers[r].rings.bell != NULL;
        zmq_msg_close(&c->pushes[r]);
        zmq_msg_init(&c->pushes[r]);
    }
}

/* Early pushes belong to the present step now. */
static void take_early(ps_shard *s, ps_shard_chunk *c)
{
    for (uint32_t i = 0; i < s->n_senders && c->policy.n_arrived > 0; i++) {
        const uint32_t r = s->senders[i];
        if (ps_rank_set_has(&c->policy.arrived, r))
            zmq_msg_move(&c->pushes[r], &c->early[r]);
    }
}

/* Sums the pushes of an encoded chunk into sum. */
static ps_err bsp_sum_coded(ps_shard *s, ps_shard_chunk *c, float *sum)
{
    for (uint32_t i = 0; i < s->n_senders; i++)
        s->payloads[i] = zmq_msg_data(&c->pushes[s->senders[i]]);
    const uint64_t begin_ns = ps_clock_ns();
    const ps_coded_pushes pushes = {.payloads = s->payloads,
                                    .n = (int)s->n_senders,
                                    .ranks = s->senders,
                                    .step = (uint64_t)c->policy.version,
                                    .check = s->rule.refuses};
    ps_err err = ps_coded_chunk_sum(&c->coded, &c->memory, &pushes, sum, s->decoded);
    ps_counter_add_since(&s->sum_ns, begin_ns);
    return err;
}

static ps_aggregate_step step_by_sum(ps_shard *s, ps_shard_chunk *c,
                                     const float *const *sum, double scale)
{
    ps_aggregate_step step = bsp_step_of(s, c, scale);
    step.grads = sum;
    step.n_grads = 1;
    step.summed = true;
    return step;
}

static ps_err bsp_apply_chunk(ps_shard *s, ps_shard_chunk *c,
                              const ps_aggregate_step *step)
{
    const uint64_t begin_ns = ps_clock_ns();
    ps_err err = ps_aggregate_apply(&c->memory, step);
    ps_counter_add_since(&s->apply_ns, begin_ns);
    return err;
}

/* The chunk's weights are about to be sent; with the last one the step is told. */
static void bsp_tell_pace(ps_shard *s, uint64_t step)
{
    const uint32_t n = s->rules.n_workers;
    double *last = s->paced.figures, *sums = last + n + 1;
    const uint64_t now_ns = ps_clock_ns();
    if (!ps_member_tells_pace(s->member)) return;
    if (s->paced.step != step) s->paced.n_applied = 0;
    s->paced.step = step;
    last[n] = ps_member_time_ns(s->member, now_ns);
    sums[n] += last[n];
    if (++s->paced.n_applied < s->n_chunks) return;
    for (uint32_t i = 0; i <= n; i++)
        sums[i] /= s->n_chunks;
    if (ps_pace_step(&s->paced.pace, step, now_ns))
        ps_member_pace(s->member, step, s->index + 1, s->paced.figures,
                       ps_pace_of_shard((int)n));
    memset(sums, 0, (n + 1) * sizeof *sums);
}

/* Of a complete step. */
static void bsp_note_idle(const ps_shard *s, ps_shard_chunk *c)
{
    c->idle =
        ps_chunk_is_idle(c->chunk, s->o.table, c->owners[c->policy.version % 2].step_of);
}

static void bsp_end_step(ps_shard *s, ps_shard_chunk *c)
{
    bsp_tell_pace(s, (uint64_t)c->policy.version);
    c->owners[c->policy.version % 2].known = false;
    ps_policy_applied(&c->policy);
    if (c->coded.coded && !c->idle)
        ps_coded_chunk_reply(&c->coded, 0, c->memory.weights,
                             (uint64_t)c->policy.version);
    if (c == s->chunks) ps_counter_set(&s->steps, (uint64_t)c->policy.version);
}

/* Sums and applies the pushes of a chunk. */
static ps_err bsp_step_chunk(ps_shard *s, ps_shard_chunk *c)
{
    ps_aggregate_step step;
    const float *sum = s->sum;
    if (!c->coded.coded) {
        step = step_by_pushes(s, c);
    } else {
        PS_TRY(bsp_sum_coded(s, c, s->sum));
        step = step_by_sum(s, c, &sum, 1.0);
    }
    return bsp_apply_chunk(s, c, &step);
}

static ps_err apply_once(ps_shard *s, ps_shard_chunk *c)
{
    const uint64_t number = (uint64_t)c->policy.version, begin_ns = ps_trace_now();
    bsp_note_idle(s, c);
    if (c->idle)
        ps_aggregate_miss(&c->memory);
    else
        PS_TRY(bsp_step_chunk(s, c));
    PS_FAULT_POINT("chunk.stepped");
    bsp_end_step(s, c);
    ps_trace_add_chunk(PS_TRACE_APPLY, begin_ns, number, c->index, PS_TRACE_NONE);
    PS_TRY(ps_shard_reply_weights(s, c));
    PS_FAULT_POINT("chunk.answered");
    release_pushes(s, c); // after the replies: freeing large buffers takes a while
    take_early(s, c);
    return PS_OK;
}

static ps_err apply_now(ps_shard *s, ps_shard_chunk *c)
{
    while (ps_policy_complete(&c->policy))
        PS_TRY(apply_once(s, c));
    return PS_OK;
}

static ps_lamb_part bsp_part_of(const ps_shard *s, const ps_shard_chunk *c)
{
    ps_lamb_part part = {.table = s->o.table,
                         .chunk = c->chunk,
                         .optimizer = &s->rule.optimizer,
                         .weights = c->memory.weights,
                         .grads = c->memory.sum};
    memcpy(part.states, c->memory.states, sizeof part.states);
    return part;
}

/* LAMB's first pass. The second one needs the sums of all shards. */
static ps_err bsp_make_updates(ps_shard *s, double grad_scale)
{
    const uint64_t step = (uint64_t)s->chunks[0].policy.version, begin_ns = ps_clock_ns();
    const ps_optimizer_step now = ps_step_rule_optimizer_step(&s->rule, step, grad_scale);
    for (uint32_t i = 0; i < s->n_chunks; i++) {
        const ps_lamb_part part = bsp_part_of(s, &s->chunks[i]);
        double *sums = shard_norm_sums(s, i);
        ps_aggregate_show_absent(&s->chunks[i].memory);
        ps_lamb_update(&part, &now, sums, sums + s->norm.n_blocks);
    }
    s->norm.grad_scale = grad_scale;
    s->norm.asked_sums = true;
    ps_counter_add_since(&s->apply_ns, begin_ns);
    return ps_coord_link_sums_send(
        s->link, step, s->o.plan->n_shards, ps_lamb_sums(s->o.table), 2 * s->n_chunks,
        s->norm.run_first, s->norm.run_counts, s->norm.block_sums);
}

/* Without clipping and loss scaling LAMB's first pass waits for nobody. */
static ps_err end_sums(ps_shard *s, uint64_t step)
{
    ps_step_decision decision;
    if (!s->norm.trusts || s->norm.clip || s->rule.scale.on)
        return ps_shard_norm_ask(s, step);
    PS_TRY(ps_step_rule_decide(&s->rule, true, 0, &decision));
    return bsp_make_updates(s, decision.grad_scale);
}

static ps_err sum_now(ps_shard *s, ps_shard_chunk *c)
{
    const uint64_t step_number = (uint64_t)c->policy.version, begin_ns = ps_trace_now();
    bsp_note_idle(s, c);
    if (c->idle) {
        ps_aggregate_sum_none(&c->memory);
    } else if (!c->coded.coded) {
        ps_aggregate_step step = step_by_pushes(s, c);
        const uint64_t since_ns = ps_clock_ns();
        PS_TRY(ps_aggregate_sum(&c->memory, &step));
        ps_counter_add_since(&s->sum_ns, since_ns);
    } else {
        const float *sum = c->memory.sum;
        PS_TRY(bsp_sum_coded(s, c, c->memory.sum));
        const ps_aggregate_step step = step_by_sum(s, c, &sum, 1.0);
        ps_aggregate_note_absent(&c->memory, &step);
    }
    release_pushes(s, c);
    ps_step_rule_unscale(&s->rule, c->chunk->count, c->memory.sum);
    ps_shard_norm_note(s, c);
    ps_trace_add_chunk(PS_TRACE_SUM, begin_ns, step_number, c->index, PS_TRACE_NONE);
    s->norm.summed_ns = ps_trace_now();
    if (++s->norm.n_summed < s->n_chunks) return PS_OK;
    return end_sums(s, (uint64_t)c->policy.version);
}

static ps_err apply_pushes(ps_shard *s, ps_shard_chunk *c)
{
    return s->norm.waits ? sum_now(s, c) : apply_now(s, c);
}

static ps_err apply_sum(ps_shard *s, ps_shard_chunk *c, double scale)
{
    const float *sum = c->memory.sum;
    ps_aggregate_step step = step_by_sum(s, c, &sum, scale);
    step.check = false; // done when it was summed
    if (c->idle) {
        ps_aggregate_miss(&c->memory);
        return PS_OK;
    }
    if (!s->norm.trusts) return bsp_apply_chunk(s, c, &step);
    const ps_lamb_part part = bsp_part_of(s, c);
    const uint64_t begin_ns = ps_clock_ns();
    ps_lamb_apply(&part, &step.now, s->norm.all_sums);
    ps_aggregate_copy(&c->memory, &step);
    ps_counter_add_since(&s->apply_ns, begin_ns);
    return PS_OK;
}

/* Applies all chunks when the norm of the step is here, in the order in which workers
 * need them. With loss scaling and a norm that is not finite, no shard applies any chunk:
 * the next version has the same weights. */
static ps_err apply_sums(ps_shard *s, bool make, double grad_scale)
{
    const uint64_t number = (uint64_t)s->chunks[0].policy.version;
    ps_trace_add(PS_TRACE_NORM, s->norm.summed_ns, number);
    s->norm.n_summed = 0;
    for (uint32_t i = s->n_chunks; i-- > 0;) {
        ps_shard_chunk *c = &s->chunks[i];
        const uint64_t begin_ns = ps_trace_now();
        if (make) PS_TRY(apply_sum(s, c, grad_scale));
        bsp_end_step(s, c);
        ps_trace_add_chunk(PS_TRACE_APPLY, begin_ns, number, c->index, PS_TRACE_NONE);
        PS_TRY(ps_shard_reply_weights(s, c));
        take_early(s, c);
    }
    for (uint32_t i = s->n_chunks; i-- > 0;)
        if (ps_policy_complete(&s->chunks[i].policy)) PS_TRY(sum_now(s, &s->chunks[i]));
    return ps_shard_reply_flush(s);
}

static ps_err bsp_take_norm(ps_shard *s, double norm)
{
    ps_step_decision decision;
    PS_TRY(ps_step_rule_decide(&s->rule, isfinite(norm), norm, &decision));
    if (s->norm.trusts && decision.make) return bsp_make_updates(s, decision.grad_scale);
    return apply_sums(s, decision.make, decision.grad_scale);
}

static ps_err bsp_hear(ps_shard *s)
{
    int got;
    uint64_t step;
    double norm = 0;
    PS_TRY(s->norm.asked_sums
               ? ps_coord_link_sums_recv(s->link, &got, &step, s->norm.all_sums,
                                         ps_lamb_sums(s->o.table))
               : ps_coord_link_gradnorm_recv(s->link, &got, &step, &norm));
    if (!got) return PS_OK;
    if (s->norm.n_summed != s->n_chunks || step != (uint64_t)s->chunks[0].policy.version)
        return ps_err_set(PS_ERR_PROTOCOL,
                          "a gradient norm of step %" PRIu64 " that was not asked for",
                          step);
    if (!s->norm.asked_sums) return bsp_take_norm(s, norm);
    s->norm.asked_sums = false;
    return apply_sums(s, true, s->norm.grad_scale);
}

/* ---- workers that have left ---- */

/* The lowest rank that is in the set; -1: none. */
static int64_t first_in(const ps_shard *s, const ps_rank_set *set)
{
    for (uint32_t i = 0; i < s->n_senders; i++)
        if (ps_rank_set_has(set, s->senders[i])) return s->senders[i];
    return -1;
}

/* The lowest rank that has left and is not in the set; -1: none. */
static int64_t gone_from(const ps_shard *s, const ps_rank_set *set)
{
    for (uint32_t i = 0; i < s->n_senders; i++) {
        const uint32_t r = s->senders[i];
        if (s->peers[r].left && !ps_rank_set_has(set, r)) return r;
    }
    return -1;
}

#define MEND                                                                             \
    "every rank must make the same number of steps: give each equally many batches "     \
    "(DistributedSampler, drop_last=True), or take optimizer.join()"

/* pushed: the ranks that have pushed the step. Steps count from 0, those of messages
 * from 1. */
static ps_err check_step(const ps_shard *s, const ps_rank_set *pushed, uint64_t step)
{
    const int64_t waits = first_in(s, pushed),
                  gone = waits < 0 ? -1 : gone_from(s, pushed);
    if (gone < 0) return PS_OK;
    if (s->peers[gone].returns) return ps_shard_adds_alone(gone, waits);
    // There each chunk counts the sums that went through it.
    if (s->rule.optimizer.kind == PS_OPTIMIZER_SUM)
        return ps_err_set(PS_ERR_ARG,
                          "worker %" PRId64 " has ended, and worker %" PRId64
                          " waits for its part of a sum of gradients: " MEND,
                          gone, waits);
    return ps_err_set(PS_ERR_ARG,
                      "worker %" PRId64 " has ended before step %" PRIu64
                      ", and worker %" PRId64 " waits for its gradients: " MEND,
                      gone, step + 1, waits);
}

static ps_err check_exact(const ps_shard *s, const ps_policy_chunk *p)
{
    const int64_t waits = first_in(s, &p->settling);
    const int64_t gone = waits < 0 || p->exact_sent ? -1 : gone_from(s, &p->settling);
    if (gone < 0) return PS_OK;
    if (s->peers[gone].returns) return ps_shard_adds_alone(gone, waits);
    return ps_err_set(PS_ERR_ARG,
                      "worker %" PRId64 " has ended, and worker %" PRId64
                      " waits for the exact weights, which all must ask for together",
                      gone, waits);
}

/* Worker 0 alone has the first weights. */
static ps_err check_first(const ps_shard *s, const ps_policy_chunk *p)
{
    const int64_t waits = first_in(s, &p->waiting);
    if (waits < 0 || !s->peers[0].left) return PS_OK;
    return ps_err_set(PS_ERR_ARG,
                      "worker 0 has ended without a step, and worker %" PRId64
                      " waits for its first weights: " MEND,
                      waits);
}

static ps_err bsp_check_left(const ps_shard *s, const ps_shard_chunk *c)
{
    const ps_policy_chunk *p = &c->policy;
    if (p->version < 0) return check_first(s, p);
    const uint64_t step = (uint64_t)p->version;
    if (p->n_arrived > 0) PS_TRY(check_step(s, &p->arrived, step));
    if (p->n_early > 0) PS_TRY(check_step(s, &p->early, step + 1));
    return p->n_settling > 0 ? check_exact(s, p) : PS_OK;
}

static int64_t bsp_lacks(const ps_shard *s, const ps_shard_chunk *c)
{
    const ps_policy_chunk *p = &c->policy;
    for (uint32_t i = 0; p->n_arrived > 0 && i < s->n_senders; i++)
        if (!ps_rank_set_has(&p->arrived, s->senders[i])) return s->senders[i];
    return -1;
}

/* ---- the table ---- */

static ps_verdict bsp_push(ps_shard *s, ps_shard_chunk *c, uint32_t rank, uint64_t number)
{
    return ps_policy_push(&c->policy, rank, number);
}

static ps_err bsp_taken(ps_shard *s, ps_shard_chunk *c, uint32_t rank)
{
    return ps_policy_complete(&c->policy) ? apply_pushes(s, c)
                                          : ps_shard_check_left(s, c);
}

static ps_err bsp_answer_again(ps_shard *s, ps_shard_chunk *c, uint32_t rank)
{
    return ps_shard_reply_out_of_turn(s, c, rank, PS_MSG_WEIGHTS);
}

static ps_verdict bsp_pull(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                           uint64_t version)
{
    return ps_policy_pull(&c->policy, rank, version);
}

static uint64_t bsp_version(const ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                            uint64_t step)
{
    return step;
}

static void bsp_stamp(const ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                      ps_wire_header *h)
{
    h->step = (uint64_t)c->policy.version;
    if (s->rule.scale.on)
        memcpy(&h->weights.scale, &s->rule.scale.scale, sizeof h->weights.scale);
}

const ps_shard_pace_ops ps_shard_bsp = {
    .push = bsp_push,
    .taken = bsp_taken,
    .answer_again = bsp_answer_again,
    .pull = bsp_pull,
    .version = bsp_version,
    .stamp = bsp_stamp,
    .hear = bsp_hear,
    .check_left = bsp_check_left,
    .lacks = bsp_lacks,
};
