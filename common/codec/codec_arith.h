/* The arithmetic of codecs that devices share: plain inline functions that both a C and a
 * CUDA compiler accept. So a payload is the same bytes, wherever it was made. */
#ifndef PS_CODEC_ARITH_H
#define PS_CODEC_ARITH_H

#include <float.h>
#include <math.h>
#include <stdint.h>

#include "arith_function.h"
#include "float16.h"

/* A well-mixing permutation of 32 bits (C. Wellons, lowbias32): cheaper than Philox,
 * enough for rounding, and the compiler vectorises it. */
PS_ARITH uint32_t ps_codec_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* What the draws of a vector with that key (ps_codec_draw) depend on. */
PS_ARITH uint32_t ps_codec_vector_key(uint64_t key)
{
    return ps_codec_mix((uint32_t)key) ^
           ps_codec_mix((uint32_t)(key >> 32) + 0x9E3779B9u);
}

/* The elements of a block of int8. */
enum { PS_CODEC_INT8_BLOCK = 256 };

/* most: the block's largest |v| as bits; from 0x7F800000 on one of them is not finite. */
PS_ARITH float ps_codec_int8_scale(uint32_t most)
{
    float scale = ps_float_of_bits(most) / 127.0f;
    if (scale < FLT_MIN) scale = 0; // it has no inverse: the block is sent as zeros
    // It was rounded up: in float32 its product would be infinite. (Compared in double:
    // where `scale * 127.0f` is compared, GCC 14 then takes the scale for infinite, too.)
    if ((double)scale * 127.0 >= 0x1.ffffffp127) scale = nextafterf(scale, 0);
    return most >= 0x7F800000u ? ps_float_of_bits(0x7FC00000u) : scale; // NaN
}

/* v / scale + u rounded down, for u in (0, 1) from 16 random bits: its mean is v / scale.
 */
PS_ARITH int8_t ps_codec_int8_round(float v, float inverse, uint32_t bits)
{
    float q = floorf(v * inverse + ((float)(int32_t)bits + 0.5f) * 0x1p-16f);
    q = q > 127.0f ? 127.0f : q;
    q = q < -127.0f ? -127.0f : q;
    return (int8_t)(int32_t)q;
}

#endif
