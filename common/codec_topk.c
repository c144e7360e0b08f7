#include <math.h>
#include <string.h>

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

static uint32_t count_from(uint64_t n, const uint32_t *restrict a, uint32_t least)
{
    uint32_t count = 0;
#pragma omp simd reduction(+ : count)
    for (uint64_t i = 0; i < n; i++)
        count += a[i] >= least;
    return count;
}

/* The largest number that at least k of a (at most `most`, below 2^31) reach, or one that
 * exactly k reach: down by octaves of float32, then bisection. A block lies in the first
 * cache, and a count is a few vectors. */
static uint32_t topk_threshold(uint64_t n, const uint32_t *a, uint64_t k, uint32_t most)
{
    uint32_t high = most + 1, low = most, step = 1u << 23; // fewer than k reach high
    for (uint32_t count; (count = count_from(n, a, low)) <= k; step *= 2) {
        if (count == k) return low;
        high = low;
        low = low > step ? low - step : 0;
    }
    while (high - low > 1) {
        uint32_t middle = low + (high - low) / 2;
        uint32_t count = count_from(n, a, middle);
        if (count == k) return middle;
        if (count > k)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Powers of sqrt(1/2), and the least share of the scale that each stands for.
 * Logarithmic, for what is chosen spans a decade and Adam cares for ratios. */
static const float topk_levels[8] = {1,     0.70710678f, 0.5f,   0.35355339f,
                                     0.25f, 0.1767767f,  0.125f, 0.0f};
static const float topk_least[7] = {0.84089642f, 0.59460356f, 0.42044821f, 0.29730178f,
                                    0.2102241f,  0.14865089f, 0.10511205f};

/* The indices of the k largest, ascending; index[k] may be written to as well. */
static void topk_choose(uint64_t n, const float *restrict v, uint32_t most, uint64_t k,
                        uint8_t *restrict index)
{
    uint32_t a[BLOCK];
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        a[i] = ps_float_bits(v[i]) & 0x7FFFFFFFu;
    const uint32_t least = topk_threshold(n, a, k, most);
    uint64_t ties = k - count_from(n, a, least + 1), found = 0;
    // Without branches: which are taken cannot be foreseen.
    for (uint64_t i = 0; i < n; i++) {
        uint64_t tie = (a[i] == least) & (ties > 0);
        index[found] = (uint8_t)i;
        found += (a[i] > least) | tie;
        ties -= tie;
    }
}

/* 4 bits for each of v. */
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
    (void)at;
    const uint64_t k = topk_count(n, how->topk);
    float chosen[BLOCK];
    uint8_t index[BLOCK + 1], values[BLOCK + 1];
    const uint32_t most = ps_codec_largest_bits(n, v);
    const float scale = ps_float_of_bits(most);
    topk_choose(n, v, most, k, index);
    for (uint64_t i = 0; i < k; i++)
        chosen[i] = v[index[i]];
    topk_values(k, chosen, scale, values);
    values[k] = 0;
    memcpy(out, &scale, 4);
    memcpy(out + 4, index, k);
    for (uint64_t i = 0; i < k; i += 2)
        out[4 + k + i / 2] = (uint8_t)(values[i] | values[i + 1] << 4);
}

static ps_err topk_decode(uint64_t n, const uint8_t *in, double topk, float *out)
{
    const uint64_t k = topk_count(n, topk);
    const uint8_t *index = in + 4, *values = index + k;
    float scale;
    memcpy(&scale, in, 4);
    memset(out, 0, n * sizeof *out);
    int last = -1;
    for (uint64_t i = 0; i < k; last = index[i++]) {
        if (index[i] <= last || index[i] >= n)
            return ps_err_set(PS_ERR_PROTOCOL,
                              "topk: index %u of a block of %llu is not above %d",
                              index[i], (unsigned long long)n, last);
        uint32_t value = values[i / 2] >> (i % 2 * 4) & 15u;
        float a = topk_levels[value & 7u] * scale;
        out[index[i]] = value & 8u ? -a : a;
    }
    return PS_OK;
}

const ps_codec_block ps_codec_topk_block = {BLOCK, topk_bytes, topk_encode, topk_decode};
