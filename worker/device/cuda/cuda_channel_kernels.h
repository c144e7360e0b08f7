/* Kernels (cuda_kernels.h) that add up the channels of pictures with channels last: the
 * statistics of norms, and the gradients of their and of convolutions' parameters.
 *
 * Pictures (samples, length, channels). A block adds part of the positions of `across` *
 * PS_WIDE channels: lane l takes PS_WIDE of them, the next lane those next to them, so
 * that lanes read whole sectors of memory; lanes l, l + across, .. take positions in
 * turn. Block = (sample * parts + part) * tiles + tile. */
#ifndef PS_CUDA_CHANNEL_KERNELS_H
#define PS_CUDA_CHANNEL_KERNELS_H

#include "cuda_sum_kernels.h"

typedef struct ps_columns {
    uint32_t length, part_length; // the last part may be shorter
    uint32_t channels;
    uint32_t across; // a power of two
    ps_divisor parts, tiles;
} ps_columns;

/* A lane has at least PS_CHANNEL_LEAST positions, and reads PS_CHANNEL_AHEAD of them
 * before it adds them. Parts are added by the lanes of one block. */
enum {
    PS_CHANNEL_ACROSS = 16,
    PS_CHANNEL_LEAST = 8,
    PS_CHANNEL_AHEAD = 4,
    PS_CHANNEL_PARTS_MAX = PS_SUM_LANES
};

PS_ARITH uint32_t ps_columns_across(int64_t channels)
{
    uint32_t across = 1;
    while (across < PS_CHANNEL_ACROSS && across * PS_WIDE < channels)
        across *= 2;
    return across;
}

/* The most parts of up to that many positions. */
PS_ARITH int64_t ps_columns_most_parts(int64_t length, int64_t channels)
{
    const int64_t least = PS_CHANNEL_LEAST * PS_SUM_LANES / ps_columns_across(channels);
    int64_t parts = (length + least - 1) / least;
    if (parts > PS_CHANNEL_PARTS_MAX) parts = PS_CHANNEL_PARTS_MAX;
    return parts;
}

PS_ARITH ps_columns ps_columns_of(int64_t length, int64_t channels)
{
    ps_columns c;
    const int64_t lanes = (channels + PS_WIDE - 1) / PS_WIDE;
    const int64_t parts = ps_columns_most_parts(length, channels);
    c.across = ps_columns_across(channels);
    c.length = (uint32_t)length;
    c.part_length = (uint32_t)((length + parts - 1) / parts);
    c.channels = (uint32_t)channels;
    // after rounding, the last parts may be empty; drop them
    c.parts = ps_divisor_of((length + c.part_length - 1) / c.part_length);
    c.tiles = ps_divisor_of((lanes + c.across - 1) / c.across);
    return c;
}

PS_ARITH int64_t ps_columns_blocks(const ps_columns *c, int64_t samples)
{
    return samples * c->parts.by * c->tiles.by;
}

/* What a lane adds: positions begin, begin + stride, .. below end, of the channels from
 * `channel` on. */
typedef struct ps_column_lane {
    uint32_t sample, part, channel;
    uint32_t begin, stride, end; // nothing, if there is no such channel
} ps_column_lane;

PS_ARITH ps_column_lane ps_column_lane_of(const ps_columns *c, uint32_t block,
                                          uint32_t lane)
{
    const ps_divided tile = ps_divide(block, c->tiles);
    const ps_divided part = ps_divide(tile.q, c->parts);
    ps_column_lane l;
    l.sample = part.q;
    l.part = part.r;
    l.channel = (tile.r * c->across + lane % c->across) * PS_WIDE;
    l.begin = part.r * c->part_length;
    l.end = l.begin + c->part_length;
    if (l.end > c->length) l.end = c->length;
    if (l.channel >= c->channels) l.end = l.begin;
    l.begin += lane / c->across;
    l.stride = PS_SUM_LANES / c->across;
    return l;
}

/* Replaces out by the values at a position, as far as there are such. */
PS_ARITH void ps_column_get(ps_values v, const ps_columns *c, const ps_column_lane *l,
                            uint32_t position, float out[PS_WIDE])
{
    if (position >= l->end) return;
    const size_t at =
        ((size_t)l->sample * c->length + position) * c->channels + l->channel;
    if (c->channels % PS_WIDE == 0) {
        ps_get_wide(v, at, out);
        return;
    }
    for (uint32_t j = 0; j < PS_WIDE; j++)
        if (l->channel + j < c->channels) out[j] = ps_get(v, at + j);
}

/* parts (samples * channels, parts) gets a block's sums, those of lane < across. */
PS_ARITH void ps_column_put(ps_sums *parts, const ps_columns *c, uint32_t block,
                            uint32_t lane, const ps_sums sums[PS_WIDE])
{
    const ps_column_lane l = ps_column_lane_of(c, block, lane);
    for (uint32_t j = 0; j < PS_WIDE; j++) {
        const size_t row = (size_t)l.sample * c->channels + l.channel + j;
        if (l.channel + j < c->channels) parts[row * c->parts.by + l.part] = sums[j];
    }
}

/* parts = sums of (x - x0) and (x - x0)^2 of each sample's channels, as batchnorm_sums
 * has them. x0: the sample's first value in in_group channels next to each other. */
typedef struct ps_k_channel_moments {
    ps_values x;
    ps_sums *parts;
    ps_columns columns;
    ps_divisor in_group;
} ps_k_channel_moments;

PS_ARITH void ps_k_channel_moments_lane(const ps_k_channel_moments *k, uint32_t block,
                                        uint32_t lane, ps_sums out[PS_WIDE])
{
    const ps_columns *c = &k->columns;
    const ps_column_lane l = ps_column_lane_of(c, block, lane);
    const size_t sample = (size_t)l.sample * c->length * c->channels;
    float x0[PS_WIDE] = {0.0f}, sum[PS_WIDE] = {0.0f}, square[PS_WIDE] = {0.0f};
    for (uint32_t j = 0; j < PS_WIDE; j++) {
        const uint32_t own = l.channel + j;
        if (own < c->channels)
            x0[j] = ps_get(k->x, sample + own - ps_divide(own, k->in_group).r);
    }
    for (uint32_t i = l.begin; i < l.end; i += l.stride * PS_CHANNEL_AHEAD) {
        float x[PS_CHANNEL_AHEAD][PS_WIDE];
        PS_UNROLLED
        for (uint32_t a = 0; a < PS_CHANNEL_AHEAD; a++) {
            for (uint32_t j = 0; j < PS_WIDE; j++)
                x[a][j] = x0[j];
            ps_column_get(k->x, c, &l, i + a * l.stride, x[a]);
        }
        PS_UNROLLED
        for (uint32_t a = 0; a < PS_CHANNEL_AHEAD; a++) {
            for (uint32_t j = 0; j < PS_WIDE; j++) {
                const float d = x[a][j] - x0[j]; // beyond the end: 0
                sum[j] += d;
                square[j] += d * d;
            }
        }
    }
    for (uint32_t j = 0; j < PS_WIDE; j++) {
        out[j].a = sum[j];
        out[j].b = square[j];
    }
}

PS_ARITH void ps_k_channel_moments_done(const ps_k_channel_moments *k, uint32_t block,
                                        uint32_t lane, const ps_sums sums[PS_WIDE])
{
    ps_column_put(k->parts, &k->columns, block, lane, sums);
}

/* parts = sums of dy and of dy times the normalised input, of each sample's channels.
 * mean and inv: of (samples * groups), groups of in_group channels. y.at, if not NULL:
 * the outputs after a relu, whose gradient is applied first. x.at NULL: no norm, and only
 * the sums of dy. */
typedef struct ps_k_channel_dots {
    ps_values x, dy, y;
    const float *mean, *inv;
    ps_sums *parts;
    ps_columns columns;
    ps_divisor in_group;
    uint32_t groups;
} ps_k_channel_dots;

PS_ARITH void ps_k_channel_dots_lane(const ps_k_channel_dots *k, uint32_t block,
                                     uint32_t lane, ps_sums out[PS_WIDE])
{
    const ps_columns *c = &k->columns;
    const ps_column_lane l = ps_column_lane_of(c, block, lane);
    float mean[PS_WIDE] = {0.0f}, inv[PS_WIDE] = {0.0f};
    float sum[PS_WIDE] = {0.0f}, dot[PS_WIDE] = {0.0f};
    for (uint32_t j = 0; j < PS_WIDE && k->x.at; j++) {
        const uint32_t own = l.channel + j;
        if (own >= c->channels) continue;
        const uint32_t group = l.sample * k->groups + ps_divide(own, k->in_group).q;
        mean[j] = k->mean[group];
        inv[j] = k->inv[group];
    }
    for (uint32_t i = l.begin; i < l.end; i += l.stride * PS_CHANNEL_AHEAD) {
        float x[PS_CHANNEL_AHEAD][PS_WIDE], dy[PS_CHANNEL_AHEAD][PS_WIDE],
            y[PS_CHANNEL_AHEAD][PS_WIDE];
        PS_UNROLLED
        for (uint32_t a = 0; a < PS_CHANNEL_AHEAD; a++) {
            for (uint32_t j = 0; j < PS_WIDE; j++) {
                x[a][j] = mean[j];
                dy[a][j] = 0.0f;
                y[a][j] = 1.0f;
            }
            ps_column_get(k->dy, c, &l, i + a * l.stride, dy[a]);
            if (k->x.at) ps_column_get(k->x, c, &l, i + a * l.stride, x[a]);
            if (k->y.at) ps_column_get(k->y, c, &l, i + a * l.stride, y[a]);
        }
        PS_UNROLLED
        for (uint32_t a = 0; a < PS_CHANNEL_AHEAD; a++) {
            for (uint32_t j = 0; j < PS_WIDE; j++) {
                const float g = ps_relu_grad(y[a][j], dy[a][j]); // beyond the end: 0
                sum[j] += g;
                dot[j] += g * ((x[a][j] - mean[j]) * inv[j]);
            }
        }
    }
    for (uint32_t j = 0; j < PS_WIDE; j++) {
        out[j].a = sum[j];
        out[j].b = dot[j];
    }
}

PS_ARITH void ps_k_channel_dots_done(const ps_k_channel_dots *k, uint32_t block,
                                     uint32_t lane, const ps_sums sums[PS_WIDE])
{
    ps_column_put(k->parts, &k->columns, block, lane, sums);
}

#endif
