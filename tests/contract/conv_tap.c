#include "conv_tap.h"

/* Calls body for each row of y that meets a row of x: element j + ow of y meets element
 * i + ow * s of x, for ow in [begin, end). The compiler knows the usual stride of 1. */
#define EACH_ROW(...)                                                                    \
    const int64_t stride = t->stride[1],                                                 \
                  off = t->at[1] * t->dilation[1] - t->padding[1];                       \
    if (stride == 1) {                                                                   \
        EACH_ROW_BY((int64_t)1, __VA_ARGS__)                                             \
    } else {                                                                             \
        EACH_ROW_BY(stride, __VA_ARGS__)                                                 \
    }

#define EACH_ROW_BY(step, ...)                                                           \
    const int64_t s = step;                                                              \
    const int64_t begin = off < 0 ? (s - 1 - off) / s : 0;                               \
    const int64_t most = off < t->in[1] ? (t->in[1] - 1 - off) / s + 1 : 0;              \
    const int64_t end = most < t->out[1] ? most : t->out[1];                             \
    for (int64_t oh = 0; oh < t->out[0]; oh++) {                                         \
        const int64_t h = oh * t->stride[0] - t->padding[0] + t->at[0] * t->dilation[0]; \
        if (h < 0 || h >= t->in[0]) continue;                                            \
        const int64_t i = h * t->in[1] + off, j = oh * t->out[1];                        \
        for (int64_t ow = begin; ow < end; ow++)                                         \
            __VA_ARGS__                                                                  \
    }

void conv_tap_forward(const conv_tap *t, double weight, const double *restrict x,
                      double *restrict y)
{
    EACH_ROW(y[j + ow] += weight * x[i + ow * s];)
}

void conv_tap_backward_data(const conv_tap *t, double weight, const double *restrict dy,
                            double *restrict dx)
{
    EACH_ROW(dx[i + ow * s] += weight * dy[j + ow];)
}

double conv_tap_backward_weight(const conv_tap *t, const double *x, const double *dy)
{
    double sum = 0;
    EACH_ROW(sum += x[i + ow * s] * dy[j + ow];)
    return sum;
}
