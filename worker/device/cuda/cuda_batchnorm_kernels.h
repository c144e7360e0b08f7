/* Batch norm's kernels (cuda_kernels.h). */
#ifndef PS_CUDA_BATCHNORM_KERNELS_H
#define PS_CUDA_BATCHNORM_KERNELS_H

#include "cuda_pointwise_kernels.h"
#include "cuda_sum_kernels.h"

/* parts = sums of (x - x0) and (x - x0)^2 over a channel's values, x0 the first of them:
 * it is close enough to the mean that the difference of squares below loses no digits. */
typedef struct ps_k_batchnorm_sums {
    ps_values x;
    ps_sums *parts;
    ps_rows rows;
} ps_k_batchnorm_sums;

PS_ARITH ps_sums ps_k_batchnorm_sums_lane(const ps_k_batchnorm_sums *k, uint32_t block,
                                          uint32_t lane)
{
    ps_row_part p = ps_row_part_of(&k->rows, block);
    const uint32_t width = k->rows.width;
    float x0 = ps_get(k->x, ps_row_at(&k->rows, p.row, 0)), sum = 0.0f, square = 0.0f;
    for (uint32_t i = p.begin + lane * width; i < p.end; i += PS_SUM_LANES * width) {
        float x[PS_WIDE] = {x0, x0, x0, x0};
        ps_row_get(k->x, &k->rows, p.row, i, x);
        for (int j = 0; j < PS_WIDE; j++) {
            float d = x[j] - x0; // beyond the width: 0
            sum += d;
            square += d * d;
        }
    }
    ps_sums s = {sum, square};
    return s;
}

PS_ARITH void ps_k_batchnorm_sums_done(const ps_k_batchnorm_sums *k, uint32_t block,
                                       ps_sums s)
{
    k->parts[block] = s;
}

/* mean and inv (C) of the batch; also updates the running statistics. parts NULL: mean
 * and inv come from the running statistics. Blocks: C. */
typedef struct ps_k_batchnorm_stats {
    ps_values x;
    const ps_sums *parts;
    float *mean, *inv, *running_mean, *running_var;
    ps_rows rows;
    float momentum;
    double eps;
} ps_k_batchnorm_stats;

PS_ARITH ps_sums ps_k_batchnorm_stats_lane(const ps_k_batchnorm_stats *k, uint32_t c,
                                           uint32_t lane)
{
    const ps_sums none = {0.0, 0.0};
    return k->parts ? ps_parts_lane(k->parts, &k->rows, c, lane) : none;
}

PS_ARITH void ps_k_batchnorm_stats_done(const ps_k_batchnorm_stats *k, uint32_t c,
                                        ps_sums s)
{
    if (!k->parts) {
        k->mean[c] = k->running_mean[c];
        k->inv[c] = (float)(1.0 / sqrt((double)k->running_var[c] + k->eps));
        return;
    }
    double n = (double)k->rows.length, shift = s.a / n;
    double mean = (double)ps_get(k->x, ps_row_at(&k->rows, c, 0)) + shift;
    double var = s.b / n - shift * shift;
    if (var < 0.0) var = 0.0;
    k->mean[c] = (float)mean;
    k->inv[c] = (float)(1.0 / sqrt(var + k->eps));
    float unbiased = (float)(var * n / (n - 1.0));
    k->running_mean[c] =
        ps_batchnorm_running(k->running_mean[c], (float)mean, k->momentum);
    k->running_var[c] = ps_batchnorm_running(k->running_var[c], unbiased, k->momentum);
}

/* Images (n, C, plane), wide. weight and bias may be NULL: 1 and 0. other.at, if not
 * NULL: what is added to the outputs (ps_k_sum), which are rounded to `format` first. */
typedef struct ps_k_batchnorm {
    uint32_t count;
    ps_values x, y, other;
    ps_format format;
    const float *mean, *inv, *weight, *bias;
    ps_divisor plane, channels;
    bool relu;
} ps_k_batchnorm;

PS_ARITH void ps_k_batchnorm_at(const ps_k_batchnorm *k, uint32_t i)
{
    const uint32_t first = i * PS_WIDE;
    const ps_wide_channels c = ps_wide_channels_of(first, k->plane, k->channels);
    float v[PS_WIDE], mean[PS_WIDE], inv[PS_WIDE];
    float weight[PS_WIDE] = {1.0f, 1.0f, 1.0f, 1.0f};
    float bias[PS_WIDE] = {0.0f, 0.0f, 0.0f, 0.0f}, other[PS_WIDE];
    ps_get_some(k->x, first, k->count, v);
    if (k->other.at) ps_get_some(k->other, first, k->count, other);
    ps_get_channels(k->mean, &c, mean);
    ps_get_channels(k->inv, &c, inv);
    if (k->weight) ps_get_channels(k->weight, &c, weight);
    if (k->bias) ps_get_channels(k->bias, &c, bias);
    for (int j = 0; j < PS_WIDE; j++) {
        v[j] = ps_batchnorm_value(v[j], mean[j], inv[j], weight[j], bias[j]);
        if (k->other.at) v[j] = ps_rounded(v[j], k->format) + other[j];
        if (k->relu) v[j] = ps_relu(v[j]);
    }
    ps_set_some(k->y, first, k->count, v, false);
}

/* parts = sums of dy and of dy times the normalised input. y.at, if not NULL: the outputs
 * after a relu, whose gradient is applied first. */
typedef struct ps_k_batchnorm_dots {
    ps_values x, dy, y;
    const float *mean, *inv;
    ps_sums *parts;
    ps_rows rows;
} ps_k_batchnorm_dots;

PS_ARITH ps_sums ps_k_batchnorm_dots_lane(const ps_k_batchnorm_dots *k, uint32_t block,
                                          uint32_t lane)
{
    ps_row_part p = ps_row_part_of(&k->rows, block);
    float mean = k->mean[p.row], inv = k->inv[p.row], sum = 0.0f, dot = 0.0f;
    const uint32_t width = k->rows.width;
    for (uint32_t i = p.begin + lane * width; i < p.end; i += PS_SUM_LANES * width) {
        float x[PS_WIDE] = {mean, mean, mean, mean},
              dy[PS_WIDE] = {0.0f, 0.0f, 0.0f, 0.0f};
        float y[PS_WIDE] = {1.0f, 1.0f, 1.0f, 1.0f};
        ps_row_get(k->x, &k->rows, p.row, i, x);
        ps_row_get(k->dy, &k->rows, p.row, i, dy);
        if (k->y.at) ps_row_get(k->y, &k->rows, p.row, i, y);
        for (int j = 0; j < PS_WIDE; j++) {
            const float g = ps_relu_grad(y[j], dy[j]); // beyond the width: 0
            sum += g;
            dot += g * ((x[j] - mean) * inv);
        }
    }
    ps_sums s = {sum, dot};
    return s;
}

PS_ARITH void ps_k_batchnorm_dots_done(const ps_k_batchnorm_dots *k, uint32_t block,
                                       ps_sums s)
{
    k->parts[block] = s;
}

/* The gradients of weight and bias (NULL: none), and the means that batchnorm_grad needs.
 * Blocks: C. */
typedef struct ps_k_batchnorm_grad_sums {
    const ps_sums *parts;
    float *dweight, *dbias, *mean_dy, *mean_dot;
    ps_rows rows;
    bool add;
} ps_k_batchnorm_grad_sums;

PS_ARITH ps_sums ps_k_batchnorm_grad_sums_lane(const ps_k_batchnorm_grad_sums *k,
                                               uint32_t c, uint32_t lane)
{
    return ps_parts_lane(k->parts, &k->rows, c, lane);
}

PS_ARITH void ps_k_batchnorm_grad_sums_done(const ps_k_batchnorm_grad_sums *k, uint32_t c,
                                            ps_sums s)
{
    if (k->dweight) ps_store(&k->dweight[c], (float)s.b, k->add);
    if (k->dbias) ps_store(&k->dbias[c], (float)s.a, k->add);
    k->mean_dy[c] = (float)(s.a / (double)k->rows.length);
    k->mean_dot[c] = (float)(s.b / (double)k->rows.length);
}

/* Wide. */
typedef struct ps_k_batchnorm_grad {
    uint32_t count;
    ps_values x, dy, y, dx;
    const float *mean, *inv, *weight, *mean_dy, *mean_dot;
    ps_divisor plane, channels;
    bool add;
} ps_k_batchnorm_grad;

PS_ARITH void ps_k_batchnorm_grad_at(const ps_k_batchnorm_grad *k, uint32_t i)
{
    const uint32_t first = i * PS_WIDE;
    const ps_wide_channels c = ps_wide_channels_of(first, k->plane, k->channels);
    float x[PS_WIDE], dy[PS_WIDE], y[PS_WIDE] = {1.0f, 1.0f, 1.0f, 1.0f};
    float mean[PS_WIDE], inv[PS_WIDE], mean_dy[PS_WIDE], mean_dot[PS_WIDE];
    float weight[PS_WIDE] = {1.0f, 1.0f, 1.0f, 1.0f};
    ps_get_some(k->x, first, k->count, x);
    ps_get_some(k->dy, first, k->count, dy);
    if (k->y.at) ps_get_some(k->y, first, k->count, y);
    ps_get_channels(k->mean, &c, mean);
    ps_get_channels(k->inv, &c, inv);
    ps_get_channels(k->mean_dy, &c, mean_dy);
    ps_get_channels(k->mean_dot, &c, mean_dot);
    if (k->weight) ps_get_channels(k->weight, &c, weight);
    for (int j = 0; j < PS_WIDE; j++)
        dy[j] = ps_batchnorm_grad(x[j], ps_relu_grad(y[j], dy[j]), mean[j], inv[j],
                                  weight[j], mean_dy[j], mean_dot[j]);
    ps_set_some(k->dx, first, k->count, dy, k->add);
}

#endif
