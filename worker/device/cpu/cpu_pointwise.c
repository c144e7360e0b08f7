#include "cpu_pointwise.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"

/* Zeroes the lanes after the last channel, for functions that do not map 0 to 0. */
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

/* e^x within 1.5 units in the last place. Unlike libm's, it uses only operations that
 * vectorise: x = n ln 2 + r, |r| <= ln 2 / 2, and e^r by the polynomial of Cephes' expf
 * (Moshier 1992). x in [-87, 88]; NaN stays NaN. */
static inline float exp_lane(float x)
{
    // 1.5 * 2^23: adding it leaves the rounded integer in the last bits
    const float shift = 12582912.0f;
    union {
        float f;
        uint32_t bits;
    } n = {.f = x * 1.44269504f + shift}, scale;
    float whole = n.f - shift;
    float r = x - whole * 0.693359375f - whole * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    scale.bits = (n.bits + 127u) << 23; // 2^n; the shift drops n's other bits
    return (p * r * r + r + 1.0f) * scale.f;
}

/* Within 2 units in the last place: near 0 by the polynomial of Cephes' tanhf. */
static inline float tanh_lane(float x)
{
    float a = fabsf(x), z = x * x;
    float p = -5.70498872745e-3f;
    p = p * z + 2.06390887954e-2f;
    p = p * z - 5.37397155531e-2f;
    p = p * z + 1.33314422036e-1f;
    p = p * z - 3.33332819422e-1f;
    float near = p * z * a + a;
    float far = 1.0f - 2.0f / (exp_lane(a > 10.0f ? 20.0f : 2.0f * a) + 1.0f);
    return copysignf(a < 0.625f ? near : far, x);
}

static inline float sigmoid_lane(float x)
{
    float y = x > 87.0f ? 87.0f : x < -87.0f ? -87.0f : x;
    return 1.0f / (1.0f + exp_lane(-y));
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
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++)
            y[i] = tanh_lane(x[i]);
    } else {
#pragma omp parallel for simd
        for (int64_t i = 0; i < count; i++)
            y[i] = sigmoid_lane(x[i]);
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
