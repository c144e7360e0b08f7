/* Loops over a row are short: for the usual dims their length is a constant, so that they
 * become straight code. PS_ROW_AT_DIM calls a function with the dim as a literal. */
#ifndef PS_ROW_DIM_H
#define PS_ROW_DIM_H

#include <stdint.h>

#define PS_ROW_INLINED static inline __attribute__((always_inline))

#define PS_ROW_AT_DIM(dim, call, ...)                                                    \
    switch (dim) {                                                                       \
    case 8:                                                                              \
        call(8, __VA_ARGS__);                                                            \
        break;                                                                           \
    case 16:                                                                             \
        call(16, __VA_ARGS__);                                                           \
        break;                                                                           \
    case 32:                                                                             \
        call(32, __VA_ARGS__);                                                           \
        break;                                                                           \
    case 64:                                                                             \
        call(64, __VA_ARGS__);                                                           \
        break;                                                                           \
    case 128:                                                                            \
        call(128, __VA_ARGS__);                                                          \
        break;                                                                           \
    default:                                                                             \
        call(dim, __VA_ARGS__);                                                          \
    }

enum { PS_ROW_LANES = 8 };

/* The sum of products in double, over a fixed number of lanes. */
PS_ROW_INLINED double ps_row_dot(uint32_t dim, const float *a, const float *b)
{
    double lanes[PS_ROW_LANES] = {0};
    const uint32_t whole = dim - dim % PS_ROW_LANES;
    for (uint32_t at = 0; at < whole; at += PS_ROW_LANES) {
#pragma omp simd
        for (int i = 0; i < PS_ROW_LANES; i++)
            lanes[i] += (double)a[at + i] * (double)b[at + i];
    }
    for (uint32_t at = whole; at < dim; at++)
        lanes[at - whole] += (double)a[at] * (double)b[at];
    for (int half = PS_ROW_LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

#endif
