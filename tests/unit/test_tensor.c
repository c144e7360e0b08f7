/* Dimensions: text, products at their bounds. */
#include "tensor.h"

#include "check.h"

TEST(texts_are_pythons_tuples_of_counts)
{
    char text[PS_DIMS_TEXT];
    assert_string_equal(ps_dims_text(&(ps_dims){0, {0}}, text), "()");
    assert_string_equal(ps_dims_text(&(ps_dims){3, {64, 12, 12}}, text), "(64, 12, 12)");
    ps_dims widest = {4, {INT64_MIN, INT64_MIN, INT64_MIN, INT64_MIN}};
    assert_string_equal(ps_dims_text(&widest, text),
                        "(-9223372036854775808, -9223372036854775808, "
                        "-9223372036854775808, -9223372036854775808)");
}

TEST(products_are_bounded)
{
    const int64_t big = INT64_C(1) << 32;
    assert_int_equal(ps_dims_count_max(&(ps_dims){0, {0}}, 10), 1);
    assert_int_equal(ps_dims_count_max(&(ps_dims){2, {2, 5}}, 10), 10);
    assert_int_equal(ps_dims_count_max(&(ps_dims){2, {2, 6}}, 10), -1);
    assert_int_equal(ps_dims_count_max(&(ps_dims){2, {7, 0}}, 10), 0);
    assert_int_equal(ps_dims_count_max(&(ps_dims){2, {-1, -1}}, 10), -1);
    assert_int_equal(ps_dims_count_max(&(ps_dims){2, {big, big}}, INT64_MAX), -1);
    assert_int_equal(ps_dims_count_max(&(ps_dims){3, {big, big, 0}}, INT64_MAX), -1);
}

TEST(equal_means_all_of_them)
{
    ps_dims a = {2, {3, 4}}, b = {2, {3, 5}}, c = {1, {3}};
    assert_true(ps_dims_equal(&a, &a));
    assert_false(ps_dims_equal(&a, &b));
    assert_false(ps_dims_equal(&a, &c));
}
