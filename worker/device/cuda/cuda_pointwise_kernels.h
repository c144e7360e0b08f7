/* Elementwise kernels (cuda_kernels.h). */
#ifndef PS_CUDA_POINTWISE_KERNELS_H
#define PS_CUDA_POINTWISE_KERNELS_H

#include "cuda_moving_kernels.h"
#include "layer_settings.h"
#include "rng.h"

/* The channel of an element and of those behind it, up to PS_WIDE. */
typedef struct ps_wide_channels {
    uint32_t at[PS_WIDE];
    bool row; // they follow each other, and begin at a multiple of PS_WIDE
} ps_wide_channels;

/* Of element `first`, a multiple of PS_WIDE, of images (n, C, plane); plane 1: channels
 * are last. */
PS_ARITH ps_wide_channels ps_wide_channels_of(uint32_t first, ps_divisor plane,
                                              ps_divisor channels)
{
    ps_wide_channels c;
    const bool in_plane = plane.by % PS_WIDE == 0;
    c.row = plane.by == 1 && channels.by % PS_WIDE == 0;
    c.at[0] = ps_divide(ps_divide(first, plane).q, channels).r;
    for (uint32_t j = 1; j < PS_WIDE; j++)
        c.at[j] = in_plane ? c.at[0]
                  : c.row  ? c.at[0] + j
                           : ps_divide(ps_divide(first + j, plane).q, channels).r;
    return c;
}

/* What v (C) has for them. A thread that reads a row does so at once: one by one the
 * reads of its warp would lie apart. */
PS_ARITH void ps_get_channels(const float *v, const ps_wide_channels *c,
                              float out[PS_WIDE])
{
    if (c->row) {
        ps_get_wide(ps_floats(v), c->at[0], out);
        return;
    }
    for (uint32_t j = 0; j < PS_WIDE; j++)
        out[j] = v[c->at[j]];
}

/* Wide. y (outer, channels, inner) += bias (channels; NULL: none), then max(0, .) if
 * relu. */
typedef struct ps_k_bias {
    uint32_t count;
    const float *bias;
    ps_values y;
    ps_divisor inner, channels;
    bool relu;
} ps_k_bias;

PS_ARITH void ps_k_bias_at(const ps_k_bias *k, uint32_t i)
{
    const uint32_t first = i * PS_WIDE;
    const ps_wide_channels c = ps_wide_channels_of(first, k->inner, k->channels);
    float v[PS_WIDE], bias[PS_WIDE];
    ps_get_some(k->y, first, k->count, v);
    if (k->bias) ps_get_channels(k->bias, &c, bias);
    for (int j = 0; j < PS_WIDE; j++) {
        if (k->bias) v[j] += bias[j];
        if (k->relu) v[j] = ps_relu(v[j]);
    }
    ps_set_some(k->y, first, k->count, v, false);
}

/* Wide. kind: an activation; alpha: of elu; the slope of leaky_relu. */
typedef struct ps_k_act {
    uint32_t count;
    ps_values x, y;
    ps_layer_kind kind;
    float alpha;
} ps_k_act;

/* The normal distribution function. */
PS_ARITH float ps_normal(float x)
{
    return 0.5f * erfcf(-0.707106781f * x);
}

PS_ARITH float ps_act(ps_layer_kind kind, float alpha, float x)
{
    switch (kind) {
    case PS_LAYER_RELU:
        return ps_relu(x);
    case PS_LAYER_TANH:
        return tanhf(x);
    case PS_LAYER_RELU6:
        return ps_relu6(x);
    case PS_LAYER_LEAKY_RELU:
        return ps_leaky_relu(x, alpha);
    case PS_LAYER_ELU:
        return x > 0.0f ? x : alpha * expm1f(x);
    case PS_LAYER_SILU:
        return x * ps_sigmoid(x);
    case PS_LAYER_GELU:
        return x * ps_normal(x);
    case PS_LAYER_GELU_TANH:
        return 0.5f * x * (1.0f + tanhf(ps_gelu_inner(x)));
    default:
        return ps_sigmoid(x);
    }
}

PS_ARITH void ps_k_act_at(const ps_k_act *k, uint32_t i)
{
    float v[PS_WIDE];
    ps_get_some(k->x, (size_t)i * PS_WIDE, k->count, v);
    for (int j = 0; j < PS_WIDE; j++)
        v[j] = ps_act(k->kind, k->alpha, v[j]);
    ps_set_some(k->y, (size_t)i * PS_WIDE, k->count, v, false);
}

/* Wide. dx = or += the gradient of the input; v: the outputs, or the inputs where the
 * gradient reads these (ps_model_grad_reads_input). dx may be dy. */
typedef struct ps_k_act_grad {
    uint32_t count;
    ps_values v, dy, dx;
    ps_layer_kind kind;
    float alpha;
    bool add;
} ps_k_act_grad;

PS_ARITH float ps_act_grad(ps_layer_kind kind, float alpha, float v, float dy)
{
    switch (kind) {
    case PS_LAYER_RELU:
        return ps_relu_grad(v, dy);
    case PS_LAYER_TANH:
        return ps_tanh_grad(v, dy);
    case PS_LAYER_RELU6:
        return ps_relu6_grad(v, dy);
    case PS_LAYER_LEAKY_RELU:
        return ps_leaky_relu_grad(v, alpha, dy);
    case PS_LAYER_ELU:
        return ps_elu_grad(v, alpha, dy);
    case PS_LAYER_SILU:
        return ps_silu_grad(v, ps_sigmoid(v), dy);
    case PS_LAYER_GELU:
        return ps_gelu_grad(v, ps_normal(v), expf(-0.5f * v * v), dy);
    case PS_LAYER_GELU_TANH:
        return ps_gelu_tanh_grad(v, tanhf(ps_gelu_inner(v)), dy);
    default:
        return ps_sigmoid_grad(v, dy);
    }
}

PS_ARITH void ps_k_act_grad_at(const ps_k_act_grad *k, uint32_t i)
{
    float v[PS_WIDE], g[PS_WIDE];
    ps_get_some(k->v, (size_t)i * PS_WIDE, k->count, v);
    ps_get_some(k->dy, (size_t)i * PS_WIDE, k->count, g);
    for (int j = 0; j < PS_WIDE; j++)
        g[j] = ps_act_grad(k->kind, k->alpha, v[j], g[j]);
    ps_set_some(k->dx, (size_t)i * PS_WIDE, k->count, g, k->add);
}

/* Wide. */
typedef struct ps_k_sum {
    uint32_t count;
    ps_values a, b, y;
    bool relu;
} ps_k_sum;

PS_ARITH void ps_k_sum_at(const ps_k_sum *k, uint32_t i)
{
    float a[PS_WIDE], b[PS_WIDE];
    ps_get_some(k->a, (size_t)i * PS_WIDE, k->count, a);
    ps_get_some(k->b, (size_t)i * PS_WIDE, k->count, b);
    for (int j = 0; j < PS_WIDE; j++)
        a[j] = k->relu ? ps_relu(a[j] + b[j]) : a[j] + b[j];
    ps_set_some(k->y, (size_t)i * PS_WIDE, k->count, a, false);
}

/* Wide. a and b = or += the gradient of their sum. y.at, if not NULL: the outputs after a
 * relu, whose gradient is applied first. a.at or b.at is NULL where that gradient is not
 * needed. */
typedef struct ps_k_sum_grad {
    uint32_t count;
    ps_values y, dy, a, b;
    bool add_a, add_b;
} ps_k_sum_grad;

PS_ARITH void ps_k_sum_grad_at(const ps_k_sum_grad *k, uint32_t i)
{
    const size_t first = (size_t)i * PS_WIDE;
    float y[PS_WIDE] = {1.0f, 1.0f, 1.0f, 1.0f}, g[PS_WIDE];
    ps_get_some(k->dy, first, k->count, g);
    if (k->y.at) ps_get_some(k->y, first, k->count, y);
    for (int j = 0; j < PS_WIDE; j++)
        g[j] = ps_relu_grad(y[j], g[j]);
    if (k->a.at) ps_set_some(k->a, first, k->count, g, k->add_a);
    if (k->b.at) ps_set_some(k->b, first, k->count, g, k->add_b);
}

/* y = or += x * scale where the draw keeps the element, else 0 (rng.h); the same for the
 * gradient. relu.at, if not NULL: the outputs of a relu before the dropout, whose
 * gradient is applied too. One call does eight features of one sample, which share a
 * draw: they follow each other in (C, H, W), whatever the layout is. Count: n * groups.
 */
typedef struct ps_k_dropout {
    ps_values x, y, relu;
    const uint32_t *positions; // (n)
    const ps_dropout_words *key;
    uint32_t features;
    ps_divisor groups; // ceil(features / 8), of a sample
    ps_layout layout;
    ps_divisor plane;
    uint32_t id, threshold;
    float scale;
    bool add;
} ps_k_dropout;

PS_ARITH float ps_dropped(const ps_k_dropout *k, const uint32_t words[4], uint32_t d,
                          float x, float relu)
{
    const uint32_t draw = words[d / 2] >> (16 * (d % 2)) & 0xFFFFu;
    return draw >= k->threshold ? ps_relu_grad(relu, x * k->scale) : 0.0f;
}

/* The group of eight features that call i of a sample does: calls that follow each other
 * do channels that follow each other, if no group has more than one. */
PS_ARITH uint32_t ps_dropout_group(const ps_k_dropout *k, uint32_t i)
{
    if (!k->layout.channels_last || k->plane.by % 8 != 0) return i;
    const ps_divided at = ps_divide(i, k->layout.channels);
    return at.r * (k->plane.by / 8) + at.q;
}

PS_ARITH void ps_dropout_channels_last(const ps_k_dropout *k, size_t first,
                                       uint32_t group, const uint32_t words[4])
{
    PS_UNROLLED
    for (uint32_t d = 0; d < 8; d++) {
        if (group * 8 + d >= k->features) return;
        const ps_divided at = ps_divide(group * 8 + d, k->plane);
        const size_t to = first + (size_t)at.r * k->layout.step + at.q;
        const float relu = k->relu.at ? ps_get(k->relu, to) : 1.0f;
        ps_set(k->y, to, ps_dropped(k, words, d, ps_get(k->x, to), relu), k->add);
    }
}

PS_ARITH void ps_k_dropout_at(const ps_k_dropout *k, uint32_t i)
{
    ps_divided sample = ps_divide(i, k->groups);
    const uint32_t group = ps_dropout_group(k, sample.r);
    const uint32_t counter[4] = {group, k->id, k->positions[sample.q], k->key->epoch};
    uint32_t words[4];
    ps_philox4x32(k->key->key, counter, words);
    if (k->layout.channels_last && k->plane.by > 1) {
        ps_dropout_channels_last(k, (size_t)sample.q * k->features, group, words);
        return;
    }
    PS_UNROLLED
    for (uint32_t d = 0; d < 8; d += PS_WIDE) {
        const uint32_t e = sample.r * 8 + d;
        if (e >= k->features) return;
        const size_t to = (size_t)sample.q * k->features + e;
        const uint32_t left = k->features - e;
        // a whole number of PS_WIDE: every sample begins on a boundary
        const bool wide = k->features % PS_WIDE == 0;
        float v[PS_WIDE], relu[PS_WIDE] = {1.0f, 1.0f, 1.0f, 1.0f};
        if (wide) ps_get_wide(k->x, to, v);
        if (wide && k->relu.at) ps_get_wide(k->relu, to, relu);
        for (uint32_t j = 0; j < PS_WIDE && !wide; j++) {
            v[j] = j < left ? ps_get(k->x, to + j) : 0.0f;
            if (k->relu.at && j < left) relu[j] = ps_get(k->relu, to + j);
        }
        for (uint32_t j = 0; j < PS_WIDE; j++)
            v[j] = ps_dropped(k, words, d + j, v[j], relu[j]);
        if (wide) ps_set_some(k->y, to, to + PS_WIDE, v, k->add);
        for (uint32_t j = 0; j < PS_WIDE && j < left && !wide; j++)
            ps_set(k->y, to + j, v[j], k->add);
    }
}

#endif
