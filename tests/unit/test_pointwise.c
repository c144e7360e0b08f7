/* The activations against libm in double; those of 16 bits against those of float32. */
#include <float.h>
#include <math.h>

#include "check.h"
#include "cpu_activation.h"
#include "cpu_factors.h"
#include "cpu_pointwise.h"

enum { N = 4096 };

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

/* Checks N values, `step` apart, from x on: the error is at most that many units in the
 * last place. */
static void check(ps_layer_kind kind, double (*exact)(double), double x, double step,
                  double units)
{
    static float in[N], out[N];
    const ps_cpu_shape shape = {.n = N, .c = 1, .h = 1, .w = 1, .lanes = 1, .blocks = 1};
    for (int i = 0; i < N; i++)
        in[i] = (float)(x + i * step);
    ps_cpu_activation_forward(&(ps_layer){.kind = kind, .alpha = 1}, &shape, in, out);
    for (int i = 0; i < N; i++) {
        double want = exact((double)in[i]), unit = FLT_EPSILON / 2 * fabs(want);
        if (fabs(out[i] - want) > units * 2 * unit + (double)FLT_MIN)
            fail_msg("of %a: %a, not %a", (double)in[i], (double)out[i], want);
    }
}

TEST(test_tanh)
{
    check(PS_LAYER_TANH, tanh, -12, 24.0 / N, 2);
    check(PS_LAYER_TANH, tanh, -1, 2.0 / N, 2);
    check(PS_LAYER_TANH, tanh, -1e-6, 2e-6 / N, 2);
}

TEST(test_sigmoid)
{
    check(PS_LAYER_SIGMOID, sigmoid, -86, 172.0 / N, 3);
    check(PS_LAYER_SIGMOID, sigmoid, -2, 4.0 / N, 3);
}

static double silu(double x)
{
    return x * sigmoid(x);
}

static double gelu(double x)
{
    return x * erfc(-x / sqrt(2)) / 2;
}

/* Far below 0 the result is a difference of nearly equal numbers. */
TEST(test_gelu_and_its_like)
{
    check(PS_LAYER_ELU, expm1, -86, 86.0 / N, 3);
    check(PS_LAYER_ELU, expm1, -1e-3, 1e-3 / N, 3);
    check(PS_LAYER_SILU, silu, -80, 160.0 / N, 4);
    check(PS_LAYER_GELU, gelu, -1, 3.0 / N, 4);
    check(PS_LAYER_GELU, gelu, 1, 20.0 / N, 4);
    check(PS_LAYER_GELU, gelu, -5, 4.0 / N, 24);
}

TEST(test_what_is_no_usual_number)
{
    float x[] = {NAN, INFINITY, -INFINITY, -0.0f, 0x1p-140f, 200.0f, -200.0f}, y[7];
    const ps_cpu_shape shape = {.n = 7, .c = 1, .h = 1, .w = 1, .lanes = 1, .blocks = 1};
    ps_cpu_activation_forward(&(ps_layer){.kind = PS_LAYER_TANH}, &shape, x, y);
    assert_true(isnan(y[0]) && y[1] == 1 && y[2] == -1 && y[3] == 0 && signbit(y[3]));
    assert_true(y[4] == 0x1p-140f && y[5] == 1 && y[6] == -1);
    ps_cpu_activation_forward(&(ps_layer){.kind = PS_LAYER_SIGMOID}, &shape, x, y);
    assert_true(isnan(y[0]) && y[1] == 1 && y[2] < 1e-37f && y[3] == 0.5f);
    assert_true(y[4] == 0.5f && y[5] == 1 && y[6] < 1e-37f);
    static const ps_layer_kind others[] = {PS_LAYER_ELU, PS_LAYER_GELU,
                                           PS_LAYER_GELU_TANH, PS_LAYER_SILU,
                                           PS_LAYER_LEAKY_RELU};
    for (int k = 0; k < 5; k++) {
        ps_cpu_activation_forward(&(ps_layer){.kind = others[k], .alpha = 1}, &shape, x,
                                  y);
        assert_true(isnan(y[0]) && isinf(y[1]) && y[3] == 0 && y[5] == 200.0f);
        const float most = others[k] == PS_LAYER_LEAKY_RELU ? 200.0f : 1.0f;
        assert_true(fabsf(y[6]) <= most && fabsf(y[4]) <= 0x1p-140f);
    }
}

enum { NARROW = 70001 }; // more than two blocks, of which one is not full

static struct {
    uint16_t x[NARROW], dy[NARROW], dx[NARROW], y[NARROW], want[NARROW];
    float wide_x[NARROW], wide_dy[NARROW], wide_dx[NARROW];
} narrow;

static void fill_narrow(ps_cpu_factors type)
{
    uint32_t state = 7;
    uint16_t *const all[] = {narrow.x, narrow.dy, narrow.dx};
    for (int a = 0; a < 3; a++) {
        for (int i = 0; i < NARROW; i++) {
            state = state * 1664525u + 1013904223u;
            all[a][i] =
                ps_cpu_narrow_of(type == PS_CPU_FP16, (float)(int32_t)state * 0x1p-29f);
        }
    }
    ps_cpu_widen(type, NARROW, narrow.x, narrow.wide_x);
    ps_cpu_widen(type, NARROW, narrow.dy, narrow.wide_dy);
    ps_cpu_widen(type, NARROW, narrow.dx, narrow.wide_dx);
}

/* wide: what the float32 function has made. */
static void check_narrow(ps_cpu_factors type, const float *wide, const uint16_t *made)
{
    ps_cpu_narrow(type, NARROW, wide, narrow.want);
    assert_memory_equal(made, narrow.want, sizeof narrow.want);
}

static void check_narrow_activation(ps_cpu_factors type, ps_layer_kind kind)
{
    const ps_layer layer = {.kind = kind, .alpha = 0.5};
    const ps_cpu_shape shape = {
        .n = NARROW, .c = 1, .h = 1, .w = 1, .lanes = 1, .blocks = 1};
    for (int add = 0; add < 2; add++) {
        fill_narrow(type);
        ps_cpu_activation_backward_narrow(type, &layer, NARROW, narrow.x, narrow.dy,
                                          narrow.dx, add);
        ps_cpu_activation_backward(&layer, NARROW, narrow.wide_x, narrow.wide_dy,
                                   narrow.wide_dx, add);
        check_narrow(type, narrow.wide_dx, narrow.dx);
    }
    ps_cpu_activation_forward_narrow(type, &layer, &shape, narrow.x, narrow.y);
    ps_cpu_activation_forward(&layer, &shape, narrow.wide_x, narrow.wide_dy);
    check_narrow(type, narrow.wide_dy, narrow.y);
}

/* The results are those of float32, rounded once. */
static void check_type(ps_cpu_factors type)
{
    static const ps_layer_kind kinds[] = {
        PS_LAYER_RELU, PS_LAYER_RELU6, PS_LAYER_LEAKY_RELU,
        PS_LAYER_ELU,  PS_LAYER_TANH,  PS_LAYER_SIGMOID,
        PS_LAYER_SILU, PS_LAYER_GELU,  PS_LAYER_GELU_TANH};
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        check_narrow_activation(type, kinds[i]);
    for (int flag = 0; flag < 2; flag++) {
        fill_narrow(type);
        ps_cpu_sum_forward_narrow(type, NARROW, narrow.x, narrow.dy, narrow.y, flag);
        ps_cpu_pass_rounded(type, NARROW, narrow.wide_x, narrow.dx, flag);
        ps_cpu_pass(NARROW, narrow.wide_x, narrow.wide_dx, flag);
        check_narrow(type, narrow.wide_dx, narrow.dx);
        ps_cpu_sum_forward(NARROW, narrow.wide_x, narrow.wide_dy, narrow.wide_dy, flag);
        check_narrow(type, narrow.wide_dy, narrow.y);
        fill_narrow(type);
        ps_cpu_pass_narrow(type, NARROW, narrow.x, narrow.dx, flag);
        ps_cpu_pass(NARROW, narrow.wide_x, narrow.wide_dx, flag);
        check_narrow(type, narrow.wide_dx, narrow.dx);
    }
}

TEST(test_bf16)
{
    check_type(PS_CPU_BF16);
}

TEST(test_fp16)
{
    check_type(PS_CPU_FP16);
}
