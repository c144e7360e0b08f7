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

TEST(what_has_no_room_is_a_figure)
{
    check_whole(1e16, "1.0e16");
    check_whole(9223372036854775807.0, "9.2e18");
    check_whole(-1.7e308, "-1.7e308");
    check_whole(INFINITY, "inf");
    check_whole(NAN, "nan");
}
