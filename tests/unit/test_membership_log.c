/* membership.jsonl: lines are added. When the job goes back behind them, they are
 * removed. */

#include "check.h"
#include "membership_log.h"
#include "temp_files.h"

static void add(uint64_t step, int workers)
{
    const ps_membership m = {.step = step, .epoch = 1, .position = 2, .workers = workers};
    assert_ok(ps_membership_log_add(temp_path("log"), &m));
}

static void expect_steps(const char *want)
{
    char line[256], got[256] = "";
    unsigned long step, generation;
    int workers;
    FILE *file = fopen(temp_path("log"), "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file)) {
        assert_int_equal(sscanf(line,
                                "{\"step\":%lu,\"epoch\":1,\"position\":2,"
                                "\"workers\":%d,\"generation\":%lu,"
                                "\"job\":\"0000000000000000\"}",
                                &step, &workers, &generation),
                         3);
        const size_t used = strlen(got);
        snprintf(got + used, sizeof got - used, "%lu:%d ", step, workers);
    }
    fclose(file);
    assert_string_equal(got, want);
}

IN_FOLDER(lines_follow_each_other)
{
    add(0, 2);
    add(10, 3);
    add(25, 1);
    expect_steps("0:2 10:3 25:1 ");
}

IN_FOLDER(a_job_that_goes_back_forgets)
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

IN_FOLDER(the_last_line_has_the_generation)
{
    ps_config config = {.job = {.workers = 1, .most_workers = 2}};
    uint64_t generation;
    assert_ok(ps_membership_generation(&config, temp_path("."), &generation));
    assert_int_equal(generation, 0);
    for (uint64_t i = 1; i <= 2; i++) {
        const ps_membership m = {.step = 10 * i, .workers = 1, .generation = i};
        assert_ok(ps_membership_note(&config, temp_path("."), &m));
    }
    assert_ok(ps_membership_generation(&config, temp_path("."), &generation));
    assert_int_equal(generation, 2);
}

IN_FOLDER(another_file_is_an_error)
{
    const ps_membership m = {.workers = 1};
    const char *path = temp_path("log");
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs("no line of ours\n", file);
    fclose(file);
    assert_error(ps_membership_log_add(path, &m), PS_ERR_FORMAT, path);
}
