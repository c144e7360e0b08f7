/* Arithmetic that several codecs share. */
#ifndef PS_CODEC_MATH_H
#define PS_CODEC_MATH_H

#include <stdint.h>

#include "codec_arith.h"

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
