#include "cuda_stream.h"

#include <stdlib.h>

#include "gradnorm.h"
#include "lamb.h"
#include "mem.h"

static const char who[] = "the exchange";

typedef struct cuda_stream {
    ps_device_stream base;
    ps_gpu *gpu;
    ps_host_stream_options at;
    ps_cuda_resident resident;
    const ps_cuda_resident **registered; // the device's pointer to resident
    float *states[PS_OPTIMIZER_MAX_STATES];
    char *buffers;
    uint32_t *starts;                 // (n_tensors), on the GPU
    uint8_t *groups;                  // (n_tensors), on the GPU
    ps_sums *bad;                     // a check's partial counts, on the GPU
    ps_sums *bad_home;                // their pinned copy on the host
    double *lanes, *sums, *sums_home; // sums of the gradient norm's blocks
    ps_gradnorm_range *ranges;        // these blocks, on the GPU
    uint32_t n_blocks;
    uint32_t *block_starts; // (n_tensors + 1), on the GPU; like ratios, of LAMB
    float *ratios;          // (n_tensors), on the GPU
    ps_verdict *verdict, *verdict_home; // on the GPU; its pinned copy on the host
    ps_gpu_event *marked, *waited, *told;
    bool untold; // the copy of the last verdict is not queued yet
    bool params_pinned;
    float *anchor;                     // of the policy local, on the GPU; else NULL
    float *anchor_home, *changes_home; // borrowed
    bool anchor_pinned, changes_pinned;
} cuda_stream;

static cuda_stream *cuda_stream_of(ps_device_stream *s)
{
    return (cuda_stream *)s;
}

static ps_err wait_queue(cuda_stream *s)
{
    PS_TRY(ps_gpu_record(s->gpu, s->waited, PS_GPU_EXCHANGE));
    return ps_gpu_sync(s->gpu, s->waited, who);
}

static ps_err stream_from_host(ps_device_stream *base, unsigned arenas)
{
    cuda_stream *s = cuda_stream_of(base);
    const ps_tensor_table *table = s->at.table;
    PS_TRY(ps_gpu_enter(s->gpu));
    if (arenas & PS_STREAM_PARAMS) {
        PS_TRY(ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->resident.params, s->at.params,
                              table->arena_count * sizeof(float), who));
        PS_TRY(ps_gpu_record(s->gpu, s->resident.released, PS_GPU_EXCHANGE));
    }
    if (arenas & PS_STREAM_BUFFERS && table->buffer_bytes > 0)
        PS_TRY(ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->buffers, s->at.buffers,
                              table->buffer_bytes, who));
    return wait_queue(s);
}

static ps_err stream_to_host(ps_device_stream *base, unsigned arenas)
{
    cuda_stream *s = cuda_stream_of(base);
    const ps_tensor_table *table = s->at.table;
    PS_TRY(ps_gpu_enter(s->gpu));
    if (arenas & PS_STREAM_PARAMS)
        PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->at.params, s->resident.params,
                               table->arena_count * sizeof(float), who));
    if (arenas & PS_STREAM_BUFFERS && table->buffer_bytes > 0)
        PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->at.buffers, s->buffers,
                               table->buffer_bytes, who));
    return wait_queue(s);
}

static ps_err stream_save_state(ps_device_stream *base, int i, uint64_t offset,
                                uint64_t count, float *out)
{
    cuda_stream *s = cuda_stream_of(base);
    if (count == 0) return PS_OK;
    PS_TRY(ps_gpu_enter(s->gpu));
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, out, s->states[i] + offset,
                           count * sizeof *out, who));
    return wait_queue(s);
}

static ps_err stream_load_state(ps_device_stream *base, int i, uint64_t offset,
                                uint64_t count, const float *from)
{
    cuda_stream *s = cuda_stream_of(base);
    if (count == 0) return PS_OK;
    PS_TRY(ps_gpu_enter(s->gpu));
    PS_TRY(ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->states[i] + offset, from,
                          count * sizeof *from, who));
    return wait_queue(s);
}

static ps_err stream_wait_compute(ps_device_stream *base)
{
    cuda_stream *s = cuda_stream_of(base);
    PS_TRY(ps_gpu_enter(s->gpu)); // each thread's first call
    return ps_gpu_await(s->gpu, PS_GPU_EXCHANGE, s->resident.announced);
}

static ps_err cuda_stream_tell(cuda_stream *s)
{
    if (!s->untold) return PS_OK;
    s->untold = false;
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->verdict_home, s->verdict,
                           sizeof *s->verdict, who));
    return ps_gpu_record(s->gpu, s->told, PS_GPU_EXCHANGE);
}

/* Passes do not wait for the verdict's copy to the host. */
static ps_err stream_release_compute(ps_device_stream *base)
{
    PS_TRY(ps_gpu_record(cuda_stream_of(base)->gpu,
                         cuda_stream_of(base)->resident.released, PS_GPU_EXCHANGE));
    return cuda_stream_tell(cuda_stream_of(base));
}

static ps_err stream_mark(ps_device_stream *base)
{
    return ps_gpu_record(cuda_stream_of(base)->gpu, cuda_stream_of(base)->marked,
                         PS_GPU_EXCHANGE);
}

static ps_err stream_done(ps_device_stream *base, bool *done)
{
    return ps_gpu_passed(cuda_stream_of(base)->gpu, cuda_stream_of(base)->marked, who,
                         done);
}

static uint64_t cuda_stream_blocks_of(const ps_tensor *t)
{
    return (t->count + PS_GRADNORM_BLOCK - 1) / PS_GRADNORM_BLOCK;
}

static int64_t cuda_stream_parts_of(uint64_t count)
{
    return (int64_t)((count + PS_BAD_PART - 1) / PS_BAD_PART);
}

static ps_err stream_check_finite(ps_device_stream *base, uint64_t offset, uint64_t count,
                                  bool *finite)
{
    cuda_stream *s = cuda_stream_of(base);
    int64_t parts = cuda_stream_parts_of(count);
    *finite = true;
    if (count == 0) return PS_OK;
    PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, bad_values, parts, who,
                        .x = s->resident.grads + offset, .parts = s->bad,
                        .n = (uint32_t)count));
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->bad_home, s->bad,
                           (size_t)parts * sizeof *s->bad, who));
    PS_TRY(wait_queue(s));
    for (int64_t i = 0; i < parts; i++)
        *finite = *finite && s->bad_home[i].a == 0.0;
    return PS_OK;
}

static ps_err stream_unscale(ps_device_stream *base, uint64_t offset, uint64_t count,
                             float factor, bool *finite)
{
    cuda_stream *s = cuda_stream_of(base);
    if (count > 0)
        PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, unscale, (int64_t)count, who,
                            .x = s->resident.grads + offset, .factor = factor));
    return stream_check_finite(base, offset, count, finite);
}

/* Queues the sums of squares of x's blocks [first, first + n). x: an arena. */
static ps_err queue_sums(cuda_stream *s, const float *x, uint64_t first, uint64_t n,
                         double *sums)
{
    PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, gradnorm_lane,
                        (int64_t)n * PS_GRADNORM_LANES, who, .x = x,
                        .ranges = s->ranges + first, .lanes = s->lanes));
    return PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, gradnorm_block, (int64_t)n, who,
                        .lanes = s->lanes, .sums = sums);
}

static ps_err queue_norm(cuda_stream *s, uint64_t first, uint64_t n)
{
    return queue_sums(s, s->resident.grads, first, n, s->sums);
}

static ps_err stream_norm_sums(ps_device_stream *base, const ps_chunk *chunk,
                               double *sums)
{
    cuda_stream *s = cuda_stream_of(base);
    uint64_t n, first = ps_gradnorm_chunk_blocks(s->at.table, chunk, &n);
    PS_TRY(queue_norm(s, first, n));
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->sums_home, s->sums,
                           n * sizeof *sums, who));
    PS_TRY(wait_queue(s));
    for (size_t i = 0; i < n; i++)
        sums[i] = s->sums_home[i];
    return PS_OK;
}

/* For the tensors of a group, from element `first` on. */
static ps_k_optimizer arguments_of(cuda_stream *s, const ps_optimizer_step *step,
                                   int group, const ps_verdict *verdict, uint64_t first)
{
    const ps_optimizer *opt = s->at.optimizer;
    const int own = opt->n_states - (opt->ema > 0);
    float *const state[] = {own > 0 ? s->states[0] : NULL, own > 1 ? s->states[1] : NULL,
                            own > 2 ? s->states[2] : NULL};
    return (ps_k_optimizer){
        .verdict = verdict,
        .p = s->resident.params,
        .g = s->resident.grads,
        .s0 = state[0],
        .s1 = state[1],
        .s2 = state[2],
        .ema = own < opt->n_states ? s->states[own] : NULL,
        .starts = s->starts,
        .groups = s->groups,
        .group = (uint32_t)group,
        .n_tensors = (uint32_t)s->at.table->n_tensors,
        .first = (uint32_t)first,
        .by = ps_optimizer_scalars_in(opt, step, group, opt->weight_decay),
        .spared_decay = ps_optimizer_scalars_in(opt, step, group,
                                                ps_optimizer_decay(opt, PS_TENSOR_BIAS))
                            .decay};
}

/* LAMB's steps, of the whole arena: nothing waits for the host. */
static ps_err queue_lamb(cuda_stream *s, const ps_optimizer_step *step)
{
    const ps_optimizer *opt = s->at.optimizer;
    const int64_t count = (int64_t)s->at.table->arena_count;
    double *const weights = s->sums, *const updates = s->sums + s->n_blocks;
    PS_TRY(queue_sums(s, s->resident.params, 0, s->n_blocks, weights));
    for (int group = 0; group <= opt->n_fixed; group++)
        PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, lamb_update, count, who,
                            .step = arguments_of(s, step, group, s->verdict, 0),
                            .u = s->resident.grads));
    PS_TRY(queue_sums(s, s->resident.grads, 0, s->n_blocks, updates));
    for (int group = 0; group <= opt->n_fixed; group++) {
        const ps_k_optimizer k = arguments_of(s, step, group, s->verdict, 0);
        PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, lamb_ratio, s->at.table->n_tensors,
                            who, .step = k, .weights = weights, .updates = updates,
                            .blocks = s->block_starts, .ratios = s->ratios));
        PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, lamb_apply, count, who, .step = k,
                            .ratios = s->ratios));
    }
    return PS_OK;
}

/* One launch for all, as PyTorch's fused optimizers do; with groups, one for each. */
static ps_err queue_optimizer(cuda_stream *s, const ps_optimizer_step *step,
                              const ps_verdict *verdict, uint64_t first, uint64_t count)
{
    if (count == 0) return PS_OK;
    for (int group = 0; group <= s->at.optimizer->n_fixed; group++) {
        const ps_k_optimizer k = arguments_of(s, step, group, verdict, first);
        PS_TRY(ps_gpu_launch(s->gpu, PS_GPU_EXCHANGE, PS_KERNEL_optimizer, &k,
                             (int64_t)count, who));
    }
    return PS_OK;
}

static ps_err stream_apply(ps_device_stream *base, const ps_optimizer_step *step,
                           const ps_chunk *chunk)
{
    return queue_optimizer(cuda_stream_of(base), step, NULL, chunk->offset, chunk->count);
}

/* alone: independently of earlier steps. */
static ps_err queue_check(cuda_stream *s, uint64_t t, bool alone)
{
    PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, bad_blocks, s->n_blocks, who,
                        .x = s->resident.grads, .ranges = s->ranges,
                        .verdict = s->verdict, .parts = s->bad, .alone = alone));
    return PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, verdict, 1, who, .parts = s->bad,
                        .n = s->n_blocks, .step = t, .verdict = s->verdict,
                        .alone = alone);
}

/* Clips, then steps if the verdict allows it. */
static ps_err queue_step(cuda_stream *s, const ps_optimizer_step *step, double clip_norm)
{
    if (clip_norm > 0) {
        PS_TRY(queue_norm(s, 0, s->n_blocks));
        PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, clip, 1, who, .sums = s->sums,
                            .n = s->n_blocks, .max_norm = clip_norm,
                            .verdict = s->verdict));
    }
    PS_TRY(ps_lamb_on(s->at.optimizer)
               ? queue_lamb(s, step)
               : queue_optimizer(s, step, s->verdict, 0, s->at.table->arena_count));
    s->untold = true;
    return PS_OK;
}

static ps_err stream_step(ps_device_stream *base, const ps_optimizer_step *step,
                          bool check, double clip_norm)
{
    if (check) PS_TRY(queue_check(cuda_stream_of(base), step->t, false));
    return queue_step(cuda_stream_of(base), step, clip_norm);
}

static ps_err stream_scaled_step(ps_device_stream *base, const ps_optimizer_step *step,
                                 float inverse, double clip_norm)
{
    cuda_stream *s = cuda_stream_of(base);
    PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, unscale,
                        (int64_t)s->at.table->arena_count, who, .x = s->resident.grads,
                        .factor = inverse));
    PS_TRY(queue_check(s, step->t, true));
    return queue_step(s, step, clip_norm);
}

static ps_err stream_scaled_step_made(ps_device_stream *base, bool *made)
{
    PS_TRY(cuda_stream_tell(cuda_stream_of(base)));
    PS_TRY(ps_gpu_sync(cuda_stream_of(base)->gpu, cuda_stream_of(base)->told, who));
    *made = cuda_stream_of(base)->verdict_home->refused == 0;
    return PS_OK;
}

/* The partial counts are still those of the refused step. */
static ps_err cuda_stream_find_bad_tensor(cuda_stream *s, int *tensor)
{
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->bad_home, s->bad,
                           s->n_blocks * sizeof *s->bad, who));
    PS_TRY(wait_queue(s));
    uint64_t block = 0, n = 0;
    while (block < s->n_blocks && s->bad_home[block].a == 0.0)
        block++;
    for (*tensor = 0; *tensor < s->at.table->n_tensors - 1; ++*tensor) {
        n += cuda_stream_blocks_of(&s->at.table->tensors[*tensor]);
        if (block < n) break;
    }
    return PS_OK;
}

static ps_err stream_refused(ps_device_stream *base, bool wait, uint64_t *t, int *tensor)
{
    cuda_stream *s = cuda_stream_of(base);
    bool told = true;
    *t = 0;
    PS_TRY(cuda_stream_tell(s));
    if (wait)
        PS_TRY(ps_gpu_sync(s->gpu, s->told, who));
    else
        PS_TRY(ps_gpu_passed(s->gpu, s->told, who, &told));
    if (told) *t = s->verdict_home->refused;
    return *t ? cuda_stream_find_bad_tensor(s, tensor) : PS_OK;
}

static void cuda_stream_drop_anchor(cuda_stream *s)
{
    ps_gpu_enter(s->gpu);
    ps_gpu_drain(s->gpu);
    if (s->anchor_pinned) ps_gpu_unpin(s->gpu, s->anchor_home);
    if (s->changes_pinned) ps_gpu_unpin(s->gpu, s->changes_home);
    ps_gpu_give(s->gpu, s->anchor);
    s->anchor_pinned = s->changes_pinned = false;
    s->anchor = NULL;
}

static ps_err stream_use_anchor(ps_device_stream *base, float *anchor, float *changes)
{
    cuda_stream *s = cuda_stream_of(base);
    const size_t bytes = s->at.table->arena_count * sizeof(float);
    cuda_stream_drop_anchor(s);
    s->anchor_home = anchor;
    s->changes_home = changes;
    if (!anchor) return PS_OK;
    PS_TRY(ps_gpu_take(s->gpu, bytes, "the anchor", &s->anchor));
    PS_TRY(ps_gpu_pin(s->gpu, anchor, bytes, "the anchor", &s->anchor_pinned));
    return ps_gpu_pin(s->gpu, changes, bytes, "the changes", &s->changes_pinned);
}

static ps_err stream_take_anchor(ps_device_stream *base, uint64_t offset, uint64_t count,
                                 float kept)
{
    cuda_stream *s = cuda_stream_of(base);
    if (count == 0) return PS_OK;
    PS_TRY(ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->anchor + offset,
                          s->anchor_home + offset, count * sizeof(float), who));
    PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, mix_anchor, (int64_t)count, who,
                        .anchor = s->anchor + offset,
                        .weights = s->resident.params + offset, .kept = kept));
    return ps_gpu_record(s->gpu, s->resident.released, PS_GPU_EXCHANGE);
}

static ps_err stream_change(ps_device_stream *base, uint64_t offset, uint64_t count,
                            float share)
{
    cuda_stream *s = cuda_stream_of(base);
    float *change = s->resident.grads + offset;
    if (count == 0) return PS_OK;
    PS_TRY(PS_LAUNCH_ON(s->gpu, PS_GPU_EXCHANGE, change, (int64_t)count, who,
                        .anchor = s->anchor + offset,
                        .weights = s->resident.params + offset, .change = change,
                        .share = share));
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->changes_home + offset, change,
                           count * sizeof(float), who));
    return wait_queue(s);
}

static void stream_destroy(ps_device_stream **base)
{
    cuda_stream *s = cuda_stream_of(*base);
    void *const taken[] = {s->resident.params, s->resident.grads, s->buffers,
                           s->starts,          s->groups,         s->bad,
                           s->lanes,           s->sums,           s->ranges,
                           s->verdict,         s->ratios,         s->block_starts};
    cuda_stream_drop_anchor(s);
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++)
        ps_gpu_give(s->gpu, taken[i]);
    for (int k = 0; k < PS_OPTIMIZER_MAX_STATES; k++)
        ps_gpu_give(s->gpu, s->states[k]);
    ps_gpu_give_pinned(s->gpu, s->bad_home);
    ps_gpu_give_pinned(s->gpu, s->sums_home);
    ps_gpu_give_pinned(s->gpu, s->verdict_home);
    ps_gpu_event_destroy(&s->resident.announced);
    ps_gpu_event_destroy(&s->resident.released);
    ps_gpu_event_destroy(&s->marked);
    ps_gpu_event_destroy(&s->waited);
    ps_gpu_event_destroy(&s->told);
    if (s->params_pinned) ps_gpu_unpin(s->gpu, s->at.params);
    *s->registered = NULL;
    free(s);
    *base = NULL;
}

static const ps_device_stream_ops cuda_stream_ops = {
    .from_host = stream_from_host,
    .to_host = stream_to_host,
    .wait_compute = stream_wait_compute,
    .release_compute = stream_release_compute,
    .mark = stream_mark,
    .done = stream_done,
    .check_finite = stream_check_finite,
    .unscale = stream_unscale,
    .gradnorm_sums = stream_norm_sums,
    .save_state = stream_save_state,
    .load_state = stream_load_state,
    .apply = stream_apply,
    .step = stream_step,
    .scaled_step = stream_scaled_step,
    .scaled_step_made = stream_scaled_step_made,
    .refused = stream_refused,
    .use_anchor = stream_use_anchor,
    .take_anchor = stream_take_anchor,
    .change = stream_change,
    .destroy = stream_destroy,
};

/* Uploads where each tensor starts, its group, and whether it has the second weight
 * decay. */
static ps_err fill_tables(cuda_stream *s)
{
    const ps_tensor_table *table = s->at.table;
    size_t n = (size_t)table->n_tensors;
    uint32_t *starts = NULL;
    PS_TRY(ps_mem_zalloc(&starts, n, sizeof *starts + 1, "exchange"));
    uint8_t *groups = (uint8_t *)(starts + n);
    for (size_t i = 0; i < n; i++) {
        ps_tensor_role role = table->tensors[i].role;
        starts[i] = (uint32_t)table->tensors[i].offset;
        const bool spared = role == PS_TENSOR_BIAS || role == PS_TENSOR_BATCHNORM;
        groups[i] = (uint8_t)(2 * table->tensors[i].group + spared);
    }
    ps_err err = ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->starts, starts,
                                n * sizeof *starts, who);
    if (err == PS_OK)
        err = ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->groups, groups, n, who);
    if (err == PS_OK) err = wait_queue(s);
    free(starts);
    return err;
}

/* Uploads the gradient norm's blocks, in the order of the arena, and a verdict that
 * refuses nothing. */
static ps_err fill_ranges(cuda_stream *s)
{
    const ps_tensor_table *table = s->at.table;
    const ps_verdict verdict = {.scale = 1.0f};
    ps_gradnorm_range *ranges = NULL;
    uint64_t at = 0;
    PS_TRY(PS_NEW(&ranges, s->n_blocks, "exchange"));
    for (int i = 0; i < table->n_tensors; i++) {
        const ps_tensor *t = &table->tensors[i];
        for (uint64_t begin = 0; begin < t->count; begin += PS_GRADNORM_BLOCK) {
            uint64_t left = t->count - begin;
            ranges[at].begin = (uint32_t)(t->offset + begin);
            ranges[at++].n =
                (uint32_t)(left < PS_GRADNORM_BLOCK ? left : PS_GRADNORM_BLOCK);
        }
    }
    ps_err err = ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->ranges, ranges,
                                s->n_blocks * sizeof *ranges, who);
    if (err == PS_OK)
        err = ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->verdict, &verdict,
                             sizeof verdict, who);
    if (err == PS_OK) err = wait_queue(s);
    free(ranges);
    return err;
}

static ps_err cuda_stream_prepare_lamb(cuda_stream *s)
{
    const ps_tensor_table *table = s->at.table;
    const size_t n = (size_t)table->n_tensors;
    uint32_t *starts = NULL;
    if (!ps_lamb_on(s->at.optimizer)) return PS_OK;
    PS_TRY(ps_gpu_take(s->gpu, n * sizeof *s->ratios, who, &s->ratios));
    PS_TRY(ps_gpu_take(s->gpu, (n + 1) * sizeof *starts, who, &s->block_starts));
    PS_TRY(PS_NEW(&starts, n + 1, "exchange"));
    for (size_t i = 0; i < n; i++)
        starts[i + 1] = starts[i] + (uint32_t)cuda_stream_blocks_of(&table->tensors[i]);
    ps_err err = ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->block_starts, starts,
                                (n + 1) * sizeof *starts, who);
    if (err == PS_OK) err = wait_queue(s);
    free(starts);
    return err;
}

static ps_err cuda_stream_allocate(cuda_stream *s)
{
    const ps_tensor_table *table = s->at.table;
    ps_gpu *gpu = s->gpu;
    size_t bytes = table->arena_count * sizeof(float), n = (size_t)table->n_tensors;
    s->n_blocks = (uint32_t)ps_gradnorm_blocks(table);
    size_t bad = s->n_blocks * sizeof *s->bad; // a check has at most this many parts
    size_t blocks = s->n_blocks * sizeof(double);
    PS_TRY(ps_gpu_take(gpu, bytes, "the parameters", &s->resident.params));
    PS_TRY(ps_gpu_take(gpu, bytes, "the gradients", &s->resident.grads));
    for (int k = 0; k < s->at.optimizer->n_states; k++)
        PS_TRY(ps_gpu_take(gpu, bytes, "the optimizer's states", &s->states[k]));
    PS_TRY(ps_gpu_take(gpu, table->buffer_bytes, "the buffers", &s->buffers));
    PS_TRY(ps_gpu_take(gpu, n * sizeof *s->starts, who, &s->starts));
    PS_TRY(ps_gpu_take(gpu, n, who, &s->groups));
    PS_TRY(ps_gpu_take(gpu, bad, who, &s->bad));
    PS_TRY(ps_gpu_take_pinned(gpu, bad, who, &s->bad_home));
    PS_TRY(ps_gpu_take(gpu, blocks * PS_GRADNORM_LANES, who, &s->lanes));
    // of a gradient; of LAMB's weights and updates
    PS_TRY(ps_gpu_take(gpu, ps_lamb_sums(table) * sizeof *s->sums, who, &s->sums));
    PS_TRY(ps_gpu_take_pinned(gpu, blocks, who, &s->sums_home));
    PS_TRY(ps_gpu_take(gpu, s->n_blocks * sizeof *s->ranges, who, &s->ranges));
    PS_TRY(ps_gpu_take(gpu, sizeof *s->verdict, who, &s->verdict));
    PS_TRY(ps_gpu_take_pinned(gpu, sizeof *s->verdict, who, &s->verdict_home));
    PS_TRY(ps_gpu_event_create(gpu, &s->resident.announced));
    PS_TRY(ps_gpu_event_create(gpu, &s->resident.released));
    PS_TRY(ps_gpu_event_create(gpu, &s->marked));
    PS_TRY(ps_gpu_event_create(gpu, &s->waited));
    PS_TRY(ps_gpu_event_create(gpu, &s->told));
    return ps_gpu_pin(gpu, s->at.params, bytes, "parameters", &s->params_pinned);
}

ps_err ps_cuda_stream_create(ps_gpu *gpu, const ps_host_stream_options *options,
                             const ps_cuda_resident **resident, ps_device_stream **out)
{
    cuda_stream *s = NULL;
    *out = NULL;
    if (options->table->arena_count > PS_INDEX_MAX)
        return ps_err_set(PS_ERR_UNSUPPORTED,
                          "cuda: the model has more parameters than 32-bit indices "
                          "can address");
    PS_TRY(PS_NEW(&s, 1, "exchange"));
    s->gpu = gpu;
    s->at = *options;
    s->resident.host_params = options->params;
    s->registered = resident;
    *resident = &s->resident;
    ps_device_stream *base = &s->base;
    ps_err err = cuda_stream_allocate(s);
    if (err == PS_OK) err = fill_tables(s);
    if (err == PS_OK) err = fill_ranges(s);
    if (err == PS_OK) err = cuda_stream_prepare_lamb(s);
    s->base = (ps_device_stream){.ops = &cuda_stream_ops,
                                 .native = ps_gpu_native(gpu, PS_GPU_EXCHANGE),
                                 .params = s->resident.params,
                                 .grads = s->resident.grads,
                                 .buffers = s->buffers};
    if (err == PS_OK)
        *out = base;
    else
        stream_destroy(&base);
    return err;
}
