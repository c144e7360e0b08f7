/* The CUDA device's kernels: what each thread computes, as plain inline functions.
 *
 * Images lie channel by channel on the GPU, (C, N, H, W): a convolution is then one
 * product of matrices for the whole batch, in both directions, and a channel's values are
 * neighbours for batch norm. Flat values lie as everywhere, (N, features).
 *
 * A flat kernel `name` is a struct of arguments ps_k_name and ps_k_name_at(args, i),
 * called once for each i below the launch's count; calls write to different places. A sum
 * kernel is ps_k_name with ps_k_name_lane(args, block, lane): what the lane adds up, and
 * ps_k_name_done(args, block, sum), called with the lanes' sums combined in a fixed
 * order. No kernel has atomics: the same inputs give the same bits.
 *
 * cuda_gpu.cu compiles them for the GPU; the tests run them on the host. */
#ifndef PS_CUDA_KERNELS_H
#define PS_CUDA_KERNELS_H

#include <stddef.h>

#include "cuda_index.h"
#include "float16.h"
#include "rng.h"

#define PS_FLAT_KERNELS(X)                                                               \
    X(take)                                                                              \
    X(swap)                                                                              \
    X(pass)                                                                              \
    X(narrow)                                                                            \
    X(bias)                                                                              \
    X(act)                                                                               \
    X(act_grad)                                                                          \
    X(sum)                                                                               \
    X(max_pool)                                                                          \
    X(max_pool_grad)                                                                     \
    X(avg_pool)                                                                          \
    X(avg_pool_grad)                                                                     \
    X(im2col)                                                                            \
    X(col2im)                                                                            \
    X(dropout)                                                                           \
    X(norm_stats)                                                                        \
    X(norm)                                                                              \
    X(norm_grad_sums)                                                                    \
    X(norm_grad)                                                                         \
    X(row_total)                                                                         \
    X(column_total)                                                                      \
    X(log_softmax)                                                                       \
    X(log_softmax_grad)                                                                  \
    X(loss)                                                                              \
    X(loss_grad)                                                                         \
    X(unscale)                                                                           \
    X(clip)                                                                              \
    X(optimizer)                                                                         \
    X(norm_lane)                                                                         \
    X(norm_block)

#define PS_SUM_KERNELS(X)                                                                \
    X(norm_sums)                                                                         \
    X(norm_dots)                                                                         \
    X(row_sums)                                                                          \
    X(loss_total)                                                                        \
    X(bad_values)                                                                        \
    X(bad_blocks)                                                                        \
    X(verdict)

enum { PS_SUM_LANES = 256 };

typedef struct ps_sums {
    double a, b;
} ps_sums;

PS_ARITH void ps_store(float *to, float value, bool add)
{
    *to = add ? *to + value : value;
}

/* ------------------------------------------------------------------- moving around */

/* What dropout's draws depend on beside the sample (rng.h): in the GPU's memory, so that
 * a captured launch follows it from step to step. */
typedef struct ps_dropout_words {
    uint32_t key[2], epoch;
} ps_dropout_words;

/* A batch that has arrived, and its step's key. Count: samples. */
typedef struct ps_k_take {
    const int32_t *labels_in;
    const uint32_t *positions_in;
    int32_t *labels;
    uint32_t *positions;
    ps_dropout_words *key, value;
} ps_k_take;

PS_ARITH void ps_k_take_at(const ps_k_take *k, uint32_t i)
{
    k->labels[i] = k->labels_in[i];
    k->positions[i] = k->positions_in[i];
    if (i == 0) *k->key = k->value;
}

/* y (B, A, inner) = or += x (A, B, inner): images to features and back, and a batch in
 * row-major order to channel by channel. Count: all elements. */
typedef struct ps_k_swap {
    const float *x;
    float *y;
    uint32_t b;
    ps_divisor a, inner;
    bool add;
} ps_k_swap;

PS_ARITH void ps_k_swap_at(const ps_k_swap *k, uint32_t i)
{
    ps_divided row = ps_divide(i, k->inner), at = ps_divide(row.q, k->a);
    size_t from = ((size_t)at.r * k->b + at.q) * k->inner.by + row.r;
    ps_store(&k->y[i], k->x[from], k->add);
}

typedef struct ps_k_pass {
    const float *x;
    float *y;
    bool add;
} ps_k_pass;

PS_ARITH void ps_k_pass_at(const ps_k_pass *k, uint32_t i)
{
    ps_store(&k->y[i], k->x[i], k->add);
}

/* What the factors of products are rounded to. */
typedef enum ps_factors { PS_FACTORS_FP32, PS_FACTORS_BF16, PS_FACTORS_FP16 } ps_factors;

PS_ARITH uint16_t ps_narrow(float x, ps_factors kind)
{
    return kind == PS_FACTORS_BF16 ? ps_bf16_of(x) : ps_fp16_of(x);
}

typedef struct ps_k_narrow {
    const float *x;
    uint16_t *y;
    ps_factors kind;
} ps_k_narrow;

PS_ARITH void ps_k_narrow_at(const ps_k_narrow *k, uint32_t i)
{
    k->y[i] = ps_narrow(k->x[i], k->kind);
}

/* --------------------------------------------------------------------- elementwise */

/* y (outer, channels, inner) += bias (channels; NULL: none), then perhaps relu. */
typedef struct ps_k_bias {
    const float *bias;
    float *y;
    ps_divisor inner, channels;
    bool relu;
} ps_k_bias;

PS_ARITH void ps_k_bias_at(const ps_k_bias *k, uint32_t i)
{
    float v = k->y[i];
    if (k->bias) v += k->bias[ps_divide(ps_divide(i, k->inner).q, k->channels).r];
    k->y[i] = k->relu ? ps_relu(v) : v;
}

typedef enum ps_act_kind { PS_ACT_RELU, PS_ACT_TANH, PS_ACT_SIGMOID } ps_act_kind;

typedef struct ps_k_act {
    const float *x;
    float *y;
    ps_act_kind kind;
} ps_k_act;

PS_ARITH void ps_k_act_at(const ps_k_act *k, uint32_t i)
{
    float x = k->x[i];
    if (k->kind == PS_ACT_RELU)
        k->y[i] = ps_relu(x);
    else
        k->y[i] = k->kind == PS_ACT_TANH ? tanhf(x) : ps_sigmoid(x);
}

/* dx = or += the gradient of the input; y: the outputs. dx may be dy. */
typedef struct ps_k_act_grad {
    const float *y, *dy;
    float *dx;
    ps_act_kind kind;
    bool add;
} ps_k_act_grad;

PS_ARITH void ps_k_act_grad_at(const ps_k_act_grad *k, uint32_t i)
{
    float y = k->y[i], dy = k->dy[i], g;
    if (k->kind == PS_ACT_RELU)
        g = ps_relu_grad(y, dy);
    else
        g = k->kind == PS_ACT_TANH ? ps_tanh_grad(y, dy) : ps_sigmoid_grad(y, dy);
    ps_store(&k->dx[i], g, k->add);
}

typedef struct ps_k_sum {
    const float *a, *b;
    float *y;
    bool relu;
} ps_k_sum;

PS_ARITH void ps_k_sum_at(const ps_k_sum *k, uint32_t i)
{
    float v = k->a[i] + k->b[i];
    k->y[i] = k->relu ? ps_relu(v) : v;
}

/* y = or += x * scale where the draw keeps the element, else 0 (rng.h); the same for the
 * gradient. One call for eight features of one sample, which share their draws. Flat
 * values: plane is the number of features. Count: n * groups. */
typedef struct ps_k_dropout {
    const float *x;
    float *y;
    const uint32_t *positions; // (n)
    const ps_dropout_words *key;
    uint32_t n, features;
    ps_divisor groups; // ceil(features / 8), of a sample
    ps_divisor plane;
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
        ps_divided at = ps_divide(e, k->plane); // channel, place
        size_t to = ((size_t)at.q * k->n + sample.q) * k->plane.by + at.r;
        bool keep = (words[d / 2] >> (16 * (d % 2)) & 0xFFFFu) >= k->threshold;
        ps_store(&k->y[to], keep ? k->x[to] * k->scale : 0.0f, k->add);
    }
}

/* ------------------------------------------------------------------------- windows */

/* Windows over planes: of a pooling layer or a convolution. */
typedef struct ps_planes {
    int32_t in_h, in_w;
    int32_t kernel[2], stride[2], padding[2];
    ps_divisor in_row, in_plane;   // in_w, in_h * in_w
    ps_divisor out_row, out_plane; // out_w, out_h * out_w
} ps_planes;

PS_ARITH ps_planes ps_planes_of(const int64_t in[2], const int64_t out[2],
                                const int kernel[2], const int stride[2],
                                const int padding[2])
{
    ps_planes p;
    p.in_h = (int32_t)in[0];
    p.in_w = (int32_t)in[1];
    for (int i = 0; i < 2; i++) {
        p.kernel[i] = kernel[i];
        p.stride[i] = stride[i];
        p.padding[i] = padding[i];
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

/* The windows along one axis that hold a position: [begin, end). */
typedef struct ps_reach {
    int32_t begin, end;
} ps_reach;

PS_ARITH ps_reach ps_reach_of(int32_t at, int32_t kernel, int32_t stride, int32_t padding,
                              int32_t n_windows)
{
    ps_reach r;
    int32_t shifted = at + padding; // window o holds [o * stride, o * stride + kernel)
    r.begin = shifted < kernel ? 0 : (shifted - kernel) / stride + 1;
    r.end = shifted / stride + 1;
    if (r.end > n_windows) r.end = n_windows;
    return r;
}

/* Each output: its window's maximum, and which of the window's places it was. Count:
 * outputs. */
typedef struct ps_k_max_pool {
    const float *x;
    float *y;
    uint8_t *place;
    ps_planes at;
} ps_k_max_pool;

PS_ARITH void ps_k_max_pool_at(const ps_k_max_pool *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_at(i, p->out_plane, p->out_row);
    const float *x = k->x + (size_t)s.plane * p->in_plane.by;
    ps_window h = ps_window_at(s.h, p->stride[0], p->padding[0], p->kernel[0], p->in_h);
    ps_window w = ps_window_at(s.w, p->stride[1], p->padding[1], p->kernel[1], p->in_w);
    float best = -INFINITY;
    int64_t place = h.skipped * p->kernel[1] + w.skipped;
    for (int64_t a = h.begin; a < h.end; a++) {
        for (int64_t b = w.begin; b < w.end; b++) {
            float v = x[a * p->in_w + b];
            if (!ps_max_takes(v, best)) continue;
            best = v;
            place = (a - h.begin + h.skipped) * p->kernel[1] + b - w.begin + w.skipped;
        }
    }
    k->y[i] = best;
    k->place[i] = (uint8_t)place;
}

/* Each input gathers from the windows that hold it. y, if not NULL: the outputs, where
 * the gradient of a relu before the pooling is taken as well. Count: inputs. */
typedef struct ps_k_max_pool_grad {
    const float *dy, *y;
    const uint8_t *place;
    float *dx;
    ps_planes at;
    bool add;
} ps_k_max_pool_grad;

PS_ARITH void ps_k_max_pool_grad_at(const ps_k_max_pool_grad *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_at(i, p->in_plane, p->in_row);
    int32_t out_w = (int32_t)p->out_row.by, out_h = (int32_t)p->out_plane.by / out_w;
    ps_reach rh = ps_reach_of(s.h, p->kernel[0], p->stride[0], p->padding[0], out_h);
    ps_reach rw = ps_reach_of(s.w, p->kernel[1], p->stride[1], p->padding[1], out_w);
    size_t plane = (size_t)s.plane * p->out_plane.by;
    float g = 0.0f;
    for (int32_t a = rh.begin; a < rh.end; a++) {
        for (int32_t b = rw.begin; b < rw.end; b++) {
            size_t o = plane + (size_t)(a * out_w + b);
            int32_t place = (s.h + p->padding[0] - a * p->stride[0]) * p->kernel[1] +
                            s.w + p->padding[1] - b * p->stride[1];
            if (k->place[o] != place) continue;
            g += k->y ? ps_relu_grad(k->y[o], k->dy[o]) : k->dy[o];
        }
    }
    ps_store(&k->dx[i], g, k->add);
}

/* As torch: the padding counts into the mean. */
typedef struct ps_k_avg_pool {
    const float *x;
    float *y;
    ps_planes at;
} ps_k_avg_pool;

PS_ARITH void ps_k_avg_pool_at(const ps_k_avg_pool *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_at(i, p->out_plane, p->out_row);
    const float *x = k->x + (size_t)s.plane * p->in_plane.by;
    ps_window h = ps_window_at(s.h, p->stride[0], p->padding[0], p->kernel[0], p->in_h);
    ps_window w = ps_window_at(s.w, p->stride[1], p->padding[1], p->kernel[1], p->in_w);
    float sum = 0.0f;
    for (int64_t a = h.begin; a < h.end; a++) {
        for (int64_t b = w.begin; b < w.end; b++)
            sum += x[a * p->in_w + b];
    }
    k->y[i] = sum / (float)(p->kernel[0] * p->kernel[1]);
}

typedef struct ps_k_avg_pool_grad {
    const float *dy;
    float *dx;
    ps_planes at;
    bool add;
} ps_k_avg_pool_grad;

PS_ARITH void ps_k_avg_pool_grad_at(const ps_k_avg_pool_grad *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_spot s = ps_spot_at(i, p->in_plane, p->in_row);
    int32_t out_w = (int32_t)p->out_row.by, out_h = (int32_t)p->out_plane.by / out_w;
    ps_reach rh = ps_reach_of(s.h, p->kernel[0], p->stride[0], p->padding[0], out_h);
    ps_reach rw = ps_reach_of(s.w, p->kernel[1], p->stride[1], p->padding[1], out_w);
    const float *dy = k->dy + (size_t)s.plane * p->out_plane.by;
    float g = 0.0f;
    for (int32_t a = rh.begin; a < rh.end; a++) {
        for (int32_t b = rw.begin; b < rw.end; b++)
            g += dy[a * out_w + b];
    }
    ps_store(&k->dx[i], g / (float)(p->kernel[0] * p->kernel[1]), k->add);
}

/* col (C * kh * kw, samples * out plane) of the samples from n_first on, of x (C, n,
 * H, W). One call fills a window of one channel. Count: C * columns. */
typedef struct ps_k_im2col {
    const float *x;
    float *col;
    uint16_t *narrow; // instead of col, where kind is not float32
    uint32_t n, n_first;
    ps_divisor columns; // samples * out plane
    ps_planes at;
    ps_factors kind;
} ps_k_im2col;

PS_ARITH void ps_k_im2col_at(const ps_k_im2col *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_divided c = ps_divide(i, k->columns);
    ps_spot s = ps_spot_at(c.r, p->out_plane, p->out_row); // plane: the sample
    const float *x = k->x + ((size_t)c.q * k->n + k->n_first + s.plane) * p->in_plane.by;
    int32_t top = s.h * p->stride[0] - p->padding[0];
    int32_t left = s.w * p->stride[1] - p->padding[1];
    size_t row = (size_t)c.q * (uint32_t)(p->kernel[0] * p->kernel[1]);
    size_t to = row * k->columns.by + c.r;
    for (int32_t a = 0; a < p->kernel[0]; a++) {
        for (int32_t b = 0; b < p->kernel[1]; b++, to += k->columns.by) {
            int32_t h = top + a, w = left + b;
            bool inside = h >= 0 && h < p->in_h && w >= 0 && w < p->in_w;
            float v = inside ? x[h * p->in_w + w] : 0.0f;
            if (k->kind == PS_FACTORS_FP32)
                k->col[to] = v;
            else
                k->narrow[to] = ps_narrow(v, k->kind);
        }
    }
}

/* dx = or += what the windows say of each input, of the samples from n_first on. Count:
 * C * samples * in plane. */
typedef struct ps_k_col2im {
    const float *col;
    float *dx;
    uint32_t n, n_first;
    ps_divisor inputs; // samples * in plane
    uint32_t columns;  // samples * out plane
    ps_planes at;
    bool add;
} ps_k_col2im;

PS_ARITH void ps_k_col2im_at(const ps_k_col2im *k, uint32_t i)
{
    const ps_planes *p = &k->at;
    ps_divided c = ps_divide(i, k->inputs);
    ps_spot s = ps_spot_at(c.r, p->in_plane, p->in_row); // plane: the sample
    int32_t out_w = (int32_t)p->out_row.by, out_h = (int32_t)p->out_plane.by / out_w;
    ps_reach rh = ps_reach_of(s.h, p->kernel[0], p->stride[0], p->padding[0], out_h);
    ps_reach rw = ps_reach_of(s.w, p->kernel[1], p->stride[1], p->padding[1], out_w);
    size_t row = (size_t)c.q * (uint32_t)(p->kernel[0] * p->kernel[1]);
    const float *col = k->col + row * k->columns + (size_t)s.plane * p->out_plane.by;
    float g = 0.0f;
    for (int32_t a = rh.begin; a < rh.end; a++) {
        int32_t kh = s.h + p->padding[0] - a * p->stride[0];
        for (int32_t b = rw.begin; b < rw.end; b++) {
            int32_t kw = s.w + p->padding[1] - b * p->stride[1];
            g += col[(size_t)(kh * p->kernel[1] + kw) * k->columns +
                     (size_t)(a * out_w + b)];
        }
    }
    size_t plane = (size_t)c.q * k->n + k->n_first + s.plane;
    float *dx = k->dx + plane * p->in_plane.by + s.h * p->in_w + s.w;
    ps_store(dx, g, k->add);
}

/* --------------------------------------------------------------------- sums of rows */

/* Rows of `length` values in parts, one block each, so that few long rows fill the GPU:
 * block = row * parts + part. */
typedef struct ps_rows {
    uint32_t length, part_length; // of the last part: what is left
    ps_divisor parts;
} ps_rows;

/* Parts short enough for a lane's sum in float32: 32 values. */
enum { PS_ROW_PART = 32 * PS_SUM_LANES, PS_ROW_PARTS_MAX = 64 };

PS_ARITH ps_rows ps_rows_of(int64_t length)
{
    ps_rows r;
    int64_t parts = (length + PS_ROW_PART - 1) / PS_ROW_PART;
    if (parts > PS_ROW_PARTS_MAX) parts = PS_ROW_PARTS_MAX;
    r.length = (uint32_t)length;
    r.part_length = (uint32_t)((length + parts - 1) / parts);
    // the rounding may leave the last ones empty
    r.parts = ps_divisor_of((length + r.part_length - 1) / r.part_length);
    return r;
}

typedef struct ps_row_part {
    uint32_t row, begin, end; // within the row
} ps_row_part;

PS_ARITH ps_row_part ps_row_part_of(const ps_rows *rows, uint32_t block)
{
    ps_row_part p;
    ps_divided at = ps_divide(block, rows->parts);
    p.row = at.q;
    p.begin = at.r * rows->part_length;
    p.end = p.begin + rows->part_length;
    if (p.end > rows->length) p.end = rows->length;
    return p;
}

/* A row's parts together. */
PS_ARITH ps_sums ps_parts_total(const ps_sums *parts, const ps_rows *rows, uint32_t row)
{
    ps_sums total = {0.0, 0.0};
    for (uint32_t p = 0; p < rows->parts.by; p++) {
        total.a += parts[row * rows->parts.by + p].a;
        total.b += parts[row * rows->parts.by + p].b;
    }
    return total;
}

/* parts = sums over x's rows. Blocks: rows * parts. */
typedef struct ps_k_row_sums {
    const float *x;
    ps_sums *parts;
    ps_rows rows;
} ps_k_row_sums;

PS_ARITH ps_sums ps_k_row_sums_lane(const ps_k_row_sums *k, uint32_t block, uint32_t lane)
{
    ps_row_part p = ps_row_part_of(&k->rows, block);
    const float *x = k->x + (size_t)p.row * k->rows.length;
    float sum = 0.0f;
    for (uint32_t i = p.begin + lane; i < p.end; i += PS_SUM_LANES)
        sum += x[i];
    ps_sums s = {sum, 0.0};
    return s;
}

PS_ARITH void ps_k_row_sums_done(const ps_k_row_sums *k, uint32_t block, ps_sums s)
{
    k->parts[block] = s;
}

/* y (rows) = or += the rows' sums: the gradient of a convolution's bias. */
typedef struct ps_k_row_total {
    const ps_sums *parts;
    float *y;
    ps_rows rows;
    bool add;
} ps_k_row_total;

PS_ARITH void ps_k_row_total_at(const ps_k_row_total *k, uint32_t row)
{
    ps_store(&k->y[row], (float)ps_parts_total(k->parts, &k->rows, row).a, k->add);
}

/* y (columns) = or += the sums of x's (n, columns) columns: of a linear layer's bias. */
typedef struct ps_k_column_total {
    const float *x;
    float *y;
    uint32_t n, columns;
    bool add;
} ps_k_column_total;

PS_ARITH void ps_k_column_total_at(const ps_k_column_total *k, uint32_t i)
{
    float sum = 0.0f;
    for (uint32_t n = 0; n < k->n; n++)
        sum += k->x[(size_t)n * k->columns + i];
    ps_store(&k->y[i], sum, k->add);
}

/* ---------------------------------------------------------------------- batch norm */

/* parts = sums of (x - x0) and (x - x0)^2 over a channel's values, x0 its first one: near
 * enough to the mean that the difference of the two squares below keeps its digits. */
typedef struct ps_k_norm_sums {
    const float *x;
    ps_sums *parts;
    ps_rows rows;
} ps_k_norm_sums;

PS_ARITH ps_sums ps_k_norm_sums_lane(const ps_k_norm_sums *k, uint32_t block,
                                     uint32_t lane)
{
    ps_row_part p = ps_row_part_of(&k->rows, block);
    const float *x = k->x + (size_t)p.row * k->rows.length;
    float sum = 0.0f, square = 0.0f;
    for (uint32_t i = p.begin + lane; i < p.end; i += PS_SUM_LANES) {
        float d = x[i] - x[0];
        sum += d;
        square += d * d;
    }
    ps_sums s = {sum, square};
    return s;
}

PS_ARITH void ps_k_norm_sums_done(const ps_k_norm_sums *k, uint32_t block, ps_sums s)
{
    k->parts[block] = s;
}

/* mean and inv (C) of the batch, with the running statistics brought up to date, or, with
 * parts NULL, from the running statistics. Count: C. */
typedef struct ps_k_norm_stats {
    const float *x;
    const ps_sums *parts;
    float *mean, *inv, *running_mean, *running_var;
    ps_rows rows;
    float momentum;
    double eps;
} ps_k_norm_stats;

PS_ARITH void ps_k_norm_stats_at(const ps_k_norm_stats *k, uint32_t c)
{
    if (!k->parts) {
        k->mean[c] = k->running_mean[c];
        k->inv[c] = (float)(1.0 / sqrt((double)k->running_var[c] + k->eps));
        return;
    }
    ps_sums s = ps_parts_total(k->parts, &k->rows, c);
    double n = (double)k->rows.length, shift = s.a / n;
    double mean = (double)k->x[(size_t)c * k->rows.length] + shift;
    double var = s.b / n - shift * shift;
    if (var < 0.0) var = 0.0;
    k->mean[c] = (float)mean;
    k->inv[c] = (float)(1.0 / sqrt(var + k->eps));
    float unbiased = (float)(var * n / (n - 1.0));
    k->running_mean[c] = ps_norm_running(k->running_mean[c], (float)mean, k->momentum);
    k->running_var[c] = ps_norm_running(k->running_var[c], unbiased, k->momentum);
}

/* Count: C * row. weight and bias may be NULL: 1 and 0. */
typedef struct ps_k_norm {
    const float *x, *mean, *inv, *weight, *bias;
    float *y;
    ps_divisor row;
    bool relu;
} ps_k_norm;

PS_ARITH void ps_k_norm_at(const ps_k_norm *k, uint32_t i)
{
    uint32_t c = ps_divide(i, k->row).q;
    float v = ps_norm_value(k->x[i], k->mean[c], k->inv[c], k->weight ? k->weight[c] : 1,
                            k->bias ? k->bias[c] : 0);
    k->y[i] = k->relu ? ps_relu(v) : v;
}

/* parts = sums of dy and of dy times the normalised input. y, if not NULL: the outputs
 * behind a relu, whose gradient is taken first. */
typedef struct ps_k_norm_dots {
    const float *x, *dy, *y, *mean, *inv;
    ps_sums *parts;
    ps_rows rows;
} ps_k_norm_dots;

PS_ARITH ps_sums ps_k_norm_dots_lane(const ps_k_norm_dots *k, uint32_t block,
                                     uint32_t lane)
{
    ps_row_part p = ps_row_part_of(&k->rows, block);
    size_t row = (size_t)p.row * k->rows.length;
    float mean = k->mean[p.row], inv = k->inv[p.row], sum = 0.0f, dot = 0.0f;
    for (uint32_t i = p.begin + lane; i < p.end; i += PS_SUM_LANES) {
        float dy = k->dy[row + i];
        if (k->y) dy = ps_relu_grad(k->y[row + i], dy);
        sum += dy;
        dot += dy * ((k->x[row + i] - mean) * inv);
    }
    ps_sums s = {sum, dot};
    return s;
}

PS_ARITH void ps_k_norm_dots_done(const ps_k_norm_dots *k, uint32_t block, ps_sums s)
{
    k->parts[block] = s;
}

/* The gradients of weight and bias (NULL: none), and the means that norm_grad needs. */
typedef struct ps_k_norm_grad_sums {
    const ps_sums *parts;
    float *dweight, *dbias, *mean_dy, *mean_dot;
    ps_rows rows;
    bool add;
} ps_k_norm_grad_sums;

PS_ARITH void ps_k_norm_grad_sums_at(const ps_k_norm_grad_sums *k, uint32_t c)
{
    ps_sums s = ps_parts_total(k->parts, &k->rows, c);
    if (k->dweight) ps_store(&k->dweight[c], (float)s.b, k->add);
    if (k->dbias) ps_store(&k->dbias[c], (float)s.a, k->add);
    k->mean_dy[c] = (float)(s.a / (double)k->rows.length);
    k->mean_dot[c] = (float)(s.b / (double)k->rows.length);
}

typedef struct ps_k_norm_grad {
    const float *x, *dy, *y, *mean, *inv, *weight, *mean_dy, *mean_dot;
    float *dx;
    ps_divisor row;
    bool add;
} ps_k_norm_grad;

PS_ARITH void ps_k_norm_grad_at(const ps_k_norm_grad *k, uint32_t i)
{
    uint32_t c = ps_divide(i, k->row).q;
    float dy = k->dy[i];
    if (k->y) dy = ps_relu_grad(k->y[i], dy);
    float g =
        ps_norm_grad(k->x[i], dy, k->mean[c], k->inv[c], k->weight ? k->weight[c] : 1.0f,
                     k->mean_dy[c], k->mean_dot[c]);
    ps_store(&k->dx[i], g, k->add);
}

/* -------------------------------------------------------------------------- losses */

/* Rows of classes; one call does a row: there are few classes, and few rows. */
typedef struct ps_k_log_softmax {
    const float *x;
    float *y;
    uint32_t classes;
} ps_k_log_softmax;

PS_ARITH void ps_k_log_softmax_at(const ps_k_log_softmax *k, uint32_t row)
{
    const float *x = k->x + (size_t)row * k->classes;
    float *y = k->y + (size_t)row * k->classes;
    float lse = ps_log_sum_exp(k->classes, x);
    for (uint32_t c = 0; c < k->classes; c++)
        y[c] = x[c] - lse;
}

typedef struct ps_k_log_softmax_grad {
    const float *y, *dy;
    float *dx;
    uint32_t classes;
    bool add;
} ps_k_log_softmax_grad;

PS_ARITH void ps_k_log_softmax_grad_at(const ps_k_log_softmax_grad *k, uint32_t row)
{
    size_t at = (size_t)row * k->classes;
    float sum = 0.0f;
    for (uint32_t c = 0; c < k->classes; c++)
        sum += k->dy[at + c];
    for (uint32_t c = 0; c < k->classes; c++) {
        float g = k->dy[at + c] - expf(k->y[at + c]) * sum;
        ps_store(&k->dx[at + c], g, k->add);
    }
}

/* NLL_LOGITS: of the logits before a log_softmax, whose outputs x are. */
typedef enum ps_cuda_loss {
    PS_CUDA_NLL,
    PS_CUDA_CROSS_ENTROPY,
    PS_CUDA_MSE,
    PS_CUDA_NLL_LOGITS
} ps_cuda_loss;

/* A sample's loss, and 1 where its largest output is the label's. Count: samples. */
typedef struct ps_k_loss {
    const float *x;
    const int32_t *labels;
    ps_sums *samples; // loss, hit
    uint32_t classes;
    ps_cuda_loss kind;
} ps_k_loss;

PS_ARITH void ps_k_loss_at(const ps_k_loss *k, uint32_t n)
{
    const float *x = k->x + (size_t)n * k->classes;
    int32_t label = k->labels[n];
    if (k->kind == PS_CUDA_MSE)
        k->samples[n].a = ps_mse_one_hot(k->classes, x, label);
    else if (k->kind == PS_CUDA_CROSS_ENTROPY)
        k->samples[n].a = ps_log_sum_exp(k->classes, x) - x[label];
    else
        k->samples[n].a = -x[label];
    k->samples[n].b = ps_argmax(k->classes, x) == label ? 1.0 : 0.0;
}

/* All samples together, by one block. */
typedef struct ps_k_loss_total {
    const ps_sums *samples;
    ps_sums *total;
    uint32_t n;
} ps_k_loss_total;

PS_ARITH ps_sums ps_k_loss_total_lane(const ps_k_loss_total *k, uint32_t block,
                                      uint32_t lane)
{
    ps_sums s = {0.0, 0.0};
    for (uint32_t i = lane; i < k->n; i += PS_SUM_LANES) {
        s.a += k->samples[i].a;
        s.b += k->samples[i].b;
    }
    return s;
}

PS_ARITH void ps_k_loss_total_done(const ps_k_loss_total *k, uint32_t block, ps_sums s)
{
    *k->total = s;
}

/* The gradient of the mean loss times the pass's scale; share: scale / n. */
typedef struct ps_k_loss_grad {
    const float *x;
    const int32_t *labels;
    float *dx;
    uint32_t classes;
    ps_cuda_loss kind;
    float share;
} ps_k_loss_grad;

PS_ARITH void ps_k_loss_grad_at(const ps_k_loss_grad *k, uint32_t n)
{
    const float *x = k->x + (size_t)n * k->classes;
    float *dx = k->dx + (size_t)n * k->classes;
    bool logits = k->kind == PS_CUDA_CROSS_ENTROPY;
    float lse = logits ? ps_log_sum_exp(k->classes, x) : 0.0f;
    for (int64_t c = 0; c < k->classes; c++) {
        bool hit = c == k->labels[n];
        if (k->kind == PS_CUDA_NLL)
            dx[c] = hit ? -k->share : 0.0f;
        else if (k->kind == PS_CUDA_MSE)
            dx[c] = 2.0f * (x[c] - (float)hit) * (k->share / (float)k->classes);
        else
            dx[c] = ps_nll_softmax_grad(x[c] - lse, hit, k->share);
    }
}

/* ----------------------------------------------------------------------- optimizer */

/* What the gradients of a step say about it: in the GPU's memory, so that no host has to
 * wait for it. */
typedef struct ps_verdict {
    uint64_t refused; // the first step that is not made, nor one after it; 0: none
    float scale;      // of the gradient
} ps_verdict;

/* ps_optimizer_scalars without what is the same for every element of a launch; the two
 * decays are those of weights and of biases and norms. */
typedef struct ps_k_optimizer {
    const ps_verdict *verdict; // NULL: the step is made
    float *p;
    const float *g;
    float *s0, *s1;            // states; SGD without momentum has none
    const uint32_t *starts;    // (n_tensors) of the arena's tensors, ascending
    const uint8_t *undecayed;  // (n_tensors) whether the second decay is the tensor's
    uint32_t n_tensors, first; // elements: first + i
    bool adam, decoupled, first_step, nesterov, pytorch1;
    float scale, decay[2], lr_neg, momentum, damp;
    float beta1, lerp, beta2, one_minus_beta2, root_correction, eps, step_size_neg;
} ps_k_optimizer;

/* The tensor that holds element i of the arena, or the gap behind the tensor. */
PS_ARITH uint32_t ps_tensor_of(const uint32_t *starts, uint32_t n, uint32_t i)
{
    uint32_t low = 0, high = n; // starts[low] <= i < starts[high]
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

PS_ARITH void ps_sgd_element(const ps_k_optimizer *k, float scale, float decay, size_t i)
{
    float p = k->p[i], d = fmaf(decay, p, scale * k->g[i]), up = d;
    if (k->s0) {
        float b = k->first_step ? d : fmaf(k->damp, d, k->momentum * k->s0[i]);
        k->s0[i] = b;
        up = k->nesterov ? fmaf(k->momentum, b, d) : b;
    }
    k->p[i] = fmaf(k->lr_neg, up, p);
}

PS_ARITH void ps_adam_element(const ps_k_optimizer *k, float scale, float decay, size_t i)
{
    float g = scale * k->g[i], w = k->p[i], m = k->s0[i], mean;
    if (k->decoupled)
        w *= decay;
    else
        g = fmaf(decay, w, g);
    if (k->pytorch1)
        mean = fmaf(k->lerp, g, k->beta1 * m);
    else if (k->lerp < 0.5f)
        mean = fmaf(k->lerp, g - m, m);
    else
        mean = fmaf(k->lerp - 1.0f, g - m, g);
    float square = fmaf(k->one_minus_beta2 * g, g, k->beta2 * k->s1[i]);
    float root = sqrtf(square) / k->root_correction + k->eps;
    k->s0[i] = mean;
    k->s1[i] = square;
    k->p[i] = w + k->step_size_neg * mean / root;
}

/* A step over a range of the arena, gaps included, which stay zero: the twin of
 * optimizer.c, with its roundings. */
PS_ARITH void ps_k_optimizer_at(const ps_k_optimizer *k, uint32_t i)
{
    uint32_t at = k->first + i;
    float decay = k->decay[k->undecayed[ps_tensor_of(k->starts, k->n_tensors, at)]];
    float scale = k->verdict ? k->verdict->scale : k->scale;
    if (k->verdict && k->verdict->refused) return;
    if (k->adam)
        ps_adam_element(k, scale, decay, at);
    else
        ps_sgd_element(k, scale, decay, at);
}

typedef struct ps_k_unscale {
    float *x;
    float factor;
} ps_k_unscale;

PS_ARITH void ps_k_unscale_at(const ps_k_unscale *k, uint32_t i)
{
    k->x[i] *= k->factor;
}

/* total.a = how many of x's n values are not finite. One block for each 64 lanes' worth
 * of 256 values. */
enum { PS_BAD_PART = 64 * PS_SUM_LANES };

typedef struct ps_k_bad_values {
    const float *x;
    ps_sums *parts; // (blocks)
    uint32_t n;
} ps_k_bad_values;

PS_ARITH ps_sums ps_k_bad_values_lane(const ps_k_bad_values *k, uint32_t block,
                                      uint32_t lane)
{
    uint32_t begin = block * PS_BAD_PART, left = k->n - begin;
    uint32_t end = left < PS_BAD_PART ? k->n : begin + PS_BAD_PART, bad = 0;
    for (uint32_t i = begin + lane; i < end; i += PS_SUM_LANES)
        bad += !(k->x[i] - k->x[i] == 0.0f);
    ps_sums s = {(double)bad, 0.0};
    return s;
}

PS_ARITH void ps_k_bad_values_done(const ps_k_bad_values *k, uint32_t block, ps_sums s)
{
    k->parts[block] = s;
}

/* A block of the norm (grad_norm.h): a range of the arena, within one tensor. */
typedef struct ps_norm_range {
    uint32_t begin, n;
} ps_norm_range;

/* The same by blocks of the norm, one for each, unless a step was refused: then the parts
 * stay that step's. */
typedef struct ps_k_bad_blocks {
    const float *x; // the arena
    const ps_norm_range *ranges;
    const ps_verdict *verdict;
    ps_sums *parts;
} ps_k_bad_blocks;

PS_ARITH ps_sums ps_k_bad_blocks_lane(const ps_k_bad_blocks *k, uint32_t block,
                                      uint32_t lane)
{
    const float *x = k->x + k->ranges[block].begin;
    uint32_t bad = 0;
    for (uint32_t i = lane; i < k->ranges[block].n; i += PS_SUM_LANES)
        bad += !(x[i] - x[i] == 0.0f);
    ps_sums s = {(double)bad, 0.0};
    return s;
}

PS_ARITH void ps_k_bad_blocks_done(const ps_k_bad_blocks *k, uint32_t block, ps_sums s)
{
    if (!k->verdict->refused) k->parts[block] = s;
}

/* One block: the step is refused when any part has a bad value. */
typedef struct ps_k_verdict {
    const ps_sums *parts;
    uint32_t n;
    uint64_t step; // from 1
    ps_verdict *verdict;
} ps_k_verdict;

PS_ARITH ps_sums ps_k_verdict_lane(const ps_k_verdict *k, uint32_t block, uint32_t lane)
{
    ps_sums s = {0.0, 0.0};
    for (uint32_t i = lane; i < k->n; i += PS_SUM_LANES)
        s.a += k->parts[i].a;
    return s;
}

PS_ARITH void ps_k_verdict_done(const ps_k_verdict *k, uint32_t block, ps_sums s)
{
    if (s.a > 0.0 && !k->verdict->refused) k->verdict->refused = k->step;
}

/* ps_grad_norm_total and ps_grad_norm_clip. Count: 1. */
typedef struct ps_k_clip {
    const double *sums;
    uint32_t n;
    double max_norm;
    ps_verdict *verdict;
} ps_k_clip;

PS_ARITH void ps_k_clip_at(const ps_k_clip *k, uint32_t i)
{
    double sum = 0.0;
    for (uint32_t b = 0; b < k->n; b++)
        sum += k->sums[b];
    double factor = k->max_norm / (sqrt(sum) + 1e-6);
    k->verdict->scale = (float)(factor >= 1.0 ? 1.0 : factor);
}

/* grad_norm.c's sums of a block: 16 lanes, then halves added. Count: 16 * blocks. */
enum { PS_NORM_LANES = 16 };

typedef struct ps_k_norm_lane {
    const float *x; // the arena
    const ps_norm_range *ranges;
    double *lanes; // (blocks, 16)
} ps_k_norm_lane;

PS_ARITH void ps_k_norm_lane_at(const ps_k_norm_lane *k, uint32_t i)
{
    ps_norm_range range = k->ranges[i / PS_NORM_LANES];
    const float *x = k->x + range.begin;
    double sum = 0.0;
    for (uint32_t at = i % PS_NORM_LANES; at < range.n; at += PS_NORM_LANES)
        sum += (double)x[at] * (double)x[at];
    k->lanes[i] = sum;
}

typedef struct ps_k_norm_block {
    double *lanes; // (blocks, 16): used up
    double *sums;  // (blocks)
} ps_k_norm_block;

PS_ARITH void ps_k_norm_block_at(const ps_k_norm_block *k, uint32_t block)
{
    double *lanes = k->lanes + (size_t)block * PS_NORM_LANES;
    for (uint32_t n = PS_NORM_LANES / 2; n > 0; n /= 2) {
        for (uint32_t l = 0; l < n; l++)
            lanes[l] += lanes[l + n];
    }
    k->sums[block] = lanes[0];
}

#endif
