/* Numbers as people read them: what Python's format(n, ",") gives, as far as there is
 * room. */
#include <math.h>

#include "check.h"
#include "readable.h"

static void check_whole(double value, const char *want)
{
    char out[PS_READABLE_BYTES + 1] = "";
    out[PS_READABLE_BYTES] = '!'; // behind the room
    assert_string_equal(ps_readable_whole(value, out), want);
    assert_int_equal(out[PS_READABLE_BYTES], '!');
}

TEST(whole_numbers_have_commas)
{
    check_whole(0, "0");
    check_whole(-999, "-999");
    check_whole(61130.4, "61,130");
    check_whole(1e15, "1,000,000,000,000,000");
    check_whole(-9007199254740991, "-9,007,199,254,740,991");
}

static void check_value(double value, double span, const char *want)
{
    char out[PS_READABLE_BYTES + 1] = "";
    out[PS_READABLE_BYTES] = '!';
    assert_string_equal(ps_readable_value(value, span, out), want);
    assert_int_equal(out[PS_READABLE_BYTES], '!');
}

TEST(values_that_are_close_differ)
{
    check_value(1700000399, 0, "1.7e9");
    check_value(1700000399, 399, "1700000399");
    check_value(0.1000000061, 8e-9, "0.1000000061");
    check_value(-1.0000000000000002e-300, 1e-316, "-1e-300");
    check_value(-1.234567890123456e-300, 1e-316, "-1.234567890123456e-300");
    check_value(61130, 61130, "61130");
    check_value(1003109.6, 5453, "1003110");
    check_value(1700000000003006.8, 12000, "1700000000003007");
    check_value(1.5e15, 2e12, "1500000000000000");
    check_value(-124.32, 300, "-124.3");
    check_value(51, 1e-3, "51");
    check_value(2e-5, 1, "2.0e-5");
    check_value(5, INFINITY, "5");
}

TEST(what_has_no_room_is_a_figure)
{
    check_whole(1e16, "1.0e16");
    check_whole(9223372036854775807.0, "9.2e18");
    check_whole(-1.7e308, "-1.7e308");
    check_whole(INFINITY, "inf");
    check_whole(NAN, "nan");
}
