#include "reducer.h"

#include <stdlib.h>
#include <string.h>

#include "gradnorm.h"
#include "lamb.h"
#include "rank_pieces.h"

/* ------------------------------------------------------------------------- create */

static int n_parts(const ps_reducer *r)
{
    return r->scatter.n_ranks;
}

static const ps_chunk *own_part(const ps_reducer *r, int bucket)
{
    return ps_scatter_part(&r->scatter, bucket, r->own);
}

static int n_arrays(const ps_reducer *r)
{
    return 1 + r->n_sums * r->buckets.n;
}

/* Index of the array of the sums of a bucket's blocks; 0 is notes. */
static int sums_array(const ps_reducer *r, int kind, int bucket)
{
    return 1 + kind * r->buckets.n + bucket;
}

static uint64_t *cuts_of(const ps_reducer *r, int array)
{
    return r->cuts + (size_t)array * (size_t)(n_parts(r) + 1);
}

/* One element for each part. */
static void cut_notes(ps_reducer *r)
{
    uint64_t *cuts = cuts_of(r, 0);
    for (int p = 0; p <= n_parts(r); p++)
        cuts[p] = (uint64_t)p;
    r->arrays[0] = (ps_collective_parts){
        .base = r->notes, .element_bytes = sizeof *r->notes, .cuts = cuts};
}

/* The parts of the bucket follow each other, and so do their blocks, from the block where
 * the bucket's first tensor begins. */
static void cut_sums_array(ps_reducer *r, int kind, int bucket)
{
    const int array = sums_array(r, kind, bucket);
    uint64_t *cuts = cuts_of(r, array), n;
    cuts[0] =
        ps_gradnorm_tensor_block(r->at->table, r->buckets.list[bucket].first_tensor);
    for (int p = 0; p < n_parts(r); p++) {
        const ps_chunk *part = ps_scatter_part(&r->scatter, bucket, p);
        (void)ps_gradnorm_chunk_blocks(r->at->table, part, &n);
        cuts[p + 1] = cuts[p] + n;
    }
    r->arrays[array] = (ps_collective_parts){
        .base = r->sums[kind], .element_bytes = sizeof *r->sums[kind], .cuts = cuts};
}

static ps_err alloc_sums(ps_reducer *r)
{
    const uint64_t blocks = ps_gradnorm_blocks(r->at->table);
    if (r->rule.clip_norm > 0) {
        PS_TRY(PS_NEW(&r->gradnorm_sums, blocks, "norm"));
        r->sums[r->n_sums++] = r->gradnorm_sums;
    }
    if (!ps_lamb_on(&r->rule.optimizer) || r->queues) return PS_OK;
    PS_TRY(ps_stream_step_lamb(r->stream));
    PS_TRY(PS_NEW(&r->lamb_sums, ps_lamb_sums(r->at->table), "norms"));
    r->sums[r->n_sums++] = r->lamb_sums;
    r->sums[r->n_sums++] = r->lamb_sums + blocks;
    return PS_OK;
}

static ps_err reducer_alloc_arrays(ps_reducer *r)
{
    const size_t parts = (size_t)n_parts(r);
    PS_TRY(alloc_sums(r));
    const size_t n = (size_t)n_arrays(r);
    PS_TRY(PS_NEW(&r->notes, parts, "notes of a step"));
    PS_TRY(PS_NEW(&r->arrays, n, "arrays"));
    return PS_NEW(&r->cuts, n * (parts + 1), "cuts");
}

static ps_err reducer_lay_out(ps_reducer *r)
{
    const ps_collective_layout layout = {
        .scatter = &r->scatter,
        .grads = r->stream->grads,
        .params = r->stream->params,
        .arrays = r->arrays,
        .n_arrays = n_arrays(r),
    };
    return r->collective->ops->lay_out(r->collective, &layout);
}

ps_err ps_reducer_init(ps_reducer *r, const ps_exchange_options *at,
                       ps_device_stream *stream, ps_collective *collective)
{
    *r = (ps_reducer){.at = at, .stream = stream, .collective = collective};
    const ps_collective_ops *ops = collective->ops;
    const bool scatters = ops->lay_out != NULL;
    const uint64_t bytes = at->settings.bucket;
    const uint64_t first = bytes < PS_BUCKET_FIRST_BYTES ? bytes : PS_BUCKET_FIRST_BYTES;
    r->own = scatters ? at->rank : 0;
    r->queues = ops->complete && stream->ops->step;
    r->rule = *at->rule;
    r->waits = ps_step_rule_waits(&r->rule);
    r->on_stream = ps_stream_step_of(&r->rule, stream);
    PS_TRY(ps_buckets_init(&r->buckets, at->table, first, bytes));
    PS_TRY(ps_scatter_init(&r->scatter, at->table, &r->buckets,
                           scatters ? at->world_size : 1,
                           scatters ? collective->segment : UINT64_MAX));
    PS_TRY(reducer_alloc_arrays(r));
    cut_notes(r);
    for (int i = 0; i < n_arrays(r) - 1; i++)
        cut_sums_array(r, i / r->buckets.n, i % r->buckets.n);
    return scatters ? reducer_lay_out(r) : PS_OK;
}

void ps_reducer_fini(ps_reducer *r)
{
    ps_buckets_fini(&r->buckets);
    ps_scatter_fini(&r->scatter);
    free(r->notes);
    free(r->arrays);
    free(r->cuts);
    free(r->gradnorm_sums);
    free(r->lamb_sums);
    *r = (ps_reducer){0};
}

/* ------------------------------------------------------------------------- a step */

static ps_err reducer_sum(ps_reducer *r, int bucket, uint64_t segment)
{
    const ps_collective_ops *ops = r->collective->ops;
    const ps_bucket *b = &r->buckets.list[bucket];
    if (ops->sum) return ops->sum(r->collective, bucket, segment);
    return ops->all_reduce(r->collective, r->stream->grads + b->offset, b->count);
}

/* Gathers all ranks' parts of the arrays. */
static ps_err gather_arrays(ps_reducer *r)
{
    if (n_parts(r) == 1) return PS_OK;
    return r->collective->ops->all_gather(r->collective);
}

/* Notes the last of the part's tensors that is not finite. */
static ps_err reducer_find_bad_tensor(ps_reducer *r, const ps_chunk *part)
{
    const ps_device_stream_ops *ops = r->stream->ops;
    for (int i = part->last_tensor; i >= part->first_tensor; i--) {
        const ps_tensor *t = &r->at->table->tensors[i];
        uint64_t begin, end;
        bool finite;
        ps_chunk_overlap(part, t, &begin, &end);
        PS_TRY(ops->check_finite(r->stream, t->offset + begin, end - begin, &finite));
        if (finite) continue;
        r->notes[r->own].bad_tensor = (uint32_t)i + 1;
        return PS_OK;
    }
    return ps_err_set(PS_ERR_INTERNAL, "a gradient that is not finite was not found");
}

/* With loss scaling an overflow is no error, but keeps the whole step from being made. */
static ps_err look_at(ps_reducer *r, const ps_chunk *part)
{
    const ps_device_stream_ops *ops = r->stream->ops;
    bool finite = true;
    if (r->rule.scale.on)
        PS_TRY(ops->unscale(r->stream, part->offset, part->count,
                            ps_loss_scale_inverse(&r->rule.scale), &finite));
    else if (r->rule.refuses)
        PS_TRY(ops->check_finite(r->stream, part->offset, part->count, &finite));
    // the first bucket with such a gradient is the one that is named
    return finite || r->notes[r->own].bad_tensor ? PS_OK
                                                 : reducer_find_bad_tensor(r, part);
}

/* Of the bad tensors gathered for a step, the first in the backward pass, + 1; 0: none.
 * Clears the rank's own. */
static uint32_t take_bad_tensor(ps_reducer *r)
{
    uint32_t bad = 0;
    for (int p = 0; p < n_parts(r); p++)
        if (r->notes[p].bad_tensor > bad) bad = r->notes[p].bad_tensor;
    r->notes[r->own].bad_tensor = 0;
    return bad;
}

static ps_err nan_error(const ps_reducer *r, int tensor, uint64_t step)
{
    return ps_step_rule_not_finite(PS_STEP_RULE_SUM, r->at->table->tensors[tensor].name,
                                   step);
}

/* Makes the optimizer's step of one of the rank's own segments and shares its weights. */
static ps_err reducer_apply(ps_reducer *r, int bucket, uint64_t i, uint64_t step,
                            double grad_scale)
{
    const ps_collective_ops *ops = r->collective->ops;
    const ps_chunk segment = ps_scatter_segment(&r->scatter, bucket, r->own, i);
    const ps_optimizer_step now = ps_step_rule_optimizer_step(&r->rule, step, grad_scale);
    if (r->lamb_sums)
        PS_TRY(r->stream->ops->lamb_apply(r->stream, &now, &segment, r->lamb_sums));
    else if (!r->notes[r->own].bad_tensor)
        PS_TRY(r->stream->ops->apply(r->stream, &now, &segment));
    return ops->share ? ops->share(r->collective, bucket, i) : PS_OK;
}

static ps_err reduce_segment(ps_reducer *r, int bucket, uint64_t i, uint64_t step)
{
    PS_TRY(reducer_sum(r, bucket, i));
    const ps_chunk segment = ps_scatter_segment(&r->scatter, bucket, r->own, i);
    if (r->at->table->optional) PS_TRY(r->stream->ops->note_absent(r->stream, &segment));
    PS_TRY(look_at(r, &segment));
    return r->waits ? PS_OK : reducer_apply(r, bucket, i, step, 1);
}

static ps_err own_norm_sums(ps_reducer *r)
{
    for (int b = 0; b < r->buckets.n && r->gradnorm_sums; b++)
        PS_TRY(r->stream->ops->gradnorm_sums(
            r->stream, own_part(r, b),
            r->gradnorm_sums + cuts_of(r, sums_array(r, 0, b))[r->own]));
    return PS_OK;
}

static double total_norm(const ps_reducer *r)
{
    return r->gradnorm_sums
               ? ps_gradnorm_total(r->gradnorm_sums, ps_gradnorm_blocks(r->at->table))
               : 0;
}

/* Applies all buckets of a step that waited for its last one. */
static ps_err apply_all(ps_reducer *r, uint64_t step, double grad_scale)
{
    for (int b = r->buckets.n - 1; b >= 0; b--) {
        const uint64_t n = ps_scatter_segments(&r->scatter, b, r->own);
        for (uint64_t i = 0; i < n; i++)
            PS_TRY(reducer_apply(r, b, i, step, grad_scale));
    }
    return PS_OK;
}

/* LAMB's first pass over the rank's own parts. */
static ps_err reducer_make_updates(ps_reducer *r, uint64_t step, double grad_scale)
{
    const ps_optimizer_step now = ps_step_rule_optimizer_step(&r->rule, step, grad_scale);
    const int updates = r->n_sums - 1, weights = updates - 1;
    for (int b = 0; b < r->buckets.n; b++) {
        const uint64_t first = cuts_of(r, sums_array(r, weights, b))[r->own];
        PS_TRY(r->stream->ops->lamb_update(r->stream, &now, own_part(r, b),
                                           r->sums[weights] + first,
                                           r->sums[updates] + first));
    }
    return gather_arrays(r);
}

void ps_reducer_set_step_of(ps_reducer *r, uint64_t step, uint32_t step_of)
{
    atomic_store(&r->steps_of[step % 2], step_of);
}

/* Once the notes are gathered. */
static ps_err reducer_check_step_of(const ps_reducer *r, uint64_t step)
{
    for (int p = 1; p < n_parts(r); p++) {
        const uint32_t ranks[] = {0, (uint32_t)p};
        const uint32_t steps_of[] = {r->notes[0].step_of, r->notes[p].step_of};
        if (steps_of[0] != steps_of[1])
            return ps_step_of_differs(PS_ERR_PEER, r->at->table, step, ranks, steps_of);
    }
    return PS_OK;
}

/* After the last bucket: gathers what all ranks must know, and applies what waited for
 * it. */
static ps_err reducer_end_step(ps_reducer *r, uint64_t step)
{
    ps_step_decision decision;
    PS_TRY(own_norm_sums(r));
    r->notes[r->own].step_of = atomic_load(&r->steps_of[step % 2]);
    PS_TRY(gather_arrays(r));
    PS_TRY(reducer_check_step_of(r, step));
    const uint32_t bad = take_bad_tensor(r);
    if (bad && r->rule.refuses) return nan_error(r, (int)bad - 1, step);
    PS_TRY(ps_step_rule_decide(&r->rule, !bad, total_norm(r), &decision));
    r->made = decision.make;
    if (!r->waits || !r->made) return PS_OK;
    if (r->lamb_sums) PS_TRY(reducer_make_updates(r, step, decision.grad_scale));
    return apply_all(r, step, decision.grad_scale);
}

ps_err ps_reducer_complete(ps_reducer *r, bool wait, bool *done)
{
    uint64_t t;
    int tensor;
    *done = true;
    if (!r->queues) return PS_OK;
    PS_TRY(r->collective->ops->complete(r->collective, wait, done));
    if (!*done) return PS_OK;
    // what is left of the step waits for nobody else
    PS_TRY(ps_stream_step_learn(&r->on_stream));
    PS_TRY(ps_stream_step_refused(&r->on_stream, true, &t, &tensor));
    return t ? nan_error(r, tensor, t - 1) : PS_OK;
}

/* With loss scaling the next step needs the outcome of this one. */
static ps_err queue_bucket(ps_reducer *r, int bucket, uint64_t step, bool *applied)
{
    bool done;
    PS_TRY(reducer_sum(r, bucket, 0));
    *applied = bucket == r->buckets.n - 1;
    if (!*applied) return PS_OK;
    PS_TRY(ps_stream_step_queue(&r->on_stream, step));
    return r->rule.scale.on ? ps_reducer_complete(r, true, &done) : PS_OK;
}

ps_err ps_reducer_reduce(ps_reducer *r, int bucket, uint64_t step, bool *applied)
{
    const uint64_t n = ps_scatter_segments(&r->scatter, bucket, r->own);
    *applied = false;
    PS_TRY(r->stream->ops->wait_compute(r->stream));
    if (r->queues) return queue_bucket(r, bucket, step, applied);
    for (uint64_t i = 0; i < n; i++)
        PS_TRY(reduce_segment(r, bucket, i, step));
    *applied = bucket == r->buckets.n - 1;
    if (!*applied) return PS_OK;
    PS_TRY(reducer_end_step(r, step));
    return r->stream->ops->release_compute(r->stream);
}

ps_err ps_reducer_gather(ps_reducer *r, int bucket)
{
    const ps_collective_ops *ops = r->collective->ops;
    return ops->gather && r->made ? ops->gather(r->collective, bucket) : PS_OK;
}

/* ---- saving and loading ---- */

/* The parts of each rank, one after another. */
typedef struct packed {
    size_t *bytes; // by rank, of one state
    void **memory; // by rank; those that this rank has
    int holder;    // gets the parts of all, as rank 0 does; 0: none
} packed;

/* Whether the rank gets the parts of all. */
static bool reducer_gathers(const ps_reducer *r, int holder)
{
    return r->at->rank == 0 || (holder && r->at->rank == holder);
}

static int reducer_part_of(const ps_reducer *r, int rank)
{
    return r->scatter.n_ranks > 1 ? rank : 0;
}

static size_t part_bytes(const ps_reducer *r, int rank)
{
    return ps_scatter_before(&r->scatter, r->buckets.n, reducer_part_of(r, rank)) *
           sizeof(float);
}

static ps_err packed_init(packed *p, const ps_reducer *r)
{
    const size_t n = (size_t)r->at->world_size;
    PS_TRY(PS_NEW(&p->bytes, n, "a checkpoint's parts"));
    PS_TRY(PS_NEW(&p->memory, n, "a checkpoint's parts"));
    for (int rank = 0; rank < r->at->world_size; rank++) {
        p->bytes[rank] = part_bytes(r, rank);
        if (reducer_gathers(r, p->holder) || r->at->rank == rank)
            PS_TRY(ps_mem_zalloc(&p->memory[rank], p->bytes[rank], 1,
                                 "a checkpoint's parts"));
    }
    return PS_OK;
}

static void packed_fini(packed *p, const ps_reducer *r)
{
    for (int rank = 0; p->memory && rank < r->at->world_size; rank++)
        free(p->memory[rank]);
    free(p->memory);
    free(p->bytes);
}

static ps_rank_pieces reducer_pieces_of(const packed *p, const ps_reducer *r)
{
    return (ps_rank_pieces){.member = r->at->member,
                            .rank = r->at->rank,
                            .world_size = r->at->world_size,
                            .holder = p->holder,
                            .timeout_ms = r->at->settings.step_timeout_ms,
                            .bytes = p->bytes,
                            .memory = p->memory};
}

/* What is done with the part [offset, offset + count) of the arena, packed at `at`. */
typedef ps_err (*part_fn)(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                          float *at, float *arena);

static ps_err for_parts(const ps_reducer *r, const packed *p, int rank, int state,
                        part_fn fn, float *arena)
{
    float *at = p->memory[rank];
    for (int b = 0; b < r->buckets.n; b++) {
        const ps_chunk *part = ps_scatter_part(&r->scatter, b, reducer_part_of(r, rank));
        PS_TRY(fn(r, state, part->offset, part->count, at, arena));
        at += part->count;
    }
    return PS_OK;
}

static ps_err from_stream(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                          float *at, float *arena)
{
    return r->stream->ops->save_state(r->stream, state, offset, count, at);
}

static ps_err to_stream(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                        float *at, float *arena)
{
    return r->stream->ops->load_state(r->stream, state, offset, count, at);
}

static ps_err to_arena(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                       float *at, float *arena)
{
    memcpy(arena + offset, at, count * sizeof *at);
    return PS_OK;
}

static ps_err from_arena(const ps_reducer *r, int state, uint64_t offset, uint64_t count,
                         float *at, float *arena)
{
    memcpy(at, arena + offset, count * sizeof *at);
    return PS_OK;
}

/* The arena and all that is packed, where both are. */
static ps_err for_all(const ps_reducer *r, const packed *p, part_fn fn, float *arena)
{
    for (int rank = 0; rank < r->at->world_size && reducer_gathers(r, p->holder); rank++)
        PS_TRY(for_parts(r, p, rank, 0, fn, arena));
    return PS_OK;
}

static ps_err save_state(const ps_reducer *r, const packed *p, int state, float *arena)
{
    const ps_rank_pieces pieces = reducer_pieces_of(p, r);
    const bool whole = r->scatter.n_ranks == 1; // then all ranks have the same
    if (whole && !reducer_gathers(r, p->holder)) return PS_OK;
    PS_TRY(for_parts(r, p, r->at->rank, state, from_stream, NULL));
    if (whole) return for_parts(r, p, r->at->rank, state, to_arena, arena);
    PS_TRY(ps_rank_pieces_gather(&pieces));
    return for_all(r, p, to_arena, arena);
}

static ps_err load_state(const ps_reducer *r, const packed *p, int state, float *arena)
{
    const ps_rank_pieces pieces = reducer_pieces_of(p, r);
    PS_TRY(for_all(r, p, from_arena, arena));
    PS_TRY(ps_rank_pieces_scatter(&pieces));
    return for_parts(r, p, r->at->rank, state, to_stream, NULL);
}

static ps_err for_states(ps_reducer *r, const ps_exchange_state *s, int holder,
                         ps_err (*fn)(const ps_reducer *, const packed *, int, float *))
{
    packed p = {.holder = holder};
    ps_err err = packed_init(&p, r);
    for (int i = 0; i < r->rule.optimizer.n_states && err == PS_OK; i++)
        err = fn(r, &p, i, s->states[i]);
    if (err == PS_OK && r->at->table->optional)
        err = fn(r, &p, PS_STREAM_MISSED, s->missed);
    packed_fini(&p, r);
    return err;
}

ps_err ps_reducer_save(ps_reducer *r, ps_exchange_state *out)
{
    PS_TRY(for_states(r, out, out->holder, save_state));
    return ps_step_rule_save(&r->rule, out->rule, &out->rule_bytes);
}

ps_err ps_reducer_load(ps_reducer *r, const ps_exchange_state *in)
{
    return for_states(r, in, 0, load_state);
}
