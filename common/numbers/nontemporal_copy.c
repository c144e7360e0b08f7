#include "nontemporal_copy.h"

#include <string.h>
#ifdef __SSE2__
#include <immintrin.h>
#endif

#include "cpu_level.h"

PS_PER_LEVEL(void, ps_nontemporal_copy,
             (float *restrict to, const float *restrict from, uint64_t n), (to, from, n))
{
    uint64_t i = 0;
#ifdef __AVX512F__
    if (((uintptr_t)to & 63) == 0) // a cache line at a time
        for (; i + 16 <= n; i += 16)
            _mm512_stream_ps(to + i, _mm512_loadu_ps(from + i));
#endif
#ifdef __SSE2__
    if (((uintptr_t)to & 15) == 0)
        for (; i + 4 <= n; i += 4)
            _mm_stream_ps(to + i, _mm_loadu_ps(from + i));
#endif
    memcpy(to + i, from + i, (n - i) * sizeof *from);
}

PS_PER_LEVEL(void, ps_nontemporal_scaled_copy,
             (float *restrict to, const float *restrict from, float factor, uint64_t n),
             (to, from, factor, n))
{
    uint64_t i = 0;
#ifdef __AVX512F__
    if (((uintptr_t)to & 63) == 0)
        for (; i + 16 <= n; i += 16)
            _mm512_stream_ps(
                to + i, _mm512_mul_ps(_mm512_loadu_ps(from + i), _mm512_set1_ps(factor)));
#endif
#ifdef __SSE2__
    if (((uintptr_t)to & 15) == 0)
        for (; i + 4 <= n; i += 4)
            _mm_stream_ps(to + i,
                          _mm_mul_ps(_mm_loadu_ps(from + i), _mm_set1_ps(factor)));
#endif
    for (; i < n; i++)
        to[i] = from[i] * factor;
}

PS_PER_LEVEL(void, ps_nontemporal_copy_done, (void), ())
{
#ifdef __SSE2__
    _mm_sfence();
#endif
}
