#include "check.h"
#include "dynlib.h"

static double (*cosine)(double);
static void *more;

static ps_err open_with(const char *file, const char *name, bool optional)
{
    const ps_dynlib lib = {"the test", file, "libm 9.9 or newer"};
    const ps_dynlib_symbol symbols[] = {{"cos", (void **)&cosine, false},
                                        {name, &more, optional}};
    return ps_dynlib_open(&lib, symbols, 2);
}

TEST(finds_what_is_there)
{
    assert_ok(open_with("libm.so.6", "sin", false));
    assert_true(cosine(0.0) == 1.0);
    assert_non_null(more);
}

static void says_what_is_missing(const char *file, const char *const words[3])
{
    assert_int_equal(open_with(file, "no_such_function", false), PS_ERR_UNSUPPORTED);
    for (int i = 0; i < 3; i++)
        if (!strstr(ps_err_message(), words[i]))
            fail_msg("'%s' lacks '%s'", ps_err_message(), words[i]);
}

TEST(names_library_symbol_and_version)
{
    says_what_is_missing("libnone.so.1",
                         (const char *const[]){"the test: libnone.so.1",
                                               "libm 9.9 or newer", "LD_LIBRARY_PATH"});
    says_what_is_missing("libm.so.6",
                         (const char *const[]){"the test: libm.so.6", "no_such_function",
                                               "libm 9.9 or newer"});
}

TEST(does_without_what_is_optional)
{
    assert_ok(open_with("libm.so.6", "no_such_function", true));
    assert_null(more);
}
