#include "cpu_depthwise.h"

#include "cpu_level.h"

enum {
    WIDTH = 8, // channels that are summed side by side
    CHAINS = 4 // sums of a row that do not wait for each other
};

typedef float vector __attribute__((vector_size(4 * WIDTH), aligned(4)));

PS_PER_LEVEL(bool, ps_cpu_depthwise_can,
             (const ps_layer *l, const ps_cpu_shape *in, const ps_cpu_shape *out),
             (l, in, out))
{
    return ps_cpu_is_depthwise(l) && in->lanes == out->lanes && in->lanes >= WIDTH &&
           l->kernel[0] * l->kernel[1] <= PS_CPU_DEPTHWISE_ELEMENTS;
}

/* WIDTH channels that stand side by side. Where a block's lanes are no multiple of that,
 * its last group begins earlier, and some of its channels are the previous one's. */
typedef struct group {
    int64_t block, lane; // of the first channel
    int64_t own, n;      // the first lane that is its own, and how many are
} group;

static inline int64_t groups_of_block(const ps_cpu_shape *in)
{
    return (in->lanes + WIDTH - 1) / WIDTH;
}

static inline group depthwise_group_at(const ps_cpu_shape *in, int64_t at)
{
    const int64_t own = at % groups_of_block(in) * WIDTH, last = in->lanes - WIDTH;
    group g = {.block = at / groups_of_block(in), .lane = own < last ? own : last};
    const int64_t left = in->c - g.block * in->lanes - own; // without padding
    g.own = own;
    g.n = g.lane + WIDTH - own;
    if (g.n > left) g.n = left;
    return g;
}

/* *sum += over n positions dy times x; the steps are from one position to the next. */
static inline void add_products(int64_t n, const float *dy, int64_t dy_step,
                                const float *x, int64_t x_step, vector *sum)
{
    vector s[CHAINS] = {0};
    int64_t p = 0;
    for (; p + CHAINS <= n; p += CHAINS)
        for (int k = 0; k < CHAINS; k++)
            s[k] += *(const vector *)(dy + (p + k) * dy_step) *
                    *(const vector *)(x + (p + k) * x_step);
    for (; p < n; p++)
        s[0] += *(const vector *)(dy + p * dy_step) * *(const vector *)(x + p * x_step);
    *sum += (s[0] + s[1]) + (s[2] + s[3]);
}

static inline void add_positions(int64_t n, const float *dy, int64_t step, vector *sum)
{
    vector s = {0};
    for (int64_t p = 0; p < n; p++)
        s += *(const vector *)(dy + p * step);
    *sum += s;
}

/* At which positions [*begin, *end) of a row of dy column j of the window is inside. */
static inline void depthwise_range_of(const ps_cpu_windows *w, int64_t j, int64_t *begin,
                                      int64_t *end)
{
    const int64_t stride = w->stride[1], from = j * w->dilation[1] - w->padding[1];
    *begin = from < 0 ? (-from + stride - 1) / stride : 0;
    *end = from < w->in.w ? (w->in.w - from + stride - 1) / stride : 0;
    if (*end > w->ow) *end = w->ow;
    if (*begin > *end) *begin = *end;
}

/* x, dy: of a sample and a group. Row h of dy is added to all sums; after the window's
 * comes the bias's. */
static inline void depthwise_add_row(const ps_cpu_windows *w, int64_t h, const float *x,
                                     const float *dy, vector *sums)
{
    const int64_t lanes = w->in.lanes, columns = w->kernel[1];
    const float *row = dy + h * w->ow * lanes;
    for (int64_t i = 0; i < w->kernel[0]; i++) {
        const int64_t at = h * w->stride[0] + i * w->dilation[0] - w->padding[0];
        if (at < 0 || at >= w->in.h) continue;
        for (int64_t j = 0; j < columns; j++) {
            int64_t begin, end;
            depthwise_range_of(w, j, &begin, &end);
            const int64_t first =
                begin * w->stride[1] + j * w->dilation[1] - w->padding[1];
            add_products(end - begin, row + begin * lanes, lanes,
                         x + (at * w->in.w + first) * lanes, w->stride[1] * lanes,
                         &sums[i * columns + j]);
        }
    }
    add_positions(w->ow, row, lanes, &sums[w->kernel[0] * columns]);
}

static inline void sum_group(const ps_cpu_windows *w, group g, const float *x,
                             const float *dy, float *dweight, float *dbias)
{
    vector sums[PS_CPU_DEPTHWISE_ELEMENTS + 1] = {0};
    const int64_t elements = w->kernel[0] * w->kernel[1], lanes = w->in.lanes;
    const int64_t plane = ps_cpu_shape_plane(&w->in), plane_dy = w->oh * w->ow;
    for (int64_t n = 0; n < w->in.n; n++) {
        const int64_t block = n * w->in.blocks + g.block;
        for (int64_t h = 0; h < w->oh; h++)
            depthwise_add_row(w, h, x + block * plane * lanes + g.lane,
                              dy + block * plane_dy * lanes + g.lane, sums);
    }
    for (int64_t l = g.own; l < g.own + g.n; l++) {
        const int64_t c = g.block * lanes + l;
        for (int64_t e = 0; e < elements; e++)
            dweight[c * elements + e] = sums[e][l - g.lane];
        if (dbias) dbias[c] = sums[elements][l - g.lane];
    }
}

PS_PER_LEVEL(void, ps_cpu_depthwise_weights,
             (const ps_cpu_windows *w, const float *x, const float *dy, float *dweight,
              float *dbias),
             (w, x, dy, dweight, dbias))
{
#pragma omp parallel for
    for (int64_t g = 0; g < w->in.blocks * groups_of_block(&w->in); g++)
        sum_group(w, depthwise_group_at(&w->in, g), x, dy, dweight, dbias);
}

/* The rows of dy that reach a row of dx, each with its row of the window. */
typedef struct reach {
    int64_t n;
    const float *dy[PS_CPU_DEPTHWISE_ELEMENTS];
    const vector *weights[PS_CPU_DEPTHWISE_ELEMENTS];
} reach;

/* Along an axis: the position of dy at which element e of the window lies over position
 * `at` of dx; -1: there is none. */
static inline int64_t depthwise_reader(const ps_cpu_windows *w, int axis, int64_t at,
                                       int64_t e, int64_t positions)
{
    const int64_t from = at + w->padding[axis] - e * w->dilation[axis];
    if (from < 0 || (w->stride[axis] > 1 && from % w->stride[axis] != 0)) return -1;
    return from / w->stride[axis] < positions ? from / w->stride[axis] : -1;
}

static inline void find_reach(const ps_cpu_windows *w, int64_t h, const float *dy,
                              const vector *weights, reach *r)
{
    r->n = 0;
    for (int64_t i = 0; i < w->kernel[0]; i++) {
        const int64_t at = depthwise_reader(w, 0, h, i, w->oh);
        if (at < 0) continue;
        r->dy[r->n] = dy + at * w->ow * w->in.lanes;
        r->weights[r->n++] = weights + i * w->kernel[1];
    }
}

static inline void sum_position(const ps_cpu_windows *w, const reach *r, int64_t column,
                                vector *sum)
{
    vector s = {0};
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < w->kernel[1]; j++) {
            const int64_t at = depthwise_reader(w, 1, column, j, w->ow);
            if (at >= 0)
                s += r->weights[i][j] * *(const vector *)(r->dy[i] + at * w->in.lanes);
        }
    *sum = s;
}

/* The sums of CHAINS positions from `column` on, with stride 1, where the whole window
 * stays inside dy. */
static inline void sum_positions(const ps_cpu_windows *w, const reach *r, int64_t column,
                                 vector *sums)
{
    const int64_t lanes = w->in.lanes, first = column + w->padding[1];
    vector s[CHAINS] = {0};
    for (int64_t i = 0; i < r->n; i++)
        for (int64_t j = 0; j < w->kernel[1]; j++) {
            const float *dy = r->dy[i] + (first - j * w->dilation[1]) * lanes;
            const vector weight = r->weights[i][j];
            for (int k = 0; k < CHAINS; k++)
                s[k] += weight * *(const vector *)(dy + k * lanes);
        }
    for (int k = 0; k < CHAINS; k++)
        sums[k] = s[k];
}

/* A group that begins earlier leaves the previous one's channels alone. */
static inline void depthwise_put(const group *g, const vector *sum, float *to)
{
    if (g->lane == g->own) {
        *(vector *)to = *sum;
        return;
    }
    for (int64_t l = g->own - g->lane; l < WIDTH; l++)
        to[l] = (*sum)[l];
}

static inline void put_row(const ps_cpu_windows *w, const group *g, const reach *r,
                           float *dx)
{
    const int64_t lanes = w->in.lanes;
    const int64_t before = (w->kernel[1] - 1) * w->dilation[1] - w->padding[1];
    const int64_t end = w->stride[1] == 1 ? w->ow - w->padding[1] : 0;
    int64_t column = 0;
    while (column < w->in.w) {
        vector sums[CHAINS];
        const bool inside = column >= before && column + CHAINS <= end;
        const int64_t n = inside && column + CHAINS <= w->in.w ? CHAINS : 1;
        if (n == CHAINS)
            sum_positions(w, r, column, sums);
        else
            sum_position(w, r, column, sums);
        for (int64_t k = 0; k < n; k++)
            depthwise_put(g, &sums[k], dx + (column + k) * lanes);
        column += n;
    }
}

/* Channels that only fill the block have weights of 0. */
static inline void depthwise_read_weights(const ps_cpu_windows *w, const group *g,
                                          const float *weight, vector *out)
{
    const int64_t elements = w->kernel[0] * w->kernel[1];
    for (int64_t l = 0; l < WIDTH; l++) {
        const int64_t c = g->block * w->in.lanes + g->lane + l;
        for (int64_t e = 0; e < elements; e++)
            out[e][l] = c < w->in.c ? weight[c * elements + e] : 0.0f;
    }
}

static inline void data_of_group(const ps_cpu_windows *w, int64_t n, group g,
                                 const float *weight, const float *dy, float *dx)
{
    vector weights[PS_CPU_DEPTHWISE_ELEMENTS];
    const int64_t lanes = w->in.lanes, block = n * w->in.blocks + g.block;
    dy += block * w->oh * w->ow * lanes + g.lane;
    dx += block * ps_cpu_shape_plane(&w->in) * lanes + g.lane;
    depthwise_read_weights(w, &g, weight, weights);
    for (int64_t h = 0; h < w->in.h; h++) {
        reach r;
        find_reach(w, h, dy, weights, &r);
        put_row(w, &g, &r, dx + h * w->in.w * lanes);
    }
}

PS_PER_LEVEL(void, ps_cpu_depthwise_data,
             (const ps_cpu_windows *w, const float *weight, const float *dy, float *dx),
             (w, weight, dy, dx))
{
    const int64_t groups = w->in.blocks * groups_of_block(&w->in);
#pragma omp parallel for
    for (int64_t at = 0; at < w->in.n * groups; at++)
        data_of_group(w, at / groups, depthwise_group_at(&w->in, at % groups), weight, dy,
                      dx);
}
