#include "cpu_activation.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"

/* Zeroes the lanes after the last channel, for functions that do not map 0 to 0. bytes:
 * of an element. */
static void activation_zero_padding(const ps_cpu_shape *s, void *y, size_t bytes)
{
    const int64_t used = s->c % s->lanes, plane = ps_cpu_shape_plane(s);
    if (used == 0) return;
    for (int64_t n = 0; n < s->n; n++) {
        const int64_t block = ((n + 1) * s->blocks - 1) * plane * s->lanes;
        for (int64_t p = 0; p < plane; p++)
            memset((char *)y + (size_t)(block + p * s->lanes + used) * bytes, 0,
                   (size_t)(s->lanes - used) * bytes);
    }
}

/* e^x within 1.5 units in the last place. Unlike libm's, it uses only operations that
 * vectorise: x = n ln 2 + r, |r| <= ln 2 / 2, and e^r by the polynomial of Cephes' expf
 * (Moshier 1992). x in [-87, 88]; NaN stays NaN. */
typedef struct split_exp {
    float scale, rest; // e^x = scale * (1 + rest)
} split_exp;

static inline split_exp split_exp_lane(float x)
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
    return (split_exp){scale.f, p * r * r + r};
}

static inline float exp_lane(float x)
{
    const split_exp e = split_exp_lane(x);
    return (e.rest + 1.0f) * e.scale;
}

/* e^x - 1 of x <= 0, exact near 0. */
static inline float expm1_lane(float x)
{
    const split_exp e = split_exp_lane(x < -87.0f ? -87.0f : x);
    return e.rest * e.scale + (e.scale - 1.0f);
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

/* 0 below -87, so that its product with a large x is 0, too. */
static inline float sigmoid_or_0_lane(float x)
{
    return x < -87.0f ? 0.0f : sigmoid_lane(x);
}

/* The distribution function of the normal distribution, by the polynomials of Cephes'
 * erff and erfcf. With e: e^(-x^2 / 2). */
static inline float normal_lane(float x, float e)
{
    const float a = fabsf(x) * 0.707106781f, z = a * a;
    float near = 7.853861353153693e-5f;
    near = near * z - 8.010193625184903e-4f;
    near = near * z + 5.188327685732524e-3f;
    near = near * z - 2.685381193529856e-2f;
    near = near * z + 1.128358514861418e-1f;
    near = near * z - 3.761262582423300e-1f;
    near = near * z + 1.128379165726710e+0f;
    const float inner = 0.5f - 0.5f * near * a; // of -|x|
    const float q = 1.0f / (a < 1.0f ? 1.0f : a), w = q * q;
    float mid = 2.326819970068386e-2f;
    mid = mid * w - 1.387039388740657e-1f;
    mid = mid * w + 3.687424674597105e-1f;
    mid = mid * w - 5.824733027278666e-1f;
    mid = mid * w + 6.210004621745983e-1f;
    mid = mid * w - 4.944515323274145e-1f;
    mid = mid * w + 3.404879937665872e-1f;
    mid = mid * w - 2.741127028184656e-1f;
    mid = mid * w + 5.638259427386472e-1f;
    float far = -1.047766399936249e+1f;
    far = far * w + 1.297719955372516e+1f;
    far = far * w - 7.495518717768503e+0f;
    far = far * w + 2.921019019210786e+0f;
    far = far * w - 1.015265279202700e+0f;
    far = far * w + 4.218463358204948e-1f;
    far = far * w - 2.820767439740514e-1f;
    far = far * w + 5.641895067754075e-1f;
    const float outer = 0.5f * e * q * (a < 2.0f ? mid : far);
    const float below = a < 1.0f ? inner : outer;
    return x > 0.0f ? 1.0f - below : below;
}

/* e^(-x^2 / 2); 0 where that is below e^-87. */
static inline float bell_lane(float x)
{
    const float y = 0.5f * x * x;
    return y > 87.0f ? 0.0f : exp_lane(y > 87.0f ? -87.0f : -y);
}

static inline float elu_lane(float x, float alpha)
{
    return x > 0.0f ? x : alpha * expm1_lane(x);
}

static inline float silu_lane(float x)
{
    return x * sigmoid_or_0_lane(x);
}

static inline float gelu_lane(float x)
{
    return x * normal_lane(x, bell_lane(x));
}

static inline float gelu_tanh_lane(float x)
{
    return 0.5f * x * (1.0f + tanh_lane(ps_gelu_inner(x)));
}

static inline float silu_grad_lane(float x, float dy)
{
    return ps_silu_grad(x, sigmoid_or_0_lane(x), dy);
}

static inline float gelu_grad_lane(float x, float dy)
{
    const float e = bell_lane(x);
    return ps_gelu_grad(x, normal_lane(x, e), e, dy);
}

static inline float gelu_tanh_grad_lane(float x, float dy)
{
    return ps_gelu_tanh_grad(x, tanh_lane(ps_gelu_inner(x)), dy);
}

#define FORWARD(kind, value)                                                             \
    case PS_LAYER_##kind:                                                                \
        _Pragma("omp parallel for simd") for (int64_t i = 0; i < count; i++) y[i] =      \
            value;                                                                       \
        break

PS_PER_LEVEL(void, ps_cpu_activation_forward,
             (const ps_layer *layer, const ps_cpu_shape *shape, const float *x, float *y),
             (layer, shape, x, y))
{
    const int64_t count = ps_cpu_shape_count(shape);
    const float alpha = (float)layer->alpha;
    switch (layer->kind) {
        FORWARD(RELU, ps_relu(x[i]));
        FORWARD(RELU6, ps_relu6(x[i]));
        FORWARD(LEAKY_RELU, ps_leaky_relu(x[i], alpha));
        FORWARD(ELU, elu_lane(x[i], alpha));
        FORWARD(TANH, tanh_lane(x[i]));
        FORWARD(SILU, silu_lane(x[i]));
        FORWARD(GELU, gelu_lane(x[i]));
        FORWARD(GELU_TANH, gelu_tanh_lane(x[i]));
        FORWARD(SIGMOID, sigmoid_lane(x[i]));
    default:
        break;
    }
    if (layer->kind == PS_LAYER_SIGMOID) activation_zero_padding(shape, y, sizeof *y);
}

/* gradient: of v[i] and dy[i]. */
#define BACKWARD(kind, gradient)                                                         \
    case PS_LAYER_##kind:                                                                \
        if (add) {                                                                       \
            _Pragma("omp parallel for simd") for (int64_t i = 0; i < count; i++)         \
                dx[i] += gradient;                                                       \
        } else {                                                                         \
            _Pragma("omp parallel for simd") for (int64_t i = 0; i < count; i++) dx[i] = \
                gradient;                                                                \
        }                                                                                \
        break

PS_PER_LEVEL(void, ps_cpu_activation_backward,
             (const ps_layer *layer, int64_t count, const float *v, const float *dy,
              float *dx, bool add),
             (layer, count, v, dy, dx, add))
{
    const float alpha = (float)layer->alpha;
    switch (layer->kind) {
        BACKWARD(RELU, ps_relu_grad(v[i], dy[i]));
        BACKWARD(RELU6, ps_relu6_grad(v[i], dy[i]));
        BACKWARD(LEAKY_RELU, ps_leaky_relu_grad(v[i], alpha, dy[i]));
        BACKWARD(ELU, ps_elu_grad(v[i], alpha, dy[i]));
        BACKWARD(TANH, ps_tanh_grad(v[i], dy[i]));
        BACKWARD(SILU, silu_grad_lane(v[i], dy[i]));
        BACKWARD(GELU, gelu_grad_lane(v[i], dy[i]));
        BACKWARD(GELU_TANH, gelu_tanh_grad_lane(v[i], dy[i]));
        BACKWARD(SIGMOID, ps_sigmoid_grad(v[i], dy[i]));
    default:
        break;
    }
}

/* How many values are float32 at a time: they stay in the L2 cache, and are enough work
 * for several threads. */
enum { BLOCK = 1 << 15 };

static int64_t activation_block_at(int64_t first, int64_t count)
{
    return count - first < BLOCK ? count - first : BLOCK;
}

PS_PER_LEVEL(void, ps_cpu_activation_forward_narrow,
             (ps_cpu_factors type, const ps_layer *layer, const ps_cpu_shape *shape,
              const uint16_t *x, uint16_t *y),
             (type, layer, shape, x, y))
{
    const int64_t count = ps_cpu_shape_count(shape);
    float v[BLOCK];
    for (int64_t i = 0; i < count; i += BLOCK) {
        const ps_cpu_shape block = {.n = activation_block_at(i, count),
                                    .c = 1,
                                    .h = 1,
                                    .w = 1,
                                    .lanes = 1,
                                    .blocks = 1};
        ps_cpu_widen(type, block.n, x + i, v);
        PS_AT_LEVEL(ps_cpu_activation_forward)(layer, &block, v, v);
        ps_cpu_narrow(type, block.n, v, y + i);
    }
    if (layer->kind == PS_LAYER_SIGMOID) activation_zero_padding(shape, y, sizeof *y);
}

PS_PER_LEVEL(void, ps_cpu_activation_backward_narrow,
             (ps_cpu_factors type, const ps_layer *layer, int64_t count,
              const uint16_t *v, const uint16_t *dy, uint16_t *dx, bool add),
             (type, layer, count, v, dy, dx, add))
{
    float value[BLOCK], from[BLOCK], to[BLOCK];
    for (int64_t i = 0; i < count; i += BLOCK) {
        const int64_t n = activation_block_at(i, count);
        ps_cpu_widen(type, n, v + i, value);
        ps_cpu_widen(type, n, dy + i, from);
        if (add) ps_cpu_widen(type, n, dx + i, to);
        PS_AT_LEVEL(ps_cpu_activation_backward)(layer, n, value, from, to, add);
        ps_cpu_narrow(type, n, to, dx + i);
    }
}
