/* What every test in C begins with: cmocka, the headers that it and most tests need, and
 * TEST.
 *
 * TEST(name) { … } is a test, with cmocka's `state`. A program runs its tests in the
 * order in which they stand, or the one that its first argument names, or with - before
 * the name all others. A file that has to do something first has a main of its own, which
 * ends with check_main, or with check_run. */
#ifndef CHECK_H
#define CHECK_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define TEST(name) TEST_WITH(name, NULL, NULL)
/* setup and teardown run before and after it. */
#define TEST_WITH(name, setup, teardown)                                                 \
    static void name(void **state);                                                      \
    __attribute__((constructor)) static void check_add_##name(void)                      \
    {                                                                                    \
        check_add(__LINE__, (struct CMUnitTest)cmocka_unit_test_setup_teardown(          \
                                name, setup, teardown));                                 \
    }                                                                                    \
    static void name(void **state)

/* line: where it stands. */
void check_add(int line, struct CMUnitTest test);
/* Only the test of this name, or with - before it all others. false: there is none. */
bool check_choose(const char *name);
/* The end of a main of its own: runs all tests, or where there is an argument i those
 * that it chooses. Returns the exit code. */
int check_main(int argc, char **argv, int i);
/* Says why the whole program is skipped. Returns the exit code for it. */
int check_skipped(const char *why);
/* Runs the tests. setup and teardown (or NULL) run before the first and after the last.
 * Returns how many failed. */
int check_run(int (*setup)(void **), int (*teardown)(void **));

/* The call returns PS_OK; else its message (err.h) is shown. */
#define assert_ok(call)                                                                  \
    do {                                                                                 \
        if ((call) != PS_OK) fail_msg("%s: %s", #call, ps_err_message());                \
    } while (0)
/* The call returns this error, with a message (err.h) that contains the words. */
#define assert_error(call, error, words)                                                 \
    do {                                                                                 \
        assert_int_equal(call, error);                                                   \
        if (!strstr(ps_err_message(), words))                                            \
            fail_msg("'%s' lacks '%s'", ps_err_message(), words);                        \
    } while (0)

#endif
