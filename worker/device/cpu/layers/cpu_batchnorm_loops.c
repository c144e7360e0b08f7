#include "cpu_batchnorm_loops.h"

#include <string.h>

#include "arith.h"
#include "cpu_level.h"

/* Numbers of floats. A block's channels repeat every `lanes` floats. A loop walks over
 * rows of several repetitions that fill whole vectors; each column of such a row has its
 * own sum. */
enum {
    VECTOR = 16,
    NARROW = 128,  // with fewer columns, additions would wait for each other
    WIDE = 512,    // on the stack, in the L1 cache
    PIECE = 16384, // of a block; then float32 sums are added to double sums
    SHARES = 16    // shares of a block, for threads
};

/* How to walk over a shape: blocks of `lanes` channels, each cut into pieces. */
typedef struct walk {
    int64_t channels, lanes, blocks, shares;
    int64_t pieces, stride; // pieces of a block; floats between their starts
    int64_t floats, last;   // in a piece; in the last piece
    int64_t row, width;     // floats in a row; columns done at a time
    int64_t values;         // in a channel
} walk;

static int64_t batchnorm_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static walk walk_of(const ps_cpu_shape *s)
{
    walk w = {.channels = s->c, .lanes = s->lanes, .blocks = s->blocks};
    int64_t repeat = 1, plane = ps_cpu_shape_plane(s);
    while (repeat * s->lanes % VECTOR != 0 || repeat * s->lanes < NARROW)
        repeat *= 2;
    w.row = repeat * s->lanes <= WIDE ? repeat * s->lanes : s->lanes;
    w.width = batchnorm_least(w.row, WIDE);
    w.values = s->n * plane;
    w.pieces = s->n;
    w.floats = w.last = plane * s->lanes;
    if (s->blocks == 1) { // samples are contiguous
        int64_t all = w.values * s->lanes, rows = PIECE / w.row;
        w.floats = batchnorm_least(all, (rows > 0 ? rows : 1) * w.row);
        w.pieces = (all + w.floats - 1) / w.floats;
        w.last = all - (w.pieces - 1) * w.floats;
    }
    w.stride = s->blocks * w.floats;
    w.shares = s->blocks < SHARES ? batchnorm_least(w.pieces, SHARES) : 1;
    return w;
}

/* The activations that a loop reads and writes. */
typedef struct work {
    const ps_cpu_batchnorm_channels *channels;
    const float *x, *y, *dy;
    float *out;
    const float *mean_dy, *mean_dot; // of each channel
    bool relu, add;
    int n_sums;
    double *totals; // (n_sums, shares, blocks * lanes)
} work;

typedef struct columns {
    _Alignas(64) float sum[2][WIDE]; // of this piece
    _Alignas(64) double total[2][WIDE];
    _Alignas(64) float mean[WIDE], inv[WIDE], weight[WIDE], bias[WIDE];
    _Alignas(64) float mean_dy[WIDE], mean_dot[WIDE];
    int64_t row, n;
} columns;

/* A loop over the rows in [at, end); at and end are offsets of the first column. */
typedef void loop(const work *k, columns *c, int64_t at, int64_t end);

static void sum_values(const work *k, columns *c, int64_t at, int64_t end)
{
    float *restrict sum = c->sum[0];
    for (; at < end; at += c->row) {
        const float *x = k->x + at;
        int64_t n = batchnorm_least(c->n, end - at);
#pragma omp simd
        for (int64_t j = 0; j < n; j++)
            sum[j] += x[j];
    }
}

static void sum_squares(const work *k, columns *c, int64_t at, int64_t end)
{
    float *restrict sum = c->sum[0];
    for (; at < end; at += c->row) {
        const float *x = k->x + at;
        int64_t n = batchnorm_least(c->n, end - at);
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            float d = x[j] - c->mean[j];
            sum[j] += d * d;
        }
    }
}

static inline void sum_gradient_row(const work *k, columns *c, int64_t at, int64_t n,
                                    bool relu)
{
    float *restrict sum = c->sum[0], *restrict dot = c->sum[1];
    const float *x = k->x + at, *dy = k->dy + at, *y = relu ? k->y + at : dy;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float g = relu ? ps_relu_grad(y[j], dy[j]) : dy[j];
        sum[j] += g;
        dot[j] += g * ((x[j] - c->mean[j]) * c->inv[j]);
    }
}

static void sum_gradients(const work *k, columns *c, int64_t at, int64_t end)
{
    for (; at < end; at += c->row) {
        if (k->y)
            sum_gradient_row(k, c, at, batchnorm_least(c->n, end - at), true);
        else
            sum_gradient_row(k, c, at, batchnorm_least(c->n, end - at), false);
    }
}

static inline void value_row(const work *k, const columns *c, int64_t at, int64_t n,
                             bool relu)
{
    const float *x = k->x + at;
    float *y = k->out + at;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float v =
            ps_batchnorm_value(x[j], c->mean[j], c->inv[j], c->weight[j], c->bias[j]);
        y[j] = relu ? ps_relu(v) : v;
    }
}

static void batchnorm_put_values(const work *k, columns *c, int64_t at, int64_t end)
{
    for (; at < end; at += c->row) {
        if (k->relu)
            value_row(k, c, at, batchnorm_least(c->n, end - at), true);
        else
            value_row(k, c, at, batchnorm_least(c->n, end - at), false);
    }
}

static inline void gradient_row(const work *k, const columns *c, int64_t at, int64_t n,
                                bool relu, bool add)
{
    const float *x = k->x + at, *dy = k->dy + at, *y = relu ? k->y + at : dy;
    float *dx = k->out + at;
#pragma omp simd
    for (int64_t j = 0; j < n; j++) {
        float g = relu ? ps_relu_grad(y[j], dy[j]) : dy[j];
        float d = ps_batchnorm_grad(x[j], g, c->mean[j], c->inv[j], c->weight[j],
                                    c->mean_dy[j], c->mean_dot[j]);
        dx[j] = add ? dx[j] + d : d;
    }
}

static void put_gradient(const work *k, columns *c, int64_t at, int64_t end)
{
    for (; at < end; at += c->row) {
        int64_t n = batchnorm_least(c->n, end - at);
        if (k->y && !k->add)
            gradient_row(k, c, at, n, true, false);
        else if (k->y)
            gradient_row(k, c, at, n, true, true);
        else if (!k->add)
            gradient_row(k, c, at, n, false, false);
        else
            gradient_row(k, c, at, n, false, true);
    }
}

/* Writes each column's channel value, from the block's column `first` on; 0 for padding.
 */
static void batchnorm_spread(const walk *w, int64_t block, int64_t first, int64_t n,
                             const float *values, float otherwise, float *out)
{
    for (int64_t j = 0; j < batchnorm_least(n, w->lanes); j++) {
        int64_t channel = block * w->lanes + first + j;
        out[j] = channel >= w->channels ? 0.0f : values ? values[channel] : otherwise;
    }
    for (int64_t j = w->lanes; j < n; j++)
        out[j] = out[j - w->lanes];
}

static void spread_channels(const walk *w, const work *k, int64_t block, int64_t first,
                            columns *c)
{
    const ps_cpu_batchnorm_channels *of = k->channels;
    batchnorm_spread(w, block, first, c->n, of->mean, 0.0f, c->mean);
    if (!of->inv) return;
    batchnorm_spread(w, block, first, c->n, of->inv, 0.0f, c->inv);
    batchnorm_spread(w, block, first, c->n, of->weight, 1.0f, c->weight);
    batchnorm_spread(w, block, first, c->n, of->bias, 0.0f, c->bias);
    if (!k->mean_dy) return;
    batchnorm_spread(w, block, first, c->n, k->mean_dy, 0.0f, c->mean_dy);
    batchnorm_spread(w, block, first, c->n, k->mean_dot, 0.0f, c->mean_dot);
}

static double *totals_at(const walk *w, const work *k, int sum, int64_t share)
{
    return k->totals + (sum * w->shares + share) * w->blocks * w->lanes;
}

static void put_totals(const walk *w, const work *k, int64_t block, int64_t share,
                       int64_t first, const columns *c)
{
    int64_t n = batchnorm_least(c->n, w->lanes);
    for (int sum = 0; sum < k->n_sums; sum++) {
        double *to = totals_at(w, k, sum, share) + block * w->lanes + first;
        memset(to, 0, (size_t)n * sizeof *to);
        for (int64_t from = 0; from < c->n; from += n) {
            for (int64_t j = 0; j < n; j++)
                to[j] += c->total[sum][from + j];
        }
    }
}

/* Adds a piece's sums of columns [0, n) to the totals and resets them to 0. */
static void add_sums(const work *k, columns *c, int64_t n)
{
    for (int sum = 0; sum < k->n_sums; sum++) {
#pragma omp simd
        for (int64_t j = 0; j < n; j++) {
            c->total[sum][j] += (double)c->sum[sum][j];
            c->sum[sum][j] = 0.0f;
        }
    }
}

/* Walks some columns of one share of a block's pieces. */
static void walk_columns(const walk *w, const work *k, loop *body, int64_t block,
                         int64_t share, int64_t first)
{
    columns c;
    c.row = w->row;
    c.n = batchnorm_least(w->width, w->row - first);
    spread_channels(w, k, block, first, &c);
    for (int sum = 0; sum < k->n_sums; sum++) {
        memset(c.sum[sum], 0, (size_t)c.n * sizeof(float));
        memset(c.total[sum], 0, (size_t)c.n * sizeof(double));
    }
    int64_t end = w->pieces * (share + 1) / w->shares;
    for (int64_t i = w->pieces * share / w->shares; i < end; i++) {
        int64_t at = i * w->stride + block * w->floats;
        int64_t floats = i == w->pieces - 1 ? w->last : w->floats;
        body(k, &c, at + first, at + floats);
        add_sums(k, &c, batchnorm_least(c.n, floats - first));
    }
    put_totals(w, k, block, share, first, &c);
}

static void walk_all(const walk *w, const work *k, loop *body)
{
#pragma omp parallel for
    for (int64_t task = 0; task < w->blocks * w->shares; task++) {
        for (int64_t first = 0; first < w->row; first += w->width)
            walk_columns(w, k, body, task / w->shares, task % w->shares, first);
    }
}

/* Each channel's sum over all shares, divided by `by`. */
static void put_sums(const walk *w, const work *k, int sum, double by, float *out)
{
    for (int64_t c = 0; c < w->channels; c++) {
        double total = 0;
        for (int64_t share = 0; share < w->shares; share++)
            total += totals_at(w, k, sum, share)[c];
        out[c] = (float)(total / by);
    }
}

PS_PER_LEVEL(size_t, ps_cpu_batchnorm_scratch_bytes, (const ps_cpu_shape *s), (s))
{
    const walk w = walk_of(s);
    return sizeof(double) * (size_t)(2 * w.shares * w.blocks * w.lanes);
}

PS_PER_LEVEL(void, ps_cpu_batchnorm_moments,
             (const ps_cpu_shape *s, const float *x, double *scratch, float *mean,
              float *variance),
             (s, x, scratch, mean, variance))
{
    const walk w = walk_of(s);
    ps_cpu_batchnorm_channels channels = {.mean = NULL};
    const work k = {.channels = &channels, .x = x, .n_sums = 1, .totals = scratch};
    walk_all(&w, &k, sum_values);
    put_sums(&w, &k, 0, (double)w.values, mean);
    channels.mean = mean;
    walk_all(&w, &k, sum_squares);
    put_sums(&w, &k, 0, (double)w.values, variance);
}

PS_PER_LEVEL(void, ps_cpu_batchnorm_invert,
             (int64_t n, const float *variance, float eps, float *inv),
             (n, variance, eps, inv))
{
    for (int64_t c = 0; c < n; c++)
        inv[c] = (float)(1.0 / sqrt((double)variance[c] + (double)eps));
}

PS_PER_LEVEL(void, ps_cpu_batchnorm_values,
             (const ps_cpu_shape *s, const ps_cpu_batchnorm_channels *channels,
              const float *x, bool relu, float *y),
             (s, channels, x, relu, y))
{
    const walk w = walk_of(s);
    const work k = {.channels = channels, .x = x, .out = y, .relu = relu};
    walk_all(&w, &k, batchnorm_put_values);
}

PS_PER_LEVEL(void, ps_cpu_batchnorm_sums,
             (const ps_cpu_shape *s, const ps_cpu_batchnorm_channels *channels,
              const ps_cpu_batchnorm_passed *passed, double *scratch, float *sum_dy,
              float *sum_dot),
             (s, channels, passed, scratch, sum_dy, sum_dot))
{
    const walk w = walk_of(s);
    const work k = {.channels = channels,
                    .x = passed->x,
                    .y = passed->y,
                    .dy = passed->dy,
                    .n_sums = 2,
                    .totals = scratch};
    walk_all(&w, &k, sum_gradients);
    put_sums(&w, &k, 0, 1.0, sum_dy);
    put_sums(&w, &k, 1, 1.0, sum_dot);
}

PS_PER_LEVEL(void, ps_cpu_batchnorm_gradient,
             (const ps_cpu_shape *s, const ps_cpu_batchnorm_channels *channels,
              const ps_cpu_batchnorm_passed *passed, const float *mean_dy,
              const float *mean_dot, float *dx, bool add),
             (s, channels, passed, mean_dy, mean_dot, dx, add))
{
    const walk w = walk_of(s);
    const work k = {.channels = channels,
                    .x = passed->x,
                    .y = passed->y,
                    .dy = passed->dy,
                    .out = dx,
                    .mean_dy = mean_dy,
                    .mean_dot = mean_dot,
                    .add = add};
    walk_all(&w, &k, put_gradient);
}
