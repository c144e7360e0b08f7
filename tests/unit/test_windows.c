/* Windows as rows of a matrix, against the definition of a convolution's window, in every
 * layout; and their reverse, which is its transpose. */

#include "check.h"
#include "cpu_windows.h"

enum { N = 2, C = 19, H = 5, W = 4 };

/* kernel, stride, padding, dilation; of h and of w. */
static const int64_t settings[][4][2] = {
    {{1, 1}, {1, 1}, {0, 0}, {1, 1}}, {{3, 3}, {1, 1}, {1, 1}, {1, 1}},
    {{3, 2}, {2, 1}, {1, 0}, {1, 1}}, {{2, 3}, {2, 3}, {0, 1}, {2, 1}},
    {{5, 1}, {1, 2}, {2, 0}, {1, 1}}, {{3, 3}, {1, 1}, {3, 3}, {3, 3}}};

static int64_t outputs(const int64_t (*s)[2], int i, int64_t side)
{
    return (side + 2 * s[2][i] - s[3][i] * (s[0][i] - 1) - 1) / s[1][i] + 1;
}

static ps_cpu_windows windows_of(const int64_t (*s)[2], int64_t lanes)
{
    ps_layer l = {.kind = PS_LAYER_CONV2D, .in = {3, {C, H, W}}};
    const ps_cpu_shape in = ps_cpu_shape_make(N, &l.in, lanes);
    l.out = (ps_dims){3, {1, outputs(s, 0, H), outputs(s, 1, W)}};
    for (int i = 0; i < 2; i++) {
        l.kernel[i] = (int)s[0][i];
        l.stride[i] = (int)s[1][i];
        l.padding[i] = (int)s[2][i];
        l.dilation[i] = (int)s[3][i];
    }
    return ps_cpu_windows_of(&l, &in);
}

/* The offset in x of one element of the matrix; -1: padding. */
static int64_t offset_of(const ps_cpu_windows *w, int64_t row, int64_t column)
{
    const int64_t n = row / (w->oh * w->ow), p = row % (w->oh * w->ow);
    const int64_t elements = w->kernel[0] * w->kernel[1];
    const int64_t c = column / elements, k = column % elements;
    const int64_t h =
        p / w->ow * w->stride[0] + k / w->kernel[1] * w->dilation[0] - w->padding[0];
    const int64_t v =
        p % w->ow * w->stride[1] + k % w->kernel[1] * w->dilation[1] - w->padding[1];
    const ps_cpu_shape *in = &w->in;
    if (h < 0 || h >= H || v < 0 || v >= W) return -1;
    return (((n * in->blocks + c / in->lanes) * H + h) * W + v) * in->lanes +
           c % in->lanes;
}

static void check_gather(const ps_cpu_windows *w)
{
    const int64_t rows = ps_cpu_windows_rows(w), columns = ps_cpu_windows_columns(w);
    const int64_t count = ps_cpu_shape_count(&w->in);
    uint16_t *x = malloc(sizeof *x * (size_t)count), *out;
    float *whole = malloc(sizeof *whole * (size_t)count), *whole_out;
    out = malloc(sizeof *out * (size_t)(rows * columns));
    whole_out = malloc(sizeof *whole_out * (size_t)(rows * columns));
    assert_true(x && whole && out && whole_out);
    for (int64_t i = 0; i < count; i++)
        whole[i] = x[i] = (uint16_t)(i + 1);
    ps_cpu_windows_gather(w, sizeof *x, x, out);
    ps_cpu_windows_gather(w, sizeof *whole, whole, whole_out);
    for (int64_t i = 0; i < rows * columns; i++) {
        const int64_t at = offset_of(w, i / columns, i % columns);
        assert_int_equal(out[i], at < 0 ? 0 : at + 1);
        assert_true(whole_out[i] == (float)(at < 0 ? 0 : at + 1));
    }
    free(x);
    free(whole);
    free(out);
    free(whole_out);
}

static void check_sum(const ps_cpu_windows *w)
{
    const int64_t size = ps_cpu_windows_rows(w) * ps_cpu_windows_columns(w);
    const int64_t count = ps_cpu_shape_count(&w->in);
    float *matrix = malloc(sizeof *matrix * (size_t)size);
    float *dx = malloc(sizeof *dx * (size_t)count);
    float *want = calloc((size_t)count, sizeof *want);
    assert_true(matrix && dx && want);
    memset(dx, 0xFF, sizeof *dx * (size_t)count); // NaN: all must be overwritten
    for (int64_t i = 0; i < size; i++) {
        const int64_t columns = ps_cpu_windows_columns(w);
        const int64_t at = offset_of(w, i / columns, i % columns);
        matrix[i] = (float)(i % 1021);
        if (at >= 0) want[at] += matrix[i];
    }
    ps_cpu_windows_sum(w, matrix, dx);
    for (int64_t i = 0; i < count; i++)
        assert_true(dx[i] == want[i]);
    free(matrix);
    free(dx);
    free(want);
}

TEST(test_every_layout)
{
    const int64_t lanes[] = {1, 8, 16, C};
    for (size_t s = 0; s < sizeof settings / sizeof *settings; s++) {
        for (size_t l = 0; l < sizeof lanes / sizeof *lanes; l++) {
            const ps_cpu_windows w = windows_of(settings[s], lanes[l]);
            check_gather(&w);
            check_sum(&w);
        }
    }
}
