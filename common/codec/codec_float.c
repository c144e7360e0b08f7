#include <string.h>

#include "codec_block.h"
#include "float16.h"

static uint64_t none_bytes(uint64_t n, double topk)
{
    return sizeof(float) * n;
}

static void none_encode(uint64_t n, const float *v, const ps_codec_how *how, uint64_t at,
                        uint8_t *out)
{
    memcpy(out, v, n * sizeof *v);
}

static ps_err none_decode(uint64_t n, const uint8_t *in, double topk, float *out)
{
    memcpy(out, in, n * sizeof *out);
    return PS_OK;
}

static uint64_t half_bytes(uint64_t n, double topk)
{
    return 2 * n;
}

/* largest: the result for values that fp16 cannot hold (ps_fp16_held). */
static inline void fp16_encode_to(uint64_t n, const float *restrict v, uint32_t largest,
                                  uint8_t *restrict out)
{
    uint16_t *restrict half = (uint16_t *)(void *)out;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        half[i] = ps_fp16_held(v[i], largest);
}

static void fp16_encode(uint64_t n, const float *v, const ps_codec_how *how, uint64_t at,
                        uint8_t *out)
{
    fp16_encode_to(n, v, 0x7BFFu, out);
}

static void fp16_overflow_encode(uint64_t n, const float *v, const ps_codec_how *how,
                                 uint64_t at, uint8_t *out)
{
    fp16_encode_to(n, v, 0x7C00u, out);
}

static ps_err fp16_decode(uint64_t n, const uint8_t *restrict in, double topk,
                          float *restrict out)
{
    const uint16_t *restrict half = (const uint16_t *)(const void *)in;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = ps_float_of_fp16(half[i]);
    return PS_OK;
}

static void bf16_encode(uint64_t n, const float *restrict v, const ps_codec_how *how,
                        uint64_t at, uint8_t *restrict out)
{
    uint16_t *restrict half = (uint16_t *)(void *)out;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        half[i] = ps_bf16_of(v[i]);
}

static ps_err bf16_decode(uint64_t n, const uint8_t *restrict in, double topk,
                          float *restrict out)
{
    const uint16_t *restrict half = (const uint16_t *)(const void *)in;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = ps_float_of_bf16(half[i]);
    return PS_OK;
}

const ps_codec_block PS_AT_LEVEL(ps_codec_none_block) = {PS_CODEC_MAX_BLOCK, none_bytes,
                                                         none_encode, none_decode, NULL};
const ps_codec_block PS_AT_LEVEL(ps_codec_fp16_block) = {PS_CODEC_MAX_BLOCK, half_bytes,
                                                         fp16_encode, fp16_decode, NULL};
const ps_codec_block PS_AT_LEVEL(ps_codec_fp16_overflow_block) = {
    PS_CODEC_MAX_BLOCK, half_bytes, fp16_overflow_encode, fp16_decode, NULL};
const ps_codec_block PS_AT_LEVEL(ps_codec_bf16_block) = {PS_CODEC_MAX_BLOCK, half_bytes,
                                                         bf16_encode, bf16_decode, NULL};
