#include "cpu_pointwise.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"

/* The lanes beyond the last channel, where 0 -> 0 does not hold. */
static void zero_padding(const ps_cpu_shape *s, float *y)
{
    int64_t used = s->c % s->lanes, plane = ps_cpu_shape_plane(s);
    if (used == 0) return;
    for (int64_t n = 0; n < s->n; n++) {
        float *block = y + ((n + 1) * s->blocks - 1) * plane * s->lanes;
        for (int64_t p = 0; p < plane; p++) {
            for (int64_t l = used; l < s->lanes; l++)
                block[p * s->lanes + l] = 0.0f;
        }
    }
}

PS_PER_LEVEL(void, ps_cpu_activation_forward,
             (ps_layer_kind kind, const ps_cpu_shape *shape, const float *x, float *y),
             (kind, shape, x, y))
{
    int64_t count = ps_cpu_shape_count(shape);
    if (kind == PS_LAYER_RELU) {
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++)
            y[i] = ps_relu(x[i]);
    } else if (kind == PS_LAYER_TANH) {
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++)
            y[i] = tanhf(x[i]);
    } else {
#pragma omp parallel for
        for (int64_t i = 0; i < count; i++)
            y[i] = ps_sigmoid(x[i]);
        zero_padding(shape, y);
    }
}

/* f: one of arith.h's gradients. */
#define BACKWARD(f)                                                                      \
    do {                                                                                 \
        if (add) {                                                                       \
            _Pragma("omp parallel for simd") for (int64_t i = 0; i < count; i++)         \
                dx[i] += f(y[i], dy[i]);                                                 \
        } else {                                                                         \
            _Pragma("omp parallel for simd") for (int64_t i = 0; i < count; i++) dx[i] = \
                f(y[i], dy[i]);                                                          \
        }                                                                                \
    } while (0)

PS_PER_LEVEL(void, ps_cpu_activation_backward,
             (ps_layer_kind kind, int64_t count, const float *y, const float *dy,
              float *dx, bool add),
             (kind, count, y, dy, dx, add))
{
    if (kind == PS_LAYER_RELU)
        BACKWARD(ps_relu_grad);
    else if (kind == PS_LAYER_TANH)
        BACKWARD(ps_tanh_grad);
    else
        BACKWARD(ps_sigmoid_grad);
}

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
