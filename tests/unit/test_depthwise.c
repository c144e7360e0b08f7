/* The gradients of a depthwise convolution, in every layout: the weights' against sums of
 * the windows that cpu_windows gathers, the inputs' against its definition; the same bits
 * at every level and with any number of threads. */
#include <math.h>
#include <omp.h>

#include "../support/levels.h"
#include "check.h"
#include "cpu_depthwise.h"

typedef struct shape {
    int64_t n, c, h, w, kernel[2], stride[2], padding[2], dilation[2];
} shape;

static const shape shapes[] = {
    {2, 20, 9, 11, {5, 5}, {1, 1}, {2, 2}, {1, 1}},
    {3, 8, 7, 5, {4, 1}, {2, 1}, {0, 0}, {1, 1}},
    {1, 33, 6, 6, {1, 5}, {1, 3}, {0, 2}, {1, 1}},
    {2, 13, 12, 10, {5, 4}, {2, 3}, {4, 3}, {2, 1}},
    {2, 16, 3, 2, {7, 7}, {1, 1}, {3, 3}, {1, 1}}, // windows larger than the picture
    {1, 9, 16, 16, {16, 16}, {1, 1}, {0, 0}, {1, 1}},
    {2, 24, 14, 17, {3, 3}, {1, 1}, {2, 2}, {2, 2}},
    {1, 8, 9, 9, {3, 3}, {1, 1}, {12, 12}, {12, 12}}, // all but the centre in the padding
    {2, 10, 11, 13, {3, 3}, {2, 2}, {2, 2}, {2, 2}},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

static int64_t side_of(const shape *s, int i, int64_t side)
{
    return (side + 2 * s->padding[i] - s->dilation[i] * (s->kernel[i] - 1) - 1) /
               s->stride[i] +
           1;
}

static ps_layer layer_of(const shape *s)
{
    ps_layer l = {.kind = PS_LAYER_CONV2D,
                  .in = {3, {s->c, s->h, s->w}},
                  .out = {3, {s->c, side_of(s, 0, s->h), side_of(s, 1, s->w)}},
                  .groups = s->c};
    for (int i = 0; i < 2; i++) {
        l.kernel[i] = s->kernel[i];
        l.stride[i] = s->stride[i];
        l.padding[i] = s->padding[i];
        l.dilation[i] = s->dilation[i];
    }
    return l;
}

/* Of one shape in one layout. */
typedef struct problem {
    ps_layer layer;
    ps_cpu_windows windows;
    ps_cpu_shape out;
    int64_t n_weights, n_x;
    float *x, *dy, *dweight, *dbias, *weight, *dx;
} problem;

static float *numbers(uint64_t seed, int64_t n)
{
    ps_mt19937 g;
    float *out = malloc(sizeof *out * (size_t)n);
    assert_non_null(out);
    ps_mt19937_seed(&g, seed);
    ps_uniform(&g, -1.0f, 1.0f, 0, (uint64_t)n, out);
    return out;
}

static problem problem_of(const shape *s, int64_t lanes)
{
    problem p = {.layer = layer_of(s)};
    const ps_cpu_shape in = ps_cpu_shape_make(s->n, &p.layer.in, lanes);
    p.out = ps_cpu_shape_make(s->n, &p.layer.out, lanes);
    p.windows = ps_cpu_windows_of(&p.layer, &in);
    p.n_weights = s->c * s->kernel[0] * s->kernel[1];
    p.n_x = ps_cpu_shape_count(&in);
    p.x = numbers(1, p.n_x);
    p.dy = numbers(2, ps_cpu_shape_count(&p.out));
    p.dweight = numbers(3, p.n_weights); // all must be overwritten
    p.dbias = numbers(4, s->c);
    p.weight = numbers(5, p.n_weights);
    p.dx = numbers(6, p.n_x);
    return p;
}

static void problem_free(problem *p)
{
    free(p->x);
    free(p->dy);
    free(p->dweight);
    free(p->dbias);
    free(p->weight);
    free(p->dx);
}

static float dy_at(const problem *p, int64_t row, int64_t c)
{
    const ps_cpu_shape *o = &p->out;
    const int64_t plane = ps_cpu_shape_plane(o), n = row / plane, at = row % plane;
    const int64_t block = n * o->blocks + c / o->lanes;
    return p->dy[(block * plane + at) * o->lanes + c % o->lanes];
}

/* What position (h, w) of a channel adds to the gradient of its window. */
static void add_window(const problem *p, int64_t n, int64_t c, int64_t h, int64_t w,
                       double *dx)
{
    const ps_cpu_windows *s = &p->windows;
    const int64_t row = (n * s->oh + h) * s->ow + w;
    for (int64_t i = 0; i < s->kernel[0]; i++) {
        for (int64_t j = 0; j < s->kernel[1]; j++) {
            const int64_t y = h * s->stride[0] + i * s->dilation[0] - s->padding[0];
            const int64_t x = w * s->stride[1] + j * s->dilation[1] - s->padding[1];
            if (y < 0 || y >= s->in.h || x < 0 || x >= s->in.w) continue;
            dx[y * s->in.w + x] += (double)dy_at(p, row, c) *
                                   p->weight[(c * s->kernel[0] + i) * s->kernel[1] + j];
        }
    }
}

/* Lanes that only fill a block are 0. */
static void check_data(const problem *p)
{
    const ps_cpu_windows *s = &p->windows;
    const int64_t lanes = s->in.lanes, size = ps_cpu_shape_plane(&s->in);
    double *want = malloc(sizeof *want * (size_t)size);
    assert_non_null(want);
    for (int64_t plane = 0; plane < s->in.n * s->in.blocks * lanes; plane++) {
        const int64_t n = plane / (s->in.blocks * lanes),
                      c = plane % (s->in.blocks * lanes);
        const float *dx =
            p->dx + (n * s->in.blocks + c / lanes) * size * lanes + c % lanes;
        memset(want, 0, sizeof *want * (size_t)size);
        for (int64_t at = 0; at < s->oh * s->ow && c < s->in.c; at++)
            add_window(p, n, c, at / s->ow, at % s->ow, want);
        for (int64_t at = 0; at < size; at++)
            assert_true(fabs(want[at] - dx[at * lanes]) < 1e-5);
    }
    free(want);
}

static void check(const problem *p)
{
    const int64_t rows = ps_cpu_windows_rows(&p->windows);
    const int64_t columns = ps_cpu_windows_columns(&p->windows);
    const int64_t elements = columns / p->out.c;
    float *matrix = malloc(sizeof *matrix * (size_t)(rows * columns));
    assert_non_null(matrix);
    ps_cpu_windows_gather(&p->windows, sizeof(float), p->x, matrix);
    for (int64_t c = 0; c < p->out.c; c++) {
        double bias = 0;
        for (int64_t r = 0; r < rows; r++)
            bias += dy_at(p, r, c);
        assert_true(fabs(bias - p->dbias[c]) < 1e-4);
        for (int64_t e = c * elements; e < (c + 1) * elements; e++) {
            double want = 0;
            for (int64_t r = 0; r < rows; r++)
                want += (double)dy_at(p, r, c) * matrix[r * columns + e];
            assert_true(fabs(want - p->dweight[e]) < 1e-4);
        }
    }
    free(matrix);
}

static void compute(output *o)
{
    for (int i = 0; i < N_SHAPES; i++) {
        const int64_t lanes[] = {8, 16, shapes[i].c};
        for (int l = 0; l < 3; l++) {
            problem p = problem_of(&shapes[i], lanes[l]);
            assert_true(ps_cpu_depthwise_can(&p.layer, &p.windows.in, &p.out));
            ps_cpu_depthwise_weights(&p.windows, p.x, p.dy, p.dweight, p.dbias);
            check(&p);
            put(o, p.dweight, sizeof(float) * (size_t)p.n_weights);
            put(o, p.dbias, sizeof(float) * (size_t)shapes[i].c);
            ps_cpu_depthwise_weights(&p.windows, p.x, p.dy, p.dweight, NULL);
            put(o, p.dweight, sizeof(float) * (size_t)p.n_weights);
            ps_cpu_depthwise_data(&p.windows, p.weight, p.dy, p.dx);
            check_data(&p);
            put(o, p.dx, sizeof(float) * (size_t)p.n_x);
            problem_free(&p);
        }
    }
}

TEST(every_layout_and_level)
{
    same_at_every_level(compute);
}

TEST(any_number_of_threads)
{
#ifdef __SANITIZE_THREAD__ // it does not know how OpenMP's threads wait for each other
    skip();
#endif
    output one = {0}, many = {0};
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    compute(&one);
    omp_set_num_threads(3);
    compute(&many);
    omp_set_num_threads(before);
    assert_int_equal(one.n, many.n);
    assert_memory_equal(one.bytes, many.bytes, one.n);
    free(one.bytes);
    free(many.bytes);
}

static bool can(const ps_layer *l, int64_t lanes, int64_t lanes_out)
{
    const ps_cpu_shape in = ps_cpu_shape_make(1, &l->in, lanes);
    const ps_cpu_shape out = ps_cpu_shape_make(1, &l->out, lanes_out);
    return ps_cpu_depthwise_can(l, &in, &out);
}

TEST(others_are_the_librarys)
{
    ps_layer l = layer_of(&shapes[0]);
    assert_true(can(&l, 8, 8));
    assert_false(can(&l, 1, 1));
    assert_false(can(&l, 4, 4));
    assert_false(can(&l, 8, 16));
    l.groups = 4;
    assert_false(can(&l, 8, 8));
    l = layer_of(&shapes[0]);
    l.kernel[0] = l.kernel[1] = 17;
    assert_false(can(&l, 8, 8));
}
