/* Arithmetic that several codecs share. */
#ifndef PS_CODEC_MATH_H
#define PS_CODEC_MATH_H

#include <stdint.h>

#include "float16.h"

/* A well-mixing permutation of 32 bits (C. Wellons, lowbias32): cheaper than Philox,
 * enough for rounding, and the compiler vectorises it. */
static inline uint32_t ps_codec_mix(uint32_t x)
{
    x ^= x >> 16;
    x *= 0x7FEB352Du;
    x ^= x >> 15;
    x *= 0x846CA68Bu;
    return x ^ (x >> 16);
}

/* The largest |v| of a block as bits; above 0x7F800000 when one is NaN. */
static inline uint32_t ps_codec_largest_bits(uint64_t n, const float *restrict v)
{
    uint32_t most = 0;
#pragma omp simd reduction(max : most)
    for (uint64_t i = 0; i < n; i++) {
        uint32_t a = ps_float_bits(v[i]) & 0x7FFFFFFFu;
        most = a > most ? a : most;
    }
    return most;
}

static inline uint64_t ps_codec_blocks_of(uint64_t n, uint64_t block)
{
    return (n + block - 1) / block;
}

#endif
