#include "cpu_groupnorm.h"

#include <math.h>

#include "cpu_level.h"

/* Each column of COLUMNS floats has a sum of its own, so that every vector length gives
 * the same bits. After PIECE rows float32 sums are added to double ones. */
enum { COLUMNS = 16, PIECE = 256 };

/* What is summed: x, (x - mean)^2, dy, or dy (x - mean) inv. */
typedef enum term { VALUES, SQUARES, GRADIENTS, DOTS } term;

/* A block of a sample: plane rows of `lanes` channels. */
typedef struct block {
    const float *x, *dy;
    const float *mean, *inv;        // (lanes)
    int64_t plane, lanes, channels; // channels: without padding
} block;

static inline float term_of(term t, float x, float dy, float mean, float inv)
{
    const float d = x - mean;
    switch (t) {
    case VALUES:
        return x;
    case SQUARES:
        return d * d;
    case GRADIENTS:
        return dy;
    default:
        return dy * (d * inv);
    }
}

/* Adds rows [begin, end) of `pitch` floats, of which n <= COLUMNS are summed. */
static inline void add_rows(term t, const block *b, int64_t at, int64_t pitch,
                            int64_t begin, int64_t end, int64_t n, const float *mean,
                            const float *inv, float sum[COLUMNS])
{
    for (int64_t r = begin; r < end; r++) {
        const float *x = b->x + at + r * pitch, *dy = b->dy + at + r * pitch;
#pragma omp simd
        for (int64_t k = 0; k < n; k++)
            sum[k] += term_of(t, x[k], dy[k], mean[k], inv[k]);
    }
}

/* n columns of all rows. */
static inline void sum_columns(term t, const block *b, int64_t at, int64_t pitch,
                               int64_t rows, int64_t n, const float *mean,
                               const float *inv, double total[COLUMNS])
{
    for (int64_t begin = 0; begin < rows; begin += PIECE) {
        const int64_t end = rows - begin < PIECE ? rows : begin + PIECE;
        float sum[COLUMNS] = {0};
        if (n == COLUMNS)
            add_rows(t, b, at, pitch, begin, end, COLUMNS, mean, inv, sum);
        else
            add_rows(t, b, at, pitch, begin, end, n, mean, inv, sum);
        for (int64_t k = 0; k < n; k++)
            total[k] += (double)sum[k];
    }
}

/* One channel whose values follow each other. */
static inline double sum_plane(term t, const block *b)
{
    const int64_t rows = b->plane / COLUMNS;
    float mean[COLUMNS], inv[COLUMNS];
    double total[COLUMNS] = {0}, sum = 0;
    for (int k = 0; k < COLUMNS; k++) {
        mean[k] = b->mean[0];
        inv[k] = b->inv[0];
    }
    sum_columns(t, b, 0, COLUMNS, rows, COLUMNS, mean, inv, total);
    sum_columns(t, b, rows * COLUMNS, COLUMNS, 1, b->plane % COLUMNS, mean, inv, total);
    for (int k = 0; k < COLUMNS; k++)
        sum += total[k];
    return sum;
}

/* out (channels): each channel's sum over the plane. */
static inline void groupnorm_sum_block(term t, const block *b, double *out)
{
    if (b->lanes == 1) {
        out[0] = sum_plane(t, b);
        return;
    }
    for (int64_t c = 0; c < b->channels; c += COLUMNS) {
        const int64_t n = b->channels - c < COLUMNS ? b->channels - c : COLUMNS;
        double total[COLUMNS] = {0};
        sum_columns(t, b, c, b->lanes, b->plane, n, b->mean + c, b->inv + c, total);
        for (int64_t k = 0; k < n; k++)
            out[c + k] = total[k];
    }
}

static int64_t groupnorm_padded(const ps_cpu_groupnorm *g)
{
    return g->shape.blocks * g->shape.lanes;
}

static float *groupnorm_channels_of(const ps_cpu_groupnorm *g, int64_t sample, int which)
{
    return g->channels +
           (sample * PS_CPU_GROUPNORM_CHANNELS + which) * groupnorm_padded(g);
}

enum { MEAN, INV, MEAN_DY, MEAN_DOT };

static block groupnorm_block_of(const ps_cpu_groupnorm *g, int64_t sample, int64_t index,
                                const float *x, const float *dy)
{
    const ps_cpu_shape *s = &g->shape;
    const int64_t plane = ps_cpu_shape_plane(s), first = index * s->lanes;
    const int64_t at = (sample * s->blocks + index) * plane * s->lanes;
    return (block){.x = x + at,
                   .dy = dy + at,
                   .mean = groupnorm_channels_of(g, sample, MEAN) + first,
                   .inv = groupnorm_channels_of(g, sample, INV) + first,
                   .plane = plane,
                   .lanes = s->lanes,
                   .channels = s->c - first < s->lanes ? s->c - first : s->lanes};
}

static void sum_sample(term t, const ps_cpu_groupnorm *g, int64_t sample, const float *x,
                       const float *dy, double *out)
{
    for (int64_t i = 0; i < g->shape.blocks; i++) {
        const block b = groupnorm_block_of(g, sample, i, x, dy);
        double *to = out + i * g->shape.lanes;
        switch (t) { // each term has a loop of its own
        case VALUES:
            groupnorm_sum_block(VALUES, &b, to);
            break;
        case SQUARES:
            groupnorm_sum_block(SQUARES, &b, to);
            break;
        case GRADIENTS:
            groupnorm_sum_block(GRADIENTS, &b, to);
            break;
        case DOTS:
            groupnorm_sum_block(DOTS, &b, to);
            break;
        }
    }
}

/* Sets the channels of each group to the mean of its sums, weighted by weight (NULL: 1).
 */
static void spread_means(const ps_cpu_groupnorm *g, const double *sums,
                         const float *weight, float *out)
{
    const int64_t channels = g->shape.c / g->groups;
    const double count = (double)(channels * ps_cpu_shape_plane(&g->shape));
    for (int64_t first = 0; first < g->shape.c; first += channels) {
        double sum = 0;
        for (int64_t c = first; c < first + channels; c++)
            sum += weight ? (double)weight[c] * sums[c] : sums[c];
        for (int64_t c = first; c < first + channels; c++)
            out[c] = (float)(sum / count);
    }
}

/* y of a block, whose padding becomes 0. */
static void groupnorm_normalise(const block *b, const float *weight, const float *bias,
                                float *y)
{
    if (b->lanes == 1) {
        const float mean = b->mean[0], inv = b->inv[0], w = weight[0], add = bias[0];
#pragma omp simd
        for (int64_t p = 0; p < b->plane; p++)
            y[p] = (b->x[p] - mean) * inv * w + add;
        return;
    }
    for (int64_t p = 0; p < b->plane; p++) {
        const float *x = b->x + p * b->lanes;
        float *to = y + p * b->lanes;
#pragma omp simd
        for (int64_t c = 0; c < b->channels; c++)
            to[c] = (x[c] - b->mean[c]) * b->inv[c] * weight[c] + bias[c];
        for (int64_t c = b->channels; c < b->lanes; c++)
            to[c] = 0.0f;
    }
}

PS_PER_LEVEL(void, ps_cpu_groupnorm_forward,
             (const ps_cpu_groupnorm *g, const float *x, const float *weight,
              const float *bias, float *y),
             (g, x, weight, bias, y))
{
    const ps_cpu_shape *s = &g->shape;
    const int64_t block_size = ps_cpu_shape_plane(s) * s->lanes;
#pragma omp parallel for
    for (int64_t n = 0; n < s->n; n++) {
        double *sums = g->sums + n * 2 * s->c;
        float *inv = groupnorm_channels_of(g, n, INV);
        sum_sample(VALUES, g, n, x, x, sums);
        spread_means(g, sums, NULL, groupnorm_channels_of(g, n, MEAN));
        sum_sample(SQUARES, g, n, x, x, sums);
        spread_means(g, sums, NULL, inv);
        for (int64_t c = 0; c < s->c; c++)
            inv[c] = (float)(1.0 / sqrt((double)inv[c] + g->eps));
        for (int64_t i = 0; i < s->blocks; i++) {
            const block b = groupnorm_block_of(g, n, i, x, x);
            groupnorm_normalise(&b, weight + i * s->lanes, bias + i * s->lanes,
                                y + (n * s->blocks + i) * block_size);
        }
    }
}

/* The gradient of the input: inv (weight dy - mean_dy - normalised x * mean_dot). */
static inline float groupnorm_gradient_of(const block *b, int64_t c, float x, float dy,
                                          float w, const float *mean_dy,
                                          const float *mean_dot)
{
    return b->inv[c] * (w * dy - mean_dy[c] - (x - b->mean[c]) * b->inv[c] * mean_dot[c]);
}

static void pass_back(const block *b, const float *weight, const float *mean_dy,
                      const float *mean_dot, float *dx, bool add)
{
    for (int64_t p = 0; p < b->plane && b->lanes > 1; p++) {
        const int64_t at = p * b->lanes;
#pragma omp simd
        for (int64_t c = 0; c < b->channels; c++) {
            const float g = groupnorm_gradient_of(b, c, b->x[at + c], b->dy[at + c],
                                                  weight[c], mean_dy, mean_dot);
            dx[at + c] = add ? dx[at + c] + g : g;
        }
        for (int64_t c = b->channels; c < b->lanes && !add; c++)
            dx[at + c] = 0.0f;
    }
    if (b->lanes > 1) return;
#pragma omp simd
    for (int64_t p = 0; p < b->plane; p++) {
        const float g =
            groupnorm_gradient_of(b, 0, b->x[p], b->dy[p], weight[0], mean_dy, mean_dot);
        dx[p] = add ? dx[p] + g : g;
    }
}

PS_PER_LEVEL(void, ps_cpu_groupnorm_backward,
             (const ps_cpu_groupnorm *g, const float *x, const float *dy,
              const float *weight, float *dweight, float *dbias, bool accumulate,
              float *dx, bool add),
             (g, x, dy, weight, dweight, dbias, accumulate, dx, add))
{
    const ps_cpu_shape *s = &g->shape;
    const int64_t block_size = ps_cpu_shape_plane(s) * s->lanes;
#pragma omp parallel for
    for (int64_t n = 0; n < s->n; n++) {
        double *sums = g->sums + n * 2 * s->c;
        float *mean_dy = groupnorm_channels_of(g, n, MEAN_DY);
        float *mean_dot = groupnorm_channels_of(g, n, MEAN_DOT);
        sum_sample(GRADIENTS, g, n, x, dy, sums);
        sum_sample(DOTS, g, n, x, dy, sums + s->c);
        spread_means(g, sums, weight, mean_dy);
        spread_means(g, sums + s->c, weight, mean_dot);
        for (int64_t i = 0; i < s->blocks && dx; i++) {
            const block b = groupnorm_block_of(g, n, i, x, dy);
            const int64_t c = i * s->lanes;
            pass_back(&b, weight + c, mean_dy + c, mean_dot + c,
                      dx + (n * s->blocks + i) * block_size, add);
        }
    }
    for (int64_t c = 0; c < s->c; c++) {
        double sum = 0, dot = 0;
        for (int64_t n = 0; n < s->n; n++) {
            sum += g->sums[n * 2 * s->c + c];
            dot += g->sums[(n * 2 + 1) * s->c + c];
        }
        if (dbias) dbias[c] = accumulate ? dbias[c] + (float)sum : (float)sum;
        if (dweight) dweight[c] = accumulate ? dweight[c] + (float)dot : (float)dot;
    }
}

PS_PER_LEVEL(ps_cpu_groupnorm, ps_cpu_groupnorm_of,
             (const ps_layer *layer, const ps_cpu_shape *shape), (layer, shape))
{
    ps_cpu_groupnorm g = {.shape = *shape, .groups = layer->groups, .eps = layer->eps};
    if (ps_cpu_shape_plane(shape) == 1 && ps_cpu_shape_is_plain(shape)) {
        g.shape.lanes = shape->c;
        g.shape.blocks = 1;
    }
    return g;
}

PS_PER_LEVEL(size_t, ps_cpu_groupnorm_channel_bytes, (const ps_cpu_groupnorm *g), (g))
{
    return sizeof(float) *
           (size_t)(g->shape.n * PS_CPU_GROUPNORM_CHANNELS * groupnorm_padded(g));
}

PS_PER_LEVEL(size_t, ps_cpu_groupnorm_sum_bytes, (const ps_cpu_groupnorm *g), (g))
{
    return sizeof(double) * (size_t)(g->shape.n * 2 * g->shape.c);
}
