#include "cuda_batch.h"

#include <string.h>

static const char who[] = "the batch";

static size_t cuda_batch_x_bytes(const ps_cuda_batch *b, size_t n)
{
    return n * (size_t)b->features * (b->byte_values ? 1 : sizeof(float));
}

static ps_err cuda_batch_take_values(ps_cuda_batch *b, const ps_program_options *o)
{
    const size_t bytes = 256 * (size_t)o->channels * sizeof(float);
    if (!o->byte_values) return PS_OK;
    b->channels = o->channels;
    PS_TRY(ps_gpu_take(b->gpu, bytes, who, &b->byte_values));
    PS_TRY(ps_gpu_copy_in(b->gpu, PS_GPU_SAMPLES, b->byte_values, o->byte_values, bytes,
                          who));
    PS_TRY(ps_gpu_record(b->gpu, b->taken, PS_GPU_SAMPLES));
    return ps_gpu_sync(b->gpu, b->taken, who);
}

ps_err ps_cuda_batch_init(ps_cuda_batch *b, ps_gpu *gpu, const ps_program_options *o,
                          int64_t plane, ps_layout layout)
{
    const size_t n = (size_t)o->max_batch;
    *b = (ps_cuda_batch){.gpu = gpu,
                         .features = plane * layout.channels.by,
                         .plane = plane,
                         .layout = layout};
    if (PS_LOSS_OF_NUMBERS(o->spec->loss) || o->soft_targets)
        b->outputs = o->spec->n_outputs;
    PS_TRY(ps_gpu_event_create(gpu, &b->taken));
    PS_TRY(cuda_batch_take_values(b, o));
    b->positions_at = n * sizeof(int32_t);
    b->x_at = (b->positions_at + n * sizeof(uint32_t) + 255) / 256 * 256;
    b->targets_at = (b->x_at + cuda_batch_x_bytes(b, n) + 255) / 256 * 256;
    const size_t targets = n * (size_t)b->outputs * sizeof(float);
    const size_t bytes = b->targets_at + targets;
    for (int i = 0; i < PS_CUDA_STAGES; i++) {
        PS_TRY(ps_gpu_take_pinned(gpu, bytes, who, &b->staging[i]));
        PS_TRY(ps_gpu_event_create(gpu, &b->uploaded[i]));
    }
    PS_TRY(ps_gpu_take(gpu, bytes, who, &b->incoming));
    PS_TRY(ps_gpu_take(gpu, n * sizeof *b->labels, who, &b->labels));
    PS_TRY(ps_gpu_take(gpu, n * sizeof *b->positions, who, &b->positions));
    if (targets) PS_TRY(ps_gpu_take(gpu, targets, who, &b->targets));
    return ps_gpu_take(gpu, sizeof *b->key, who, &b->key);
}

void ps_cuda_batch_fini(ps_cuda_batch *b)
{
    void *const taken[] = {b->incoming, b->labels, b->positions,
                           b->targets,  b->key,    b->byte_values};
    for (size_t i = 0; b->gpu && i < sizeof taken / sizeof *taken; i++)
        ps_gpu_give(b->gpu, taken[i]);
    for (int i = 0; b->gpu && i < PS_CUDA_STAGES; i++) {
        ps_gpu_give_pinned(b->gpu, b->staging[i]);
        ps_gpu_event_destroy(&b->uploaded[i]);
    }
    ps_gpu_event_destroy(&b->taken);
    *b = (ps_cuda_batch){0};
}

static size_t cuda_batch_fill(const ps_cuda_batch *b, const ps_batch *batch, char *to)
{
    const size_t n = (size_t)batch->n, x = cuda_batch_x_bytes(b, n);
    const void *from = b->byte_values ? (const void *)batch->bytes : batch->x;
    if (batch->labels) memcpy(to, batch->labels, n * sizeof(int32_t));
    if (batch->positions)
        memcpy(to + b->positions_at, batch->positions, n * sizeof(uint32_t));
    memcpy(to + b->x_at, from, x);
    if (!batch->targets) return b->x_at + x;
    const size_t targets = n * (size_t)b->outputs * sizeof(float);
    memcpy(to + b->targets_at, batch->targets, targets);
    return b->targets_at + targets;
}

/* There are two staging buffers: one is filled while the copy from the other may still
 * run. */
static ps_err cuda_batch_upload(ps_cuda_batch *b, const ps_batch *batch)
{
    if (!(b->byte_values ? (const void *)batch->bytes : batch->x))
        return ps_err_set(PS_ERR_ARG, "the batch's samples are not %s",
                          b->byte_values ? "bytes" : "floats");
    b->stage = (b->stage + 1) % PS_CUDA_STAGES;
    char *staging = b->staging[b->stage];
    ps_gpu_event *uploaded = b->uploaded[b->stage];
    PS_TRY(ps_gpu_sync(b->gpu, uploaded, who));
    size_t bytes = cuda_batch_fill(b, batch, staging);
    PS_TRY(ps_gpu_await(b->gpu, PS_GPU_SAMPLES, b->taken));
    PS_TRY(ps_gpu_copy_in(b->gpu, PS_GPU_SAMPLES, b->incoming, staging, bytes, who));
    return ps_gpu_record(b->gpu, uploaded, PS_GPU_SAMPLES);
}

ps_err ps_cuda_batch_prefetch(ps_cuda_batch *b, const ps_batch *batch)
{
    PS_TRY(cuda_batch_upload(b, batch));
    b->waiting = *batch;
    return PS_OK;
}

static bool is_waiting(const ps_cuda_batch *b, const ps_batch *batch)
{
    const ps_batch *w = &b->waiting;
    return w->n == batch->n && w->x == batch->x && w->bytes == batch->bytes &&
           w->labels == batch->labels && w->positions == batch->positions &&
           w->targets == batch->targets;
}

/* One launch also copies the labels: every sample has at least one value. */
static ps_err cuda_batch_take(ps_cuda_batch *b, int64_t n, ps_values x,
                              ps_dropout_key key)
{
    return PS_LAUNCH(
        b->gpu, take, n * b->features, who, .x_in = b->incoming + b->x_at,
        .byte_values = b->byte_values,
        .plane = ps_divisor_of(b->byte_values ? b->features / b->channels : 1),
        .channels = ps_divisor_of(b->byte_values ? b->channels : 1), .x = x,
        .layout = b->layout, .x_plane = ps_divisor_of(b->plane), .n = (uint32_t)n,
        .labels_in = (const int32_t *)(const void *)b->incoming,
        .positions_in = (const uint32_t *)(const void *)(b->incoming + b->positions_at),
        .labels = b->labels, .positions = b->positions, .key = b->key,
        .value = {{(uint32_t)key.seed, (uint32_t)(key.seed >> 32)}, key.epoch});
}

static ps_err take_targets(ps_cuda_batch *b, int64_t n)
{
    return PS_LAUNCH_WIDE(b->gpu, pass, n * b->outputs, who,
                          .x = {b->incoming + b->targets_at, PS_FORMAT_FP32},
                          .y = {b->targets, PS_FORMAT_FP32});
}

ps_err ps_cuda_batch_take(ps_cuda_batch *b, const ps_batch *batch, ps_values x,
                          ps_dropout_key key)
{
    if (!is_waiting(b, batch)) PS_TRY(cuda_batch_upload(b, batch));
    b->waiting.n = 0;
    PS_TRY(ps_gpu_await(b->gpu, PS_GPU_COMPUTE, b->uploaded[b->stage]));
    PS_TRY(cuda_batch_take(b, batch->n, x, key));
    if (batch->targets) PS_TRY(take_targets(b, batch->n));
    return ps_gpu_record(b->gpu, b->taken, PS_GPU_COMPUTE);
}
