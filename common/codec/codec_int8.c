#include <string.h>

#include "codec_block.h"
#include "codec_math.h"
#include "float16.h"

enum { BLOCK = PS_CODEC_INT8_BLOCK };

static uint64_t int8_bytes(uint64_t n, double topk)
{
    return 4 + n;
}

/* Two elements, half a block apart, share a number. */
static inline void int8_round_all(uint32_t n, const float *restrict v,
                                  const ps_codec_how *how, uint32_t first, float scale,
                                  int8_t *restrict out)
{
    const uint32_t key = how->key, drawn = how->nearest ? 0 : UINT32_MAX;
    const uint32_t fixed = how->nearest ? 0x80008000u : 0; // u = 1/2
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    const uint32_t half = n / 2;
#pragma omp simd
    for (uint32_t i = 0; i < half; i++) {
        const uint32_t bits = (ps_codec_mix((first + i) ^ key) & drawn) | fixed;
        out[i] = ps_codec_int8_round(v[i], inverse, bits & 0xFFFFu);
        out[half + i] = ps_codec_int8_round(v[half + i], inverse, bits >> 16);
    }
    if (n % 2)
        out[n - 1] = ps_codec_int8_round(
            v[n - 1], inverse,
            ((ps_codec_mix((first + half) ^ key) & drawn) | fixed) >> 16);
}

static void int8_encode(uint64_t n, const float *v, const ps_codec_how *how, uint64_t at,
                        uint8_t *out)
{
    uint32_t most = ps_codec_largest_bits(n, v);
    const float scale = ps_codec_int8_scale(most);
    memcpy(out, &scale, 4);
    if (most >= 0x7F800000u)
        memset(out + 4, 1, n);
    else if (n == BLOCK)
        int8_round_all(BLOCK, v, how, (uint32_t)at, scale, (int8_t *)out + 4);
    else
        int8_round_all((uint32_t)n, v, how, (uint32_t)at, scale, (int8_t *)out + 4);
}

static ps_err int8_decode(uint64_t n, const uint8_t *in, double topk, float *restrict out)
{
    float scale;
    memcpy(&scale, in, 4);
    const int8_t *restrict q = (const int8_t *)in + 4;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)q[i] * scale;
    return PS_OK;
}

const ps_codec_block PS_AT_LEVEL(ps_codec_int8_block) = {BLOCK, int8_bytes, int8_encode,
                                                         int8_decode, NULL};
