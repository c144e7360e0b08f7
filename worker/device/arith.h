/* Elementwise and index arithmetic of the layers, written once for every device: plain
 * inline functions that both a C and a CUDA compiler accept. */
#ifndef PS_ARITH_H
#define PS_ARITH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "arith_function.h"

/* As in torch, NaN stays NaN. */
PS_ARITH float ps_relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}
PS_ARITH float ps_relu6(float x)
{
    return x < 0.0f ? 0.0f : x > 6.0f ? 6.0f : x;
}
PS_ARITH float ps_leaky_relu(float x, float slope)
{
    return x > 0.0f ? x : slope * x;
}
/* The argument of tanh in gelu_tanh (Hendrycks and Gimpel 2016). */
PS_ARITH float ps_gelu_inner(float x)
{
    return 0.797884561f * (x + 0.044715f * x * x * x);
}
/* In all gradients below, y is the forward pass's output. As in torch, a NaN in y lets
 * the gradient pass. */
PS_ARITH float ps_relu_grad(float y, float dy)
{
    return y <= 0.0f ? 0.0f : dy;
}
PS_ARITH float ps_tanh_grad(float y, float dy)
{
    return dy * (1.0f - y * y);
}
PS_ARITH float ps_sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}
PS_ARITH float ps_sigmoid_grad(float y, float dy)
{
    return dy * (1.0f - y) * y;
}

PS_ARITH float ps_relu6_grad(float y, float dy)
{
    return y <= 0.0f || y >= 6.0f ? 0.0f : dy;
}
PS_ARITH float ps_leaky_relu_grad(float y, float slope, float dy)
{
    return y > 0.0f ? dy : slope * dy;
}
PS_ARITH float ps_elu_grad(float y, float alpha, float dy)
{
    return y <= 0.0f ? dy * (y + alpha) : dy;
}
/* These take the input x: silu's, with s: the sigmoid of x. */
PS_ARITH float ps_silu_grad(float x, float s, float dy)
{
    return dy * s * (1.0f + x * (1.0f - s));
}
/* With the normal distribution function of x, and e^(-x^2 / 2). */
PS_ARITH float ps_gelu_grad(float x, float normal, float bell, float dy)
{
    return dy * (normal + x * 0.398942280f * bell);
}
/* With t: the tanh of ps_gelu_inner(x). */
PS_ARITH float ps_gelu_tanh_grad(float x, float t, float dy)
{
    const float inner = 0.797884561f * (1.0f + 3.0f * 0.044715f * x * x);
    const float slope = 1.0f - t * t; // 0 for large x, whose square may be infinite
    return dy * 0.5f * (1.0f + t + (slope > 0.0f ? x * slope * inner : 0.0f));
}

/* Dropout (rng.h): an element is kept when its 16-bit draw is >= the threshold. */
PS_ARITH uint32_t ps_dropout_threshold(double p)
{
    return (uint32_t)ceil(p * 65536.0);
}
PS_ARITH float ps_dropout_scale(double p)
{
    return p < 1.0 ? (float)(1.0 / (1.0 - p)) : 0.0f;
}

/* A pooling window along one axis, clipped at the input's edges to positions [begin,
 * end). skipped: how many of the window's positions lie before begin. */
typedef struct ps_window {
    int64_t begin, end, skipped;
} ps_window;

PS_ARITH ps_window ps_window_at(int64_t out, int64_t stride, int64_t padding,
                                int64_t kernel, int64_t size)
{
    ps_window w;
    int64_t first = out * stride - padding;
    w.begin = first > 0 ? first : 0;
    w.end = first + kernel < size ? first + kernel : size;
    w.skipped = w.begin - first;
    return w;
}

/* Whether value replaces the maximum so far. Among equals the first wins; NaN wins over
 * everything (torch's rule for max_pool2d and argmax). */
PS_ARITH bool ps_max_takes(float value, float best)
{
    return value > best || value != value;
}

/* log(sum(exp(x))) in two parts, whose sum would lose the digits of the smaller one:
 * PyTorch subtracts them one after the other too (its issue 11752). */
typedef struct ps_log_sum {
    float max, log;
} ps_log_sum;

/* The elements first, first + step, ... of a row: those that one lane of several does. */
typedef struct ps_stride {
    int64_t first, step;
} ps_stride;

PS_ARITH ps_stride ps_all(void)
{
    const ps_stride all = {0, 1};
    return all;
}

PS_ARITH float ps_row_max(int64_t n, const float *x, ps_stride own)
{
    float max = -INFINITY;
    for (int64_t c = own.first; c < n; c += own.step)
        max = ps_max_takes(x[c], max) ? x[c] : max;
    return max;
}

PS_ARITH float ps_row_exp_sum(int64_t n, const float *x, float max, ps_stride own)
{
    float sum = 0.0f;
    for (int64_t c = own.first; c < n; c += own.step)
        sum += expf(x[c] - max);
    return sum;
}

/* Over classes, safe against overflow. */
PS_ARITH ps_log_sum ps_log_sum_exp(int64_t classes, const float *x)
{
    const float max = ps_row_max(classes, x, ps_all());
    const ps_log_sum z = {max, logf(ps_row_exp_sum(classes, x, max, ps_all()))};
    return z;
}

/* log_softmax's output for x. */
PS_ARITH float ps_log_prob(float x, ps_log_sum z)
{
    return x - z.max - z.log;
}

/* The largest log-probability (z: zeros for x itself) and where it is; -1: nowhere, of no
 * elements. */
typedef struct ps_largest {
    float value;
    int32_t at;
} ps_largest;

/* Of two parts of a row: the first of equals, and the first NaN. */
PS_ARITH ps_largest ps_largest_of(ps_largest a, ps_largest b)
{
    if (b.at < 0) return a;
    if (a.at < 0) return b;
    const bool nan = a.value != a.value, takes = ps_max_takes(b.value, a.value);
    const bool equal = nan ? b.value != b.value : a.value == b.value;
    return equal ? (a.at < b.at ? a : b) : !nan && takes ? b : a;
}

PS_ARITH ps_largest ps_row_largest(int64_t n, const float *x, ps_log_sum z, ps_stride own)
{
    ps_largest largest = {0.0f, -1};
    for (int64_t c = own.first; c < n; c += own.step) {
        const ps_largest one = {ps_log_prob(x[c], z), (int32_t)c};
        const bool number = largest.value == largest.value;
        if (largest.at < 0 || (number && ps_max_takes(one.value, largest.value)))
            largest = one;
    }
    return largest;
}

/* Batch norm's output and the gradient of its input. inv: 1 / sqrt(var + eps); mean_dy
 * and mean_dot: means over the channel of dy and of dy times the normalised input. */
PS_ARITH float ps_batchnorm_value(float x, float mean, float inv, float weight,
                                  float bias)
{
    return (x - mean) * inv * weight + bias;
}
PS_ARITH float ps_batchnorm_grad(float x, float dy, float mean, float inv, float weight,
                                 float mean_dy, float mean_dot)
{
    return weight * inv * (dy - mean_dy - (x - mean) * inv * mean_dot);
}

/* Running statistics: momentum is the weight of the new value. */
PS_ARITH float ps_batchnorm_running(float old, float now, float momentum)
{
    return (1.0f - momentum) * old + momentum * now;
}

#endif
