/* Numbers that decay to zero, without the slow ones on the way.
 *
 * A moment that gets no more gradients shrinks in every step, and never becomes 0:
 * rounded to nearest, the smallest subnormal number times 0.9 is itself. Processors take
 * some hundred cycles for an operation with a subnormal number. A model with dead inputs
 * (the border of MNIST's pictures) then makes every optimizer step several times slower
 * for the rest of the job. */
#ifndef PS_FLUSHED_H
#define PS_FLUSHED_H

#include <float.h>
#include <math.h>

#include "arith_function.h"

/* x, or 0 where x is subnormal. NaN stays. */
PS_ARITH float ps_flushed(float x)
{
    return fabsf(x) < FLT_MIN ? 0.0f : x;
}

/* A second moment whose root plus eps divides `over`: flushed only where that is 0, so
 * that a small gradient is divided by what it has to be, and nothing is divided by 0. */
PS_ARITH float ps_flushed_under(float over, float square, float eps)
{
    return over == 0.0f && eps > 0.0f ? ps_flushed(square) : square;
}

#endif
