#include <math.h>
#include <string.h>

#include "codec_block.h"
#include "codec_math.h"
#include "float16.h"

enum { BLOCK = 256 };

static uint64_t int8_bytes(uint64_t n, double topk)
{
    (void)topk;
    return 4 + n;
}

static inline void round_all(uint64_t n, const float *restrict v, uint32_t key,
                             uint64_t first, float scale, int8_t *restrict out)
{
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float u = (float)(ps_codec_mix((uint32_t)(first + i) ^ key) >> 8) * 0x1p-24f;
        float q = floorf(v[i] * inverse + u);
        q = q > 127.0f ? 127.0f : q;
        q = q < -127.0f ? -127.0f : q;
        out[i] = (int8_t)(int32_t)q;
    }
}

static void int8_encode(uint64_t n, const float *v, const ps_codec_how *how, uint64_t at,
                        uint8_t *out)
{
    uint32_t most = ps_codec_largest_bits(n, v);
    float scale = ps_float_of_bits(most) / 127.0f;
    // A scale that underflows to 0 would turn the block's values into nothing at all.
    if (most >= 0x7F800000u) scale = NAN;
    memcpy(out, &scale, 4);
    if (most >= 0x7F800000u)
        memset(out + 4, 1, n);
    else if (n == BLOCK)
        round_all(BLOCK, v, how->key, at, scale, (int8_t *)out + 4);
    else
        round_all(n, v, how->key, at, scale, (int8_t *)out + 4);
}

static ps_err int8_decode(uint64_t n, const uint8_t *in, double topk, float *restrict out)
{
    (void)topk;
    float scale;
    memcpy(&scale, in, 4);
    const int8_t *restrict q = (const int8_t *)in + 4;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = (float)q[i] * scale;
    return PS_OK;
}

const ps_codec_block ps_codec_int8_block = {BLOCK, int8_bytes, int8_encode, int8_decode,
                                            NULL};
