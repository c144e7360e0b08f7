#include "check.h"

enum { MOST = 100 };
static struct CMUnitTest tests[MOST];
static int lines[MOST];
static size_t n_tests;

/* Constructors run in any order. */
void check_add(int line, struct CMUnitTest test)
{
    if (n_tests == MOST) abort();
    size_t i = n_tests++;
    for (; i > 0 && lines[i - 1] > line; i--) {
        lines[i] = lines[i - 1];
        tests[i] = tests[i - 1];
    }
    lines[i] = line;
    tests[i] = test;
}

bool check_choose(const char *name)
{
    const bool others = name[0] == '-';
    name += others;
    for (size_t i = 0; i < n_tests; i++) {
        if (strcmp(tests[i].name, name) != 0) continue;
        if (others)
            cmocka_set_skip_filter(name);
        else
            cmocka_set_test_filter(name);
        return true;
    }
    return false;
}

int check_run(int (*setup)(void **), int (*teardown)(void **))
{
    return _cmocka_run_group_tests("tests", tests, n_tests, setup, teardown);
}

int check_main(int argc, char **argv, int i)
{
    if (argc > i && !check_choose(argv[i])) {
        fprintf(stderr, "%s: there is no test %s\n", argv[0], argv[i]);
        return 2;
    }
    return check_run(NULL, NULL);
}

int check_skipped(const char *why)
{
    enum { EXIT_SKIPPED = 77 };
    printf("skipped: %s\n", why);
    return EXIT_SKIPPED;
}

__attribute__((weak)) int main(int argc, char **argv)
{
    return check_main(argc, argv, 1);
}
