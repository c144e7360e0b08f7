/* The layers' code that is our own gives the same bits on processors with vectors of any
 * length. */
#include <math.h>

#include "../support/levels.h"
#include "check.h"
#include "cpu_activation.h"
#include "cpu_batchnorm_loops.h"
#include "cpu_concat.h"
#include "cpu_factors.h"
#include "cpu_groupnorm.h"
#include "cpu_interaction.h"
#include "cpu_interpolate.h"
#include "cpu_linear.h"
#include "cpu_pointwise.h"
#include "cpu_pool_rows.h"
#include "cpu_windows.h"

enum { MOST = 40000 };

static float x[MOST], y[MOST], dx[MOST], dy[MOST];

static ps_cpu_shape shape_of(int64_t n, int64_t c, int64_t h, int64_t w, int64_t lanes)
{
    const ps_dims dims = {.n = 3, .d = {c, h, w}};
    const ps_cpu_shape s = ps_cpu_shape_make(n, &dims, lanes);
    assert_true(ps_cpu_shape_count(&s) <= MOST);
    return s;
}

static void put_shape(output *o, const ps_cpu_shape *s, const float *values)
{
    put(o, values, (size_t)ps_cpu_shape_count(s) * sizeof *values);
}

static void compute_pointwise(output *o)
{
    static const ps_layer_kind kinds[] = {
        PS_LAYER_RELU,  PS_LAYER_TANH,       PS_LAYER_SIGMOID,
        PS_LAYER_RELU6, PS_LAYER_LEAKY_RELU, PS_LAYER_ELU,
        PS_LAYER_SILU,  PS_LAYER_GELU,       PS_LAYER_GELU_TANH};
    const ps_cpu_shape s = shape_of(3, 21, 9, 7, 16);
    const int64_t count = ps_cpu_shape_count(&s);
    fill(1, MOST, x);
    fill(2, MOST, dy);
    fill(3, MOST, dx);
    for (int k = 0; k < 9; k++) {
        const ps_layer layer = {.kind = kinds[k], .alpha = 0.3};
        ps_cpu_activation_forward(&layer, &s, x, y);
        put_shape(o, &s, y);
        ps_cpu_activation_backward(&layer, count, y, dy, dx, k % 2);
        put_shape(o, &s, dx);
    }
    for (int lanes = 1; lanes <= 16; lanes += 15) {
        const ps_cpu_shape image = shape_of(3, 21, 9, 7, lanes);
        const ps_layer layer = {.kind = PS_LAYER_GROUP_NORM, .groups = 7, .eps = 1e-5};
        ps_cpu_groupnorm g = ps_cpu_groupnorm_of(&layer, &image);
        float dweight[21], dbias[21];
        g.channels = calloc(1, ps_cpu_groupnorm_channel_bytes(&g));
        g.sums = calloc(1, ps_cpu_groupnorm_sum_bytes(&g));
        ps_cpu_groupnorm_forward(&g, x, dy, dy + 50, y);
        put_shape(o, &image, y);
        ps_cpu_groupnorm_backward(&g, x, dy, dy + 20, dweight, dbias, false, dx, false);
        put_shape(o, &image, dx);
        put(o, dweight, sizeof dweight);
        free(g.channels), free(g.sums);
    }
    for (int relu = 0; relu < 2; relu++) {
        ps_cpu_sum_forward(count - 3, x, dy, y, relu);
        ps_cpu_pass(count - 3, dy, dx, relu);
        put_shape(o, &s, y);
        put_shape(o, &s, dx);
    }
}

/* Every finite x, however large, has the finite output and slope of the formulas. */
TEST(large_numbers)
{
    static const float values[] = {1e-30f, 5.0f,  13.5f, 60.0f, 88.0f, 120.0f,
                                   1e4f,   1e10f, 1e20f, 1e30f, 3e38f, 0.0f};
    enum { N = sizeof values / sizeof *values };
    const ps_cpu_shape s = shape_of(1, 2 * N, 1, 1, 1);
    const ps_layer_kind kinds[] = {PS_LAYER_SILU, PS_LAYER_GELU, PS_LAYER_GELU_TANH};
    for (int i = 0; i < 2 * N; i++) {
        x[i] = i % 2 ? -values[i / 2] : values[i / 2];
        dy[i] = 1.0f;
    }
    for (int k = 0; k < 3; k++) {
        const ps_layer layer = {.kind = kinds[k]};
        ps_cpu_activation_forward(&layer, &s, x, y);
        ps_cpu_activation_backward(&layer, 2 * N, x, dy, dx, false);
        for (int i = 0; i < 2 * N; i++) {
            const double v = (double)x[i];
            double value = v / (1 + exp(-v)), slope = v < 0 ? 0 : 1;
            if (k > 0) value = v * erfc(-v / sqrt(2)) / 2;
            assert_true(fabs((double)y[i] - value) <= 1e-3 * fabs(value) + 1e-5);
            if (fabs(v) > 60) assert_true(fabs((double)dx[i] - slope) < 1e-6);
            assert_true(isfinite(dx[i]));
        }
    }
}

static void compute_moved(output *o)
{
    static const ps_interpolation modes[] = {PS_INTERPOLATE_NEAREST,
                                             PS_INTERPOLATE_BILINEAR, PS_INTERPOLATE_MEAN,
                                             PS_INTERPOLATE_MAX};
    static uint32_t places[MOST];
    static const int64_t lanes[] = {1, 8, 16, 21};
    fill(1, MOST, x);
    fill(2, MOST, dx);
    for (int i = 0; i < 16; i++) {
        const ps_cpu_interpolate op = {shape_of(2, 21, 7, 5, lanes[i % 4]),
                                       shape_of(2, 21, 11, 9, lanes[i % 4]),
                                       modes[i / 4]};
        uint32_t *argmax = op.mode == PS_INTERPOLATE_MAX ? places : NULL;
        ps_cpu_interpolate_forward(&op, x, y, argmax);
        put_shape(o, &op.out, y);
        ps_cpu_interpolate_backward(&op, y, argmax, dx, i % 2);
        put_shape(o, &op.in, dx);
    }
    for (int i = 0; i < 4; i++) {
        const ps_cpu_shape a = shape_of(2, 16, 5, 4, lanes[i]);
        const ps_cpu_shape b = shape_of(2, 21, 5, 4, lanes[(i + 1) % 4]);
        const ps_cpu_shape both =
            shape_of(2, 37, 5, 4, ps_cpu_concat_lanes(&a, 37, i == 2));
        ps_cpu_concat_forward(PS_CPU_FLOAT32, &a, x, &both, 0, y);
        ps_cpu_concat_forward(PS_CPU_FLOAT32, &b, x, &both, a.c, y);
        put_shape(o, &both, y);
        ps_cpu_concat_backward(PS_CPU_FLOAT32, &both, a.c, y, &b, dx, i % 2);
        put_shape(o, &b, dx);
    }
}

TEST(moved)
{
    same_at_every_level(compute_moved);
}

TEST(pointwise)
{
    same_at_every_level(compute_pointwise);
}

/* Layers of values of 16 bits: x, dy to y, dx. */
static void compute_layers_of(ps_cpu_factors type, output *o)
{
    static uint16_t hx[MOST], hdy[MOST], hy[MOST];
    const ps_cpu_shape a = shape_of(2, 16, 5, 4, 16), b = shape_of(2, 21, 5, 4, 21);
    const ps_cpu_shape both = shape_of(2, 37, 5, 4, 37);
    const ps_layer conv = {.kernel = {3, 3},
                           .stride = {1, 1},
                           .padding = {1, 1},
                           .dilation = {1, 1},
                           .out = {3, {1, 5, 4}}};
    const ps_cpu_windows w = ps_cpu_windows_of(&conv, &b);
    const ps_layer silu = {.kind = PS_LAYER_SILU};
    const int64_t count = ps_cpu_shape_count(&both);
    fill(3, count, x);
    fill(4, count, y);
    ps_cpu_narrow(type, count, x, hx);
    ps_cpu_narrow(type, count, y, hdy);
    ps_cpu_activation_forward_narrow(type, &silu, &both, hx, hy);
    put(o, hy, (size_t)count * sizeof *hy);
    ps_cpu_activation_backward_narrow(type, &silu, count, hx, hdy, hy, true);
    ps_cpu_sum_forward_narrow(type, count - 3, hy, hdy, hy, true);
    ps_cpu_pass_narrow(type, count - 3, hdy, hy, true);
    ps_cpu_pass_rounded(type, count - 5, x, hy, true);
    ps_cpu_concat_forward(type, &a, hx, &both, 0, hy);
    ps_cpu_concat_backward(type, &both, 16, hdy, &b, hy, true);
    put(o, hy, (size_t)count * sizeof *hy);
    ps_cpu_windows_gather(&w, sizeof *hx, hx, dx);
    put(o, dx, (size_t)(ps_cpu_windows_rows(&w) * ps_cpu_windows_columns(&w)) * 2);
    ps_cpu_windows_gather(&w, sizeof *x, x, dx);
    ps_cpu_windows_sum(&w, dx, y);
    put_shape(o, &b, y);
}

static void compute_narrow_layers(output *o)
{
    compute_layers_of(PS_CPU_BF16, o);
    compute_layers_of(PS_CPU_FP16, o);
}

static void compute_narrow(output *o)
{
    static const ps_cpu_factors types[] = {PS_CPU_BF16, PS_CPU_FP16};
    static uint16_t half[MOST];
    fill(1, MOST, x);
    for (int t = 0; t < 2; t++) {
        ps_cpu_narrow(types[t], MOST - 3, x, half);
        put(o, half, (MOST - 3) * sizeof *half);
        ps_cpu_widen(types[t], MOST - 3, half, dx);
        ps_cpu_narrow(ps_cpu_factors_rounded(types[t]), MOST - 3, x, y);
        assert_memory_equal(dx, y, (MOST - 3) * sizeof *y);
        put(o, y, (MOST - 3) * sizeof *y);
    }
}

TEST(narrow)
{
    same_at_every_level(compute_narrow);
    same_at_every_level(compute_narrow_layers);
}

static void put_pool(output *o, int64_t lanes, int64_t kernel, int64_t stride,
                     int64_t padding)
{
    static uint32_t argmax[MOST];
    ps_cpu_pool p = {.in = shape_of(2, 21, 12, 12, lanes),
                     .kernel = {kernel, kernel},
                     .stride = {stride, stride},
                     .padding = {padding, padding},
                     .with_relu = stride == 2};
    const int64_t side = (12 + 2 * padding - kernel) / stride + 1;
    p.out = shape_of(2, 21, side, side, lanes);
    const size_t argmax_bytes = ps_cpu_pool_argmax_bytes(&p);
    assert_true(argmax_bytes <= sizeof argmax);
    fill(1, MOST, x);
    fill(2, MOST, dy);
    fill(3, MOST, dx);
    memset(argmax, 0, sizeof argmax);
    ps_cpu_max_pool_forward(&p, x, y, argmax);
    put_shape(o, &p.out, y);
    put(o, argmax, argmax_bytes);
    ps_cpu_max_pool_backward(&p, dy, argmax, dx, false);
    ps_cpu_max_pool_backward(&p, dy, argmax, dx, true);
    put_shape(o, &p.in, dx);
    ps_cpu_avg_pool_forward(&p, x, y);
    put_shape(o, &p.out, y);
    ps_cpu_avg_pool_backward(&p, dy, dx, true);
    put_shape(o, &p.in, dx);
}

static void compute_pools(output *o)
{
    static const int64_t all[] = {1, 8, 16, 21};
    for (int i = 0; i < 4; i++) {
        put_pool(o, all[i], 2, 2, 0);
        put_pool(o, all[i], 3, 2, 1);
        put_pool(o, all[i], 3, 1, 1);
    }
}

TEST(pools)
{
    same_at_every_level(compute_pools);
}

static void put_dropout(output *o, int64_t lanes, double p)
{
    static uint8_t mask[MOST];
    const ps_cpu_dropout d = {.shape = shape_of(3, 21, 9, 7, lanes), .p = p, .id = 4};
    const uint32_t positions[] = {0, 17, 70000};
    memset(mask, 0, sizeof mask);
    fill(1, MOST, x);
    fill(3, MOST, dx);
    ps_cpu_dropout_draw(&d, (ps_dropout_key){.seed = 99, .epoch = 2}, positions, mask);
    put(o, mask, ps_cpu_dropout_mask_bytes(&d));
    ps_cpu_dropout_forward(&d, mask, x, y);
    put_shape(o, &d.shape, y);
    ps_cpu_dropout_backward(&d, mask, x, dx, true);
    put_shape(o, &d.shape, dx);
}

static void compute_dropouts(output *o)
{
    put_dropout(o, 1, 0.5);
    put_dropout(o, 16, 0.25);
    put_dropout(o, 8, 1.0);
}

TEST(dropouts)
{
    same_at_every_level(compute_dropouts);
}

static void compute_layouts(output *o)
{
    const ps_cpu_shape rows = shape_of(2, 37, 7, 9, 1);
    fill(1, MOST, x);
    for (int64_t lanes = 8; lanes <= 16; lanes += 8) {
        const ps_cpu_shape blocked = shape_of(2, 37, 7, 9, lanes);
        ps_cpu_convert(&rows, x, &blocked, y, false);
        put_shape(o, &blocked, y);
        ps_cpu_convert(&blocked, y, &rows, dx, false);
        put_shape(o, &rows, dx);
        ps_cpu_convert(&blocked, y, &rows, dx, true);
        put_shape(o, &rows, dx);
    }
}

TEST(layouts)
{
    same_at_every_level(compute_layouts);
}

static void compute_pools_in_rows(output *o)
{
    static uint32_t argmax[MOST];
    static uint8_t mask[MOST];
    ps_cpu_pool p = {
        .in = shape_of(2, 21, 12, 12, 16), .kernel = {2, 2}, .stride = {2, 2}};
    p.out = shape_of(2, 21, 6, 6, 16);
    const ps_cpu_shape rows = shape_of(2, 21, 6, 6, 1);
    const ps_cpu_dropout d = {.shape = rows, .p = 0.5};
    fill(1, MOST, x);
    fill(2, MOST, dy);
    for (int i = 0; i < MOST; i++)
        mask[i] = i % 3 == 0;
    ps_cpu_pool_rows_forward(&p, &d, mask, x, y, argmax);
    put_shape(o, &rows, y);
    ps_cpu_pool_rows_backward(&p, &d, mask, dy, argmax, dx, false);
    put_shape(o, &p.in, dx);
}

TEST(pools_in_rows)
{
    same_at_every_level(compute_pools_in_rows);
}

/* Numbers whose sums are finite. */
static void fill_norm(uint64_t seed, uint64_t n, float *out)
{
    fill(seed, n, out);
    for (uint64_t i = 0; i < n; i++)
        if (!(out[i] < 1.0f && out[i] > -1.0f)) out[i] = 0.5f;
}

static void put_norm(output *o, const ps_cpu_shape *s, bool relu)
{
    static double scratch[MOST];
    static float mean[600], variance[600], inv[600], sums[2][600], weight[600], bias[600];
    const ps_cpu_batchnorm_channels channels = {mean, inv, weight, bias};
    const ps_cpu_batchnorm_passed passed = {x, dy, relu ? y : NULL};
    const size_t bytes = (size_t)s->c * sizeof(float);
    assert_true(s->c <= 600 && ps_cpu_batchnorm_scratch_bytes(s) <= sizeof scratch);
    fill(4, 600, weight);
    fill(5, 600, bias);
    ps_cpu_batchnorm_moments(s, x, scratch, mean, variance);
    ps_cpu_batchnorm_invert(s->c, variance, 1e-5f, inv);
    ps_cpu_batchnorm_values(s, &channels, x, relu, y);
    ps_cpu_batchnorm_sums(s, &channels, &passed, scratch, sums[0], sums[1]);
    ps_cpu_batchnorm_gradient(s, &channels, &passed, sums[0], sums[1], dx, !relu);
    put(o, mean, bytes);
    put(o, inv, bytes);
    put_shape(o, s, y);
    put(o, sums[0], bytes);
    put(o, sums[1], bytes);
    put_shape(o, s, dx);
}

static void compute_norms(output *o)
{
    static const int64_t all[][2] = {{21, 1}, {21, 8}, {21, 16}, {21, 21}, {600, 600}};
    for (int i = 0; i < 5; i++) {
        const ps_cpu_shape s = shape_of(3, all[i][0], 4, 5, all[i][1]);
        for (int relu = 0; relu < 2; relu++) {
            fill_norm(1, MOST, x);
            fill_norm(2, MOST, dy);
            fill_norm(3, MOST, dx);
            put_norm(o, &s, relu);
        }
    }
}

TEST(norms)
{
    same_at_every_level(compute_norms);
}

static void compute_linear(output *o)
{
    static float weight[37 * 53], bias[37], dbias[37];
    const ps_cpu_linear l = {.name = "l", .n = 11, .in = 53, .out = 37};
    fill(1, MOST, x);
    fill(2, MOST, dy);
    fill(3, 37 * 53, weight);
    fill(4, 37, bias);
    for (int relu = 0; relu < 2; relu++) {
        assert_ok(ps_cpu_linear_forward(&l, x, weight, bias, y, relu));
        put(o, y, 11 * 37 * sizeof *y);
        assert_ok(ps_cpu_linear_backward_weights(&l, x, dy, dx, dbias, relu));
        put(o, dbias, sizeof dbias);
    }
}

TEST(linear)
{
    same_at_every_level(compute_linear);
}

/* A loop that adds up a vector has other bits with other vectors, unless its lanes are
 * counted: rows of several vectors, of a part of one, and of both. */
static void compute_interaction(output *o)
{
    static const int64_t dims[] = {1, 4, 7, 16, 24, 61};
    static float da[MOST];
    fill_norm(1, MOST, x);
    fill_norm(2, MOST, dy);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const ps_cpu_interaction op = {.samples = 3, .vectors = 5, .dim = dims[i]};
        const size_t samples = (size_t)op.samples, dim = (size_t)dims[i];
        fill_norm(3, MOST, dx);
        ps_cpu_interaction_forward(&op, x, x + samples * dim, y);
        put(o, y, samples * (dim + 15) * sizeof *y);
        ps_cpu_interaction_backward(&op, x, x + samples * dim, dy, da, false, dx, true);
        put(o, da, samples * dim * sizeof *da);
        put(o, dx, samples * 5 * dim * sizeof *dx);
    }
}

TEST(interactions)
{
    same_at_every_level(compute_interaction);
}
