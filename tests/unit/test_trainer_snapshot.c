/* The state of the step loop on the way through JSON: every bit of every number. */
#include <math.h>

#include "check.h"
#include "trainer_snapshot.h"

static json_t *state_json(ps_trainer_snapshot *s)
{
    json_t *json, *again;
    assert_ok(ps_trainer_snapshot_init(s, 3));
    s->step = 123456789012345;
    s->epoch = 7;
    s->position = 640;
    s->samples = 99;
    s->seconds = 0.1;
    s->epoch_loss_sum = 1.0 / 3;
    s->step_loss = NAN;
    s->best = -INFINITY;
    s->patience_best = -0.1;
    s->patience_in_row = 3;
    s->plateau_best = 0.3;
    s->plateau_bad = 4;
    s->plateau_cooldown = 5;
    s->plateau_cuts = 6;
    s->window_samples = 12;
    s->metrics_bytes = 4096;
    s->version = 77;
    s->train_samples = 240;
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

TEST(every_bit_survives)
{
    ps_trainer_snapshot a, b;
    json_t *json = state_json(&a);
    assert_ok(ps_trainer_snapshot_from_json(json, &b));
    assert_int_equal(a.step, b.step);
    assert_int_equal(a.epoch, b.epoch);
    assert_int_equal(a.position, b.position);
    assert_int_equal(a.metrics_bytes, b.metrics_bytes);
    assert_true(a.seconds == b.seconds && a.epoch_loss_sum == b.epoch_loss_sum);
    assert_true(isnan(b.step_loss) && b.best == -INFINITY);
    assert_true(b.patience_best == -0.1 && b.patience_in_row == 3);
    assert_true(b.plateau_best == 0.3 && b.plateau_bad == 4);
    assert_true(b.plateau_cooldown == 5 && b.plateau_cuts == 6);
    assert_int_equal(b.n_ranks, 3);
    assert_memory_equal(a.loss_sums, b.loss_sums, 3 * sizeof(double));
    assert_memory_equal(a.loss_samples, b.loss_samples, 3 * sizeof(double));
    assert_memory_equal(a.own_steps, b.own_steps, 3 * sizeof(double));
    assert_memory_equal(a.batches, b.batches, 3 * sizeof(double));
    assert_int_equal(b.version, 77);
    assert_int_equal(b.train_samples, 240);
    assert_true(b.train_mark == (UINT64_C(1) << 53) - 1);
    json_decref(json);
    ps_trainer_snapshot_fini(&a);
    ps_trainer_snapshot_fini(&b);
}

TEST(as_numbers)
{
    ps_trainer_snapshot a, b;
    json_decref(state_json(&a));
    a.window_seconds = 0.25;
    const size_t n = ps_trainer_snapshot_n_values(3);
    double values[64] = {0}, zeros[64] = {0};
    assert_true(n < 64);
    ps_trainer_snapshot_to_values(&a, values);
    for (size_t i = 0; i < n; i++)
        values[i] += zeros[i];
    assert_ok(ps_trainer_snapshot_init(&b, 3));
    ps_trainer_snapshot_from_values(values, &b);
    assert_int_equal(a.step, b.step);
    assert_int_equal(a.metrics_bytes, b.metrics_bytes);
    assert_true(a.seconds == b.seconds && a.window_seconds == b.window_seconds);
    assert_true(isnan(b.step_loss) && b.best == -INFINITY);
    assert_memory_equal(a.loss_sums, b.loss_sums, 3 * sizeof(double));
    assert_memory_equal(a.loss_samples, b.loss_samples, 3 * sizeof(double));
    assert_memory_equal(a.own_steps, b.own_steps, 3 * sizeof(double));
    assert_memory_equal(a.batches, b.batches, 3 * sizeof(double));
    assert_int_equal(b.version, 77);
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
