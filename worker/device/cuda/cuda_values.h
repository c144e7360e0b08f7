/* Values in the GPU's memory, in float32 or in 16 bits. Kernels read and write them
 * through the functions below, and compute in float32. */
#ifndef PS_CUDA_VALUES_H
#define PS_CUDA_VALUES_H

#include <stddef.h>

#include "cuda_index.h"
#include "float16.h"

PS_ARITH void ps_store(float *to, float value, bool add)
{
    *to = add ? *to + value : value;
}

typedef enum ps_format { PS_FORMAT_FP32, PS_FORMAT_BF16, PS_FORMAT_FP16 } ps_format;

PS_ARITH size_t ps_format_bytes(ps_format format)
{
    return format == PS_FORMAT_FP32 ? 4 : 2;
}

typedef struct ps_values {
    void *at;
    ps_format format;
} ps_values;

PS_ARITH ps_values ps_floats(const float *at)
{
    ps_values v;
    v.at = (void *)(uintptr_t)at;
    v.format = PS_FORMAT_FP32;
    return v;
}

/* The same from element `first` on. */
PS_ARITH ps_values ps_values_from(ps_values v, size_t first)
{
    v.at = (char *)v.at + first * ps_format_bytes(v.format);
    return v;
}

PS_ARITH float ps_get(ps_values v, size_t i)
{
    if (v.format == PS_FORMAT_FP32) return ((const float *)v.at)[i];
    uint16_t bits = ((const uint16_t *)v.at)[i];
    return v.format == PS_FORMAT_BF16 ? ps_float_of_bf16(bits) : ps_float_of_fp16(bits);
}

/* The value as it is read back after it was stored. */
PS_ARITH float ps_rounded(float value, ps_format format)
{
    if (format == PS_FORMAT_FP32) return value;
    return format == PS_FORMAT_BF16 ? ps_float_of_bf16(ps_bf16_of(value))
                                    : ps_float_of_fp16(ps_fp16_of(value));
}

/* = or += value, rounded to the format. */
PS_ARITH void ps_set(ps_values v, size_t i, float value, bool add)
{
    if (add) value = ps_get(v, i) + value;
    if (v.format == PS_FORMAT_FP32)
        ((float *)v.at)[i] = value;
    else
        ((uint16_t *)v.at)[i] =
            v.format == PS_FORMAT_BF16 ? ps_bf16_of(value) : ps_fp16_of(value);
}

#endif
