/* Elementwise kernels (cuda_kernels.h). */
#ifndef PS_CUDA_POINTWISE_KERNELS_H
#define PS_CUDA_POINTWISE_KERNELS_H

#include "cuda_moving_kernels.h"
#include "rng.h"

/* y (outer, channels, inner) += bias (channels; NULL: none), then max(0, .) if relu. */
typedef struct ps_k_bias {
    const float *bias;
    ps_values y;
    ps_divisor inner, channels;
    bool relu;
} ps_k_bias;

PS_ARITH void ps_k_bias_at(const ps_k_bias *k, uint32_t i)
{
    float v = ps_get(k->y, i);
    if (k->bias) v += k->bias[ps_divide(ps_divide(i, k->inner).q, k->channels).r];
    ps_set(k->y, i, k->relu ? ps_relu(v) : v, false);
}

typedef enum ps_act_kind {
    PS_ACT_RELU,
    PS_ACT_TANH,
    PS_ACT_SIGMOID,
    PS_ACT_RELU6,
    PS_ACT_LEAKY_RELU,
    PS_ACT_ELU,
    PS_ACT_SILU,
    PS_ACT_GELU,
    PS_ACT_GELU_TANH
} ps_act_kind;

/* alpha: of elu; the slope of leaky_relu. */
typedef struct ps_k_act {
    ps_values x, y;
    ps_act_kind kind;
    float alpha;
} ps_k_act;

/* The normal distribution function. */
PS_ARITH float ps_normal(float x)
{
    return 0.5f * erfcf(-0.707106781f * x);
}

PS_ARITH float ps_act(ps_act_kind kind, float alpha, float x)
{
    switch (kind) {
    case PS_ACT_RELU:
        return ps_relu(x);
    case PS_ACT_TANH:
        return tanhf(x);
    case PS_ACT_RELU6:
        return ps_relu6(x);
    case PS_ACT_LEAKY_RELU:
        return ps_leaky_relu(x, alpha);
    case PS_ACT_ELU:
        return x > 0.0f ? x : alpha * expm1f(x);
    case PS_ACT_SILU:
        return x * ps_sigmoid(x);
    case PS_ACT_GELU:
        return x * ps_normal(x);
    case PS_ACT_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(ps_gelu_inner(x)));
    default:
        return ps_sigmoid(x);
    }
}

PS_ARITH void ps_k_act_at(const ps_k_act *k, uint32_t i)
{
    ps_set(k->y, i, ps_act(k->kind, k->alpha, ps_get(k->x, i)), false);
}

/* dx = or += the gradient of the input; v: the outputs, or the inputs where the gradient
 * reads these (ps_model_grad_reads_input). dx may be dy. */
typedef struct ps_k_act_grad {
    ps_values v, dy, dx;
    ps_act_kind kind;
    float alpha;
    bool add;
} ps_k_act_grad;

PS_ARITH float ps_act_grad(ps_act_kind kind, float alpha, float v, float dy)
{
    switch (kind) {
    case PS_ACT_RELU:
        return ps_relu_grad(v, dy);
    case PS_ACT_TANH:
        return ps_tanh_grad(v, dy);
    case PS_ACT_RELU6:
        return ps_relu6_grad(v, dy);
    case PS_ACT_LEAKY_RELU:
        return ps_leaky_relu_grad(v, alpha, dy);
    case PS_ACT_ELU:
        return ps_elu_grad(v, alpha, dy);
    case PS_ACT_SILU:
        return ps_silu_grad(v, ps_sigmoid(v), dy);
    case PS_ACT_GELU:
        return ps_gelu_grad(v, ps_normal(v), expf(-0.5f * v * v), dy);
    case PS_ACT_GELU_TANH:
        return ps_gelu_tanh_grad(v, tanhf(ps_gelu_inner(v)), dy);
    default:
        return ps_sigmoid_grad(v, dy);
    }
}

PS_ARITH void ps_k_act_grad_at(const ps_k_act_grad *k, uint32_t i)
{
    float g = ps_act_grad(k->kind, k->alpha, ps_get(k->v, i), ps_get(k->dy, i));
    ps_set(k->dx, i, g, k->add);
}

typedef struct ps_k_sum {
    ps_values a, b, y;
    bool relu;
} ps_k_sum;

PS_ARITH void ps_k_sum_at(const ps_k_sum *k, uint32_t i)
{
    float v = ps_get(k->a, i) + ps_get(k->b, i);
    ps_set(k->y, i, k->relu ? ps_relu(v) : v, false);
}

/* a and b = or += the gradient of their sum. y.at, if not NULL: the outputs after a relu,
 * whose gradient is applied first. a.at or b.at is NULL where that gradient is not
 * needed. */
typedef struct ps_k_sum_grad {
    ps_values y, dy, a, b;
    bool add_a, add_b;
} ps_k_sum_grad;

PS_ARITH void ps_k_sum_grad_at(const ps_k_sum_grad *k, uint32_t i)
{
    float g = ps_get(k->dy, i);
    if (k->y.at) g = ps_relu_grad(ps_get(k->y, i), g);
    if (k->a.at) ps_set(k->a, i, g, k->add_a);
    if (k->b.at) ps_set(k->b, i, g, k->add_b);
}

/* y = or += x * scale where the draw keeps the element, else 0 (rng.h); the same for the
 * gradient. relu.at, if not NULL: the outputs of a relu before the dropout, whose
 * gradient is applied too. One call does eight features of one sample, which share a
 * draw. Count: n * groups. */
typedef struct ps_k_dropout {
    ps_values x, y, relu;
    const uint32_t *positions; // (n)
    const ps_dropout_words *key;
    uint32_t features;
    ps_divisor groups; // ceil(features / 8), of a sample
    uint32_t id, threshold;
    float scale;
    bool add;
} ps_k_dropout;

PS_ARITH void ps_k_dropout_at(const ps_k_dropout *k, uint32_t i)
{
    ps_divided sample = ps_divide(i, k->groups);
    const uint32_t counter[4] = {sample.r, k->id, k->positions[sample.q], k->key->epoch};
    uint32_t words[4];
    ps_philox4x32(k->key->key, counter, words);
    for (uint32_t d = 0; d < 8; d++) {
        uint32_t e = sample.r * 8 + d;
        if (e >= k->features) return;
        size_t to = (size_t)sample.q * k->features + e;
        bool keep = (words[d / 2] >> (16 * (d % 2)) & 0xFFFFu) >= k->threshold;
        float v = keep ? ps_get(k->x, to) * k->scale : 0.0f;
        ps_set(k->y, to, k->relu.at ? ps_relu_grad(ps_get(k->relu, to), v) : v, k->add);
    }
}

#endif
