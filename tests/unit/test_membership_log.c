/* membership.jsonl: lines are added. When the job goes back behind them, they are
 * removed. */
#include <unistd.h>

#include "check.h"
#include "membership_log.h"

static char path[64];

static int make_file(void **state)
{
    snprintf(path, sizeof path, "/tmp/pstrain-test-XXXXXX");
    const int fd = mkstemp(path);
    return fd < 0 || close(fd) != 0 || unlink(path) != 0;
}

static int remove_file(void **state)
{
    unlink(path);
    return 0;
}

static void add(uint64_t step, int workers)
{
    const ps_membership m = {.step = step, .epoch = 1, .position = 2, .workers = workers};
    assert_int_equal(ps_membership_log_add(path, &m), PS_OK);
}

static void expect_steps(const char *want)
{
    char line[256], got[256] = "";
    unsigned long step;
    int workers;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        assert_int_equal(sscanf(line,
                                "{\"step\":%lu,\"epoch\":1,\"position\":2,"
                                "\"workers\":%d,\"job\":\"0000000000000000\"}",
                                &step, &workers),
                         2);
        const size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%lu:%d ", step, workers);
    }
    fclose(file);
    assert_string_equal(got, want);
}

TEST_WITH(lines_follow_each_other, make_file, remove_file)
{
    add(0, 2);
    add(10, 3);
    add(25, 1);
    expect_steps("0:2 10:3 25:1 ");
}

TEST_WITH(a_job_that_goes_back_forgets, make_file, remove_file)
{
    add(0, 2);
    add(10, 3);
    add(25, 4);
    add(25, 3);
    expect_steps("0:2 10:3 25:3 ");
    add(7, 5);
    expect_steps("0:2 7:5 ");
    add(0, 1);
    expect_steps("0:1 ");
}

TEST_WITH(another_file_is_an_error, make_file, remove_file)
{
    const ps_membership m = {.workers = 1};
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("no line of ours\n", file);
    fclose(file);
    assert_int_equal(ps_membership_log_add(path, &m), PS_ERR_FORMAT);
    assert_non_null(strstr(ps_err_message(), path));
}
