/* Kernels (cuda_kernels.h) of group_norm and layer_norm. A group is in_group = C / groups
 * channels of a sample, which follow each other. Images (n, C, plane): it is one row of
 * (n * groups). With channels last, channel_moments and channel_dots make the sums. */
#ifndef PS_CUDA_GROUPNORM_KERNELS_H
#define PS_CUDA_GROUPNORM_KERNELS_H

#include "cuda_sum_kernels.h"

/* mean and inv (n * groups), from batchnorm_sums over the groups' rows, or from
 * channel_moments, whose parts of a group follow each other. Count: n * groups. */
typedef struct ps_k_groupnorm_stats {
    ps_values x;
    const ps_sums *parts;
    float *mean, *inv;
    ps_rows rows;
    ps_divisor groups;
    uint32_t features, step; // step: from a group's first value to the next group's
    double eps;
} ps_k_groupnorm_stats;

PS_ARITH void ps_k_groupnorm_stats_at(const ps_k_groupnorm_stats *k, uint32_t g)
{
    ps_sums s = ps_parts_total(k->parts, &k->rows, g);
    double n = (double)k->rows.length, shift = s.a / n;
    double var = s.b / n - shift * shift;
    if (var < 0.0) var = 0.0;
    const ps_divided at = ps_divide(g, k->groups);
    const size_t first = (size_t)at.q * k->features + (size_t)at.r * k->step;
    k->mean[g] = (float)((double)ps_get(k->x, first) + shift);
    k->inv[g] = (float)(1.0 / sqrt(var + k->eps));
}

/* Where elements of (n * outer, channels, inner) belong. */
typedef struct ps_grouping {
    ps_divisor inner, channels, in_group, features;
    uint32_t groups;
} ps_grouping;

PS_ARITH uint32_t ps_grouping_find(const ps_grouping *k, uint32_t i, uint32_t *channel)
{
    *channel = ps_divide(ps_divide(i, k->inner).q, k->channels).r;
    const uint32_t sample = ps_divide(i, k->features).q;
    return sample * k->groups + ps_divide(*channel, k->in_group).q;
}

/* Count: all elements. */
typedef struct ps_k_groupnorm {
    ps_values x, y;
    const float *mean, *inv, *weight, *bias;
    ps_grouping at;
} ps_k_groupnorm;

PS_ARITH void ps_k_groupnorm_at(const ps_k_groupnorm *k, uint32_t i)
{
    uint32_t c, g = ps_grouping_find(&k->at, i, &c);
    float v = ps_batchnorm_value(ps_get(k->x, i), k->mean[g], k->inv[g], k->weight[c],
                                 k->bias[c]);
    ps_set(k->y, i, v, false);
}

/* parts = sums of dy and of dy times the normalised input, of each sample's channels.
 * rows: (n * C) of plane values; in_group: channels of a group. */
typedef struct ps_k_groupnorm_dots {
    ps_values x, dy;
    const float *mean, *inv;
    ps_sums *parts;
    ps_rows rows;
    ps_divisor in_group;
} ps_k_groupnorm_dots;

PS_ARITH ps_sums ps_k_groupnorm_dots_lane(const ps_k_groupnorm_dots *k, uint32_t block,
                                          uint32_t lane)
{
    ps_row_part p = ps_row_part_of(&k->rows, block);
    uint32_t g = ps_divide(p.row, k->in_group).q;
    float mean = k->mean[g], inv = k->inv[g], sum = 0.0f, dot = 0.0f;
    for (uint32_t i = p.begin + lane; i < p.end; i += PS_SUM_LANES) {
        size_t at = ps_row_at(&k->rows, p.row, i);
        float dy = ps_get(k->dy, at);
        sum += dy;
        dot += dy * ((ps_get(k->x, at) - mean) * inv);
    }
    ps_sums s = {sum, dot};
    return s;
}

PS_ARITH void ps_k_groupnorm_dots_done(const ps_k_groupnorm_dots *k, uint32_t block,
                                       ps_sums s)
{
    k->parts[block] = s;
}

/* The means that groupnorm_grad needs (n * groups). Count: n * groups. */
typedef struct ps_k_groupnorm_means {
    const ps_sums *parts;
    const float *weight;
    float *mean_dy, *mean_dot;
    ps_rows rows;
    uint32_t in_group;
    ps_divisor groups;
} ps_k_groupnorm_means;

PS_ARITH void ps_k_groupnorm_means_at(const ps_k_groupnorm_means *k, uint32_t g)
{
    const float *weight = k->weight + ps_divide(g, k->groups).r * k->in_group;
    const double count = (double)k->in_group * k->rows.length;
    ps_sums total = {0.0, 0.0};
    for (uint32_t c = 0; c < k->in_group; c++) {
        ps_sums s = ps_parts_total(k->parts, &k->rows, g * k->in_group + c);
        total.a += (double)weight[c] * s.a;
        total.b += (double)weight[c] * s.b;
    }
    k->mean_dy[g] = (float)(total.a / count);
    k->mean_dot[g] = (float)(total.b / count);
}

/* The gradients of weight and bias. Count: C. */
typedef struct ps_k_groupnorm_scales {
    const ps_sums *parts;
    float *dweight, *dbias;
    ps_rows rows;
    uint32_t n, channels;
    bool add;
} ps_k_groupnorm_scales;

PS_ARITH void ps_k_groupnorm_scales_at(const ps_k_groupnorm_scales *k, uint32_t c)
{
    ps_sums total = {0.0, 0.0};
    for (uint32_t n = 0; n < k->n; n++) {
        ps_sums s = ps_parts_total(k->parts, &k->rows, n * k->channels + c);
        total.a += s.a;
        total.b += s.b;
    }
    if (k->dweight) ps_store(&k->dweight[c], (float)total.b, k->add);
    if (k->dbias) ps_store(&k->dbias[c], (float)total.a, k->add);
}

/* Count: all elements. */
typedef struct ps_k_groupnorm_grad {
    ps_values x, dy, dx;
    const float *mean, *inv, *weight, *mean_dy, *mean_dot;
    ps_grouping at;
    bool add;
} ps_k_groupnorm_grad;

PS_ARITH void ps_k_groupnorm_grad_at(const ps_k_groupnorm_grad *k, uint32_t i)
{
    uint32_t c, g = ps_grouping_find(&k->at, i, &c);
    float dy = k->weight[c] * ps_get(k->dy, i);
    float v = ps_batchnorm_grad(ps_get(k->x, i), dy, k->mean[g], k->inv[g], 1.0f,
                                k->mean_dy[g], k->mean_dot[g]);
    ps_set(k->dx, i, v, k->add);
}

#endif
