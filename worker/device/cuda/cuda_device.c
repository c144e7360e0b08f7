#include "cuda_device.h"

#include <stdlib.h>
#include <string.h>

#include "cuda_codes.h"
#include "cuda_run.h"
#include "cuda_shared.h"
#include "cuda_stream.h"
#include "log.h"
#include "mem.h"

typedef struct cuda_device {
    ps_device base;
    ps_gpu *gpu;
    ps_conv_library *convs; // NULL: none
    ps_switch channels_last;
    bool no_graphs;
    const ps_cuda_resident *resident; // of the stream, while there is one
    const ps_cuda_shared *shared;     // likewise, of the host's sums
    const ps_cuda_codes *codes;       // likewise, of encoded gradients
} cuda_device;

typedef struct cuda_program {
    ps_program base;
    ps_program_options options;
    ps_model_graph graph;
    ps_cuda_run run;
} cuda_program;

static ps_cuda_kept kept_of(const cuda_program *p)
{
    const cuda_device *d = (const cuda_device *)(const void *)p->base.device;
    const ps_program_options *o = &p->options;
    ps_cuda_kept kept = {0};
    if (d->resident && d->resident->host_params == o->params) kept.resident = d->resident;
    if (o->training && d->codes && d->codes->host_grads == o->grads)
        kept.codes = d->codes;
    if (kept.resident || !d->shared) return kept;
    if (d->shared->host_params == o->params) kept.params = d->shared->params;
    if (o->training && d->shared->host_grads == o->grads) kept.grads = d->shared->grads;
    return kept;
}

static ps_gpu *gpu_of(const ps_program *program)
{
    return ((const cuda_device *)(const void *)program->device)->gpu;
}

static void cuda_close(ps_device **device)
{
    cuda_device *d = (cuda_device *)(void *)*device;
    if (d->gpu) ps_gpu_enter(d->gpu);
    // which waits for the GPU
    if (d->gpu && ps_gpu_drain(d->gpu)) ps_conv_library_close(&d->convs);
    ps_gpu_close(&d->gpu);
    free(d);
    *device = NULL;
}

/* train.cudnn=auto: no error where there is no cuDNN. */
static ps_err open_convs(cuda_device *d, const ps_device_options *options)
{
    const ps_conv_library_options library = {
        .queue = ps_gpu_native(d->gpu, PS_GPU_COMPUTE), .tf32 = options->tf32};
    if (options->cudnn == PS_SWITCH_OFF) return PS_OK;
    ps_err err = ps_conv_library_open(&library, &d->convs);
    if (err != PS_ERR_UNSUPPORTED || options->cudnn == PS_SWITCH_ON) return err;
    PS_INFO("device", "convolutions without cuDNN: %s", ps_err_message());
    return PS_OK;
}

static ps_err cuda_open(const ps_device_options *options, ps_device **out)
{
    static const ps_format formats[] = {[PS_PRECISION_FLOAT32] = PS_FORMAT_FP32,
                                        [PS_PRECISION_BF16] = PS_FORMAT_BF16,
                                        [PS_PRECISION_FP16] = PS_FORMAT_FP16};
    cuda_device *d = NULL;
    *out = NULL;
    PS_TRY(PS_NEW(&d, 1, "device"));
    d->base.ops = &ps_cuda_device_ops;
    d->channels_last = options->channels_last;
    d->no_graphs = options->no_graphs;
    *out = &d->base;
    const ps_gpu_options gpu = {.index = options->index,
                                .local_rank = options->local_rank,
                                .tf32 = options->tf32,
                                .wait_ms = options->wait_ms,
                                .format = formats[options->precision]};
    ps_err err = ps_gpu_open(&gpu, &d->gpu);
    if (err == PS_OK) err = open_convs(d, options);
    if (err == PS_OK) ps_trace_show(ps_gpu_ranges());
    if (err != PS_OK) cuda_close(out);
    return err;
}

static void cuda_describe(const ps_device *device, char *out, size_t bytes)
{
    const cuda_device *d = (const cuda_device *)(const void *)device;
    ps_gpu_describe(d->gpu, out, bytes);
    size_t n = strlen(out);
    if (!d->convs || n + 3 > bytes) return;
    memcpy(out + n, ", ", 3);
    ps_conv_library_describe(d->convs, out + n + 2, bytes - n - 2);
}

static void cuda_program_destroy(ps_program **program)
{
    cuda_program *p = (cuda_program *)(void *)*program;
    ps_gpu_enter(gpu_of(*program));
    ps_cuda_run_fini(&p->run);
    ps_model_graph_fini(&p->graph);
    free(p);
    *program = NULL;
}

/* In float32 there is no choice. */
static void cuda_say_layout(const cuda_program *p)
{
    if (!p->options.training || ps_gpu_format(p->run.plan.gpu) == PS_FORMAT_FP32) return;
    PS_INFO("device", "pictures between layers: channels %s (train.channels_last)",
            p->run.plan.channels_last ? "last" : "first");
}

static ps_err cuda_program_create(ps_device *device, const ps_program_options *options,
                                  ps_program **out)
{
    const cuda_device *d = (const cuda_device *)(const void *)device;
    cuda_program *p = NULL;
    *out = NULL;
    PS_TRY(PS_NEW(&p, 1, "program"));
    *out = &p->base;
    p->base.device = device;
    p->options = *options;
    ps_err err = ps_gpu_enter(gpu_of(*out));
    if (err == PS_OK && options->spec->n_categories > 0)
        err = ps_err_set(PS_ERR_UNSUPPORTED,
                         "cuda: embeddings of categories are computed on CPUs alone: set "
                         "train.device=cpu, or data.encoding=onehot");
    if (err == PS_OK) err = ps_model_graph_init(&p->graph, options->spec);
    if (err == PS_OK)
        err = ps_cuda_run_init(&p->run, gpu_of(*out), d->convs, d->channels_last,
                               &p->options, &p->graph, kept_of(p), d->no_graphs);
    if (err != PS_OK)
        cuda_program_destroy(out);
    else
        cuda_say_layout(p);
    return err;
}

static ps_err cuda_forward(ps_program *program, const ps_batch *batch,
                           const ps_pass *pass, ps_pass_result *result)
{
    PS_TRY(ps_gpu_enter(gpu_of(program)));
    return ps_cuda_run_forward(&((cuda_program *)(void *)program)->run, batch, pass,
                               result);
}

static ps_err cuda_backward(ps_program *program, const ps_batch *batch,
                            const ps_pass *pass)
{
    PS_TRY(ps_gpu_enter(gpu_of(program)));
    return ps_cuda_run_backward(&((cuda_program *)(void *)program)->run, batch, pass);
}

static ps_err cuda_outputs(ps_program *program, float *out, size_t count)
{
    PS_TRY(ps_gpu_enter(gpu_of(program)));
    return ps_cuda_run_outputs(&((cuda_program *)(void *)program)->run, out, count);
}

static ps_err cuda_result(ps_program *program, ps_pass_result *out)
{
    return ps_cuda_run_result(&((cuda_program *)(void *)program)->run, out);
}

static ps_err cuda_prefetch(ps_program *program, const ps_batch *batch)
{
    PS_TRY(ps_gpu_enter(gpu_of(program)));
    return ps_cuda_run_prefetch(&((cuda_program *)(void *)program)->run, batch);
}

static ps_err cuda_fetch_buffers(ps_program *program)
{
    PS_TRY(ps_gpu_enter(gpu_of(program)));
    return ps_cuda_run_fetch_buffers(&((cuda_program *)(void *)program)->run);
}

static bool cuda_memory(ps_device *device, uint64_t *used, uint64_t *total)
{
    const cuda_device *d = (const cuda_device *)(const void *)device;
    return ps_gpu_enter(d->gpu) == PS_OK && ps_gpu_memory(d->gpu, used, total);
}

static bool cuda_lost(ps_device *device)
{
    const cuda_device *d = (const cuda_device *)(const void *)device;
    return ps_gpu_enter(d->gpu) != PS_OK || ps_gpu_lost(d->gpu);
}

static bool cuda_numa(const ps_device *device, ps_numa *out)
{
    return ps_gpu_numa(((const cuda_device *)(const void *)device)->gpu, out);
}

static ps_err cuda_stream_create(ps_device *device, const ps_host_stream_options *options,
                                 ps_device_stream **out)
{
    cuda_device *d = (cuda_device *)(void *)device;
    *out = NULL;
    if (d->resident) return ps_err_set(PS_ERR_ARG, "the device has a stream already");
    PS_TRY(ps_gpu_enter(d->gpu));
    return ps_cuda_stream_create(d->gpu, options, &d->resident, out);
}

static ps_err cuda_sums_create(ps_device *device, const ps_device_sums_options *options,
                               ps_device_sums **out)
{
    cuda_device *d = (cuda_device *)(void *)device;
    *out = NULL;
    if (d->shared) return ps_err_set(PS_ERR_ARG, "the device's gradients are shared");
    PS_TRY(ps_gpu_enter(d->gpu));
    return ps_cuda_shared_create(d->gpu, options, &d->shared, out);
}

static ps_err cuda_codes_of_device(ps_device *device, const ps_coded_arena *out,
                                   const float *grads, ps_device_codes **codes)
{
    cuda_device *d = (cuda_device *)(void *)device;
    *codes = NULL;
    if (d->codes) return ps_err_set(PS_ERR_ARG, "the device encodes gradients already");
    PS_TRY(ps_gpu_enter(d->gpu));
    return ps_cuda_codes_create(d->gpu, out, grads, &d->codes, codes);
}

const ps_device_ops ps_cuda_device_ops = {
    .kind = PS_DEVICE_CUDA,
    .name = "cuda",
    .takes_bytes = true,
    .open = cuda_open,
    .close = cuda_close,
    .describe = cuda_describe,
    .program_create = cuda_program_create,
    .program_destroy = cuda_program_destroy,
    .forward = cuda_forward,
    .backward = cuda_backward,
    .outputs = cuda_outputs,
    .result = cuda_result,
    .prefetch = cuda_prefetch,
    .fetch_buffers = cuda_fetch_buffers,
    .stream_create = cuda_stream_create,
    .sums_create = cuda_sums_create,
    .codes_create = cuda_codes_of_device,
    .memory = cuda_memory,
    .lost = cuda_lost,
    .numa = cuda_numa,
};
