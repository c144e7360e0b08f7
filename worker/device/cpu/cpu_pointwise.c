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
