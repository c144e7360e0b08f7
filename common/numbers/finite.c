#include "finite.h"

#include <string.h>

#include "cpu_level.h"

PS_PER_LEVEL(bool, ps_finite_all, (const float *x, uint64_t n), (x, n))
{
    // Without its sign, a float that is not finite is at least 0x7f800000 as an integer.
    uint32_t largest = 0;
#pragma omp simd reduction(max : largest)
    for (uint64_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        bits &= 0x7fffffffu;
        largest = bits > largest ? bits : largest;
    }
    return largest < 0x7f800000u;
}
