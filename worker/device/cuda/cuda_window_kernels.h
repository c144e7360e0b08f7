/* Kernels (cuda_kernels.h) over windows of planes: pooling, interpolation, im2col and
 * col2im. */
#ifndef PS_CUDA_WINDOW_KERNELS_H
#define PS_CUDA_WINDOW_KERNELS_H

#include "cuda_values.h"
#include "interpolate.h"

/* Windows over planes: of a pooling layer or a convolution. */
typedef struct ps_planes {
    ps_layout layout;
    int32_t in_h, in_w, out_h, out_w;
    int32_t kernel[2], stride[2], padding[2], dilation[2];
    ps_divisor by_stride[2];       // stride
    ps_divisor in_row, in_plane;   // in_w, in_h * in_w
    ps_divisor out_row, out_plane; // out_w, out_h * out_w
} ps_planes;

PS_ARITH ps_planes ps_planes_of(const int64_t in[2], const int64_t out[2],
                                const int kernel[2], const int stride[2],
                                const int padding[2], const int dilation[2],
                                ps_layout layout)
{
    ps_planes p;
    p.layout = layout;
    p.in_h = (int32_t)in[0];
    p.in_w = (int32_t)in[1];
    p.out_h = (int32_t)out[0];
    p.out_w = (int32_t)out[1];
    for (int i = 0; i < 2; i++) {
        p.kernel[i] = kernel[i];
        p.stride[i] = stride[i];
        p.by_stride[i] = ps_divisor_of(stride[i]);
        p.padding[i] = padding[i];
        p.dilation[i] = dilation[i];
    }
    p.in_row = ps_divisor_of(in[1]);
    p.in_plane = ps_divisor_of(in[0] * in[1]);
    p.out_row = ps_divisor_of(out[1]);
    p.out_plane = ps_divisor_of(out[0] * out[1]);
    return p;
}

/* A position in a stack of planes. */
typedef struct ps_spot {
    uint32_t plane;
    int32_t h, w;
} ps_spot;

PS_ARITH ps_spot ps_spot_at(uint32_t i, ps_divisor plane, ps_divisor row)
{
    ps_spot s;
    ps_divided o = ps_divide(i, plane), r = ps_divide(o.r, row);
    s.plane = o.q;
    s.h = (int32_t)r.q;
    s.w = (int32_t)r.r;
    return s;
}

/* The same for element i of pictures. */
PS_ARITH ps_spot ps_spot_in(const ps_layout *l, uint32_t i, ps_divisor plane,
                            ps_divisor row)
{
    if (!l->channels_last) return ps_spot_at(i, plane, row);
    const ps_divided at = ps_divide(i, l->channels);
    ps_spot s = ps_spot_at(at.q, plane, row); // plane: the image
    s.plane = s.plane * l->channels.by + at.r;
    return s;
}

/* The windows along one axis that hold a position: [begin, end). */
typedef struct ps_reach {
    int32_t begin, end;
} ps_reach;

PS_ARITH ps_reach ps_reach_of(int32_t at, int32_t kernel, ps_divisor stride,
                              int32_t padding, int32_t n_windows)
{
    ps_reach r;
    // window o holds [o * stride, o * stride + kernel)
    uint32_t shifted = (uint32_t)(at + padding), size = (uint32_t)kernel;
    r.begin = shifted < size ? 0 : (int32_t)ps_divide(shifted - size, stride).q + 1;
    r.end = (int32_t)ps_divide(shifted, stride).q + 1;
    if (r.end > n_windows) r.end = n_windows;
    return r;
}

PS_ARITH ps_reach ps_reach_at(const ps_planes *p, int axis, int32_t at)
{
    int32_t n_windows = axis == 0 ? p->out_h : p->out_w;
    int32_t size = (p->kernel[axis] - 1) * p->dilation[axis] + 1;
    return ps_reach_of(at, size, p->by_stride[axis], p->padding[axis], n_windows);
}

/* Each output is its window's maximum; place is the maximum's position in the window.
 * relu: a bias (channels; NULL: none) and a relu, which no other layer reads, are applied
 * to x first. Count: outputs. */
typedef struct ps_k_max_pool {
    ps_values x, y;
    uint8_t *place;
    ps_planes at;
    const float *bias;
    ps_divisor channels;
    bool relu;
} ps_k_max_pool;

PS_ARITH void ps_k_max_pool_at(const ps_k_max_pool *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_in(&p->layout, i, p->out_plane, p->out_row);
    const ps_values x =
        ps_values_from(k->x, ps_plane_at(&p->layout, s.plane, p->in_plane.by));
    ps_window h = ps_window_at(s.h, p->stride[0], p->padding[0], p->kernel[0], p->in_h);
    ps_window w = ps_window_at(s.w, p->stride[1], p->padding[1], p->kernel[1], p->in_w);
    float best = -INFINITY;
    float bias = k->bias ? k->bias[ps_divide(s.plane, k->channels).r] : 0.0f;
    int64_t place = h.skipped * p->kernel[1] + w.skipped;
    for (int64_t a = h.begin; a < h.end; a++) {
        for (int64_t b = w.begin; b < w.end; b++) {
            float v = ps_get(x, (size_t)(a * p->in_w + b) * p->layout.step);
            if (k->relu) v = ps_rounded(ps_relu(k->bias ? v + bias : v), x.format);
            if (!ps_max_takes(v, best)) continue;
            best = v;
            place = (a - h.begin + h.skipped) * p->kernel[1] + b - w.begin + w.skipped;
        }
    }
    ps_set(k->y, i, best, false);
    k->place[i] = (uint8_t)place;
}

/* Each input's gradient sums over the windows that hold it. y.at, if not NULL: the
 * outputs, with which the gradient of a relu before the pooling is applied too. Count:
 * inputs. */
typedef struct ps_k_max_pool_grad {
    ps_values dy, y, dx;
    const uint8_t *place;
    ps_planes at;
    bool add;
} ps_k_max_pool_grad;

PS_ARITH void ps_k_max_pool_grad_at(const ps_k_max_pool_grad *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_in(&p->layout, i, p->in_plane, p->in_row);
    ps_reach rh = ps_reach_at(p, 0, s.h), rw = ps_reach_at(p, 1, s.w);
    const size_t plane = ps_plane_at(&p->layout, s.plane, p->out_plane.by);
    float g = 0.0f;
    for (int32_t a = rh.begin; a < rh.end; a++) {
        for (int32_t b = rw.begin; b < rw.end; b++) {
            size_t o = plane + (size_t)(a * p->out_w + b) * p->layout.step;
            int32_t place = (s.h + p->padding[0] - a * p->stride[0]) * p->kernel[1] +
                            s.w + p->padding[1] - b * p->stride[1];
            if (k->place[o] != place) continue;
            float dy = ps_get(k->dy, o);
            g += k->y.at ? ps_relu_grad(ps_get(k->y, o), dy) : dy;
        }
    }
    ps_set(k->dx, i, g, k->add);
}

/* As in torch, the mean includes the padding. */
typedef struct ps_k_avg_pool {
    ps_values x, y;
    ps_planes at;
} ps_k_avg_pool;

PS_ARITH void ps_k_avg_pool_at(const ps_k_avg_pool *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_in(&p->layout, i, p->out_plane, p->out_row);
    const ps_values x =
        ps_values_from(k->x, ps_plane_at(&p->layout, s.plane, p->in_plane.by));
    ps_window h = ps_window_at(s.h, p->stride[0], p->padding[0], p->kernel[0], p->in_h);
    ps_window w = ps_window_at(s.w, p->stride[1], p->padding[1], p->kernel[1], p->in_w);
    float sum = 0.0f;
    for (int64_t a = h.begin; a < h.end; a++) {
        for (int64_t b = w.begin; b < w.end; b++)
            sum += ps_get(x, (size_t)(a * p->in_w + b) * p->layout.step);
    }
    ps_set(k->y, i, sum / (float)(p->kernel[0] * p->kernel[1]), false);
}

typedef struct ps_k_avg_pool_grad {
    ps_values dy, dx;
    ps_planes at;
    bool add;
} ps_k_avg_pool_grad;

PS_ARITH void ps_k_avg_pool_grad_at(const ps_k_avg_pool_grad *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_in(&p->layout, i, p->in_plane, p->in_row);
    ps_reach rh = ps_reach_at(p, 0, s.h), rw = ps_reach_at(p, 1, s.w);
    const ps_values dy =
        ps_values_from(k->dy, ps_plane_at(&p->layout, s.plane, p->out_plane.by));
    float g = 0.0f;
    for (int32_t a = rh.begin; a < rh.end; a++) {
        for (int32_t b = rw.begin; b < rw.end; b++)
            g += ps_get(dy, (size_t)(a * p->out_w + b) * p->layout.step);
    }
    ps_set(k->dx, i, g / (float)(p->kernel[0] * p->kernel[1]), k->add);
}

/* y is interpolated from x (interpolate.h). Count: outputs. */
typedef struct ps_k_interpolate {
    ps_values x, y;
    ps_axis rows, columns;
    ps_divisor out_row, out_plane;
    ps_layout layout;
} ps_k_interpolate;

PS_ARITH void ps_k_interpolate_at(const ps_k_interpolate *k, uint32_t i)
{
    ps_spot s = ps_spot_in(&k->layout, i, k->out_plane, k->out_row);
    ps_taps h = ps_taps_at(&k->rows, s.h), w = ps_taps_at(&k->columns, s.w);
    const uint32_t plane = (uint32_t)k->rows.in * (uint32_t)k->columns.in;
    const ps_values x = ps_values_from(k->x, ps_plane_at(&k->layout, s.plane, plane));
    float sum = 0.0f;
    for (int32_t a = h.begin; a < h.end; a++) {
        for (int32_t b = w.begin; b < w.end; b++)
            sum += ps_tap_weight(&h, a) * ps_tap_weight(&w, b) *
                   ps_get(x, (size_t)(a * k->columns.in + b) * k->layout.step);
    }
    ps_set(k->y, i, sum, false);
}

/* Each input's gradient sums over the outputs that read it. Count: inputs. */
typedef struct ps_k_interpolate_grad {
    ps_values dy, dx;
    ps_axis rows, columns;
    ps_divisor in_row, in_plane;
    ps_layout layout;
    bool add;
} ps_k_interpolate_grad;

PS_ARITH void ps_k_interpolate_grad_at(const ps_k_interpolate_grad *k, uint32_t i)
{
    ps_spot s = ps_spot_in(&k->layout, i, k->in_plane, k->in_row);
    const uint32_t plane = (uint32_t)k->rows.out * (uint32_t)k->columns.out;
    const ps_values dy = ps_values_from(k->dy, ps_plane_at(&k->layout, s.plane, plane));
    int32_t top, bottom, left, right;
    float g = 0.0f;
    ps_taps_readers(&k->rows, s.h, &top, &bottom);
    ps_taps_readers(&k->columns, s.w, &left, &right);
    for (int32_t a = top; a < bottom; a++) {
        const ps_taps h = ps_taps_at(&k->rows, a);
        const float up = ps_tap_weight(&h, s.h);
        for (int32_t b = left; b < right && up != 0.0f; b++) {
            const ps_taps w = ps_taps_at(&k->columns, b);
            const float weight = up * ps_tap_weight(&w, s.w);
            if (weight != 0.0f)
                g += weight *
                     ps_get(dy, (size_t)(a * k->columns.out + b) * k->layout.step);
        }
    }
    ps_set(k->dx, i, g, k->add);
}

/* Each output is the maximum of its window (interpolate.h); argmax is the maximum's
 * position in the plane. Count: outputs. */
typedef struct ps_k_adaptive_max {
    ps_values x, y;
    uint32_t *argmax;
    ps_axis rows, columns;
    ps_divisor out_row, out_plane;
    ps_layout layout;
} ps_k_adaptive_max;

PS_ARITH void ps_k_adaptive_max_at(const ps_k_adaptive_max *k, uint32_t i)
{
    ps_spot s = ps_spot_in(&k->layout, i, k->out_plane, k->out_row);
    ps_taps h = ps_taps_at(&k->rows, s.h), w = ps_taps_at(&k->columns, s.w);
    const uint32_t plane = (uint32_t)k->rows.in * (uint32_t)k->columns.in;
    const ps_values x = ps_values_from(k->x, ps_plane_at(&k->layout, s.plane, plane));
    float best = -INFINITY;
    int32_t place = h.begin * k->columns.in + w.begin;
    for (int32_t a = h.begin; a < h.end; a++) {
        for (int32_t b = w.begin; b < w.end; b++) {
            const int32_t at = a * k->columns.in + b;
            const float v = ps_get(x, (size_t)at * k->layout.step);
            if (!ps_max_takes(v, best)) continue;
            best = v;
            place = at;
        }
    }
    ps_set(k->y, i, best, false);
    k->argmax[i] = (uint32_t)place;
}

/* Each input's gradient sums over the windows whose maximum it is. Count: inputs. */
typedef struct ps_k_adaptive_max_grad {
    ps_values dy, dx;
    const uint32_t *argmax;
    ps_axis rows, columns;
    ps_divisor in_row, in_plane;
    ps_layout layout;
    bool add;
} ps_k_adaptive_max_grad;

PS_ARITH void ps_k_adaptive_max_grad_at(const ps_k_adaptive_max_grad *k, uint32_t i)
{
    ps_spot s = ps_spot_in(&k->layout, i, k->in_plane, k->in_row);
    const size_t plane = ps_plane_at(&k->layout, s.plane,
                                     (uint32_t)k->rows.out * (uint32_t)k->columns.out);
    const uint32_t place = (uint32_t)(s.h * k->columns.in + s.w);
    int32_t top, bottom, left, right;
    float g = 0.0f;
    ps_taps_readers(&k->rows, s.h, &top, &bottom);
    ps_taps_readers(&k->columns, s.w, &left, &right);
    for (int32_t a = top; a < bottom; a++) {
        for (int32_t b = left; b < right; b++) {
            const size_t o = plane + (size_t)(a * k->columns.out + b) * k->layout.step;
            if (k->argmax[o] == place) g += ps_get(k->dy, o);
        }
    }
    ps_set(k->dx, i, g, k->add);
}

/* Rows of columns are in the order of a filter's weights: (groups, window, in_group) with
 * in_group of the channels next to each other. in_group 1: (C, window). Returns the row
 * of channel c at the window's first position; *step: to the next position. */
PS_ARITH size_t ps_column_row(uint32_t c, ps_divisor in_group, const int32_t kernel[2],
                              size_t *step)
{
    const ps_divided at = ps_divide(c, in_group);
    *step = in_group.by;
    return (size_t)at.q * in_group.by * (uint32_t)(kernel[0] * kernel[1]) + at.r;
}

/* col (C * kh * kw, samples * out plane) of the samples from n_first on, of pictures x.
 * One call fills a window of one channel. Count: C * columns. */
typedef struct ps_k_im2col {
    ps_values x, col;
    uint32_t channels, n_first;
    ps_divisor in_group; // of ps_column_row
    ps_divisor columns;  // samples * out plane
    ps_planes at;
} ps_k_im2col;

PS_ARITH void ps_k_im2col_at(const ps_k_im2col *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_divided c = ps_divide(i, k->columns);
    ps_spot s = ps_spot_at(c.r, p->out_plane, p->out_row); // plane: the sample
    const uint32_t plane = (k->n_first + s.plane) * k->channels + c.q;
    const ps_values x =
        ps_values_from(k->x, ps_plane_at(&p->layout, plane, p->in_plane.by));
    int32_t top = s.h * p->stride[0] - p->padding[0];
    int32_t left = s.w * p->stride[1] - p->padding[1];
    size_t step, row = ps_column_row(c.q, k->in_group, p->kernel, &step);
    size_t to = row * k->columns.by + c.r;
    for (int32_t a = 0; a < p->kernel[0]; a++) {
        for (int32_t b = 0; b < p->kernel[1]; b++, to += step * k->columns.by) {
            int32_t h = top + a * p->dilation[0], w = left + b * p->dilation[1];
            bool inside = h >= 0 && h < p->in_h && w >= 0 && w < p->in_w;
            const size_t from = inside ? (size_t)(h * p->in_w + w) * p->layout.step : 0;
            ps_set(k->col, to, inside ? ps_get(x, from) : 0.0f, false);
        }
    }
}

/* dx = or += the sum of each input's entries in col, for the samples from n_first on.
 * Count: C * samples * in plane. */
typedef struct ps_k_col2im {
    const float *col;
    ps_values dx;
    uint32_t channels, n_first;
    ps_divisor in_group; // of ps_column_row
    ps_divisor inputs;   // samples * in plane
    uint32_t columns;    // samples * out plane
    ps_planes at;
    bool add;
} ps_k_col2im;

PS_ARITH void ps_k_col2im_at(const ps_k_col2im *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_divided c = ps_divide(i, k->inputs);
    ps_spot s = ps_spot_at(c.r, p->in_plane, p->in_row); // plane: the sample
    ps_reach rh = ps_reach_at(p, 0, s.h), rw = ps_reach_at(p, 1, s.w);
    size_t step, row = ps_column_row(c.q, k->in_group, p->kernel, &step);
    const float *col = k->col + row * k->columns + (size_t)s.plane * p->out_plane.by;
    const bool holes = p->dilation[0] > 1 || p->dilation[1] > 1; // divisions are slow
    float g = 0.0f;
    for (int32_t a = rh.begin; a < rh.end; a++) {
        int32_t y = s.h + p->padding[0] - a * p->stride[0];
        for (int32_t b = rw.begin; b < rw.end; b++) {
            int32_t x = s.w + p->padding[1] - b * p->stride[1];
            int32_t kh = y, kw = x;
            if (holes) {
                if (y % p->dilation[0] != 0 || x % p->dilation[1] != 0) continue;
                kh = y / p->dilation[0];
                kw = x / p->dilation[1];
            }
            g += col[(size_t)(kh * p->kernel[1] + kw) * step * k->columns +
                     (size_t)(a * p->out_w + b)];
        }
    }
    const uint32_t plane = (k->n_first + s.plane) * k->channels + c.q;
    size_t to = ps_plane_at(&p->layout, plane, p->in_plane.by) +
                (size_t)(s.h * p->in_w + s.w) * p->layout.step;
    ps_set(k->dx, to, g, k->add);
}

#endif
