/* Which snapshot a job goes on from, and which worker holds one beside worker 0. */
#include "check.h"
#include "survivors.h"

TEST(the_newest_is_chosen)
{
    const ps_survivor all[] = {{0}, // rank 0 is new
                               {.step = 40, .n_ranks = 3, .made = 44, .generation = 2},
                               {.step = 30, .n_ranks = 3, .made = 45, .generation = 2}};
    ps_survivors_choice c = ps_survivors_choose(all, 3, 0, true, 20);
    assert_int_equal(c.source, 1);
    assert_int_equal(c.of_source.step, 40);
    assert_int_equal(c.made, 45);
    assert_int_equal(c.of_source.n_ranks, 3);
    assert_int_equal(c.generation, 3);
    assert_false(c.own_counts); // rank 0 has no snapshot
    assert_true(ps_survivors_choose(all, 3, 2, true, 20).own_counts);
}

TEST(rank_0_has_its_own)
{
    const ps_survivor all[] = {{40, 2, 40, 1, 0}, {40, 2, 40, 1, 0}};
    assert_int_equal(ps_survivors_choose(all, 2, 1, true, 40).source, 0);
}

TEST(the_disk_may_be_newer)
{
    const ps_survivor all[] = {{0}, {40, 2, 40, 1, 0}};
    assert_int_equal(ps_survivors_choose(all, 2, 0, true, 41).source, -1);
    assert_int_equal(ps_survivors_choose(all, 2, 0, true, 40).source, 1);
}

/* Worker 0 was started again and went on alone, from the disk: 10 is newer than 12. */
TEST(steps_of_a_job_that_was_given_up)
{
    const ps_survivor alone[] = {{.starts = 2}};
    const uint64_t now = ps_survivors_choose(alone, 1, 0, true, 9).generation;
    const ps_survivor all[] = {{10, 1, 10, now, 2}, {12, 2, 13, 7, 0}};
    assert_int_equal(ps_survivors_choose(all, 2, 0, true, 9).source, 0);
    assert_int_equal(ps_survivors_choose(all, 2, 0, true, 9).made, 10);
    assert_false(ps_survivors_choose(all, 2, 1, true, 9).own_counts);
}

/* Worker 2 has missed that the job went back and then on without it. */
TEST(steps_that_were_made_in_vain)
{
    const ps_survivor all[] = {{50, 2, 52, 5, 0}, {0, 0, 51, 5, 0}, {90, 3, 95, 4, 0}};
    ps_survivors_choice c = ps_survivors_choose(all, 3, 2, true, 0);
    assert_int_equal(c.source, 0);
    assert_false(c.own_counts);
    assert_int_equal(c.made, 52);
    assert_int_equal(c.generation, 6);
}

TEST(another_jobs_memory)
{
    const ps_survivor all[] = {{0}, {90, 2, 95, 4, 0}};
    ps_survivors_choice c = ps_survivors_choose(all, 2, 1, false, 0);
    assert_int_equal(c.source, -1);
    assert_false(c.own_counts);
    assert_int_equal(c.generation, 5);
}

TEST(a_new_job)
{
    const ps_survivor all[2] = {0};
    ps_survivors_choice c = ps_survivors_choose(all, 2, 0, false, 0);
    assert_int_equal(c.source, -1);
    assert_int_equal(c.generation, 1);
}

TEST(the_holder_is_on_another_host)
{
    ps_roster_entry workers[3] = {{.rank = 0}, {.rank = 1}, {.rank = 2}};
    ps_roster roster = {.n_workers = 3, .workers = workers};
    for (int r = 0; r < 3; r++) {
        strcpy(workers[r].boot_id, r < 2 ? "here" : "there");
        strcpy(workers[r].net_ns, "net");
    }
    assert_int_equal(ps_survivors_holder(&roster), 2);
    roster.n_workers = 2;
    assert_int_equal(ps_survivors_holder(&roster), 1);
    roster.n_workers = 1;
    assert_int_equal(ps_survivors_holder(&roster), 0);
}
