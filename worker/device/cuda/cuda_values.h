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

/* How pictures lie in memory: (n, C, H, W), or (n, H, W, C) with the channels last. */
typedef struct ps_layout {
    bool channels_last;
    uint32_t step; // from one position of a plane to the next: C, else 1
    ps_divisor channels;
} ps_layout;

PS_ARITH ps_layout ps_layout_of(int64_t channels, bool channels_last)
{
    ps_layout l;
    l.channels_last = channels_last;
    l.step = channels_last ? (uint32_t)channels : 1;
    l.channels = ps_divisor_of(channels);
    return l;
}

/* The index of the first position of a plane; plane: image * C + channel; size: of a
 * plane. */
PS_ARITH size_t ps_plane_at(const ps_layout *l, uint32_t plane, uint32_t size)
{
    if (!l->channels_last) return (size_t)plane * size;
    const ps_divided at = ps_divide(plane, l->channels);
    return (size_t)at.q * size * l->step + at.r;
}

/* Kernels that are bound by memory do PS_WIDE consecutive elements in a call, and read
 * and write them at once. `count`: of all elements; the last call may have fewer. Arrays
 * begin on a boundary of PS_WIDE elements. */
enum { PS_WIDE = 4 };

typedef struct ps_wide_floats {
    float at[PS_WIDE];
} __attribute__((aligned(16))) ps_wide_floats;

typedef struct ps_wide_halves {
    uint16_t at[PS_WIDE];
} __attribute__((aligned(8))) ps_wide_halves;

/* Elements i to i + PS_WIDE - 1; i is a multiple of PS_WIDE. */
PS_ARITH void ps_get_wide(ps_values v, size_t i, float out[PS_WIDE])
{
    if (v.format == PS_FORMAT_FP32) {
        const ps_wide_floats w = ((const ps_wide_floats *)v.at)[i / PS_WIDE];
        for (int j = 0; j < PS_WIDE; j++)
            out[j] = w.at[j];
        return;
    }
    const ps_wide_halves w = ((const ps_wide_halves *)v.at)[i / PS_WIDE];
    for (int j = 0; j < PS_WIDE; j++)
        out[j] = v.format == PS_FORMAT_BF16 ? ps_float_of_bf16(w.at[j])
                                            : ps_float_of_fp16(w.at[j]);
}

/* The same; elements from count on are 0. */
PS_ARITH void ps_get_some(ps_values v, size_t i, size_t count, float out[PS_WIDE])
{
    if (i + PS_WIDE <= count) {
        ps_get_wide(v, i, out);
        return;
    }
    for (size_t j = 0; j < PS_WIDE; j++)
        out[j] = i + j < count ? ps_get(v, i + j) : 0.0f;
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

/* Elements i to i + PS_WIDE - 1 that are below count = or += the values. */
PS_ARITH void ps_set_some(ps_values v, size_t i, size_t count, const float value[PS_WIDE],
                          bool add)
{
    if (i + PS_WIDE > count) {
        for (size_t j = 0; j < PS_WIDE; j++) // constant, so that no array is in memory
            if (i + j < count) ps_set(v, i + j, value[j], add);
        return;
    }
    float before[PS_WIDE] = {0.0f, 0.0f, 0.0f, 0.0f};
    if (add) ps_get_wide(v, i, before);
    if (v.format == PS_FORMAT_FP32) {
        ps_wide_floats w;
        for (int j = 0; j < PS_WIDE; j++)
            w.at[j] = add ? before[j] + value[j] : value[j];
        ((ps_wide_floats *)v.at)[i / PS_WIDE] = w;
        return;
    }
    ps_wide_halves w;
    for (int j = 0; j < PS_WIDE; j++) {
        const float sum = add ? before[j] + value[j] : value[j];
        w.at[j] = v.format == PS_FORMAT_BF16 ? ps_bf16_of(sum) : ps_fp16_of(sum);
    }
    ((ps_wide_halves *)v.at)[i / PS_WIDE] = w;
}

#endif
