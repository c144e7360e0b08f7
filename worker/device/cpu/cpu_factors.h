/* The factors of products: float32, or rounded to 16 bits by train.precision. Sums are
 * float32 in all cases. */
#ifndef PS_CPU_FACTORS_H
#define PS_CPU_FACTORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "float16.h"

typedef enum ps_cpu_factors {
    PS_CPU_FLOAT32,
    PS_CPU_BF16, // 16 bits each, for the processor's instructions
    PS_CPU_FP16,
    PS_CPU_ROUNDED_BF16, // the same values stored as float32, where there are no such
    PS_CPU_ROUNDED_FP16  // instructions, or where those for float32 are better
} ps_cpu_factors;

/* Whether they have 16 bits each. */
static inline bool ps_cpu_factors_are_narrow(ps_cpu_factors factors)
{
    return factors == PS_CPU_BF16 || factors == PS_CPU_FP16;
}

static inline bool ps_cpu_factors_are_rounded(ps_cpu_factors factors)
{
    return factors == PS_CPU_ROUNDED_BF16 || factors == PS_CPU_ROUNDED_FP16;
}

/* BF16 or FP16 of what is rounded. */
static inline ps_cpu_factors ps_cpu_factors_type(ps_cpu_factors factors)
{
    if (factors == PS_CPU_ROUNDED_BF16) return PS_CPU_BF16;
    return factors == PS_CPU_ROUNDED_FP16 ? PS_CPU_FP16 : factors;
}

/* The same values stored as float32. */
static inline ps_cpu_factors ps_cpu_factors_rounded(ps_cpu_factors factors)
{
    if (factors == PS_CPU_BF16) return PS_CPU_ROUNDED_BF16;
    return factors == PS_CPU_FP16 ? PS_CPU_ROUNDED_FP16 : factors;
}

/* One number of 16 bits: fp16, or bf16. In loops fp16 is a constant. */
static inline uint16_t ps_cpu_narrow_of(bool fp16, float x)
{
    return fp16 ? ps_fp16_of(x) : ps_bf16_of(x);
}

static inline float ps_cpu_wide_of(bool fp16, uint16_t x)
{
    return fp16 ? ps_float_of_fp16(x) : ps_float_of_bf16(x);
}

/* Does the statement for i from 0 to count - 1. In it the constant FP16 says whether that
 * is the type: asking for the type in a parallel loop would be a branch in it. */
#define PS_CPU_EACH(type, count, ...)                                                    \
    do {                                                                                 \
        if ((type) == PS_CPU_FP16) {                                                     \
            enum { FP16 = 1 };                                                           \
            _Pragma("omp parallel for simd") for (int64_t i = 0; i < (count); i++)       \
                __VA_ARGS__;                                                             \
        } else {                                                                         \
            enum { FP16 = 0 };                                                           \
            _Pragma("omp parallel for simd") for (int64_t i = 0; i < (count); i++)       \
                __VA_ARGS__;                                                             \
        }                                                                                \
    } while (0)

/* Of one factor. */
size_t ps_cpu_factor_bytes(ps_cpu_factors factors);
/* Rounds n numbers to nearest, ties to even; out holds n factors. Neither FLOAT32 nor an
 * overlap of x and out is allowed. */
void ps_cpu_narrow(ps_cpu_factors factors, int64_t n, const float *restrict x,
                   void *restrict out);
/* The reverse; exact. type: BF16 or FP16. */
void ps_cpu_widen(ps_cpu_factors type, int64_t n, const uint16_t *restrict x,
                  float *restrict out);

#endif
