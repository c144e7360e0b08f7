/* IEEE 754 half precision by its definition, computed in double. It does not use
 * float16.h, which is tested against it, nor the compiler's _Float16, which GCC 11 lacks
 * on x86. */
#ifndef TEST_HALF_H
#define TEST_HALF_H

#include <math.h>
#include <stdint.h>

static inline double half_value(uint16_t bits)
{
    const unsigned exponent = bits >> 10 & 31, mantissa = bits & 1023;
    // in units of the smallest value, 2^-24
    const uint64_t units =
        exponent ? (uint64_t)(1024 + mantissa) << (exponent - 1) : mantissa;
    double value = (double)units * 0x1p-24;
    if (exponent == 31) value = mantissa ? NAN : INFINITY;
    return bits & 0x8000 ? -value : value;
}

/* Rounded to nearest, ties to even. */
static inline uint16_t half_nearest(double x)
{
    const uint16_t sign = signbit(x) ? 0x8000 : 0;
    if (isnan(x)) return sign | 0x7E00;
    if (fabs(x) >= 65520.0) return sign | 0x7C00; // from halfway beyond the largest
    int exponent;
    (void)frexp(x, &exponent); // |x| in [2^(exponent - 1), 2^exponent)
    if (exponent < -13 || x == 0.0) exponent = -13;
    const double steps = rint(ldexp(fabs(x), 11 - exponent));
    return (uint16_t)(sign + (exponent + 13) * 1024 + (int)steps);
}

#endif
