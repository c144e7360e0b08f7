/* Two snapshots in turn: the newest whole one stays while the next is filled. */
#include "check.h"
#include "snapshot_pair.h"

static const ps_tensor_table table = {.arena_count = 8, .buffer_bytes = 4};
static const ps_optimizer optimizer = {.n_states = 2};

static ps_snapshot_shape shape_of(int n_ranks)
{
    return (ps_snapshot_shape){
        .table = &table, .optimizer = &optimizer, .n_ranks = n_ranks, .feedback = true};
}

static ps_snapshot *begin(ps_snapshot_pair *p, uint64_t step, bool keep)
{
    const ps_snapshot_shape shape = shape_of(2);
    ps_snapshot *s;
    assert_ok(ps_snapshot_pair_begin(p, &shape, 0, true, keep, &s));
    s->trainer.step = step;
    s->params[0] = (float)step;
    return s;
}

static void take(ps_snapshot_pair *p, uint64_t step)
{
    begin(p, step, true);
    ps_snapshot_pair_commit(p);
}

TEST(the_newest_stays_until_the_next_is_whole)
{
    ps_snapshot_pair p = {0};
    assert_null(ps_snapshot_pair_newest(&p));
    begin(&p, 1, true);
    assert_null(ps_snapshot_pair_newest(&p)); // not whole
    take(&p, 2);
    for (uint64_t step = 3; step < 7; step++) {
        begin(&p, step, true); // fails halfway
        assert_int_equal(ps_snapshot_pair_newest(&p)->trainer.step, step - 1);
        assert_true(ps_snapshot_pair_newest(&p)->params[0] == (float)(step - 1));
        take(&p, step);
        assert_int_equal(ps_snapshot_pair_newest(&p)->trainer.step, step);
    }
    ps_snapshot_pair_fini(&p);
}

TEST(without_keeping_one_is_enough)
{
    ps_snapshot_pair p = {0};
    ps_snapshot *first = begin(&p, 1, false);
    ps_snapshot_pair_commit(&p);
    assert_ptr_equal(begin(&p, 2, false), first);
    assert_null(ps_snapshot_pair_newest(&p));
    assert_false(p.is[1].made);
    ps_snapshot_pair_fini(&p);
}

TEST(later_ones_are_forgotten)
{
    ps_snapshot_pair p = {0};
    take(&p, 10);
    take(&p, 20);
    ps_snapshot_pair_forget_after(&p, 15);
    assert_int_equal(ps_snapshot_pair_newest(&p)->trainer.step, 10);
    ps_snapshot_pair_forget_after(&p, 0);
    assert_null(ps_snapshot_pair_newest(&p));
    ps_snapshot_pair_fini(&p);
}

TEST(memory_follows_the_ranks)
{
    ps_snapshot_pair p = {0};
    ps_snapshot_shape shape = shape_of(2);
    ps_snapshot *s;
    assert_ok(ps_snapshot_pair_reserve(&p, &shape, 0, 2));
    assert_true(p.is[0].made && p.is[1].made);
    take(&p, 1);
    shape = shape_of(3);
    assert_ok(ps_snapshot_pair_begin(&p, &shape, 2, false, true, &s));
    assert_null(s->params);
    assert_non_null(s->feedback[2]);
    assert_ptr_equal(s->exchange.feedback, s->feedback[2]);
    assert_null(s->feedback[0]);
    assert_int_equal(ps_snapshot_pair_newest(&p)->n_ranks, 2);
    ps_snapshot_pair_fini(&p);
}

/* It is no source for others, but its rank finds it. */
TEST(one_that_holds_its_own_alone)
{
    ps_snapshot_pair p = {0};
    const ps_snapshot_shape shape = shape_of(2);
    for (uint64_t step = 1; step < 4; step++) {
        ps_snapshot *s;
        assert_ok(ps_snapshot_pair_begin(&p, &shape, 1, false, true, &s));
        s->trainer.step = step;
        assert_null(ps_snapshot_pair_of_step(&p, step));
        ps_snapshot_pair_commit(&p);
        assert_null(ps_snapshot_pair_newest(&p));
        assert_ptr_equal(ps_snapshot_pair_of_step(&p, step), s);
        assert_true(step == 1 || ps_snapshot_pair_of_step(&p, step - 1));
        assert_null(ps_snapshot_pair_of_step(&p, step - 2));
    }
    ps_snapshot_pair_forget_after(&p, 2);
    assert_null(ps_snapshot_pair_of_step(&p, 3));
    assert_non_null(ps_snapshot_pair_of_step(&p, 2));
    ps_snapshot_pair_fini(&p);
}

TEST(others_begin_anew_from_the_weights)
{
    ps_snapshot s;
    ps_snapshot_shape shape = shape_of(2);
    shape.local = true;
    shape.fragments = 1;
    assert_ok(ps_snapshot_init(&s, &shape, 0, true));
    s.params[0] = 5;
    ((float *)s.feedback[0])[0] = ((float *)s.feedback[1])[0] = 7;
    float *own = s.local[0], *other = s.local[1];
    own[0] = other[0] = 7;
    ps_snapshot_renew_others(&s, &shape, 0); // they are set
    assert_true(own[0] == 7 && other[0] == 7);
    s.own_alone = true;
    ps_snapshot_renew_others(&s, &shape, 0);
    assert_true(own[0] == 7 && other[0] == 5 && !s.own_alone);
    assert_true(((float *)s.feedback[0])[0] == 7 && ((float *)s.feedback[1])[0] == 0);
    ps_local_end end;
    memcpy(&end, ps_local_memory_end(&table, &shape.inner, s.local[1]), sizeof end);
    assert_true(end.n_parts == 1 && end.rule_bytes == 0);
    ps_snapshot_fini(&s);
}
