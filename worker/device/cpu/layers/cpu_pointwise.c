#include "cpu_pointwise.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"

PS_PER_LEVEL(void, ps_cpu_sum_forward,
             (int64_t count, const float *a, const float *b, float *y, bool relu),
             (count, a, b, y, relu))
{
    if (relu) {
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++)
            y[i] = ps_relu(a[i] + b[i]);
    } else {
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++)
            y[i] = a[i] + b[i];
    }
}

PS_PER_LEVEL(void, ps_cpu_pass, (int64_t count, const float *dy, float *dx, bool add),
             (count, dy, dx, add))
{
    if (add) {
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++)
            dx[i] += dy[i];
    } else if (dx != dy) {
        memcpy(dx, dy, sizeof(float) * (size_t)count);
    }
}

static inline float sum_of(float a, float b, bool relu)
{
    return relu ? ps_relu(a + b) : a + b;
}

PS_PER_LEVEL(void, ps_cpu_sum_forward_narrow,
             (ps_cpu_factors type, int64_t count, const uint16_t *a, const uint16_t *b,
              uint16_t *y, bool relu),
             (type, count, a, b, y, relu))
{
    PS_CPU_EACH(type, count,
                y[i] = ps_cpu_narrow_of(FP16, sum_of(ps_cpu_wide_of(FP16, a[i]),
                                                     ps_cpu_wide_of(FP16, b[i]), relu)));
}

PS_PER_LEVEL(void, ps_cpu_pass_narrow,
             (ps_cpu_factors type, int64_t count, const uint16_t *dy, uint16_t *dx,
              bool add),
             (type, count, dy, dx, add))
{
    if (add)
        PS_CPU_EACH(type, count,
                    dx[i] = ps_cpu_narrow_of(FP16, ps_cpu_wide_of(FP16, dx[i]) +
                                                       ps_cpu_wide_of(FP16, dy[i])));
    else if (dx != dy)
        memcpy(dx, dy, sizeof *dx * (size_t)count);
}

PS_PER_LEVEL(void, ps_cpu_pass_rounded,
             (ps_cpu_factors type, int64_t count, const float *dy, uint16_t *dx,
              bool add),
             (type, count, dy, dx, add))
{
    PS_CPU_EACH(type, count,
                dx[i] = ps_cpu_narrow_of(FP16, add ? ps_cpu_wide_of(FP16, dx[i]) + dy[i]
                                                   : dy[i]));
}
