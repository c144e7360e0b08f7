/* The state of the step loop on the way through JSON: every bit of every number. */
#include <math.h>

#include "check.h"
#include "trainer_snapshot.h"

/* Whether the words of 8 bytes at this place are a number, and no list. */
static bool is_number(size_t at)
{
    const size_t lists = offsetof(ps_trainer_snapshot, n_ranks);
    return (at < lists || at >= offsetof(ps_trainer_snapshot, version)) &&
           at != offsetof(ps_trainer_snapshot, own_steps) &&
           at != offsetof(ps_trainer_snapshot, batches);
}

/* Every number has bits of its own, whole or not. */
static json_t *state_json(ps_trainer_snapshot *s)
{
    json_t *json, *again;
    assert_ok(ps_trainer_snapshot_init(s, 3));
    for (uint64_t at = 0; at < sizeof *s; at += sizeof at)
        if (is_number(at)) memcpy((char *)s + at, &(uint64_t){1000 + at}, sizeof at);
    s->step = 123456789012345;
    s->seconds = 0.1;
    s->epoch_loss_sum = 1.0 / 3;
    s->step_loss = NAN;
    s->best = -INFINITY;
    s->patience_best = -0.1;
    s->train_mark = (UINT64_C(1) << 53) - 1;
    for (int r = 0; r < 3; r++) {
        s->loss_sums[r] = 1e-300 / (r + 1);
        s->loss_samples[r] = 10 + r;
        s->correct[r] = 7 + r;
        s->counted[r] = 9 + r;
        s->own_steps[r] = 3 * r;
        s->batches[r] = 5 + r;
    }
    assert_ok(ps_trainer_snapshot_to_json(s, &json));
    char *text = json_dumps(json, 0);
    again = json_loads(text, 0, NULL); // as through a file
    free(text);
    json_decref(json);
    assert_non_null(again);
    return again;
}

static void assert_same(const ps_trainer_snapshot *a, const ps_trainer_snapshot *b)
{
    const double *const lists[][2] = {
        {a->loss_sums, b->loss_sums}, {a->loss_samples, b->loss_samples},
        {a->correct, b->correct},     {a->counted, b->counted},
        {a->own_steps, b->own_steps}, {a->batches, b->batches}};
    for (size_t at = 0; at < sizeof *a; at += sizeof(uint64_t))
        if (is_number(at) &&
            memcmp((const char *)a + at, (const char *)b + at, sizeof(uint64_t)) != 0)
            fail_msg("byte %zu", at);
    assert_int_equal(a->n_ranks, b->n_ranks);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        assert_memory_equal(lists[i][0], lists[i][1], 3 * sizeof(double));
}

TEST(every_bit_survives)
{
    ps_trainer_snapshot a, b;
    json_t *json = state_json(&a);
    assert_ok(ps_trainer_snapshot_from_json(json, &b));
    assert_same(&a, &b);
    json_decref(json);
    ps_trainer_snapshot_fini(&a);
    ps_trainer_snapshot_fini(&b);
}

TEST(as_numbers)
{
    ps_trainer_snapshot a, b;
    json_decref(state_json(&a));
    const size_t n = ps_trainer_snapshot_n_values(3);
    double values[64] = {0};
    assert_true(n < 64);
    ps_trainer_snapshot_to_values(&a, values);
    for (size_t i = 0; i < n; i++)
        values[i] += 0.0; // another rank's
    assert_ok(ps_trainer_snapshot_init(&b, 3));
    ps_trainer_snapshot_from_values(values, &b);
    assert_same(&a, &b);
    ps_trainer_snapshot_fini(&a);
    ps_trainer_snapshot_fini(&b);
}

TEST(what_is_missing_is_named)
{
    ps_trainer_snapshot a, b;
    json_t *json = state_json(&a);
    json_object_set_new(json, "position", json_integer(-1));
    assert_error(ps_trainer_snapshot_from_json(json, &b), PS_ERR_FORMAT, "position");
    ps_trainer_snapshot_fini(&b);
    json_object_set_new(json, "position", json_integer(1));
    json_array_append_new(json_object_get(json, "loss_samples"), json_real(1));
    assert_int_equal(ps_trainer_snapshot_from_json(json, &b), PS_ERR_FORMAT);
    ps_trainer_snapshot_fini(&b);
    json_object_del(json, "loss_sums");
    assert_int_equal(ps_trainer_snapshot_from_json(json, &b), PS_ERR_FORMAT);
    ps_trainer_snapshot_fini(&b);
    json_decref(json);
    ps_trainer_snapshot_fini(&a);
}

/* Another program's state holds only the position. */
TEST(the_place_is_enough)
{
    static const char *const needed[] = {"step", "epoch", "position"};
    ps_trainer_snapshot s;
    json_t *json = json_pack("{s:i, s:i, s:i}", "step", 5, "epoch", 1, "position", 64);
    assert_ok(ps_trainer_snapshot_from_json(json, &s));
    assert_int_equal(s.step, 5);
    assert_int_equal(s.position, 64);
    assert_int_equal(s.n_ranks, 1);
    assert_true(s.loss_sums[0] == 0 && s.samples == 0 && isnan(s.best));
    ps_trainer_snapshot_fini(&s);
    for (int i = 0; i < 3; i++) {
        json_t *less = json_copy(json);
        json_object_del(less, needed[i]);
        assert_error(ps_trainer_snapshot_from_json(less, &s), PS_ERR_FORMAT, needed[i]);
        ps_trainer_snapshot_fini(&s);
        json_decref(less);
    }
    json_decref(json);
}

TEST(other_workers_share_the_sums)
{
    ps_trainer_snapshot s;
    json_decref(state_json(&s));
    assert_true(ps_trainer_snapshot_share(&s, s.loss_sums, 1, 3) == s.loss_sums[1]);
    assert_true(ps_trainer_snapshot_share(&s, s.loss_samples, 1, 3) == 11);
    assert_true(ps_trainer_snapshot_share(&s, s.loss_samples, 0, 2) == 10 + 11 + 12);
    assert_true(ps_trainer_snapshot_share(&s, s.loss_sums, 1, 2) == 0);
    ps_trainer_snapshot_fini(&s);
}
