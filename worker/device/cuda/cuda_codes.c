#include "cuda_codes.h"

#include <stdlib.h>
#include <string.h>

#include "mem.h"

static const char who[] = "codecs";

typedef struct cuda_codes {
    ps_device_codes base;
    ps_gpu *gpu;
    ps_cuda_codes codes;
    const ps_cuda_codes **registered; // the device's pointer to codes
} cuda_codes;

static const ps_tensor_table *codes_table(const ps_cuda_codes *c)
{
    return c->out->codec.table;
}

static void cuda_codes_destroy(ps_device_codes **base)
{
    cuda_codes *s = (cuda_codes *)(void *)*base;
    if (ps_gpu_enter(s->gpu) == PS_OK) ps_gpu_drain(s->gpu);
    if (s->codes.pinned) ps_gpu_unpin(s->gpu, s->codes.out->memory.base);
    ps_gpu_give(s->gpu, s->codes.coded);
    ps_gpu_give(s->gpu, s->codes.parts);
    free(s->codes.first);
    *s->registered = NULL;
    free(s);
    *base = NULL;
}

/* Fills parts, unless it is NULL, and returns their number. Chunks are cut between parts,
 * as PS_CODEC_INT8_BLOCK divides PS_GRADNORM_BLOCK. */
static uint32_t codes_list_parts(const ps_cuda_codes *c, ps_code_part *parts)
{
    uint32_t at = 0;
    for (int t = 0; t < codes_table(c)->n_tensors; t++) {
        const ps_tensor *tensor = &codes_table(c)->tensors[t];
        c->first[t] = at;
        for (uint64_t i = 0; i < tensor->count; i += PS_CODEC_INT8_BLOCK, at++) {
            const uint64_t left = tensor->count - i;
            if (!parts) continue;
            parts[at] = (ps_code_part){
                .out = (uint64_t)(ps_coded_arena_at(c->out, t, i) -
                                  (uint8_t *)c->out->memory.base),
                .begin = (uint32_t)(tensor->offset + i),
                .n = (uint32_t)(left < PS_CODEC_INT8_BLOCK ? left : PS_CODEC_INT8_BLOCK),
                .first = (uint32_t)i,
                .tensor = (uint32_t)t,
                .codec = (uint32_t)ps_coded_arena_codec_of(c->out, t)};
        }
    }
    c->first[codes_table(c)->n_tensors] = at;
    return at;
}

static ps_err codes_upload_parts(cuda_codes *s)
{
    const size_t n = codes_list_parts(&s->codes, NULL);
    ps_code_part *parts = NULL;
    ps_gpu_event *done = NULL;
    PS_TRY(ps_gpu_take(s->gpu, n * sizeof *parts, who, &s->codes.parts));
    PS_TRY(ps_gpu_event_create(s->gpu, &done));
    ps_err err = PS_NEW(&parts, n, who);
    if (err == PS_OK) {
        codes_list_parts(&s->codes, parts);
        err = ps_gpu_copy_in(s->gpu, PS_GPU_DOWNLOAD, s->codes.parts, parts,
                             n * sizeof *parts, who);
    }
    if (err == PS_OK) err = ps_gpu_record(s->gpu, done, PS_GPU_DOWNLOAD);
    if (err == PS_OK) err = ps_gpu_sync(s->gpu, done, who);
    ps_gpu_event_destroy(&done);
    free(parts);
    return err;
}

static ps_err codes_prepare(cuda_codes *s)
{
    const ps_coded_arena *out = s->codes.out;
    PS_TRY(PS_NEW(&s->codes.first, (size_t)codes_table(&s->codes)->n_tensors + 1, who));
    PS_TRY(ps_gpu_take(s->gpu, out->memory.bytes, "encoded gradients", &s->codes.coded));
    PS_TRY(codes_upload_parts(s));
    return ps_gpu_pin(s->gpu, out->memory.base, out->memory.bytes, "encoded gradients",
                      &s->codes.pinned);
}

ps_err ps_cuda_codes_create(ps_gpu *gpu, const ps_coded_arena *out, const float *grads,
                            const ps_cuda_codes **codes, ps_device_codes **made)
{
    cuda_codes *s;
    *made = NULL;
    if (out->codec.table->arena_count > PS_INDEX_MAX)
        return ps_err_set(PS_ERR_UNSUPPORTED, "the model has more parameters than 32-bit "
                                              "indices can address");
    PS_TRY(PS_NEW(&s, 1, who));
    *s = (cuda_codes){.base.destroy = cuda_codes_destroy,
                      .gpu = gpu,
                      .codes = {.host_grads = grads, .out = out},
                      .registered = codes};
    *codes = &s->codes;
    ps_device_codes *base = &s->base;
    const ps_err err = codes_prepare(s);
    if (err == PS_OK)
        *made = base;
    else
        cuda_codes_destroy(&base);
    return err;
}

ps_err ps_cuda_codes_fetch(const ps_cuda_codes *c, ps_gpu *gpu, const float *grads,
                           int first, int n, const char *what)
{
    const uint64_t *at = c->out->at;
    const uint64_t begin = at[first], bytes = at[first + n] - begin;
    const uint32_t part = c->first[first];
    PS_TRY(PS_LAUNCH_ON(
        gpu, PS_GPU_DOWNLOAD, code, (int64_t)(c->first[first + n] - part), what,
        .grads = grads, .parts = c->parts + part, .out = c->coded, .key = c->out->key,
        .largest = c->out->codec.overflow ? 0x7C00u : 0x7BFFu, .lanes = PS_TEAM_WARP));
    return ps_gpu_copy_out(gpu, PS_GPU_DOWNLOAD, (uint8_t *)c->out->memory.base + begin,
                           c->coded + begin, bytes, what);
}

void ps_cuda_codes_unpack(const ps_cuda_codes *c, float *host_grads, int first, int n)
{
    for (int t = first; t < first + n; t++) {
        const ps_tensor *tensor = &codes_table(c)->tensors[t];
        if (ps_coded_arena_codec_of(c->out, t) == PS_CODEC_NONE)
            memcpy(host_grads + tensor->offset, ps_coded_arena_at(c->out, t, 0),
                   tensor->count * sizeof(float));
    }
}
