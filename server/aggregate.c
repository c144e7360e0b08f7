#include "aggregate.h"

#include <stdlib.h>
#include <string.h>

#include "finite.h"
#include "floats.h"
#include "mem.h"
#include "nontemporal_copy.h"

/* In elements: a block, which stays in the first-level cache from the sum to the copies;
 * how far ahead of it memory is prefetched; a cache line. */
enum { BLOCK = 256, AHEAD = 2 * BLOCK, LINE = 16 };

static uint64_t aligned_count(uint64_t count)
{
    return (count + PS_TENSOR_ALIGN - 1) / PS_TENSOR_ALIGN * PS_TENSOR_ALIGN;
}

uint64_t ps_aggregate_slab_count(const ps_chunk *chunk, const ps_optimizer *opt,
                                 bool keep_sum)
{
    return aligned_count(chunk->count) * (uint64_t)(1 + opt->n_states + keep_sum);
}

static void cut_segments(ps_aggregate *a, const ps_tensor_table *table,
                         const ps_chunk *chunk, const ps_optimizer *opt)
{
    for (int t = chunk->first_tensor; t <= chunk->last_tensor; t++) {
        const ps_tensor *tensor = &table->tensors[t];
        uint64_t from, to;
        ps_chunk_overlap(chunk, tensor, &from, &to);
        if (from >= to) continue;
        a->segments[a->n_segments++] = (ps_segment){
            .offset = tensor->offset + from - chunk->offset,
            .count = to - from,
            .weight_decay = ps_optimizer_decay(opt, tensor->role),
            .group = tensor->group,
            .tensor = tensor->name,
        };
    }
}

static bool stepped_alike(const ps_segment *a, const ps_segment *b)
{
    return a->group == b->group && a->weight_decay == b->weight_decay &&
           a->absence.missed == b->absence.missed;
}

/* Gaps hold zeros, of which every optimizer makes zeros; with an eps of 0 they become
 * NaN, which nothing reads. */
static void join_runs(ps_aggregate *a)
{
    a->n_runs = 0;
    for (int i = 0; i < a->n_segments; i++) {
        const ps_segment *s = &a->segments[i];
        const bool follows = i > 0 && !a->segments[i - 1].absence.now;
        ps_segment *last = &a->runs[a->n_runs - 1];
        if (s->absence.now) continue;
        if (follows && stepped_alike(last, s))
            last->count = s->offset + s->count - last->offset;
        else
            a->runs[a->n_runs++] = *s;
    }
}

ps_err ps_aggregate_init(ps_aggregate *a, const ps_tensor_table *table,
                         const ps_chunk *chunk, const ps_optimizer *opt, bool keep_sum,
                         float *slab)
{
    *a = (ps_aggregate){.count = chunk->count, .optional = table->optional};
    size_t n = (size_t)(chunk->last_tensor - chunk->first_tensor + 1);
    PS_TRY(PS_NEW(&a->segments, n, "a chunk's segments"));
    PS_TRY(PS_NEW(&a->runs, n, "a chunk's segments"));
    cut_segments(a, table, chunk, opt);
    join_runs(a);
    uint64_t stride = aligned_count(chunk->count);
    a->weights = slab;
    for (int i = 0; i < opt->n_states; i++)
        a->states[i] = slab + (uint64_t)(1 + i) * stride;
    if (keep_sum) a->sum = slab + (uint64_t)(1 + opt->n_states) * stride;
    return PS_OK;
}

void ps_aggregate_fini(ps_aggregate *a)
{
    free(a->segments);
    free(a->runs);
    *a = (ps_aggregate){0};
}

float *ps_aggregate_array(const ps_aggregate *a, uint64_t array)
{
    if (array == PS_AGGREGATE_WEIGHTS) return a->weights;
    return array < PS_OPTIMIZER_MAX_STATES ? a->states[array] : NULL;
}

void ps_aggregate_save_missed(const ps_aggregate *a, float *out)
{
    memset(out, 0, a->count * sizeof *out);
    for (int i = 0; i < a->n_segments; i++)
        for (uint64_t k = 0; k < a->segments[i].count; k++)
            memcpy(out + a->segments[i].offset + k, &a->segments[i].absence.missed,
                   sizeof *out);
}

void ps_aggregate_load_missed(ps_aggregate *a, const float *from)
{
    for (int i = 0; i < a->n_segments; i++)
        memcpy(&a->segments[i].absence.missed, from + a->segments[i].offset,
               sizeof *from);
    join_runs(a);
}

static const float *scaled_sum_block(float *out, const ps_aggregate_step *s, uint64_t at,
                                     uint64_t n)
{
    ps_floats_scaled_sum(out, s->grads[0] + at, s->grads[1] + at, s->factor, n);
    for (int r = 2; r < s->n_grads; r++)
        ps_floats_add_scaled(out, s->grads[r] + at, s->factor, n);
    return out;
}

static bool aggregate_compensates(const ps_aggregate_step *s, int i)
{
    return s->compensations && s->compensations[i] != 0;
}

static bool has_factors(const ps_aggregate_step *s)
{
    for (int i = 0; s->factors && i < s->n_grads; i++)
        if (s->factors[i] != 1 || aggregate_compensates(s, i)) return true;
    return false;
}

static const float *compensated_block(const ps_aggregate *a, const ps_aggregate_step *s,
                                      int i, uint64_t at, uint64_t n,
                                      float scratch[BLOCK])
{
    if (!aggregate_compensates(s, i)) return s->grads[i] + at;
    ps_floats_compensate(scratch, s->grads[i] + at, a->weights + at, s->bases[i] + at,
                         s->compensations[i], n);
    return scratch;
}

static const float *weighted_sum_block(const ps_aggregate *a, float *out,
                                       const ps_aggregate_step *s, uint64_t at,
                                       uint64_t n)
{
    _Alignas(64) float scratch[BLOCK];
    memcpy(out, compensated_block(a, s, 0, at, n, scratch), n * sizeof *out);
    ps_floats_scale(out, s->factors[0], n);
    for (int r = 1; r < s->n_grads; r++)
        ps_floats_add_scaled(out, compensated_block(a, s, r, at, n, scratch),
                             s->factors[r], n);
    return out;
}

/* Of one gradient, which may be the sum of a host's. */
static const float *scaled_block(float *out, const ps_aggregate_step *s, uint64_t at,
                                 uint64_t n)
{
    memcpy(out, s->grads[0] + at, n * sizeof *out);
    ps_floats_scale(out, s->factor, n);
    return out;
}

/* Sums elements [at, at + n) in rank order into out. One gradient that is not scaled is
 * returned in place. */
static const float *aggregate_sum_block(const ps_aggregate *a, float *out,
                                        const ps_aggregate_step *s, uint64_t at,
                                        uint64_t n)
{
    if (has_factors(s)) return weighted_sum_block(a, out, s, at, n);
    if (s->n_grads == 1 && (s->summed || s->factor == 1)) return s->grads[0] + at;
    if (s->n_grads == 1) return scaled_block(out, s, at, n);
    if (s->factor != 1) return scaled_sum_block(out, s, at, n);
    ps_floats_sum(out, s->grads[0] + at, s->grads[1] + at, n);
    for (int r = 2; r < s->n_grads; r++)
        ps_floats_add(out, s->grads[r] + at, n);
    return out;
}

static bool aggregate_refuses(const ps_aggregate_step *s)
{
    return s->check && s->rule->refuses;
}

/* Names the rank whose gradient made the sum of a block not finite. */
static ps_err bad_sum(const ps_aggregate_step *s, const ps_segment *segment, uint64_t at,
                      uint64_t n)
{
    for (int r = 0; r < s->n_grads && !s->summed; r++)
        if (!ps_finite_all(s->grads[r] + at, n))
            return ps_step_rule_not_finite(s->ranks ? (int)s->ranks[r] : r,
                                           segment->tensor, s->step);
    return ps_step_rule_not_finite(s->summed ? PS_STEP_RULE_SUM : PS_STEP_RULE_OVERFLOW,
                                   segment->tensor, s->step);
}

ps_err ps_aggregate_check(const ps_aggregate *a, const float *grad, int rank,
                          uint64_t step)
{
    for (int i = 0; i < a->n_segments; i++)
        if (!ps_finite_all(grad + a->segments[i].offset, a->segments[i].count))
            return ps_step_rule_not_finite(rank, a->segments[i].tensor, step);
    return PS_OK;
}

static void aggregate_copy_out(float *to, const float *from, uint64_t n,
                               bool bypass_caches)
{
    if (bypass_caches)
        ps_nontemporal_copy(to, from, n);
    else
        memcpy(to, from, n * sizeof *from);
}

static void ask_for(const float *x, uint64_t n)
{
    for (uint64_t i = 0; i < n; i += LINE)
        __builtin_prefetch(x + i, 1);
}

/* Prefetches the next block. Gradients lie in other processes' memory, in scattered
 * pages: the processor's own prefetching starts again at every page, and there are up to
 * W + 3 streams. */
static void ask_ahead(const ps_aggregate *a, const ps_aggregate_step *s, uint64_t at)
{
    if (at + AHEAD >= a->count) return;
    uint64_t from = at + AHEAD, n = a->count - from < BLOCK ? a->count - from : BLOCK;
    for (int r = 0; r < s->n_grads; r++)
        for (uint64_t i = 0; i < n; i += LINE)
            __builtin_prefetch(s->grads[r] + from + i);
    ask_for(a->weights + from, n);
    for (int i = 0; i < s->rule->optimizer.n_states; i++)
        ask_for(a->states[i] + from, n);
}

/* Refuses a block of a run whose sum is not finite, and names the tensor. A gap between
 * tensors does not count. */
static ps_err check_block(const ps_aggregate *a, const ps_aggregate_step *s,
                          const float *sum, uint64_t at, uint64_t n)
{
    if (!aggregate_refuses(s) || ps_finite_all(sum, n)) return PS_OK;
    for (int i = 0; i < a->n_segments; i++) {
        const ps_segment *segment = &a->segments[i];
        const uint64_t end = segment->offset + segment->count;
        const uint64_t from = segment->offset > at ? segment->offset : at;
        const uint64_t to = end < at + n ? end : at + n;
        if (from < to && !ps_finite_all(sum + (from - at), to - from))
            return bad_sum(s, segment, from, to - from);
    }
    return PS_OK;
}

static ps_err apply_block(ps_aggregate *a, const ps_aggregate_step *s,
                          const ps_segment *run, const ps_optimizer_scalars *scalars,
                          uint64_t at, uint64_t n)
{
    _Alignas(64) float scratch[BLOCK];
    ask_ahead(a, s, at);
    const float *sum = aggregate_sum_block(a, scratch, s, at, n);
    PS_TRY(check_block(a, s, sum, at, n));
    float *states[PS_OPTIMIZER_MAX_STATES] = {0};
    for (int i = 0; i < s->rule->optimizer.n_states; i++)
        states[i] = a->states[i] + at;
    float *weights = a->weights + at;
    ps_optimizer_apply_by(&s->rule->optimizer, scalars, n, weights, sum, states);
    for (int i = 0; i < s->n_copies; i++)
        aggregate_copy_out(s->copies[i] + at, weights, n, s->bypass_caches);
    return PS_OK;
}

static ps_err sum_into(ps_aggregate *a, const ps_aggregate_step *s,
                       const ps_segment *segment, const ps_optimizer_scalars *scalars,
                       uint64_t at, uint64_t n)
{
    const float *sum = aggregate_sum_block(a, a->sum + at, s, at, n);
    if (aggregate_refuses(s) && !ps_finite_all(sum, n)) return bad_sum(s, segment, at, n);
    if (sum != a->sum + at) memcpy(a->sum + at, sum, n * sizeof *sum);
    return PS_OK;
}

typedef ps_err (*block_fn)(ps_aggregate *, const ps_aggregate_step *, const ps_segment *,
                           const ps_optimizer_scalars *, uint64_t, uint64_t);

/* segments: those of the aggregate, or its runs. */
static ps_err for_blocks(ps_aggregate *a, const ps_aggregate_step *s,
                         const ps_segment *segments, int n_segments, block_fn fn)
{
    for (int i = 0; i < n_segments; i++) {
        const ps_segment *segment = &segments[i];
        ps_optimizer_step now = s->now;
        now.t -= segment->absence.missed;
        const ps_optimizer_scalars scalars = ps_optimizer_scalars_in(
            &s->rule->optimizer, &now, segment->group, segment->weight_decay);
        uint64_t end = segment->offset + segment->count;
        for (uint64_t at = segment->offset; at < end; at += BLOCK)
            PS_TRY(fn(a, s, segment, &scalars, at, end - at < BLOCK ? end - at : BLOCK));
    }
    return PS_OK;
}

static bool any_has(const ps_aggregate_step *s, const ps_segment *segment)
{
    for (int r = 0; r < s->n_grads; r++)
        if (!ps_absent_at(s->grads[r] + segment->offset)) return true;
    return false;
}

void ps_aggregate_note_absent(ps_aggregate *a, const ps_aggregate_step *s)
{
    bool changed = false;
    for (int i = 0; i < a->n_segments && a->optional; i++) {
        ps_absence *absence = &a->segments[i].absence;
        const bool now = !any_has(s, &a->segments[i]);
        changed = changed || now != absence->now;
        absence->now = now;
    }
    if (changed) join_runs(a);
}

void ps_aggregate_show_absent(ps_aggregate *a)
{
    for (int i = 0; i < a->n_segments; i++)
        if (!a->segments[i].absence.now) ps_absent_not(a->sum + a->segments[i].offset);
}

void ps_aggregate_miss(ps_aggregate *a)
{
    for (int i = 0; i < a->n_segments; i++)
        a->segments[i].absence.missed++;
    for (int i = 0; i < a->n_runs; i++)
        a->runs[i].absence.missed++;
}

void ps_aggregate_sum_none(ps_aggregate *a)
{
    ps_absent_fill(a->sum, a->count);
    for (int i = 0; i < a->n_segments; i++)
        a->segments[i].absence.now = true;
    join_runs(a);
}

/* Those that have no gradient keep their weights. */
static void leave_absent(ps_aggregate *a, const ps_aggregate_step *s)
{
    for (int i = 0; i < a->n_segments && a->optional; i++) {
        ps_segment *segment = &a->segments[i];
        const uint64_t at = segment->offset;
        if (!segment->absence.now) continue;
        segment->absence.missed++;
        for (int k = 0; k < s->n_copies; k++)
            aggregate_copy_out(s->copies[k] + at, a->weights + at, segment->count,
                               s->bypass_caches);
    }
}

ps_err ps_aggregate_apply(ps_aggregate *a, const ps_aggregate_step *s)
{
    if (s->grads[0] != a->sum) ps_aggregate_note_absent(a, s);
    ps_err err = for_blocks(a, s, a->runs, a->n_runs, apply_block);
    if (err == PS_OK) leave_absent(a, s);
    if (s->bypass_caches) ps_nontemporal_copy_done();
    return err;
}

void ps_aggregate_copy(const ps_aggregate *a, const ps_aggregate_step *s)
{
    for (int i = 0; i < s->n_copies; i++)
        aggregate_copy_out(s->copies[i], a->weights, a->count, s->bypass_caches);
    if (s->bypass_caches) ps_nontemporal_copy_done();
}

ps_err ps_aggregate_sum(ps_aggregate *a, const ps_aggregate_step *s)
{
    ps_aggregate_note_absent(a, s);
    return for_blocks(a, s, a->segments, a->n_segments, sum_into);
}
