/* The folder of checkpoints: which folders count as checkpoints, which are replaced, and
 * which stay. */
#include <unistd.h>

#include "check.h"
#include "checkpoint_folder.h"

static ps_checkpoint_folder folder;

static int make_folder(void **state)
{
    char path[] = "/tmp/pstrain-test-XXXXXX";
    if (!mkdtemp(path)) return -1;
    snprintf(folder.path, sizeof folder.path, "%s/deep/checkpoints", path);
    return 0;
}

static int remove_folder(void **state)
{
    ps_checkpoint_folder_remove(&folder);
    for (int i = 0; i < 2; i++) {
        *strrchr(folder.path, '/') = '\0';
        rmdir(folder.path);
    }
    return access(folder.path, F_OK) == 0 ? -1 : 0;
}
#define WITH_FOLDER(f) TEST_WITH(f, make_folder, remove_folder)

static void write_file(const char *where, const char *text)
{
    char path[PATH_MAX + 16];
    snprintf(path, sizeof path, "%s/content", where);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static void keep(uint64_t step, const char *text)
{
    char path[PATH_MAX];
    assert_ok(ps_checkpoint_folder_begin(&folder, step, path));
    write_file(path, text);
    assert_ok(ps_checkpoint_folder_commit(&folder, step));
}

static void expect_content(uint64_t step, const char *text)
{
    char path[PATH_MAX], name[PATH_MAX + 16], got[32] = "";
    ps_checkpoint_folder_step(&folder, step, path);
    snprintf(name, sizeof name, "%s/content", path);
    FILE *f = fopen(name, "r");
    assert_non_null(f);
    assert_non_null(fgets(got, sizeof got, f));
    fclose(f);
    assert_string_equal(got, text);
}

static void expect_steps(size_t n, const uint64_t *want)
{
    uint64_t *steps;
    size_t got;
    assert_ok(ps_checkpoint_folder_list(&folder, &steps, &got));
    assert_int_equal(got, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(steps[i], want[i]);
    free(steps);
}

WITH_FOLDER(what_is_whole_is_listed)
{
    char path[PATH_MAX];
    expect_steps(0, NULL); // not even the folder is there
    keep(9, "nine");
    keep(100, "hundred");
    assert_ok(ps_checkpoint_folder_begin(&folder, 300, path));
    write_file(path, "half");
    expect_steps(2, (const uint64_t[]){100, 9});
    ps_checkpoint_folder_abandon(&folder, 300);
    assert_int_not_equal(access(path, F_OK), 0);
}

WITH_FOLDER(a_second_one_of_a_step_takes_its_place)
{
    keep(9, "once");
    keep(9, "again");
    expect_content(9, "again");
    expect_steps(1, (const uint64_t[]){9});
}

WITH_FOLDER(the_newest_and_the_best_stay)
{
    for (uint64_t step = 1; step <= 5; step++)
        keep(step * 10, "x");
    assert_ok(ps_checkpoint_folder_set_best(&folder, 20));
    ps_checkpoint_folder_prune(&folder, 2);
    expect_steps(3, (const uint64_t[]){50, 40, 20});
    assert_ok(ps_checkpoint_folder_set_best(&folder, 50));
    ps_checkpoint_folder_prune(&folder, 1);
    expect_steps(1, (const uint64_t[]){50});
}

/* By its own name, and by the link. */
WITH_FOLDER(what_is_in_one_of_them_is_known)
{
    static const struct {
        const char *name;
        bool held;
    } files[] = {{"step-20/content", true},
                 {"best/content", true},
                 {"step-30/content", false},
                 {"step-20.damaged/content", false},
                 {"step-20", false}};
    char path[PATH_MAX + 32];
    keep(20, "best");
    keep(30, "bad");
    assert_ok(ps_checkpoint_folder_set_best(&folder, 20));
    ps_checkpoint_folder_set_aside(&folder, 30);
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", folder.path, files[i].name);
        assert_int_equal(ps_checkpoint_folder_holds(&folder, path), files[i].held);
    }
    snprintf(path, sizeof path, "%s/step-30.damaged/content", folder.path);
    assert_int_equal(unlink(path), 0);
    *strrchr(path, '/') = '\0';
    assert_int_equal(rmdir(path), 0);
}

WITH_FOLDER(what_is_damaged_is_set_aside)
{
    char path[PATH_MAX + 32];
    keep(10, "good");
    keep(20, "bad");
    ps_checkpoint_folder_set_aside(&folder, 20);
    expect_steps(1, (const uint64_t[]){10});
    snprintf(path, sizeof path, "%s/step-20.damaged", folder.path);
    assert_int_equal(access(path, F_OK), 0);
    keep(20, "new");
    ps_checkpoint_folder_set_aside(&folder, 20);
    expect_steps(1, (const uint64_t[]){10});
    snprintf(path, sizeof path, "rm -r %s/step-20.damaged", folder.path);
    assert_int_equal(system(path), 0);
}

WITH_FOLDER(what_a_killed_job_left_is_removed)
{
    char path[PATH_MAX], other[PATH_MAX];
    assert_ok(ps_checkpoint_folder_begin(&folder, 10, path));
    write_file(path, "half");
    assert_ok(ps_checkpoint_folder_begin(&folder, 20, other));
    assert_int_not_equal(access(path, F_OK), 0);
    assert_ok(ps_checkpoint_folder_commit(&folder, 20));
}

TEST(a_folder_that_cannot_be_made_is_an_error)
{
    const ps_checkpoint_folder file = {"/proc/none"};
    char path[PATH_MAX];
    assert_error(ps_checkpoint_folder_begin(&file, 1, path), PS_ERR_IO,
                 "cannot make the folder /proc/none");
}
