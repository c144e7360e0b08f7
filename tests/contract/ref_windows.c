#include "ref_windows.h"
#include "conv_tap.h"
#include "ref_state.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Calls body for every (n, output position, window position inside the input). */
#define EACH_WINDOW(...)                                                                 \
    for (int64_t oh = 0; oh < H2; oh++)                                                  \
        for (int64_t ow = 0; ow < W2; ow++)                                              \
            for (int64_t kh = 0; kh < l->kernel[0]; kh++)                                \
                for (int64_t kw = 0; kw < l->kernel[1]; kw++) {                          \
                    int64_t h = oh * l->stride[0] - l->padding[0] + kh * l->dilation[0]; \
                    int64_t w = ow * l->stride[1] - l->padding[1] + kw * l->dilation[1]; \
                    if (h < 0 || h >= H || w < 0 || w >= W) continue;                    \
                    __VA_ARGS__                                                          \
                }
#define PLANES                                                                           \
    const int64_t C = l->in.d[0], H = l->in.d[1], W = l->in.d[2], H2 = l->out.d[1],      \
                  W2 = l->out.d[2]

void ref_conv(ref_model *m, const ps_layer *l, const double *x, double *y,
              const double *dy, double *dx)
{
    PLANES;
    int64_t O = l->out.d[0], K = l->kernel[0] * l->kernel[1];
    int64_t I = C / l->groups; // channels of a group
    double *weight = ref_rounded(m, ref_tensor(m, m->params, l->weight), O * I * K);
    double *xr = ref_rounded(m, x, m->n * C * H * W);
    double *dyr = ref_rounded(m, dy, m->n * O * H2 * W2);
    double *dw = ref_tensor(m, m->grads, l->weight);
    double *db = ref_tensor(m, m->grads, l->bias);
    conv_tap tap = {.in = {H, W},
                    .out = {H2, W2},
                    .stride = {l->stride[0], l->stride[1]},
                    .padding = {l->padding[0], l->padding[1]},
                    .dilation = {l->dilation[0], l->dilation[1]}};
    for (int64_t n = 0; n < m->n; n++) {
        for (int64_t o = 0; o < O; o++) {
            int64_t out = (n * O + o) * H2 * W2;
            for (int64_t p = 0; p < H2 * W2; p++) {
                // the device adds up the stored gradient, or the factor
                if (dy && db) db[o] += (m->whole_values ? dyr : dy)[out + p];
            }
            int64_t first = o / (O / l->groups) * I;
            for (int64_t c = first; c < first + I; c++) {
                const double *xs = xr + (n * C + c) * H * W;
                for (int64_t k = 0; k < K; k++) {
                    const int64_t w = (o * I + c - first) * K + k;
                    tap.at[0] = k / l->kernel[1], tap.at[1] = k % l->kernel[1];
                    if (!dy) conv_tap_forward(&tap, weight[w], xs, y + out);
                    if (dy) dw[w] += conv_tap_backward_weight(&tap, xs, dyr + out);
                    if (dx)
                        conv_tap_backward_data(&tap, weight[w], dyr + out,
                                               dx + (n * C + c) * H * W);
                }
            }
        }
    }
    if (!dy) ref_add_bias(m, l, y);
    free(weight), free(xr), free(dyr);
}

void ref_pool(ref_model *m, const ps_layer *l, const double *x, double *y,
              const double *dy, double *dx)
{
    PLANES;
    bool max = l->kind == PS_LAYER_MAX_POOL2D;
    double size = (double)(l->kernel[0] * l->kernel[1]);
    int64_t *best = malloc(sizeof *best * (size_t)(H2 * W2));
    for (int64_t o = 0; o < m->n * C; o++) {
        for (int64_t p = 0; p < H2 * W2; p++)
            best[p] = -1;
        if (!dy) memset(y + o * H2 * W2, 0, sizeof *y * (size_t)(H2 * W2));
        EACH_WINDOW({
            int64_t i = (o * H + h) * W + w;
            int64_t p = oh * W2 + ow;
            int64_t j = o * H2 * W2 + p;
            if (best[p] < 0 || x[i] > x[best[p]]) best[p] = i;
            if (!max && !dy) y[j] += x[i] / size;
            if (!max && dy) dx[i] += dy[j] / size;
        })
        for (int64_t p = 0; p < H2 * W2 && max; p++) {
            if (!dy)
                y[o * H2 * W2 + p] = x[best[p]];
            else
                dx[best[p]] += dy[o * H2 * W2 + p];
        }
    }
    free(best);
}

/* How much position i of the input adds to position o of the output, along one axis: the
 * formulas of torch.nn.Upsample and AdaptiveAvgPool2d. */
static double axis_weight(ps_interpolation mode, int64_t in, int64_t out, int64_t o,
                          int64_t i)
{
    const double ratio = (double)in / (double)out, at = ((double)o + 0.5) * ratio - 0.5;
    const double centre = fmin(fmax(at, 0), (double)(in - 1));
    const int64_t begin = o * in / out, end = ((o + 1) * in + out - 1) / out;
    switch (mode) {
    case PS_INTERPOLATE_NEAREST:
        return i == begin;
    case PS_INTERPOLATE_BILINEAR:
        return fmax(0, 1 - fabs(centre - (double)i));
    default:
        return i >= begin && i < end ? 1.0 / (double)(end - begin) : 0;
    }
}

void ref_interpolate(ref_model *m, const ps_layer *l, const double *x, double *y,
                     const double *dy, double *dx)
{
    PLANES;
    for (int64_t k = 0; k < H2 * W2 * H * W; k++) {
        const int64_t ow = k % W2, oh = k / W2 % H2, w = k / W2 / H2 % W,
                      h = k / W2 / H2 / W;
        const double weight =
            axis_weight(l->mode, H, H2, oh, h) * axis_weight(l->mode, W, W2, ow, w);
        for (int64_t o = 0; o < m->n * C && weight != 0; o++) {
            const int64_t i = (o * H + h) * W + w, j = (o * H2 + oh) * W2 + ow;
            if (dy)
                dx[i] += weight * dy[j];
            else
                y[j] += weight * x[i];
        }
    }
}

/* The position of the first maximum in window (oh, ow) of a plane: torch.nn's
 * AdaptiveMaxPool2d. */
static int64_t adaptive_argmax(const ps_layer *l, const double *x, int64_t oh, int64_t ow)
{
    const int64_t H = l->in.d[1], W = l->in.d[2], H2 = l->out.d[1], W2 = l->out.d[2];
    int64_t best = oh * H / H2 * W + ow * W / W2;
    for (int64_t h = oh * H / H2; h * H2 < (oh + 1) * H; h++)
        for (int64_t w = ow * W / W2; w * W2 < (ow + 1) * W; w++)
            if (x[h * W + w] > x[best]) best = h * W + w;
    return best;
}

void ref_adaptive_max(ref_model *m, const ps_layer *l, const double *x, double *y,
                      const double *dy, double *dx)
{
    PLANES;
    for (int64_t j = 0; j < m->n * C * H2 * W2; j++) {
        const int64_t plane = j / (H2 * W2) * H * W;
        const int64_t i = plane + adaptive_argmax(l, x + plane, j / W2 % H2, j % W2);
        if (dy)
            dx[i] += dy[j];
        else
            y[j] = x[i];
    }
}
