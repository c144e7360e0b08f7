#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "codec_block.h"
#include "codec_math.h"
#include "float16.h"

/* Elements of very different size lie side by side in a gradient, and four bits have few
 * sizes: blocks are shorter than int8's. */
enum { BLOCK = 64, MOST = 7, ZERO = 8 };

static uint64_t int4_bytes(uint64_t n, double topk)
{
    return 2 + (n + 1) / 2;
}

/* 0 where it would have no inverse: the block is sent as zeros. */
static inline float scale_of(uint16_t largest)
{
    const float scale = ps_float_of_bits((uint32_t)largest << 16) / (float)MOST;
    return scale < FLT_MIN ? 0 : scale;
}

static inline uint8_t int4_round_one(float v, float inverse)
{
    float q = floorf(v * inverse + 0.5f);
    q = q > (float)MOST ? (float)MOST : q;
    q = q < (float)-MOST ? (float)-MOST : q;
    return (uint8_t)((int32_t)q + ZERO);
}

/* A byte holds two elements half a block apart. */
static inline void int4_round_all(uint32_t n, const float *restrict v, float scale,
                                  uint8_t *restrict out)
{
    const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
    const uint32_t half = (n + 1) / 2;
#pragma omp simd
    for (uint32_t i = 0; i < n / 2; i++)
        out[i] = (uint8_t)(int4_round_one(v[i], inverse) |
                           int4_round_one(v[half + i], inverse) << 4);
    if (n % 2)
        out[half - 1] = (uint8_t)(int4_round_one(v[half - 1], inverse) | ZERO << 4);
}

static void int4_encode(uint64_t n, const float *v, const ps_codec_how *how, uint64_t at,
                        uint8_t *out)
{
    const uint32_t most = ps_codec_largest_bits(n, v);
    const bool finite = most < 0x7F800000u;
    const uint16_t largest = finite ? (uint16_t)(most >> 16) : 0x7FC0u; // NaN
    memcpy(out, &largest, 2);
    if (!finite)
        memset(out + 2, ZERO | ZERO << 4, (n + 1) / 2);
    else if (n == BLOCK)
        int4_round_all(BLOCK, v, scale_of(largest), out + 2);
    else
        int4_round_all((uint32_t)n, v, scale_of(largest), out + 2);
}

/* False when a four bits' number is none that encode makes. */
static inline bool decode_all(uint32_t n, const uint8_t *restrict in, float scale,
                              float *restrict out)
{
    const uint32_t half = (n + 1) / 2;
    uint32_t least = MOST;
#pragma omp simd reduction(min : least)
    for (uint32_t i = 0; i < n / 2; i++) {
        const uint32_t low = in[i] & 15u, high = in[i] >> 4;
        out[i] = (float)((int32_t)low - ZERO) * scale;
        out[half + i] = (float)((int32_t)high - ZERO) * scale;
        least = low < least ? low : least;
        least = high < least ? high : least;
    }
    if (n % 2 == 0) return least > 0;
    const uint8_t last = in[half - 1];
    out[half - 1] = (float)((int32_t)(last & 15u) - ZERO) * scale;
    return least > 0 && (last & 15u) > 0 && last >> 4 == ZERO;
}

static ps_err int4_decode(uint64_t n, const uint8_t *in, double topk, float *out)
{
    uint16_t largest;
    memcpy(&largest, in, 2);
    const float scale = scale_of(largest);
    if (n == BLOCK ? decode_all(BLOCK, in + 2, scale, out)
                   : decode_all((uint32_t)n, in + 2, scale, out))
        return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "int4: a number below -7");
}

const ps_codec_block PS_AT_LEVEL(ps_codec_int4_block) = {BLOCK, int4_bytes, int4_encode,
                                                         int4_decode, NULL};
