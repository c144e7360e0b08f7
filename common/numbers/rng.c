#include "rng.h"

#include <math.h>

enum { MT_N = 624, MT_M = 397 };

void ps_mt19937_seed(ps_mt19937 *g, uint64_t seed)
{
    g->state[0] = (uint32_t)seed;
    for (uint32_t i = 1; i < MT_N; i++) {
        uint32_t before = g->state[i - 1];
        g->state[i] = 1812433253u * (before ^ (before >> 30)) + i;
    }
    g->next = MT_N;
}

static uint32_t rng_twist(uint32_t high, uint32_t low)
{
    uint32_t y = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (y >> 1) ^ (low & 1 ? 0x9908b0dfu : 0);
}

static void rng_refill(ps_mt19937 *g)
{
    uint32_t *s = g->state;
    for (int i = 0; i < MT_N; i++)
        s[i] = s[(i + MT_M) % MT_N] ^ rng_twist(s[i], s[(i + 1) % MT_N]);
    g->next = 0;
}

uint32_t ps_mt19937_u32(ps_mt19937 *g)
{
    if (g->next >= MT_N) rng_refill(g);
    uint32_t y = g->state[g->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

uint64_t ps_mt19937_u64(ps_mt19937 *g)
{
    uint64_t first = ps_mt19937_u32(g);
    return first << 32 | ps_mt19937_u32(g);
}

/* From this n on, 32 random bits would be biased by more than 5%: torch takes 64. */
static const int64_t RANDPERM_SMALL = UINT32_MAX / 20;

void ps_randperm(ps_mt19937 *g, int64_t n, int64_t *out)
{
    if (n < RANDPERM_SMALL) {
        for (int64_t i = 0; i < n; i++)
            out[i] = i;
        for (int64_t i = 0; i + 1 < n; i++) {
            int64_t z = i + (int64_t)(ps_mt19937_u32(g) % (uint64_t)(n - i));
            int64_t kept = out[i];
            out[i] = out[z];
            out[z] = kept;
        }
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t z = (int64_t)(ps_mt19937_u64(g) % (uint64_t)(i + 1));
        out[i] = i;
        out[i] = out[z];
        out[z] = i;
    }
}

void ps_uniform(ps_mt19937 *g, float from, float to, int fused, uint64_t n, float *out)
{
    const float width = to - from;
    for (uint64_t i = 0; i < n; i++) {
        float u = (float)(ps_mt19937_u32(g) & 0xffffff) * 0x1p-24f;
        out[i] = fused ? fmaf(u, width, from) : u * width + from;
    }
}
