/* 32-bit index arithmetic of the CUDA kernels, with fast divisions by numbers that are
 * known before the launch. Source: Granlund and Montgomery, "Division by invariant
 * integers using multiplication", PLDI 1994, section 4. */
#ifndef PS_CUDA_INDEX_H
#define PS_CUDA_INDEX_H

#include "arith.h"

/* Launches and arrays stay below this, so that indices fit in 32 bits. */
#define PS_INDEX_MAX INT32_MAX

typedef struct ps_divisor {
    uint32_t by, magic, shift;
} ps_divisor;

typedef struct ps_divided {
    uint32_t q, r;
} ps_divided;

/* by: 1 .. PS_INDEX_MAX. */
PS_ARITH ps_divisor ps_divisor_of(int64_t by)
{
    ps_divisor d;
    d.by = (uint32_t)by;
    d.shift = 0;
    while (((uint64_t)1 << d.shift) < d.by)
        d.shift++;
    uint64_t rest = ((uint64_t)1 << d.shift) - d.by;
    d.magic = (uint32_t)((rest << 32) / d.by + 1);
    return d;
}

/* n: 0 .. PS_INDEX_MAX. */
PS_ARITH ps_divided ps_divide(uint32_t n, ps_divisor d)
{
    ps_divided out;
    uint32_t high = (uint32_t)((uint64_t)n * d.magic >> 32);
    out.q = (high + n) >> d.shift;
    out.r = n - out.q * d.by;
    return out;
}

#endif
