#include <math.h>

#include "check.h"
#include "random_box.h"

enum { DRAWS = 20000, SIDE = 1000 };

static const double scale[2] = {0.08, 1}, ratio[2] = {3.0 / 4, 4.0 / 3};

static void is_within(ps_box b, int64_t width, int64_t height)
{
    assert_true(b.left >= 0 && b.top >= 0 && b.width >= 1 && b.height >= 1);
    assert_true(b.left + b.width <= width && b.top + b.height <= height);
}

static void near(double value, double want, double tolerance)
{
    if (!(fabs(value - want) <= tolerance)) fail_msg("%g instead of %g", value, want);
}

/* Parts of at most half the area always fit. So the area, the logarithm of the ratio and
 * the place have uniform distributions. */
TEST(draws_are_uniform)
{
    const double half[2] = {0.1, 0.5};
    double area = 0, area2 = 0, shape = 0, left = 0, top = 0;
    for (uint32_t i = 0; i < DRAWS; i++) {
        const ps_box b = ps_random_box(half, ratio, SIDE, SIDE, (ps_draw_key){1, 2, i});
        is_within(b, SIDE, SIDE);
        const double part = (double)(b.width * b.height) / (SIDE * SIDE);
        area += part / DRAWS;
        area2 += part * part / DRAWS;
        shape += log((double)b.width / (double)b.height) / DRAWS;
        left += (double)b.left / (double)(SIDE - b.width) / DRAWS;
        top += (double)b.top / (double)(SIDE - b.height) / DRAWS;
    }
    // Five standard errors of DRAWS draws.
    near(area, 0.3, 5 * 0.4 / sqrt(12.0 * DRAWS));
    near(area2 - area * area, 0.4 * 0.4 / 12, 0.0005);
    near(shape, 0, 5 * 2 * log(4.0 / 3) / sqrt(12.0 * DRAWS));
    near(left, 0.5, 5 / sqrt(12.0 * DRAWS));
    near(top, 0.5, 5 / sqrt(12.0 * DRAWS));
}

static bool same(ps_box a, ps_box b)
{
    return a.left == b.left && a.top == b.top && a.width == b.width &&
           a.height == b.height;
}

TEST(draws_depend_on_seed_epoch_and_position)
{
    const ps_draw_key key = {1, 2, 3}, others[] = {{2, 2, 3}, {1, 3, 3}, {1, 2, 4}};
    const ps_box box = ps_random_box(scale, ratio, SIDE, SIDE, key);
    assert_true(same(box, ps_random_box(scale, ratio, SIDE, SIDE, key)));
    for (int i = 0; i < 3; i++)
        assert_false(same(box, ps_random_box(scale, ratio, SIDE, SIDE, others[i])));
}

/* A whole picture whose ratio is far outside the bounds gives its middle, as in
 * RandomResizedCrop. */
TEST(long_pictures_give_their_middle)
{
    const double whole[2] = {1, 1};
    ps_box b = ps_random_box(whole, ratio, 900, 30, (ps_draw_key){1, 2, 3});
    assert_true(same(b, (ps_box){430, 0, 40, 30}));
    b = ps_random_box(whole, ratio, 30, 900, (ps_draw_key){1, 2, 3});
    assert_true(same(b, (ps_box){0, 430, 30, 40}));
    for (uint32_t i = 0; i < 1000; i++) {
        const int64_t w = 1 + i % 7, h = 1 + i % 65;
        is_within(ps_random_box(scale, ratio, w, h, (ps_draw_key){1, 2, i}), w, h);
    }
}
