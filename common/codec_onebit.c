#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "codec_block.h"
#include "codec_math.h"
#include "float16.h"

enum { BLOCK = 320 };

static uint64_t onebit_bytes(uint64_t n, double topk)
{
    (void)topk;
    return 2 + ps_codec_blocks_of(n, 5); // five elements to a byte
}

/* Of sixteen, in pairs: as wide as it goes, and the same on every processor. */
static inline double sum_of(const float *restrict v)
{
    double sums[8];
#pragma omp simd
    for (int i = 0; i < 8; i++)
        sums[i] = (double)v[i] + (double)v[i + 8];
    for (int i = 0; i < 4; i++)
        sums[i] += sums[i + 4];
    return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

static inline int32_t count_of(const int32_t *restrict v)
{
    int32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (int i = 0; i < 16; i++)
        count += v[i];
    return count;
}

static inline float mean_magnitude(uint64_t n, const float *restrict v)
{
    // Sixteen running sums in a fixed order: the bits do not depend on the vector width.
    float sums[16] = {0};
    const uint64_t whole = n / 16 * 16;
    for (uint64_t i = 0; i < whole; i += 16) {
#pragma omp simd
        for (int j = 0; j < 16; j++)
            sums[j] += fabsf(v[i + (uint64_t)j]);
    }
    double total = sum_of(sums);
    for (uint64_t i = whole; i < n; i++)
        total += fabsf(v[i]);
    return (float)(total / (double)n);
}

/* The mean of the |v| that are t or more. */
static inline float mean_above(uint64_t n, const float *restrict v, float t)
{
    float sums[16] = {0};
    int32_t counts[16] = {0};
    const uint64_t whole = n / 16 * 16;
    for (uint64_t i = 0; i < whole; i += 16) {
#pragma omp simd
        for (int j = 0; j < 16; j++) {
            float a = fabsf(v[i + (uint64_t)j]);
            sums[j] += a >= t ? a : 0.0f;
            counts[j] += a >= t;
        }
    }
    double total = sum_of(sums);
    int32_t count = count_of(counts);
    for (uint64_t i = whole; i < n; i++) {
        float a = fabsf(v[i]);
        total += a >= t ? a : 0.0f;
        count += a >= t;
    }
    return (float)(total / (double)count); // the largest is always among them; NaN: 0 / 0
}

/* digits (n, padded with 0 to 5 * bytes): element i is digit i / bytes of byte i % bytes,
 * so that both directions work on whole vectors. */
static inline void pack_fives(uint64_t bytes, const uint8_t *restrict digits,
                              uint8_t *restrict out)
{
#pragma omp simd
    for (uint64_t j = 0; j < bytes; j++)
        out[j] = (uint8_t)(digits[j] + 3 * digits[bytes + j] + 9 * digits[2 * bytes + j] +
                           27 * digits[3 * bytes + j] + 81 * digits[4 * bytes + j]);
}

/* False when a byte is more than five digits can be. A third of a number up to 255 is its
 * 171/512 rounded down. */
static inline bool unpack_fives(uint64_t bytes, const uint8_t *restrict in,
                                uint8_t *restrict digits)
{
    uint8_t left[BLOCK / 5], most = 0;
#pragma omp simd reduction(max : most)
    for (uint64_t j = 0; j < bytes; j++) {
        left[j] = in[j];
        most = in[j] > most ? in[j] : most;
    }
    for (uint64_t place = 0; place < 5; place++, digits += bytes) {
#pragma omp simd
        for (uint64_t j = 0; j < bytes; j++) {
            uint8_t third = (uint8_t)((uint16_t)(left[j] * 171u) >> 9);
            digits[j] = (uint8_t)(left[j] - 3 * third);
            left[j] = third;
        }
    }
    return most < 243;
}

static inline void choose(uint64_t n, const float *restrict v, uint8_t *restrict out)
{
    uint8_t digits[BLOCK + 5] = {0};
    // 3/4, not 1: of equal elements all are to be sent.
    float a = mean_above(n, v, 0.75f * mean_magnitude(n, v));
    a = mean_above(n, v, 0.5f * a);
    const float t = 0.5f * a;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        digits[i] = (uint8_t)(fabsf(v[i]) >= t ? 1u + (ps_float_bits(v[i]) >> 31) : 0u);
    uint16_t scale = ps_bf16_of(mean_above(n, v, t));
    memcpy(out, &scale, 2);
    pack_fives(ps_codec_blocks_of(n, 5), digits, out + 2);
}

static void onebit_encode(uint64_t n, const float *v, const ps_codec_how *how,
                          uint64_t at, uint8_t *out)
{
    (void)how;
    (void)at;
    if (n == BLOCK)
        choose(BLOCK, v, out);
    else
        choose(n, v, out);
}

static inline bool add(uint64_t n, const uint8_t *restrict in, float times,
                       float *restrict sum)
{
    uint8_t digits[BLOCK + 5];
    uint16_t scale;
    memcpy(&scale, in, 2);
    const float a = times * ps_float_of_bf16(scale);
    const bool fives = unpack_fives(ps_codec_blocks_of(n, 5), in + 2, digits);
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        sum[i] += a * (float)((int32_t)(digits[i] & 1u) - (digits[i] >> 1));
    return fives;
}

static ps_err onebit_add(uint64_t n, const uint8_t *in, double topk, float times,
                         float *sum)
{
    (void)topk;
    if (n == BLOCK ? add(BLOCK, in, times, sum) : add(n, in, times, sum)) return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "onebit: a byte that is not five digits");
}

static ps_err onebit_decode(uint64_t n, const uint8_t *in, double topk, float *out)
{
    memset(out, 0, n * sizeof *out);
    return onebit_add(n, in, topk, 1, out);
}

const ps_codec_block ps_codec_onebit_block = {BLOCK, onebit_bytes, onebit_encode,
                                              onebit_decode, onebit_add};
