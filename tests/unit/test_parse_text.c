/* Numbers and words: the whole text or nothing. */
#include "parse_text.h"

#include <stdlib.h>

#include "check.h"

/* As in a language whose numbers have a comma: such a one is not on each machine. */
double strtod(const char *text, char **end)
{
    return (double)strtol(text, end, 10);
}

TEST(whole_numbers)
{
    int64_t i = 5;
    uint64_t u;
    assert_true(ps_parse_int("-9223372036854775807", &i) && i == -INT64_MAX);
    assert_true(ps_parse_int("+007", &i) && i == 7);
    assert_true(ps_parse_uint("18446744073709551615", &u) && u == UINT64_MAX);
    static const char *const bad[] = {"",   "-",   "+-1", " 1",  "1 ",
                                      "1x", "0x1", "1.0", "1e3", "9223372036854775808"};
    for (int n = 0; n < 10; n++)
        assert_false(ps_parse_int(bad[n], &i));
    assert_false(ps_parse_uint("18446744073709551616", &u));
    assert_false(ps_parse_uint("-1", &u));
}

TEST(numbers)
{
    double d;
    assert_true(ps_parse_double("1e-3", &d) && d == 1e-3);
    assert_true(ps_parse_double("-.5", &d) && d == -0.5);
    assert_true(ps_parse_double("1/255", &d) && d == 1.0 / 255);
    static const char *const bad[] = {"",      "nan", "inf", "1e999", "0x1p3", "1/0",
                                      "1/2/3", " 1",  "1 ",  "1e",    "--1",   "1,5"};
    for (int n = 0; n < 12; n++)
        assert_false(ps_parse_double(bad[n], &d));
}

TEST(truth)
{
    bool b = false;
    assert_true(ps_parse_bool("Yes", &b) && b);
    assert_true(ps_parse_bool("off", &b) && !b);
    assert_false(ps_parse_bool("1", &b));
    assert_false(ps_parse_bool("", &b));
}

TEST(sizes)
{
    int64_t n;
    assert_true(ps_parse_bytes("4096", &n) && n == 4096);
    assert_true(ps_parse_bytes("64K", &n) && n == 65536);
    assert_true(ps_parse_bytes("25MiB", &n) && n == 26214400);
    assert_true(ps_parse_bytes("2g", &n) && n == INT64_C(2147483648));
    assert_false(ps_parse_bytes("1T", &n));
    assert_false(ps_parse_bytes("-1", &n));
    assert_false(ps_parse_bytes("8589934592G", &n)); // 2^63
    assert_false(ps_parse_bytes("K", &n));
}
