#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "codec_block.h"
#include "codec_math.h"
#include "float16.h"

/* A span's last block is shorter: the size of a whole block is a constant where speed
 * matters, so that the loops use whole vectors. */
enum { BLOCK = 320, GROUP = 16, GROUPS = BLOCK / GROUP, EXPONENTS = 16 };
enum { LAST = PS_CODEC_SPAN % BLOCK };

/* Shares of a group's largest, to the nearest half of a power of two: from which size an
 * element is sent, and as what. They were measured on gradients of BasicNet and on normal
 * and log-normal numbers: shares that are best for even groups keep too much of uneven
 * ones, and the other way round. */
#define SENT_ABOVE 0.375f
#define SENT_AS    0.625f

static uint64_t exponent_bytes(uint64_t n)
{
    return ps_codec_blocks_of(n, (uint64_t)2 * GROUP); // two groups to a byte
}

static uint64_t onebit_bytes(uint64_t n, double topk)
{
    return 2 + exponent_bytes(n) + ps_codec_blocks_of(n, 5); // five elements to a byte
}

/* A group's magnitude from its exponent e: 2^(-e/2) times the block's largest, as bits.
 * An odd e is half way to the next power of two in the mantissa (1, 3/4, 1/2, 3/8 ...).
 * The result is never below 0. */
static inline void levels_of(uint32_t largest, float times, float *restrict levels)
{
#pragma omp simd
    for (uint32_t e = 0; e < EXPONENTS; e++) {
        const uint32_t less = e << 22;
        levels[e] = times * ps_float_of_bits(largest > less ? largest - less : 0);
    }
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

/* False when a byte is more than five digits can be. A third of a number up to 255 is
 * 171/512 of it, rounded down. */
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

/* Repeats a group's number for each of its elements, so that loops over blocks use whole
 * vectors. */
static inline void onebit_spread(float x, float *restrict group)
{
#pragma omp simd
    for (int i = 0; i < GROUP; i++)
        group[i] = x;
}

/* Computes the exponents, an even number of them. largest is the block's, rounded down.
 */
static inline uint32_t onebit_measure(uint64_t n, const float *restrict v,
                                      uint32_t *restrict exponents)
{
    const uint64_t whole = n / GROUP, rest = n % GROUP;
    uint32_t of_group[GROUPS] = {0}, largest = 0;
    for (uint64_t g = 0; g < whole; g++)
        of_group[g] = ps_codec_largest_bits(GROUP, v + g * GROUP);
    if (rest > 0) of_group[whole] = ps_codec_largest_bits(rest, v + whole * GROUP);
    for (int g = 0; g < GROUPS; g++)
        largest = of_group[g] > largest ? of_group[g] : largest;
    largest &= 0xFFFF0000u;
    for (int g = 0; g < GROUPS; g++) {
        const uint32_t e = (largest + (1u << 21) - of_group[g]) >> 22; // to the nearest
        exponents[g] = of_group[g] > largest ? 0 : e < EXPONENTS ? e : EXPONENTS - 1;
    }
    return largest;
}

static inline void onebit_choose(uint64_t n, const float *restrict v,
                                 uint8_t *restrict out)
{
    uint32_t exponents[GROUPS];
    float levels[EXPONENTS], above[BLOCK];
    uint8_t digits[BLOCK + 5] = {0};
    const uint32_t largest = onebit_measure(n, v, exponents);
    levels_of(largest, SENT_ABOVE, levels);
    for (int g = 0; g < GROUPS; g++)
        onebit_spread(levels[exponents[g]], above + g * GROUP);
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        const uint32_t sign = ps_float_bits(v[i]) >> 31;
        digits[i] = (uint8_t)(fabsf(v[i]) > above[i] ? 1u + sign : 0u);
    }
    const uint16_t scale = (uint16_t)(largest >> 16);
    memcpy(out, &scale, 2);
    out += 2;
    for (uint64_t g = 0; g < exponent_bytes(n); g++)
        *out++ = (uint8_t)(exponents[2 * g] | exponents[2 * g + 1] << 4);
    pack_fives(ps_codec_blocks_of(n, 5), digits, out);
}

static void onebit_encode(uint64_t n, const float *v, const ps_codec_how *how,
                          uint64_t at, uint8_t *out)
{
    if (n == BLOCK)
        onebit_choose(BLOCK, v, out);
    else if (n == LAST)
        onebit_choose(LAST, v, out);
    else
        onebit_choose(n, v, out);
}

static inline bool onebit_add_block(uint64_t n, const uint8_t *restrict in, float times,
                                    float *restrict sum)
{
    const uint64_t pairs = exponent_bytes(n);
    uint8_t digits[BLOCK + 5];
    float levels[EXPONENTS], a[BLOCK];
    uint16_t scale;
    memcpy(&scale, in, 2);
    levels_of((scale & 0x7FFFu) * 0x10000u, times * SENT_AS, levels);
    for (uint64_t g = 0; g < pairs; g++) {
        onebit_spread(levels[in[2 + g] & 15u], a + 2 * g * GROUP);
        onebit_spread(levels[in[2 + g] >> 4], a + (2 * g + 1) * GROUP);
    }
    const bool fives = unpack_fives(ps_codec_blocks_of(n, 5), in + 2 + pairs, digits);
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        sum[i] += a[i] * (float)((int32_t)(digits[i] & 1u) - (digits[i] >> 1));
    return fives;
}

static ps_err onebit_add(uint64_t n, const uint8_t *in, double topk, float times,
                         float *sum)
{
    if (n == BLOCK  ? onebit_add_block(BLOCK, in, times, sum)
        : n == LAST ? onebit_add_block(LAST, in, times, sum)
                    : onebit_add_block(n, in, times, sum))
        return PS_OK;
    return ps_err_set(PS_ERR_PROTOCOL, "onebit: a byte that is not five digits");
}

static ps_err onebit_decode(uint64_t n, const uint8_t *in, double topk, float *out)
{
    memset(out, 0, n * sizeof *out);
    return onebit_add(n, in, topk, 1, out);
}

const ps_codec_block PS_AT_LEVEL(ps_codec_onebit_block) = {
    BLOCK, onebit_bytes, onebit_encode, onebit_decode, onebit_add};
