#include "reducer.h"

#include <stdlib.h>

#include "grad_norm.h"

/* ------------------------------------------------------------------------- create */

static ps_chunk *parts_of(const ps_reducer *r, int bucket)
{
    return r->parts + (size_t)bucket * (size_t)r->n_parts;
}

static const ps_chunk *own_part(const ps_reducer *r, int bucket)
{
    return parts_of(r, bucket) + r->own;
}

static ps_collective_parts *vote_array(const ps_reducer *r)
{
    return r->arrays + r->buckets.n;
}

static ps_collective_parts *param_array(const ps_reducer *r, int bucket)
{
    return vote_array(r) + (r->buckets.n - bucket);
}

/* The cuts of an array of the parameters, and of one of the norm's blocks. */
static void fill_cuts(const ps_reducer *r, int bucket, uint64_t *elements,
                      uint64_t *blocks)
{
    const ps_chunk *parts = parts_of(r, bucket);
    const ps_bucket *b = &r->buckets.list[bucket];
    const ps_chunk whole = {.offset = b->offset,
                            .count = b->count,
                            .first_tensor = b->first_tensor,
                            .last_tensor = b->first_tensor + b->n_tensors - 1};
    uint64_t n;
    elements[0] = b->offset;
    blocks[0] = ps_grad_norm_chunk_blocks(r->at->spec, &whole, &n);
    for (int p = 0; p < r->n_parts; p++) {
        (void)ps_grad_norm_chunk_blocks(r->at->spec, &parts[p], &n);
        elements[p + 1] = elements[p] + parts[p].count;
        blocks[p + 1] = blocks[p] + n;
    }
}

static void cut_arrays(ps_reducer *r)
{
    uint64_t *cuts = r->cuts;
    const int n_cuts = r->n_parts + 1;
    *vote_array(r) = (ps_collective_parts){r->votes, sizeof *r->votes, cuts};
    for (int p = 0; p < n_cuts; p++)
        cuts[p] = (uint64_t)p;
    for (int b = 0; b < r->buckets.n; b++) {
        uint64_t *elements = cuts += n_cuts, *blocks = cuts += n_cuts;
        ps_bucket_cut(r->at->spec, &r->buckets.list[b], r->n_parts, parts_of(r, b));
        fill_cuts(r, b, elements, blocks);
        r->arrays[b] = (ps_collective_parts){r->norm_sums, sizeof *r->norm_sums, blocks};
        *param_array(r, b) = (ps_collective_parts){r->stream->ops->params(r->stream),
                                                   sizeof(float), elements};
    }
}

static ps_err alloc(ps_reducer *r)
{
    const ps_config *cfg = r->at->config;
    uint64_t bytes = (uint64_t)cfg->exchange.bucket;
    uint64_t first = bytes < PS_BUCKET_FIRST_BYTES ? bytes : PS_BUCKET_FIRST_BYTES;
    PS_TRY(ps_buckets_init(&r->buckets, r->at->spec, first, bytes));
    size_t n = (size_t)r->buckets.n, parts = (size_t)r->n_parts;
    PS_TRY(ps_mem_zalloc(&r->parts, n * parts, sizeof *r->parts, "buckets"));
    PS_TRY(ps_mem_zalloc(&r->votes, parts, sizeof *r->votes, "buckets"));
    PS_TRY(ps_mem_zalloc(&r->arrays, 2 * n + 1, sizeof *r->arrays, "buckets"));
    PS_TRY(ps_mem_zalloc(&r->cuts, (2 * n + 1) * (parts + 1), sizeof *r->cuts, "cuts"));
    if (r->rule.clip_norm <= 0) return PS_OK;
    return ps_mem_zalloc(&r->norm_sums, ps_grad_norm_blocks(r->at->spec),
                         sizeof *r->norm_sums, "norm");
}

ps_err ps_reducer_init(ps_reducer *r, const ps_exchange_options *at,
                       ps_device_stream *stream, ps_collective *collective)
{
    *r = (ps_reducer){.at = at, .stream = stream, .collective = collective};
    bool scatters = collective->ops->reduce_scatter != NULL;
    r->n_parts = scatters ? at->world_size : 1;
    r->own = scatters ? at->rank : 0;
    r->queues = collective->ops->settle && stream->ops->step;
    r->rule = *at->rule;
    r->waits = ps_step_rule_waits(&r->rule);
    r->on_stream = ps_stream_step_of(&r->rule, stream);
    PS_TRY(alloc(r));
    cut_arrays(r);
    return PS_OK;
}

void ps_reducer_fini(ps_reducer *r)
{
    ps_buckets_fini(&r->buckets);
    free(r->parts);
    free(r->votes);
    free(r->arrays);
    free(r->cuts);
    free(r->norm_sums);
    *r = (ps_reducer){0};
}

/* ------------------------------------------------------------------------- a step */

static ps_err sum(ps_reducer *r, int bucket)
{
    const ps_collective_ops *ops = r->collective->ops;
    const ps_bucket *b = &r->buckets.list[bucket];
    float *grads = r->stream->ops->grads(r->stream);
    if (ops->all_reduce)
        return ops->all_reduce(r->collective, grads + b->offset, b->count);
    return ops->reduce_scatter(r->collective, grads, param_array(r, bucket)->cuts);
}

/* The arrays' parts of all ranks. */
static ps_err gather(ps_reducer *r, const ps_collective_parts *arrays, int n)
{
    if (r->n_parts == 1) return PS_OK;
    return r->collective->ops->all_gather(r->collective, arrays, n);
}

/* Votes for the last of the part's tensors that is not finite. */
static ps_err find_bad_tensor(ps_reducer *r, const ps_chunk *part)
{
    const ps_device_stream_ops *ops = r->stream->ops;
    for (int i = part->last_tensor; i >= part->first_tensor; i--) {
        const ps_tensor *t = &r->at->spec->tensors[i];
        uint64_t begin, end;
        bool finite;
        ps_chunk_overlap(part, t, &begin, &end);
        PS_TRY(ops->check_finite(r->stream, t->offset + begin, end - begin, &finite));
        if (finite) continue;
        r->votes[r->own] = (uint32_t)i + 1;
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
    return finite || r->votes[r->own] ? PS_OK : find_bad_tensor(r, part);
}

/* The gathered votes of a step, for a new start: the tensor that was met first in the
 * backward pass, + 1; 0: none. */
static uint32_t count_votes(ps_reducer *r)
{
    uint32_t bad = 0;
    for (int p = 0; p < r->n_parts; p++)
        if (r->votes[p] > bad) bad = r->votes[p];
    r->votes[r->own] = 0;
    return bad;
}

static ps_err nan_error(const ps_reducer *r, uint32_t vote, uint64_t step)
{
    return ps_step_rule_not_finite(PS_STEP_RULE_SUM, r->at->spec->tensors[vote - 1].name,
                                   step);
}

static ps_err apply(ps_reducer *r, int bucket, uint64_t step, double grad_scale)
{
    const ps_optimizer_step now = ps_step_rule_optimizer_step(&r->rule, step, grad_scale);
    return r->stream->ops->apply(r->stream, &now, own_part(r, bucket));
}

/* A bucket that waits for no other. */
static ps_err step_bucket(ps_reducer *r, int bucket, uint64_t step)
{
    bool last = bucket == r->buckets.n - 1;
    if (!r->votes[r->own]) PS_TRY(apply(r, bucket, step, 1));
    PS_TRY(gather(r, param_array(r, bucket) - last, 1 + last)); // the votes, too
    uint32_t bad = last ? count_votes(r) : 0;
    return bad ? nan_error(r, bad, step) : PS_OK;
}

static ps_err own_norm_sums(ps_reducer *r)
{
    for (int b = 0; b < r->buckets.n && r->norm_sums; b++)
        PS_TRY(r->stream->ops->norm_sums(r->stream, own_part(r, b),
                                         r->norm_sums + r->arrays[b].cuts[r->own]));
    return PS_OK;
}

/* Votes, and norms with clipping. */
static ps_err agree(ps_reducer *r)
{
    int norms = r->norm_sums ? r->buckets.n : 0;
    return gather(r, vote_array(r) - norms, norms + 1);
}

static double total_norm(const ps_reducer *r)
{
    return r->norm_sums
               ? ps_grad_norm_total(r->norm_sums, ps_grad_norm_blocks(r->at->spec))
               : 0;
}

/* All buckets of a step that waited for its last one. */
static ps_err step_all(ps_reducer *r, uint64_t step)
{
    ps_step_decision decision;
    PS_TRY(own_norm_sums(r));
    PS_TRY(agree(r));
    uint32_t bad = count_votes(r);
    if (bad && r->rule.refuses) return nan_error(r, bad, step);
    PS_TRY(ps_step_rule_decide(&r->rule, !bad, total_norm(r), &decision));
    if (!decision.make) return PS_OK;
    for (int b = 0; b < r->buckets.n; b++)
        PS_TRY(apply(r, b, step, decision.grad_scale));
    return gather(r, param_array(r, r->buckets.n - 1), r->buckets.n);
}

ps_err ps_reducer_settle(ps_reducer *r, bool wait, bool *done)
{
    uint64_t t;
    int tensor;
    *done = true;
    if (!r->queues) return PS_OK;
    PS_TRY(r->collective->ops->settle(r->collective, wait, done));
    if (!*done) return PS_OK;
    // what is left of the step waits for nobody else
    PS_TRY(ps_stream_step_learn(&r->on_stream));
    PS_TRY(ps_stream_step_refused(&r->on_stream, true, &t, &tensor));
    return t ? nan_error(r, (uint32_t)tensor + 1, t - 1) : PS_OK;
}

/* With loss scaling the step's outcome is wanted for the next one. */
static ps_err queue_bucket(ps_reducer *r, int bucket, uint64_t step, uint64_t *applied)
{
    bool done;
    PS_TRY(sum(r, bucket));
    if (bucket < r->buckets.n - 1) return PS_OK;
    PS_TRY(ps_stream_step_queue(&r->on_stream, step));
    *applied = (uint64_t)r->buckets.n;
    return r->rule.scale.on ? ps_reducer_settle(r, true, &done) : PS_OK;
}

ps_err ps_reducer_reduce(ps_reducer *r, int bucket, uint64_t step, uint64_t *applied)
{
    bool last = bucket == r->buckets.n - 1;
    *applied = 0;
    PS_TRY(r->stream->ops->wait_compute(r->stream));
    if (r->queues) return queue_bucket(r, bucket, step, applied);
    PS_TRY(sum(r, bucket));
    PS_TRY(look_at(r, own_part(r, bucket)));
    if (!r->waits) {
        PS_TRY(step_bucket(r, bucket, step));
        *applied = 1;
    } else if (last) {
        PS_TRY(step_all(r, step));
        *applied = (uint64_t)r->buckets.n;
    }
    return *applied ? r->stream->ops->release_compute(r->stream) : PS_OK;
}
