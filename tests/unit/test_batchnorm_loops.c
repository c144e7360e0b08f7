/* Batch norm's loops against PyTorch's formulas in double, in every layout. */
#include <math.h>

#include "check.h"
#include "cpu_batchnorm_loops.h"
#include "rng.h"

enum { CHANNELS = 600, MOST = 500000 };

static float rows[MOST], dy_rows[MOST], dx_rows[MOST]; // row-major
static float x[MOST], y[MOST], dy[MOST], dx[MOST];     // in the layout
static float mean[CHANNELS], variance[CHANNELS], inv[CHANNELS];
static float sum_dy[CHANNELS], sum_dot[CHANNELS];
static float weight[CHANNELS], bias[CHANNELS];
static double scratch[MOST];

static ps_cpu_shape shape_of(int64_t n, int64_t c, int64_t side, int64_t lanes)
{
    const ps_dims dims = {.n = 3, .d = {c, side, side}};
    const ps_cpu_shape s = ps_cpu_shape_make(n, &dims, lanes);
    assert_true(ps_cpu_shape_count(&s) <= MOST && c <= CHANNELS);
    assert_true(ps_cpu_batchnorm_scratch_bytes(&s) <= sizeof scratch);
    return s;
}

static void draw(uint64_t seed, float low, float high, int64_t n, float *out)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, seed);
    ps_uniform(&g, low, high, 0, (uint64_t)n, out);
}

static void check(const char *what, double got, double want, double scale)
{
    if (!(fabs(got - want) <= 3e-6 * scale))
        fail_msg("%s: %.9g, not %.9g", what, got, want);
}

/* PyTorch's results for one channel, in row-major order. */
typedef struct channel {
    const ps_cpu_shape *shape;
    int64_t c;
    double mean, variance, sum_dy, sum_dot;
} channel;

static int64_t at(const channel *k, int64_t n, int64_t p)
{
    return (n * k->shape->c + k->c) * ps_cpu_shape_plane(k->shape) + p;
}

static double normal(const channel *k, int64_t i)
{
    return ((double)rows[i] - k->mean) / sqrt(k->variance + 1e-5);
}

static double value(const channel *k, int64_t i)
{
    return normal(k, i) * (double)weight[k->c] + (double)bias[k->c];
}

/* The gradient that passes the relu. Values next to the relu's corner are not compared.
 */
static double passed(const channel *k, int64_t i, bool relu)
{
    return relu && value(k, i) <= 0 ? 0 : (double)dy_rows[i];
}

static channel channel_of(const ps_cpu_shape *s, int64_t c, bool relu)
{
    channel k = {.shape = s, .c = c};
    const int64_t plane = ps_cpu_shape_plane(s);
    const double count = (double)(s->n * plane);
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t p = 0; p < plane; p++)
            k.mean += (double)rows[at(&k, n, p)] / count;
    for (int64_t n = 0; n < s->n; n++)
        for (int64_t p = 0; p < plane; p++)
            k.variance += pow((double)rows[at(&k, n, p)] - k.mean, 2) / count;
    for (int64_t n = 0; n < s->n; n++) {
        for (int64_t p = 0; p < plane; p++) {
            int64_t i = at(&k, n, p);
            k.sum_dy += passed(&k, i, relu);
            k.sum_dot += passed(&k, i, relu) * normal(&k, i);
        }
    }
    return k;
}

static void check_channel(const channel *k, const float *values, bool relu)
{
    const int64_t plane = ps_cpu_shape_plane(k->shape), c = k->c;
    const double count = (double)(k->shape->n * plane);
    const double spread = sqrt(k->variance + 1e-5), scale = (double)weight[c] / spread;
    const double room = 4 + fabs(k->mean) / spread; // the mean is rounded
    check("mean", mean[c], k->mean, fabs(k->mean) + spread);
    check("variance", variance[c], k->variance, room * k->variance);
    check("sum of dy", sum_dy[c], k->sum_dy, count);
    check("sum of dy times x", sum_dot[c], k->sum_dot, room * count);
    for (int64_t n = 0; n < k->shape->n; n++) {
        for (int64_t p = 0; p < plane; p++) {
            int64_t i = at(k, n, p);
            double want = value(k, i);
            double rest = passed(k, i, relu) - k->sum_dy / count -
                          normal(k, i) * k->sum_dot / count;
            check("y", values[i], relu ? fmax(want, 0) : want, room);
            check("dx", dx_rows[i], scale * rest + 0.5, room * (1 + fabs(scale)));
        }
    }
}

static void check_padding(const ps_cpu_shape *s, const float *values)
{
    for (int64_t i = 0; i < ps_cpu_shape_count(s); i++) {
        int64_t block = i / (s->lanes * ps_cpu_shape_plane(s)) % s->blocks;
        if (block * s->lanes + i % s->lanes >= s->c) assert_true(values[i] == 0.0f);
    }
}

/* The backward pass adds to dx, which is 0.5 before it. */
static void run(const ps_cpu_shape *s, bool relu)
{
    const ps_cpu_batchnorm_channels channels = {mean, inv, weight, bias};
    const ps_cpu_batchnorm_passed read = {x, dy, relu ? y : NULL};
    const float values = (float)(s->n * ps_cpu_shape_plane(s));
    ps_cpu_batchnorm_moments(s, x, scratch, mean, variance);
    ps_cpu_batchnorm_invert(s->c, variance, 1e-5f, inv);
    ps_cpu_batchnorm_values(s, &channels, x, relu, y);
    ps_cpu_batchnorm_sums(s, &channels, &read, scratch, sum_dy, sum_dot);
    float mean_dy[CHANNELS], mean_dot[CHANNELS];
    for (int64_t c = 0; c < s->c; c++) {
        mean_dy[c] = sum_dy[c] / values;
        mean_dot[c] = sum_dot[c] / values;
    }
    ps_cpu_batchnorm_gradient(s, &channels, &read, mean_dy, mean_dot, dx, true);
}

/* offset is added to all values. It may be much larger than their differences. */
static void check_shape(int64_t n, int64_t c, int64_t side, int64_t lanes, float offset,
                        bool relu)
{
    static float values[MOST];
    const ps_cpu_shape plain = shape_of(n, c, side, 1), s = shape_of(n, c, side, lanes);
    const int64_t count = ps_cpu_shape_count(&plain);
    draw(1, offset - 1, offset + 1, count, rows);
    draw(2, -1, 1, count, dy_rows);
    draw(3, -2, 2, c, weight);
    draw(4, 0, 1, c, bias);
    for (int64_t i = 0; i < count; i++)
        dx_rows[i] = 0.5f;
    ps_cpu_convert(&plain, rows, &s, x, false);
    ps_cpu_convert(&plain, dy_rows, &s, dy, false);
    ps_cpu_convert(&plain, dx_rows, &s, dx, false);
    run(&s, relu);
    check_padding(&s, y);
    check_padding(&s, dx);
    ps_cpu_convert(&s, y, &plain, values, false);
    ps_cpu_convert(&s, dx, &plain, dx_rows, false);
    for (int64_t i = 0; i < c; i++) {
        const channel k = channel_of(&plain, i, relu);
        check_channel(&k, values, relu);
    }
}

TEST(test_layouts)
{
    static const int64_t sizes[][3] = {{64, 6, 12}, {3, 21, 7},  {5, 20, 16}, {2, 1, 9},
                                       {9, 3, 1},   {4, 600, 3}, {2, 33, 20}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const int64_t n = sizes[i][0], c = sizes[i][1], side = sizes[i][2];
        const int64_t lanes[] = {1, 8, 16, c};
        for (int k = 0; k < 4; k++) {
            check_shape(n, c, side, lanes[k], 0, false);
            check_shape(n, c, side, lanes[k], 0, true);
        }
    }
}

/* With such an offset, the sum of squares minus the square of the sum would have no
 * correct digit. */
TEST(test_large_mean)
{
    check_shape(8, 6, 12, 6, 300, false);
    check_shape(8, 6, 12, 1, 300, false);
}
