/* Elementwise and index arithmetic of the layers, written once for every device: plain
 * inline functions that a C and a CUDA compiler take alike. */
#ifndef PS_ARITH_H
#define PS_ARITH_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __CUDACC__
#define PS_ARITH static __host__ __device__ inline
#else
#define PS_ARITH static inline
#endif

/* As torch: NaN stays NaN. */
PS_ARITH float ps_relu(float x)
{
    return x < 0.0f ? 0.0f : x;
}
/* y: the forward's output, for all of these. */
PS_ARITH float ps_relu_grad(float y, float dy)
{
    return y > 0.0f ? dy : 0.0f;
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

/* Dropout (rng.h): an element is kept when its 16-bit draw is >= the threshold. */
PS_ARITH uint32_t ps_dropout_threshold(double p)
{
    return (uint32_t)ceil(p * 65536.0);
}
PS_ARITH float ps_dropout_scale(double p)
{
    return p < 1.0 ? (float)(1.0 / (1.0 - p)) : 0.0f;
}

/* A pooling window along one axis, cut at the input's edges: positions [begin, end) of
 * the input; skipped: how many of the window's positions lie before begin. */
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

/* The next value of a window takes the maximum's place: the first of equals wins, NaN
 * wins over all (torch's rule, for max_pool2d and argmax). */
PS_ARITH bool ps_max_takes(float value, float best)
{
    return value > best || value != value;
}

/* Gradient of the mean negative log-likelihood through log_softmax, for one class:
 * scale * (softmax - [class is the label]). */
PS_ARITH float ps_nll_softmax_grad(float log_prob, bool is_label, float scale)
{
    return scale * (expf(log_prob) - (is_label ? 1.0f : 0.0f));
}

#endif
