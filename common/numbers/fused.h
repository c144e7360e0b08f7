/* a * b + c, rounded once: fmaf without a function call for every element.
 *
 * Processors without the instruction compute in double: the product is exact there, and
 * so is the sum's error (Knuth's TwoSum). A sum that is not exact is replaced by its odd
 * neighbour, which no rounding to float32 can mistake for a tie (Boldo and Melquiond
 * 2008, "Emulation of a FMA and correctly rounded sums: proved algorithms using rounding
 * to odd"). Loops over it vectorise. */
#ifndef PS_FUSED_H
#define PS_FUSED_H

#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float ps_fused_by_double(float a, float b, float c)
{
    const double product = (double)a * (double)b, add = (double)c;
    double sum = product + add;
    const double seen = sum - product;
    const double rest = (product - (sum - seen)) + (add - seen); // NaN beyond infinity
    int64_t bits;
    memcpy(&bits, &sum, sizeof bits);
    // away from 0 when the rest has the sum's sign; an odd one stays
    const int64_t inexact = (rest > 0.0) | (rest < 0.0);
    const int64_t step = (rest > 0.0) == (sum > 0.0) ? inexact : -inexact;
    bits += bits & 1 ? 0 : step;
    memcpy(&sum, &bits, sizeof bits);
    return (float)sum;
}

#if defined __FMA__ || defined __FP_FAST_FMAF || defined __aarch64__
static inline float ps_fused(float a, float b, float c)
{
    return fmaf(a, b, c);
}
#else
static inline float ps_fused(float a, float b, float c)
{
    return ps_fused_by_double(a, b, c);
}
#endif

#endif
