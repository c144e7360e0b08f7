#include "memory_sum.h"

#include <string.h>

#include "cpu_level.h"

/* A word, mixed with its place, one to one. A sum of words times factors would not do: it
 * is the same where the signs of all words are others. */
static inline uint32_t memory_sum_word(uint32_t bits, uint32_t place)
{
    uint32_t x = bits + place * UINT32_C(0x9E3779B1);
    x ^= x >> 15;
    x *= UINT32_C(0x85EBCA6B);
    return x ^ x >> 13;
}

PS_PER_LEVEL(uint32_t, ps_memory_sum, (const void *from, uint64_t bytes), (from, bytes))
{
    const unsigned char *words = from;
    const uint64_t n = bytes / sizeof(uint32_t), rest = bytes % sizeof(uint32_t);
    uint32_t sum = 0, last = 0;
#pragma omp simd reduction(+ : sum)
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, words + i * sizeof bits, sizeof bits);
        sum += memory_sum_word(bits, (uint32_t)i);
    }
    if (rest > 0) memcpy(&last, words + n * sizeof last, rest);
    return sum + memory_sum_word(last, (uint32_t)n);
}
