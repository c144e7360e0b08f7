/* Lambda has the Beta distribution; samples and labels are mixed as v2.MixUp does it. */
#include <math.h>

#include "check.h"
#include "mixup.h"

enum { DRAWS = 200000 };

static int compare(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void draw(double alpha, float *out)
{
    for (uint32_t i = 0; i < DRAWS; i++)
        out[i] = ps_mixup_lambda(alpha, (ps_draw_key){7, i / 1000, 64 * (i % 1000)});
}

/* E = 1/2; Var = 1 / (4 (2 a + 1)); E (x - 1/2)^4 = 3 / (16 (2 a + 1) (2 a + 3)). Bounds:
 * five standard errors. */
static void check_moments(double alpha, const float *v)
{
    const double variance = 1 / (4 * (2 * alpha + 1));
    const double fourth = 3 / (16 * (2 * alpha + 1) * (2 * alpha + 3));
    double sum = 0, square = 0;
    for (int i = 0; i < DRAWS; i++) {
        assert_true(v[i] >= 0 && v[i] <= 1);
        sum += v[i] - 0.5;
        square += (v[i] - 0.5) * (v[i] - 0.5);
    }
    assert_true(fabs(sum / DRAWS) < 5 * sqrt(variance / DRAWS));
    assert_true(fabs(square / DRAWS - variance) <
                5 * sqrt((fourth - variance * variance) / DRAWS) + 1e-12);
}

static double uniform(double x)
{
    return x;
}

static double arcsine(double x)
{
    return 2 / 3.14159265358979323846 * asin(sqrt(x));
}

static double parabola(double x)
{
    return x * x * (3 - 2 * x);
}

/* Kolmogorov and Smirnov's distance from the closed form; 1.95 / sqrt(n) is exceeded by
 * one of a thousand samples. */
static void check_distribution(float *v, double (*of)(double))
{
    double worst = 0;
    qsort(v, DRAWS, sizeof *v, compare);
    for (int i = 0; i < DRAWS; i++)
        worst = fmax(worst, fabs(of(v[i]) - (i + 0.5) / DRAWS));
    assert_true(worst < 1.95 / sqrt(DRAWS));
}

TEST(lambda_has_the_beta_distribution)
{
    static const double alphas[] = {1e-3, 0.05, 0.2, 0.4, 0.5, 1, 2, 8, 1000};
    float *v = malloc(DRAWS * sizeof *v);
    for (size_t i = 0; i < sizeof alphas / sizeof *alphas; i++) {
        draw(alphas[i], v);
        check_moments(alphas[i], v);
        if (alphas[i] == 0.5) check_distribution(v, arcsine);
        if (alphas[i] == 1) check_distribution(v, uniform);
        if (alphas[i] == 2) check_distribution(v, parabola);
    }
    free(v);
}

TEST(lambda_depends_on_all_of_the_key)
{
    const float own = ps_mixup_lambda(0.4, (ps_draw_key){7, 3, 64});
    assert_true(own == ps_mixup_lambda(0.4, (ps_draw_key){7, 3, 64}));
    assert_true(own != ps_mixup_lambda(0.4, (ps_draw_key){8, 3, 64}));
    assert_true(own != ps_mixup_lambda(0.4, (ps_draw_key){7 | 1ull << 32, 3, 64}));
    assert_true(own != ps_mixup_lambda(0.4, (ps_draw_key){7, 4, 64}));
    assert_true(own != ps_mixup_lambda(0.4, (ps_draw_key){7, 3, 65}));
}

static void check(const float *found, const float *wanted, int n)
{
    for (int i = 0; i < n; i++)
        assert_true(found[i] == wanted[i]);
}

/* By hand; all numbers are exact in float32. */
TEST(a_batch_is_mixed_with_itself_rolled_by_one)
{
    float x[] = {1, 2, 10, 20, 100, 200}, targets[9], last[2];
    ps_mixup_samples(0.25f, 3, 2, x, last);
    check(x, (const float[]){75.25f, 150.5f, 3.25f, 6.5f, 32.5f, 65}, 6);
    ps_mixup_targets(0.25f, 3, 3, (const int32_t[]){2, 0, 2}, targets);
    check(targets, (const float[]){0, 0, 1, 0.25f, 0, 0.75f, 0.75f, 0, 0.25f}, 9);
    ps_mixup_samples(0.25f, 1, 2, x, last);
    check(x, (const float[]){75.25f, 150.5f}, 2);
}
