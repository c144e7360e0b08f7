/* Hints for mistyped names. */
#include "nearest_name.h"

#include "check.h"

static const char *const known[] = {"conv2d", "linear", "max_pool2d", "avg_pool2d",
                                    "relu"};

static const char *nearest(const char *name)
{
    return ps_nearest_name(name, known, 5);
}

TEST(one_slip_is_understood)
{
    assert_string_equal(nearest("conv2"), "conv2d");   // a letter is missing
    assert_string_equal(nearest("linnear"), "linear"); // one letter too many
    assert_string_equal(nearest("rely"), "relu");      // a wrong letter
    assert_string_equal(nearest("maxpool2d"), "max_pool2d");
    assert_string_equal(nearest("relu"), "relu");
}

TEST(nothing_near_gives_no_hint)
{
    char longer[200];
    for (int i = 0; i < 199; i++)
        longer[i] = 'x';
    longer[199] = '\0';
    assert_null(nearest("softplus"));
    assert_null(nearest(""));
    assert_null(nearest(longer));
    assert_null(ps_nearest_name("relu", known, 0));
}

TEST(the_first_of_equals_is_taken)
{
    const char *const pair[] = {"ab", "ac"};
    assert_string_equal(ps_nearest_name("ad", pair, 2), "ab");
}
