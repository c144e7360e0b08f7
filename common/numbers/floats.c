#include "floats.h"

#include "cpu_level.h"

PS_PER_LEVEL(void, ps_floats_sum,
             (float *out, const float *a, const float *b, uint64_t n), (out, a, b, n))
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

PS_PER_LEVEL(void, ps_floats_add, (float *x, const float *a, uint64_t n), (x, a, n))
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        x[i] += a[i];
}

PS_PER_LEVEL(void, ps_floats_scaled_sum,
             (float *out, const float *a, const float *b, float factor, uint64_t n),
             (out, a, b, factor, n))
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = a[i] * factor + b[i] * factor;
}

PS_PER_LEVEL(void, ps_floats_add_scaled,
             (float *x, const float *a, float factor, uint64_t n), (x, a, factor, n))
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        x[i] += a[i] * factor;
}

PS_PER_LEVEL(void, ps_floats_scale, (float *x, float factor, uint64_t n), (x, factor, n))
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        x[i] *= factor;
}

PS_PER_LEVEL(void, ps_floats_compensate,
             (float *out, const float *g, const float *now, const float *then,
              float factor, uint64_t n),
             (out, g, now, then, factor, n))
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        out[i] = g[i] + factor * g[i] * g[i] * (now[i] - then[i]);
}

enum { LANES = 16 };

PS_PER_LEVEL(double, ps_floats_square_sum, (const float *x, uint64_t n), (x, n))
{
    double lanes[LANES] = {0};
    uint64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
#pragma omp simd
        for (int k = 0; k < LANES; k++)
            lanes[k] += (double)x[i + k] * (double)x[i + k];
    }
    for (int k = 0; i < n; i++, k++)
        lanes[k] += (double)x[i] * (double)x[i];
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int k = 0; k < half; k++)
            lanes[k] += lanes[k + half];
    return lanes[0];
}
