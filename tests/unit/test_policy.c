/* The rules by which a shard counts each push exactly once. */
#include "check.h"
#include "policy.h"

TEST(weights_come_once_and_from_rank_0)
{
    ps_policy_chunk c;
    ps_policy_chunk_init(&c, 3);
    assert_int_equal(ps_policy_push(&c, 0, 0), PS_VERDICT_REFUSE);
    assert_int_equal(ps_policy_init_weights(&c, 1), PS_VERDICT_REFUSE);
    assert_int_equal(ps_policy_init_weights(&c, 0), PS_VERDICT_TAKE);
    assert_int_equal(c.version, 0);
    assert_int_equal(ps_policy_init_weights(&c, 0), PS_VERDICT_DROP);
    assert_int_equal(ps_policy_init_weights(&c, 1), PS_VERDICT_REFUSE);
}

TEST(a_step_is_complete_when_every_rank_is_in)
{
    ps_policy_chunk c;
    ps_policy_chunk_init(&c, PS_MAX_RANKS);
    ps_policy_init_weights(&c, 0);
    for (uint32_t i = 0; i < PS_MAX_RANKS; i++) {
        assert_false(ps_policy_complete(&c));
        uint32_t rank = (i * 37 + 5) % PS_MAX_RANKS; // any order
        assert_int_equal(ps_policy_push(&c, rank, 0), PS_VERDICT_TAKE);
        assert_int_equal(ps_policy_push(&c, rank, 0), PS_VERDICT_DROP);
    }
    assert_true(ps_policy_complete(&c));
    ps_policy_applied(&c);
    assert_int_equal(c.version, 1);
    assert_false(ps_policy_complete(&c));
}

TEST(a_replay_is_answered_and_the_future_is_refused)
{
    ps_policy_chunk c;
    ps_policy_chunk_init(&c, 2);
    ps_policy_init_weights(&c, 0);
    for (uint64_t step = 0; step < 3; step++) {
        assert_int_equal(ps_policy_push(&c, 0, step + 2), PS_VERDICT_REFUSE);
        assert_int_equal(ps_policy_push(&c, 1, step), PS_VERDICT_TAKE);
        assert_int_equal(ps_policy_push(&c, 0, step), PS_VERDICT_TAKE);
        ps_policy_applied(&c);
        for (uint64_t old = 0; old <= step; old++)
            assert_int_equal(ps_policy_push(&c, 1, old), PS_VERDICT_ANSWER);
        assert_int_equal(c.n_arrived, 0);
    }
    assert_int_equal(ps_policy_push(&c, 1, UINT64_MAX), PS_VERDICT_REFUSE);
}

TEST(an_early_push_counts_in_its_own_step)
{
    ps_policy_chunk c;
    ps_policy_chunk_init(&c, 3);
    ps_policy_init_weights(&c, 0);
    for (uint64_t step = 0; step < 4; step++) {
        // Rank 2 is always a step ahead: its push of this step came in the last one.
        if (step == 0) assert_int_equal(ps_policy_push(&c, 2, 0), PS_VERDICT_TAKE);
        assert_int_equal(ps_policy_push(&c, 2, step), PS_VERDICT_DROP);
        assert_int_equal(ps_policy_push(&c, 2, step + 1), PS_VERDICT_KEEP);
        assert_int_equal(ps_policy_push(&c, 2, step + 1), PS_VERDICT_DROP);
        assert_int_equal(ps_policy_push(&c, 0, step), PS_VERDICT_TAKE);
        assert_false(ps_policy_complete(&c));
        assert_int_equal(ps_policy_push(&c, 1, step), PS_VERDICT_TAKE);
        assert_true(ps_policy_complete(&c));
        ps_policy_applied(&c);
        assert_int_equal(c.n_arrived, 1);
        assert_true(ps_rank_set_has(&c.arrived, 2));
    }
}

TEST(a_pull_waits_for_the_next_version_only)
{
    ps_policy_chunk c;
    ps_policy_chunk_init(&c, 2);
    assert_int_equal(ps_policy_pull(&c, 1, 1), PS_VERDICT_REFUSE);
    assert_int_equal(ps_policy_pull(&c, 1, UINT64_MAX), PS_VERDICT_REFUSE);
    assert_int_equal(ps_policy_pull(&c, 1, 0), PS_VERDICT_WAIT);
    assert_true(ps_rank_set_has(&c.waiting, 1));
    assert_false(ps_rank_set_has(&c.waiting, 0));
    ps_policy_init_weights(&c, 0);
    assert_int_equal(ps_policy_pull(&c, 0, 0), PS_VERDICT_ANSWER);
    assert_int_equal(ps_policy_pull(&c, 0, 2), PS_VERDICT_REFUSE);
    assert_int_equal(ps_policy_pull(&c, 0, UINT64_MAX), PS_VERDICT_REFUSE);
    ps_policy_push(&c, 0, 0);
    ps_policy_push(&c, 1, 0);
    ps_policy_applied(&c);
    assert_false(ps_rank_set_has(&c.waiting, 1));
    assert_int_equal(ps_policy_pull(&c, 1, 0), PS_VERDICT_ANSWER); // with its weights
}

TEST(exact_weights_wait_for_everybody)
{
    ps_policy_chunk c;
    ps_policy_chunk_init(&c, 3);
    assert_int_equal(ps_policy_exact(&c, 0, 0), PS_VERDICT_REFUSE);
    ps_policy_init_weights(&c, 0);
    for (uint64_t version = 0; version < 2; version++) {
        assert_int_equal(ps_policy_exact(&c, 0, version + 1), PS_VERDICT_REFUSE);
        assert_int_equal(ps_policy_exact(&c, 2, version), PS_VERDICT_WAIT);
        assert_int_equal(ps_policy_exact(&c, 2, version), PS_VERDICT_WAIT);
        assert_int_equal(ps_policy_exact(&c, 0, version), PS_VERDICT_WAIT);
        assert_int_equal(ps_policy_exact(&c, 1, version), PS_VERDICT_ALL);
        assert_int_equal(ps_policy_exact(&c, 0, version), PS_VERDICT_ANSWER);
        for (uint32_t r = 0; r < 3; r++)
            assert_int_equal(ps_policy_push(&c, r, version), PS_VERDICT_TAKE);
        ps_policy_applied(&c);
        assert_int_equal(ps_policy_exact(&c, 0, version), PS_VERDICT_ANSWER);
    }
    assert_int_equal(ps_policy_push(&c, 1, 2), PS_VERDICT_TAKE);
    assert_int_equal(ps_policy_exact(&c, 1, 2), PS_VERDICT_REFUSE);
}

/* At their own pace: one goes on while the other one's answer is lost. */
TEST(exact_weights_are_repeated_in_a_version_of_others)
{
    ps_policy_chunk c;
    ps_policy_chunk_init(&c, 2);
    ps_policy_init_weights(&c, 0);
    assert_int_equal(ps_policy_exact(&c, 0, 0), PS_VERDICT_WAIT);
    assert_int_equal(ps_policy_exact(&c, 1, 0), PS_VERDICT_ALL);
    ps_policy_arrived(&c, 1);
    ps_policy_moved(&c);
    assert_int_equal(ps_policy_exact(&c, 0, 1), PS_VERDICT_ANSWER);
    ps_policy_arrived(&c, 0);
    ps_policy_moved(&c);
    memset(&c.arrived, 0, sizeof c.arrived);
    assert_int_equal(ps_policy_exact(&c, 0, 2), PS_VERDICT_WAIT);
    assert_int_equal(ps_policy_exact(&c, 1, 2), PS_VERDICT_ALL);
}
