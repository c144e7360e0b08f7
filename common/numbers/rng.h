/* Random numbers: PyTorch's CPU generator, and counter-based draws that can be replayed.
 *
 * mt19937 as at::CPUGeneratorImpl (the same stream as std::mt19937); randperm as
 * at::native::randperm_cpu; uniform float32 as at::uniform_real_distribution<float>.
 * Philox4x32-10: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC11.
 */
#ifndef PS_RNG_H
#define PS_RNG_H

#include <stdint.h>

typedef struct ps_mt19937 {
    uint32_t state[624];
    int next;
} ps_mt19937;

void ps_mt19937_seed(ps_mt19937 *g, uint64_t seed); // of 32 bits, as PyTorch's
uint32_t ps_mt19937_u32(ps_mt19937 *g);
uint64_t ps_mt19937_u64(ps_mt19937 *g); // first << 32 | second

/* out (n) becomes torch.randperm(n, generator=g). */
void ps_randperm(ps_mt19937 *g, int64_t n, int64_t *out);

/* out (n) becomes uniform in [from, to): u * (to - from) + from, fused (fmaf) or not. */
void ps_uniform(ps_mt19937 *g, float from, float to, int fused, uint64_t n, float *out);

#ifdef __CUDACC__
#define PS_RNG_INLINE static __host__ __device__ inline
#else
#define PS_RNG_INLINE static inline
#endif

/* Four uniform words for (key, counter). Pure; the same on every device. */
PS_RNG_INLINE void ps_philox4x32(const uint32_t key[2], const uint32_t counter[4],
                                 uint32_t out[4])
{
    uint32_t k0 = key[0], k1 = key[1];
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Dropout's draws: element e of a sample's activation, in PyTorch's row-major order, is
 * kept when its 16-bit draw is >= p * 65536. Draw e is half-word e % 8 (low half first)
 * of philox(key = {seed, seed >> 32}, counter = {e / 8, dropout_id, position, epoch}). */
typedef struct ps_dropout_key {
    uint64_t seed;
    uint32_t epoch;
} ps_dropout_key;

#endif
