/* Numbers that decay to zero, without the slow ones on the way.
 *
 * A moment that gets no more gradients shrinks in every step, and never becomes 0:
 * rounded to nearest, the smallest subnormal number times 0.9 is itself. Processors take
 * some hundred cycles for an operation with a subnormal number. A model with dead inputs
 * (the border of MNIST's pictures) then makes every optimizer step several times slower
 * for the rest of the job. */
#ifndef PS_FLUSHED_H
#define PS_FLUSHED_H

#include <stdint.h>
#include <string.h>

#include "arith_function.h"

/* The smallest normal and the smallest positive number. */
enum { PS_FLT_MIN_BITS = 0x00800000, PS_FLT_LEAST_BITS = 1 };

/* All bits set where |x| is less than the float of these bits. A mask, since compilers
 * make branches of float comparisons that depend on each other, and loops with branches
 * do not vectorise. */
PS_ARITH int32_t ps_mask_below(float x, int32_t limit)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return -(int32_t)((bits & INT32_MAX) < limit);
}

/* x, or 0 where the mask is set. */
PS_ARITH float ps_zero_where(int32_t mask, float x)
{
    int32_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~mask;
    memcpy(&x, &bits, sizeof bits);
    return x;
}

/* x, or 0 where x is subnormal (of -0, 0). NaN stays. */
PS_ARITH float ps_flushed(float x)
{
    return ps_zero_where(ps_mask_below(x, PS_FLT_MIN_BITS), x);
}

/* A second moment whose root plus eps divides `over`: flushed only where that is 0, so
 * that a small gradient is divided by what it has to be, and nothing is divided by 0. */
PS_ARITH float ps_flushed_under(float over, float square, float eps)
{
    const int32_t where = ps_mask_below(over, PS_FLT_LEAST_BITS) & -(int32_t)(eps > 0.0f);
    return ps_zero_where(where & ps_mask_below(square, PS_FLT_MIN_BITS), square);
}

#endif
