#include <math.h>

#include "check.h"
#include "color_jitter.h"

/* What the factors do to pixels is compared with Pillow in system/test_pictures.py. */

enum { DRAWS = 20000 };

static void near(double value, double want, double tolerance)
{
    if (!(fabs(value - want) <= tolerance)) fail_msg("%g instead of %g", value, want);
}

/* The means are those of uniform distributions, within five standard errors. Every order
 * is drawn equally often. */
TEST(draws_are_uniform)
{
    const ps_float_list amount = {2, {0.4, 1.5}};
    double mean[2] = {0, 0}, first[3] = {0, 0, 0};
    for (uint32_t i = 0; i < DRAWS; i++) {
        const ps_color_jitter j = ps_color_jitter_draw(&amount, (ps_draw_key){1, 2, i});
        assert_true(j.factor[0] >= 0.6f && j.factor[0] <= 1.4f);
        assert_true(j.factor[1] >= 0 && j.factor[1] <= 2.5f);
        assert_true(j.factor[2] == 1);
        assert_int_equal(1 << j.order[0] | 1 << j.order[1] | 1 << j.order[2], 7);
        assert_int_equal(j.order[3], 3);
        assert_false(j.turns);
        for (int k = 0; k < 2; k++)
            mean[k] += (double)j.factor[k] / DRAWS;
        first[j.order[0]] += 1.0 / DRAWS;
    }
    near(mean[0], 1, 5 * 0.8 / sqrt(12.0 * DRAWS));
    near(mean[1], 1.25, 5 * 2.5 / sqrt(12.0 * DRAWS));
    for (int k = 0; k < 3; k++)
        near(first[k], 1.0 / 3, 5 * sqrt(2.0 / 9 / DRAWS));
}

/* The factors are the same as without the hue. The turn is uniform, and each of 24 orders
 * is drawn equally often. */
TEST(the_hue_is_turned)
{
    const ps_float_list amount = {4, {0.4, 1.5, 0, 0.25}};
    const ps_float_list less = {2, {0.4, 1.5}};
    double mean = 0, square = 0, part[256] = {0};
    for (uint32_t i = 0; i < DRAWS; i++) {
        const ps_color_jitter j = ps_color_jitter_draw(&amount, (ps_draw_key){1, 2, i});
        const ps_color_jitter k = ps_color_jitter_draw(&less, (ps_draw_key){1, 2, i});
        assert_true(j.turns && j.factor[3] >= -0.25f && j.factor[3] <= 0.25f);
        assert_memory_equal(j.factor, k.factor, 3 * sizeof *j.factor);
        mean += (double)j.factor[3] / DRAWS;
        square += (double)j.factor[3] * (double)j.factor[3] / DRAWS;
        part[j.order[0] << 6 | j.order[1] << 4 | j.order[2] << 2 | j.order[3]] +=
            1.0 / DRAWS;
    }
    near(mean, 0, 5 * 0.25 / sqrt(3.0 * DRAWS));
    near(square, 0.0625 / 3, 5 * 0.0625 * sqrt(4.0 / 45 / DRAWS));
    int n = 0;
    for (int i = 0; i < 256; i++)
        if (part[i] > 0) {
            near(part[i], 1.0 / 24, 5 * sqrt(23.0 / 24 / 24 / DRAWS));
            n++;
        }
    assert_int_equal(n, 24);
}

TEST(factors_of_one_change_nothing)
{
    const ps_float_list none = {4, {0, 0, 0, 0}};
    uint8_t pixels[3 * 64], before[3 * 64];
    for (int i = 0; i < 3 * 64; i++)
        pixels[i] = before[i] = (uint8_t)(i * 37);
    const ps_color_jitter j = ps_color_jitter_draw(&none, (ps_draw_key){1, 2, 3});
    ps_color_jitter_apply(&j, pixels, 3, 64);
    assert_memory_equal(pixels, before, sizeof pixels);
}
