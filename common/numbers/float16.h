/* The 16-bit floats of mixed precision, by bit arithmetic: rounded to nearest, ties to
 * even, as IEEE 754 and PyTorch do. Values that are too large become infinite, and NaN
 * stays NaN.
 *
 *   fp16  1 sign, 5 exponent, 10 mantissa bits: IEEE's half precision, up to 65504
 *   bf16  1 sign, 8 exponent,  7 mantissa bits: the upper half of a float32
 *
 * Neither the compiler's _Float16 nor CUDA's type is used: here the bits are the same on
 * every processor, and loops vectorise on all of them. */
#ifndef PS_FLOAT16_H
#define PS_FLOAT16_H

#include <stdint.h>
#include <string.h>

#ifdef __CUDACC__
#define PS_FLOAT16 static __host__ __device__ inline
#else
#define PS_FLOAT16 static inline
#endif

PS_FLOAT16 uint32_t ps_float_bits(float x)
{
    uint32_t b;
    memcpy(&b, &x, 4);
    return b;
}

PS_FLOAT16 float ps_float_of_bits(uint32_t b)
{
    float x;
    memcpy(&x, &b, 4);
    return x;
}

/* largest: the result for finite values above 65504, either 0x7C00 (infinite) or 0x7BFF
 * (65504). */
PS_FLOAT16 uint16_t ps_fp16_held(float x, uint32_t largest)
{
    uint32_t b = ps_float_bits(x), sign = (b >> 16) & 0x8000u, a = b & 0x7FFFFFFFu;
    // Normal: rebias by 112, keep 10 of 23 mantissa bits. 65520 and above would be inf.
    uint32_t normal = (a - (112u << 23) + 0xFFFu + ((a >> 13) & 1u)) >> 13;
    // Subnormal: adding 0.5 makes the adder round to multiples of 2^-24.
    uint32_t small = ps_float_bits(ps_float_of_bits(a) + 0.5f) - 0x3F000000u;
    uint32_t h = a < 0x38800000u ? small : normal;
    h = a >= 0x477FF000u ? largest : h;
    h = a >= 0x7F800000u ? (a > 0x7F800000u ? 0x7E00u : 0x7C00u) : h;
    return (uint16_t)(sign | h);
}

PS_FLOAT16 uint16_t ps_fp16_of(float x)
{
    return ps_fp16_held(x, 0x7C00u);
}

PS_FLOAT16 float ps_float_of_fp16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, a = h & 0x7FFFu;
    uint32_t normal = (a << 13) + (112u << 23);
    uint32_t special = (a << 13) | 0x7F800000u;
    uint32_t small = ps_float_bits((float)(int32_t)a * 0x1p-24f);
    uint32_t b = a >= 0x7C00u ? special : a >= 0x0400u ? normal : small;
    return ps_float_of_bits(sign | b);
}

PS_FLOAT16 uint16_t ps_bf16_of(float x)
{
    uint32_t b = ps_float_bits(x);
    uint32_t rounded = (b + 0x7FFFu + ((b >> 16) & 1u)) >> 16;
    uint32_t quiet = (b >> 16) | 0x40u;
    return (uint16_t)((b & 0x7FFFFFFFu) > 0x7F800000u ? quiet : rounded);
}

PS_FLOAT16 float ps_float_of_bf16(uint16_t h)
{
    return ps_float_of_bits((uint32_t)h << 16);
}

#endif
