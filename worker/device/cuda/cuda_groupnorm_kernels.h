/* Kernels (cuda_kernels.h) of group_norm and layer_norm. A group is in_group = C / groups
 * channels of a sample, which follow each other. Images (n, C, plane): it is one row of
 * (n * groups). With channels last, channel_moments and channel_dots make the sums. Teams
 * add up their parts, of which there may be few or, with channels last, thousands. */
#ifndef PS_CUDA_GROUPNORM_KERNELS_H
#define PS_CUDA_GROUPNORM_KERNELS_H

#include "cuda_sum_kernels.h"
#include "cuda_team.h"

PS_ARITH ps_sums ps_join_sums(ps_sums a, ps_sums b)
{
    const ps_sums s = {a.a + b.a, a.b + b.b};
    return s;
}

PS_TEAM_JOIN(sums, ps_sums, ps_join_sums)

/* mean and inv (n * groups), from batchnorm_sums over the groups' rows, or from
 * channel_moments, whose parts of a group follow each other. Rows: n * groups. */
typedef struct ps_k_groupnorm_stats {
    ps_values x;
    const ps_sums *parts;
    float *mean, *inv;
    ps_rows rows;
    ps_divisor groups;
    uint32_t features, step; // step: from a group's first value to the next group's
    uint32_t lanes;          // for a group's parts
    double eps;
} ps_k_groupnorm_stats;

PS_ARITH void ps_groupnorm_set(const ps_k_groupnorm_stats *k, uint32_t g, ps_sums s)
{
    double n = (double)k->rows.length, shift = s.a / n;
    double var = s.b / n - shift * shift;
    if (var < 0.0) var = 0.0;
    const ps_divided at = ps_divide(g, k->groups);
    const size_t first = (size_t)at.q * k->features + (size_t)at.r * k->step;
    k->mean[g] = (float)((double)ps_get(k->x, first) + shift);
    k->inv[g] = (float)(1.0 / sqrt(var + k->eps));
}

PS_TEAM void ps_k_groupnorm_stats_row(const ps_k_groupnorm_stats *k, uint32_t g,
                                      ps_team team)
{
    const ps_sums *parts = k->parts + (size_t)g * k->rows.parts.by;
    ps_sums sums[PS_TEAM_KEPT] = {{0.0, 0.0}};
    PS_TEAM_EACH (team, l)
        for (uint32_t p = l; p < k->rows.parts.by; p += team.lanes)
            sums[PS_TEAM_SLOT(l)] = ps_join_sums(sums[PS_TEAM_SLOT(l)], parts[p]);
    const ps_sums total = ps_team_sums(team, sums);
    PS_TEAM_EACH (team, l)
        if (l == 0) ps_groupnorm_set(k, g, total);
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
 * rows: (n * C) of plane values; in_group: channels of a group. Rows: those, times their
 * parts. */
typedef struct ps_k_groupnorm_dots {
    ps_values x, dy;
    const float *mean, *inv;
    ps_sums *parts;
    ps_rows rows;
    ps_divisor in_group;
    uint32_t lanes; // for a part
} ps_k_groupnorm_dots;

PS_ARITH ps_sums ps_groupnorm_dot(const ps_k_groupnorm_dots *k, ps_row_part p,
                                  ps_stride own)
{
    const uint32_t g = ps_divide(p.row, k->in_group).q;
    const float mean = k->mean[g], inv = k->inv[g];
    float sum = 0.0f, dot = 0.0f;
    for (int64_t i = p.begin + own.first; i < p.end; i += own.step) {
        const size_t at = ps_row_at(&k->rows, p.row, (uint32_t)i);
        const float dy = ps_get(k->dy, at);
        sum += dy;
        dot += dy * ((ps_get(k->x, at) - mean) * inv);
    }
    const ps_sums s = {sum, dot};
    return s;
}

PS_TEAM void ps_k_groupnorm_dots_row(const ps_k_groupnorm_dots *k, uint32_t part,
                                     ps_team team)
{
    const ps_row_part p = ps_row_part_of(&k->rows, part);
    ps_sums sums[PS_TEAM_KEPT] = {{0.0, 0.0}};
    PS_TEAM_EACH (team, l)
        sums[PS_TEAM_SLOT(l)] = ps_groupnorm_dot(k, p, ps_team_own(team, l));
    const ps_sums total = ps_team_sums(team, sums);
    PS_TEAM_EACH (team, l)
        if (l == 0) k->parts[part] = total;
}

/* The means that groupnorm_grad needs (n * groups). Rows: n * groups. */
typedef struct ps_k_groupnorm_means {
    const ps_sums *parts;
    const float *weight;
    float *mean_dy, *mean_dot;
    ps_rows rows;
    uint32_t in_group, lanes; // lanes: for the parts of a group's channels
    ps_divisor groups;
} ps_k_groupnorm_means;

/* Each channel's part times the channel's weight. */
PS_ARITH ps_sums ps_groupnorm_weighted(const ps_k_groupnorm_means *k, uint32_t g,
                                       ps_stride own)
{
    const int64_t n = (int64_t)k->in_group * k->rows.parts.by;
    const ps_sums *parts = k->parts + g * n;
    const float *weight = k->weight + ps_divide(g, k->groups).r * k->in_group;
    ps_sums s = {0.0, 0.0};
    for (int64_t i = own.first; i < n; i += own.step) {
        const double by = weight[ps_divide((uint32_t)i, k->rows.parts).q];
        s.a += by * parts[i].a;
        s.b += by * parts[i].b;
    }
    return s;
}

PS_TEAM void ps_k_groupnorm_means_row(const ps_k_groupnorm_means *k, uint32_t g,
                                      ps_team team)
{
    const double count = (double)k->in_group * k->rows.length;
    ps_sums sums[PS_TEAM_KEPT] = {{0.0, 0.0}};
    PS_TEAM_EACH (team, l)
        sums[PS_TEAM_SLOT(l)] = ps_groupnorm_weighted(k, g, ps_team_own(team, l));
    const ps_sums total = ps_team_sums(team, sums);
    PS_TEAM_EACH (team, l) {
        if (l > 0) continue;
        k->mean_dy[g] = (float)(total.a / count);
        k->mean_dot[g] = (float)(total.b / count);
    }
}

/* The gradients of weight and bias. Rows: C. */
typedef struct ps_k_groupnorm_scales {
    const ps_sums *parts;
    float *dweight, *dbias;
    ps_rows rows;
    uint32_t n, channels, lanes; // lanes: for the parts of a channel in all samples
    bool add;
} ps_k_groupnorm_scales;

PS_ARITH ps_sums ps_groupnorm_of_channel(const ps_k_groupnorm_scales *k, uint32_t c,
                                         ps_stride own)
{
    const ps_divisor parts = k->rows.parts;
    const int64_t n = (int64_t)k->n * parts.by;
    ps_sums s = {0.0, 0.0};
    for (int64_t i = own.first; i < n; i += own.step) {
        const ps_divided at = ps_divide((uint32_t)i, parts);
        s = ps_join_sums(s, k->parts[((size_t)at.q * k->channels + c) * parts.by + at.r]);
    }
    return s;
}

PS_TEAM void ps_k_groupnorm_scales_row(const ps_k_groupnorm_scales *k, uint32_t c,
                                       ps_team team)
{
    ps_sums sums[PS_TEAM_KEPT] = {{0.0, 0.0}};
    PS_TEAM_EACH (team, l)
        sums[PS_TEAM_SLOT(l)] = ps_groupnorm_of_channel(k, c, ps_team_own(team, l));
    const ps_sums total = ps_team_sums(team, sums);
    PS_TEAM_EACH (team, l) {
        if (l > 0) continue;
        if (k->dweight) ps_store(&k->dweight[c], (float)total.b, k->add);
        if (k->dbias) ps_store(&k->dbias[c], (float)total.a, k->add);
    }
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
