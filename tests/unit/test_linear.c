/* The linear layer's forward pass against sums in double: with few outputs, and with
 * enough outputs that the transpose is computed first. */
#include <math.h>

#include "check.h"
#include "cpu_linear.h"
#include "rng.h"

enum { SAMPLES = 33, IN = 130, OUT = 140 };

static float x[SAMPLES * IN], weight[OUT * IN], bias[OUT];
static float y[SAMPLES * OUT], turned[SAMPLES * OUT];

static void draw(uint64_t seed, uint64_t n, float *out)
{
    ps_mt19937 g;
    ps_mt19937_seed(&g, seed);
    ps_uniform(&g, -1.0f, 1.0f, 0, n, out);
}

static double value(const ps_cpu_linear *l, int64_t sample, int64_t out, bool relu)
{
    double sum = (double)bias[out];
    for (int64_t i = 0; i < l->in; i++)
        sum += (double)x[sample * l->in + i] * (double)weight[out * l->in + i];
    return relu ? fmax(sum, 0) : sum;
}

static void check(int64_t n, int64_t in, int64_t out, bool is_turned)
{
    ps_cpu_linear l = {.name = "l", .n = n, .in = in, .out = out};
    const size_t bytes = ps_cpu_linear_turned_bytes(&l);
    assert_int_equal(bytes, is_turned ? (size_t)(n * out) * sizeof(float) : 0);
    if (bytes > 0) l.turned = turned;
    for (int relu = 0; relu < 2; relu++) {
        assert_int_equal(ps_cpu_linear_forward(&l, x, weight, bias, y, relu), 0);
        for (int64_t i = 0; i < n * out; i++) {
            double want = value(&l, i / out, i % out, relu);
            if (fabs((double)y[i] - want) > 1e-5)
                fail_msg("%lld of %lld: %g, not %g", (long long)i, (long long)(n * out),
                         (double)y[i], want);
        }
    }
}

TEST(test_forward)
{
    draw(1, SAMPLES * IN, x);
    draw(2, OUT * IN, weight);
    draw(3, OUT, bias);
    check(1, IN, OUT, false);
    check(15, IN, OUT, false);
    check(16, IN, 63, false);
    check(16, IN, 64, true);
    check(17, 33, 70, true);
    check(33, IN, OUT, true);
}
