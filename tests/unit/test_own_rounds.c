/* When a rank sends which fragment, in rounds of its own. */
#include "check.h"
#include "own_rounds.h"

static ps_config config_of(int64_t steps, int64_t fragments, int64_t overlap)
{
    ps_config cfg = {.sync = {.policy = PS_POLICY_LOCAL,
                              .quorum = 2,
                              .local_steps = steps,
                              .fragments = fragments,
                              .overlap = overlap}};
    return cfg;
}

/* Makes a step. Returns the fragments that are sent after it, as bits. */
static unsigned step(ps_own_rounds *r)
{
    unsigned sent = 0;
    ps_own_rounds_step(r);
    for (uint32_t i = 0; i < r->n_fragments; i++)
        sent |= (unsigned)ps_own_rounds_sends(r, i) << i;
    ps_own_rounds_sent(r);
    return sent;
}

TEST(every_fragment_once_in_a_round)
{
    ps_own_rounds r;
    const ps_config cfg = config_of(7, 3, 1);
    const unsigned expected[] = {0, 1, 0, 2, 0, 0, 4};
    ps_own_rounds_init(&r, &cfg, 0, false, 0);
    assert_true(r.on);
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 7; i++)
            assert_int_equal(step(&r), expected[i]);
    assert_int_equal(r.made, 3);
    assert_int_equal(step(&r), 0);
    ps_own_rounds_rest(&r); // with the last fragment's answer, one step later
    assert_true(r.in_round == 1 && r.made == 0);
    ps_own_rounds_set_steps(&r, 6);
    assert_int_equal(step(&r), 1);
}

TEST(a_job_goes_on_where_it_rested)
{
    ps_own_rounds r;
    const ps_config cfg = config_of(4, 2, 1);
    ps_own_rounds_init(&r, &cfg, 8, false, 0);
    assert_int_equal(step(&r), 1);
    assert_int_equal(step(&r), 0);
    assert_int_equal(step(&r), 2);
}

/* The dead one had sent fragments 0 and 1. The steps of a round are learnt before the
 * first step. */
TEST(a_rank_that_is_back_goes_on_with_the_next_fragment)
{
    ps_own_rounds r;
    const ps_config cfg = config_of(8, 4, 0);
    ps_own_rounds_init(&r, &cfg, 100, true, 2);
    ps_own_rounds_set_steps(&r, 4);
    assert_int_equal(step(&r), 4);
    assert_int_equal(step(&r), 8);
    assert_int_equal(step(&r), 1);
    ps_own_rounds_init(&r, &cfg, 100, true, 2);
    ps_own_rounds_rest(&r); // before it has made a step
    ps_own_rounds_set_steps(&r, 4);
    assert_int_equal(step(&r), 1);
}

TEST(a_round_that_is_cut_short_is_repeated)
{
    ps_own_rounds r;
    const ps_config cfg = config_of(4, 2, 0);
    ps_own_rounds_init(&r, &cfg, 0, false, 0);
    for (int i = 0; i < 4 + 3; i++)
        step(&r);
    assert_true(ps_own_rounds_has_sent(&r, 0) && !ps_own_rounds_has_sent(&r, 1));
    assert_int_equal(r.cut.round, 0);
    ps_own_rounds_cut(&r);
    assert_true(r.cut.round == 2 && r.cut.steps == 3 && r.in_round == 0);
    const ps_round_cut plan = r.cut;
    ps_own_rounds_init(&r, &cfg, 0, false, 0);
    r.plan = plan;
    for (int i = 0; i < 4 + 3; i++) {
        assert_false(ps_own_rounds_ends_here(&r));
        step(&r);
    }
    assert_true(ps_own_rounds_ends_here(&r));
    ps_own_rounds_cut(&r);
    ps_own_rounds_rest(&r);
    assert_int_equal(r.plan.round, 0);
}
