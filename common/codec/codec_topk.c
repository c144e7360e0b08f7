#include <math.h>
#include <string.h>
#ifdef __BMI2__
#include <immintrin.h>
#endif

#include "codec_block.h"
#include "codec_math.h"
#include "float16.h"

enum { BLOCK = 256 }; // indices are bytes

/* How many of a block's n elements travel. */
static uint64_t topk_count(uint64_t n, double share)
{
    uint64_t k = (uint64_t)ceil(share * (double)n);
    if (k < 1) k = 1;
    return k < n ? k : n;
}

static uint64_t topk_bytes(uint64_t n, double topk)
{
    const uint64_t k = topk_count(n, topk);
    return 4 + k + (k + 1) / 2;
}

/* The bits of |v|, which are ordered as the magnitudes are. */
static inline uint32_t magnitude_bits(float v)
{
    return ps_float_bits(v) & 0x7FFFFFFFu;
}

static uint16_t count_from(uint64_t n, const uint16_t *restrict a, uint16_t least)
{
    uint16_t count = 0; // a block has fewer elements than it can count
#pragma omp simd reduction(+ : count)
    for (uint64_t i = 0; i < n; i++)
        count = (uint16_t)(count + (a[i] >= least));
    return count;
}

/* The largest number in [low, high) that at least k elements of a reach, or any number
 * that exactly k reach. At least k reach low, and fewer reach high. */
static uint32_t topk_bisect(uint64_t n, const uint16_t *a, uint64_t k, uint32_t low,
                            uint32_t high)
{
    while (high - low > 1) {
        const uint32_t middle = low + (high - low) / 2;
        const uint64_t count = count_from(n, a, (uint16_t)middle);
        if (count == k) return middle;
        if (count > k)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* The same over all numbers: first down by octaves of float32's upper half, then by
 * bisection. */
static uint32_t upper_threshold(uint64_t n, const uint16_t *a, uint64_t k, uint32_t most)
{
    uint32_t high = most + 1, low = most;
    for (uint32_t step = 1u << 7; low > 0; step *= 2) {
        const uint64_t count = count_from(n, a, (uint16_t)low);
        if (count == k) return low;
        if (count > k) break;
        high = low;
        low = low > step ? low - step : 0;
    }
    return topk_bisect(n, a, k, low, high);
}

/* Sets chosen to 0xFF for the elements that reach least and to 0 for the others; returns
 * how many reach it. */
static inline uint16_t choose_from(uint64_t n, const uint16_t *restrict half,
                                   uint16_t least, uint8_t *restrict chosen)
{
    uint16_t reach = 0;
#pragma omp simd reduction(+ : reach)
    for (uint64_t i = 0; i < n; i++) {
        chosen[i] = half[i] >= least ? 0xFF : 0;
        reach = (uint16_t)(reach + (half[i] >= least));
    }
    return reach;
}

/* Chooses k when more than k magnitudes reach `upper` by their upper halves: among those
 * whose upper half is `upper`, the lower halves decide, then the lower index. */
static void choose_by_lower(uint64_t n, const float *restrict v, uint64_t k,
                            uint32_t upper, uint8_t *restrict chosen)
{
    uint32_t a[BLOCK];
    uint16_t half[BLOCK];
    uint32_t most = 0;
    if (n == 0) return; // GCC 13 with sanitizers would call both uninitialized without it
#pragma omp simd reduction(max : most)
    for (uint64_t i = 0; i < n; i++) {
        a[i] = magnitude_bits(v[i]);
        const uint32_t u = a[i] >> 16, rest = u == upper ? a[i] & 0xFFFFu : 0u;
        half[i] = (uint16_t)(u > upper ? 0xFFFFu : rest);
        most = rest > most ? rest : most; // 0 where zeros, or ones, must be told apart
    }
    const uint32_t least = upper << 16 | topk_bisect(n, half, k, 0, most + 1);
    uint16_t reach = 0, above = 0;
#pragma omp simd reduction(+ : reach, above)
    for (uint64_t i = 0; i < n; i++) {
        chosen[i] = a[i] >= least ? 0xFF : 0;
        reach = (uint16_t)(reach + (a[i] >= least));
        above = (uint16_t)(above + (a[i] > least));
    }
    if (reach == k) return;
    uint64_t ties = k - above, i = 0; // that many of the equal ones are chosen
    for (; ties > 0; i++)
        ties -= a[i] == least;
#pragma omp simd
    for (uint64_t j = i; j < n; j++)
        chosen[j] = a[j] > least ? 0xFF : 0;
}

/* Sets chosen to 0xFF for the k largest, the lower index first among equals, and to 0 for
 * the others. Upper halves are enough for most blocks, and a vector holds twice as many.
 */
static inline void topk_choose(uint64_t n, const float *restrict v, uint64_t k,
                               uint32_t most, uint8_t *restrict chosen)
{
    uint16_t half[BLOCK];
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        half[i] = (uint16_t)(magnitude_bits(v[i]) >> 16);
    const uint32_t upper = upper_threshold(n, half, k, most >> 16);
    if (choose_from(n, half, (uint16_t)upper, chosen) > k)
        choose_by_lower(n, v, k, upper, chosen);
}

/* The indices i, ascending, of which chosen[i] is 0xFF; the 8 after them may be written
 * to as well. Without branches, which the processor could not predict. */
static inline void topk_list(uint64_t n, const uint8_t *restrict chosen,
                             uint8_t *restrict index)
{
    uint64_t i = 0, found = 0;
#ifdef __BMI2__
    for (; i + 8 <= n; i += 8) {
        uint64_t eight, places;
        memcpy(&eight, chosen + i, 8);
        places = _pext_u64(0x0706050403020100u + i * 0x0101010101010101u, eight);
        memcpy(index + found, &places, 8);
        found += (uint64_t)__builtin_popcountll(eight) / 8;
    }
#endif
    for (; i < n; i++) {
        index[found] = (uint8_t)i;
        found += chosen[i] & 1u;
    }
}

/* The indices of the k largest, ascending; the 8 after them may be written to as well. */
static inline void find_largest(uint64_t n, const float *restrict v, uint32_t most,
                                uint64_t k, uint8_t *restrict index)
{
    uint8_t chosen[BLOCK];
    topk_choose(n, v, k, most, chosen);
    topk_list(n, chosen, index);
}

/* Powers of sqrt(1/2), and the least share of the scale that each stands for. They are
 * logarithmic, because the chosen elements span a decade and Adam depends on ratios. */
static const float topk_levels[8] = {1,     0.70710678f, 0.5f,   0.35355339f,
                                     0.25f, 0.1767767f,  0.125f, 0.0f};
static const float topk_least[7] = {0.84089642f, 0.59460356f, 0.42044821f, 0.29730178f,
                                    0.2102241f,  0.14865089f, 0.10511205f};

/* Encodes each element of v in 4 bits. */
static void topk_values(uint64_t n, const float *restrict v, float scale,
                        uint8_t *restrict values)
{
    float least[7];
    for (int i = 0; i < 7; i++)
        least[i] = topk_least[i] * scale;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        const float a = fabsf(v[i]);
        uint32_t e = (uint32_t)(a < least[0]) + (a < least[1]) + (a < least[2]) +
                     (a < least[3]) + (a < least[4]) + (a < least[5]) + (a < least[6]);
        values[i] = (uint8_t)(e | (ps_float_bits(v[i]) >> 31) << 3);
    }
}

static void topk_encode(uint64_t n, const float *v, const ps_codec_how *how, uint64_t at,
                        uint8_t *out)
{
    const uint64_t k = topk_count(n, how->topk);
    float chosen[BLOCK];
    uint8_t index[BLOCK + 8], values[BLOCK + 1];
    const uint32_t most = ps_codec_largest_bits(n, v);
    const float scale = ps_float_of_bits(most);
    if (n == BLOCK)
        find_largest(BLOCK, v, most, k, index);
    else
        find_largest(n, v, most, k, index);
    for (uint64_t i = 0; i < k; i++)
        chosen[i] = v[index[i]];
    topk_values(k, chosen, scale, values);
    values[k] = 0;
    memcpy(out, &scale, 4);
    memcpy(out + 4, index, k);
    for (uint64_t i = 0; i < k; i += 2)
        out[4 + k + i / 2] = (uint8_t)(values[i] | values[i + 1] << 4);
}

/* Adds the block's k elements, multiplied by times, to sum. */
static ps_err topk_add(uint64_t n, const uint8_t *in, double topk, float times,
                       float *sum)
{
    const uint64_t k = topk_count(n, topk);
    const uint8_t *index = in + 4, *values = index + k;
    float scale, levels[16];
    memcpy(&scale, in, 4);
    scale *= times;
    for (int i = 0; i < 8; i++)
        levels[8 + i] = -(levels[i] = topk_levels[i] * scale);
    int last = -1;
    for (uint64_t i = 0; i < k; last = index[i++]) {
        if (index[i] <= last || index[i] >= n)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "topk: index %u of a block of %llu is not above %d",
                              index[i], (unsigned long long)n, last);
        sum[index[i]] += levels[values[i / 2] >> (i % 2 * 4) & 15u];
    }
    return PS_OK;
}

static ps_err topk_decode(uint64_t n, const uint8_t *in, double topk, float *out)
{
    memset(out, 0, n * sizeof *out);
    return topk_add(n, in, topk, 1, out);
}

const ps_codec_block PS_AT_LEVEL(ps_codec_topk_block) = {BLOCK, topk_bytes, topk_encode,
                                                         topk_decode, topk_add};
