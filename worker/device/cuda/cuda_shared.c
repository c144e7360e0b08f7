#include "cuda_shared.h"

#include <stdlib.h>

#include "mem.h"

static const char who[] = "the sums of the host";

typedef struct cuda_sums {
    ps_device_sums base;
    ps_gpu *gpu;
    ps_cuda_shared shared;
    const ps_cuda_shared **registered; // the device's pointer to shared
    size_t bytes;                      // of an arena
    float *sum;                        // of a range, on the GPU
    ps_gpu_event *done;
    int n, own;          // 0: has met nobody
    float **grads;       // (n)
    float **grads_there; // the same list on the GPU
    float **params;      // (n)
    float *from, *to;    // the host's arenas: of weights, for sums
    bool from_pinned, to_pinned;
} cuda_sums;

static cuda_sums *cuda_sums_of(ps_device_sums *s)
{
    return (cuda_sums *)s;
}

static ps_err cuda_sums_wait(cuda_sums *s)
{
    PS_TRY(ps_gpu_record(s->gpu, s->done, PS_GPU_EXCHANGE));
    return ps_gpu_sync(s->gpu, s->done, who);
}

static void cuda_sums_part(ps_device_sums *base)
{
    cuda_sums *s = cuda_sums_of(base);
    if (ps_gpu_enter(s->gpu) != PS_OK) return;
    ps_gpu_drain(s->gpu);
    for (int i = 0; i < s->n; i++) {
        if (i == s->own) continue;
        if (s->grads && s->grads[i]) ps_gpu_unmap(s->gpu, s->grads[i]);
        if (s->params && s->params[i]) ps_gpu_unmap(s->gpu, s->params[i]);
    }
    ps_gpu_give(s->gpu, s->grads_there);
    if (s->to_pinned) ps_gpu_unpin(s->gpu, s->to);
    if (s->from_pinned) ps_gpu_unpin(s->gpu, s->from);
    free(s->grads);
    free(s->params);
    s->grads = s->grads_there = s->params = NULL;
    s->to_pinned = s->from_pinned = false;
    s->n = 0;
}

static ps_err cuda_sums_find(cuda_sums *s, const uint8_t *const *handles)
{
    const size_t n = (size_t)s->n, bytes = n * sizeof *s->grads;
    PS_TRY(PS_NEW(&s->grads, n, who));
    PS_TRY(PS_NEW(&s->params, n, who));
    for (int i = 0; i < s->n; i++) {
        if (i == s->own) continue;
        PS_TRY(ps_gpu_map(s->gpu, handles[i], s->bytes, who, &s->grads[i]));
        PS_TRY(
            ps_gpu_map(s->gpu, handles[i] + PS_GPU_HANDLE, s->bytes, who, &s->params[i]));
    }
    s->grads[s->own] = s->shared.grads;
    s->params[s->own] = s->shared.params;
    PS_TRY(ps_gpu_take(s->gpu, bytes, who, &s->grads_there));
    PS_TRY(ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->grads_there, s->grads, bytes, who));
    return cuda_sums_wait(s);
}

static ps_err cuda_sums_meet(ps_device_sums *base, const uint8_t *const *handles, int n,
                             int own, float *from, float *to)
{
    cuda_sums *s = cuda_sums_of(base);
    s->n = n;
    s->own = own;
    s->from = from;
    s->to = to;
    PS_TRY(ps_gpu_enter(s->gpu));
    ps_err err = cuda_sums_find(s, handles);
    if (err == PS_OK) err = ps_gpu_pin(s->gpu, to, s->bytes, "the sums", &s->to_pinned);
    if (err == PS_OK)
        err = ps_gpu_pin(s->gpu, s->from, s->bytes, "the parameters", &s->from_pinned);
    if (err != PS_OK) cuda_sums_part(base);
    return err;
}

static ps_err cuda_sums_add(ps_device_sums *base, uint64_t offset, uint64_t count)
{
    cuda_sums *s = cuda_sums_of(base);
    PS_TRY(ps_gpu_enter(s->gpu)); // each thread's first call
    PS_TRY(PS_LAUNCH_ON(
        s->gpu, PS_GPU_EXCHANGE, add_arenas, (int64_t)((count + PS_WIDE - 1) / PS_WIDE),
        who, .arenas = (const float *const *)s->grads_there, .n = (uint32_t)s->n,
        .first = (uint32_t)offset, .count = (uint32_t)count, .sum = s->sum));
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, s->to + offset, s->sum,
                           count * sizeof *s->sum, who));
    return cuda_sums_wait(s);
}

static ps_err cuda_sums_fetch(ps_device_sums *base, int place, uint64_t offset,
                              uint64_t count, float *out)
{
    cuda_sums *s = cuda_sums_of(base);
    PS_TRY(ps_gpu_enter(s->gpu));
    PS_TRY(ps_gpu_copy_out(s->gpu, PS_GPU_EXCHANGE, out, s->grads[place] + offset,
                           count * sizeof *out, who));
    return cuda_sums_wait(s);
}

static ps_err cuda_sums_bring(ps_device_sums *base, uint64_t offset, uint64_t count)
{
    cuda_sums *s = cuda_sums_of(base);
    PS_TRY(ps_gpu_enter(s->gpu));
    PS_TRY(ps_gpu_copy_in(s->gpu, PS_GPU_EXCHANGE, s->shared.params + offset,
                          s->from + offset, count * sizeof(float), who));
    return cuda_sums_wait(s);
}

static ps_err cuda_sums_take(ps_device_sums *base, int place, uint64_t offset,
                             uint64_t count)
{
    cuda_sums *s = cuda_sums_of(base);
    PS_TRY(ps_gpu_enter(s->gpu));
    PS_TRY(ps_gpu_copy_within(s->gpu, PS_GPU_EXCHANGE, s->shared.params + offset,
                              s->params[place] + offset, count * sizeof(float), who));
    return cuda_sums_wait(s);
}

static void cuda_sums_destroy(ps_device_sums **base, bool alone)
{
    cuda_sums *s = cuda_sums_of(*base);
    cuda_sums_part(*base);
    ps_gpu_give_shared(s->gpu, s->shared.grads, !alone);
    ps_gpu_give_shared(s->gpu, s->shared.params, !alone);
    ps_gpu_give(s->gpu, s->sum);
    ps_gpu_event_destroy(&s->done);
    *s->registered = NULL;
    free(s);
    *base = NULL;
}

static const ps_device_sums_ops cuda_sums_ops = {
    .meet = cuda_sums_meet,
    .add = cuda_sums_add,
    .fetch = cuda_sums_fetch,
    .bring = cuda_sums_bring,
    .take = cuda_sums_take,
    .part = cuda_sums_part,
    .destroy = cuda_sums_destroy,
};

static ps_err cuda_sums_allocate(cuda_sums *s, uint64_t most)
{
    PS_TRY(ps_gpu_take_shared(s->gpu, s->bytes, "the gradients", &s->shared.grads,
                              s->base.handle));
    PS_TRY(ps_gpu_take_shared(s->gpu, s->bytes, "the parameters", &s->shared.params,
                              s->base.handle + PS_GPU_HANDLE));
    PS_TRY(ps_gpu_take(s->gpu, most * sizeof *s->sum, who, &s->sum));
    return ps_gpu_event_create(s->gpu, &s->done);
}

ps_err ps_cuda_shared_create(ps_gpu *gpu, const ps_device_sums_options *options,
                             const ps_cuda_shared **shared, ps_device_sums **out)
{
    cuda_sums *s;
    *out = NULL;
    if (options->table->arena_count > PS_INDEX_MAX)
        return ps_err_set(PS_ERR_UNSUPPORTED, "the model has more parameters than 32-bit "
                                              "indices can address");
    PS_TRY(PS_NEW(&s, 1, who));
    s->base.ops = &cuda_sums_ops;
    s->gpu = gpu;
    s->shared.host_params = options->params;
    s->shared.host_grads = options->grads;
    s->bytes = options->table->arena_count * sizeof(float);
    s->registered = shared;
    *shared = &s->shared;
    ps_device_sums *base = &s->base;
    const ps_err err = cuda_sums_allocate(s, options->most);
    if (err == PS_OK)
        *out = base;
    else
        cuda_sums_destroy(&base, true);
    return err;
}
