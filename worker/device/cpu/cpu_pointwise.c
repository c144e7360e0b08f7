#include "cpu_pointwise.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"
#include "float16.h"

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

PS_PER_LEVEL(void, ps_cpu_sum_forward_bf16,
             (int64_t count, const uint16_t *a, const uint16_t *b, uint16_t *y,
              bool relu),
             (count, a, b, y, relu))
{
#pragma omp parallel for simd
    for (int64_t i = 0; i < count; i++) {
        const float sum = ps_float_of_bf16(a[i]) + ps_float_of_bf16(b[i]);
        y[i] = ps_bf16_of(relu ? ps_relu(sum) : sum);
    }
}

PS_PER_LEVEL(void, ps_cpu_pass_bf16,
             (int64_t count, const uint16_t *dy, uint16_t *dx, bool add),
             (count, dy, dx, add))
{
    if (add) {
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++)
            dx[i] = ps_bf16_of(ps_float_of_bf16(dx[i]) + ps_float_of_bf16(dy[i]));
    } else if (dx != dy) {
        memcpy(dx, dy, sizeof *dx * (size_t)count);
    }
}

PS_PER_LEVEL(void, ps_cpu_pass_rounded,
             (int64_t count, const float *dy, uint16_t *dx, bool add),
             (count, dy, dx, add))
{
#pragma omp parallel for simd
    for (int64_t i = 0; i < count; i++)
        dx[i] = ps_bf16_of(add ? ps_float_of_bf16(dx[i]) + dy[i] : dy[i]);
}
