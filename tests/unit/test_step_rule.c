/* The rule of a step against torch.amp.GradScaler's and clip_grad_norm_'s closed forms,
 * and its state on the way through bytes. */

#include "check.h"
#include "step_rule.h"

static void rule_of(ps_step_rule *r, ps_config *cfg, const char *const *sets, int n)
{
    assert_ok(ps_config_load(cfg, NULL, sets, n));
    assert_ok(ps_step_rule_init(r, cfg));
    assert_ok(ps_step_rule_start(r, cfg, 100));
}

TEST(clips_to_the_norm)
{
    const char *const sets[] = {"optimizer.clip_norm=2"};
    ps_config cfg;
    ps_step_rule r;
    ps_step_decision d;
    rule_of(&r, &cfg, sets, 1);
    assert_true(ps_step_rule_waits(&r) && r.refuses);
    assert_ok(ps_step_rule_decide(&r, true, 8, &d));
    assert_true(d.make && d.grad_scale == 2 / (8 + 1e-6));
    assert_ok(ps_step_rule_decide(&r, true, 1, &d));
    assert_true(d.make && d.grad_scale == 1);
    ps_config_fini(&cfg);
}

/* What follows the schedule of a rate of 0 follows that of any other rate. */
TEST(a_schedule_is_a_factor)
{
    static const char *const rates[] = {"optimizer.lr=0.25", "optimizer.lr=0"};
    for (int i = 0; i < 2; i++) {
        const char *const sets[] = {
            rates[i], "schedule={name: linear, warmup: 4, warmup_start: 0.5}"};
        ps_config cfg;
        ps_step_rule r;
        rule_of(&r, &cfg, sets, 2); // 100 steps
        assert_float_equal(ps_step_rule_lr_factor(&r, 0), 0.5, 1e-15);
        assert_float_equal(ps_step_rule_lr_factor(&r, 2), 0.75, 1e-15);
        assert_float_equal(ps_step_rule_lr_factor(&r, 4), 1, 1e-15);
        assert_float_equal(ps_step_rule_lr_factor(&r, 52), 0.5, 1e-15);
        assert_float_equal(ps_step_rule_lr_factor(&r, 100), 0, 1e-15);
        ps_config_fini(&cfg);
    }
}

/* Skipped steps neither count for the optimizer's t nor hold up the schedule. */
TEST(skips_what_overflows)
{
    const char *const sets[] = {"loss_scale={use: on, init: 1024, interval: 2}",
                                "schedule.name=linear", "optimizer.lr=1"};
    ps_config cfg;
    ps_step_rule r;
    ps_step_decision d;
    rule_of(&r, &cfg, sets, 3);
    assert_true(ps_step_rule_waits(&r) && !r.refuses);
    assert_ok(ps_step_rule_decide(&r, false, 0, &d));
    assert_true(!d.make && r.scale.scale == 512);
    const ps_optimizer_step second = ps_step_rule_optimizer_step(&r, 1, 1);
    assert_int_equal(second.t, 1);
    assert_true(second.lr < 1);
    float sum[3] = {512, -1024, 1};
    ps_step_rule_unscale(&r, 3, sum);
    assert_true(sum[0] == 1 && sum[1] == -2 && sum[2] == 0x1p-9f);
    for (int i = 0; i < 2; i++)
        assert_ok(ps_step_rule_decide(&r, true, 0, &d));
    assert_true(d.make && r.scale.scale == 1024);
    ps_config_fini(&cfg);
}

TEST(names_what_is_not_finite)
{
    static const struct {
        int rank;
        const char *text;
    } cases[] = {{3, "the gradient of worker 3 for a.weight in step 7 has a number"},
                 {PS_STEP_RULE_SUM, "the sum of the workers' gradients for a.weight"},
                 {PS_STEP_RULE_OVERFLOW, "in step 7 overflow when added"}};
    for (int i = 0; i < 3; i++) {
        assert_error(ps_step_rule_not_finite(cases[i].rank, "a.weight", 7),
                     PS_ERR_NUMERIC, cases[i].text);
        assert_non_null(strstr(ps_err_message(), "exchange.nan=allow"));
    }
}

/* A rule that is saved and loaded makes the same decisions as one that was never
 * interrupted. */
TEST(state_survives_bytes)
{
    const char *const sets[] = {"loss_scale={use: on, init: 4096, interval: 3}"};
    const bool finite[] = {true, false, true, true, true, false, true};
    ps_config cfg;
    ps_step_rule r;
    ps_step_decision d;
    uint8_t bytes[PS_STEP_RULE_STATE_BYTES];
    size_t n;
    rule_of(&r, &cfg, sets, 1);
    for (int cut = 0; cut < 7; cut++) {
        ps_step_rule a, b;
        assert_ok(ps_step_rule_init(&a, &cfg));
        assert_ok(ps_step_rule_start(&a, &cfg, 100));
        b = a;
        for (int i = 0; i < cut; i++)
            assert_ok(ps_step_rule_decide(&a, finite[i], 0, &d));
        assert_ok(ps_step_rule_save(&a, bytes, &n));
        assert_ok(ps_step_rule_load(&b, bytes, n));
        for (int i = cut; i < 7; i++) {
            assert_ok(ps_step_rule_decide(&a, finite[i], 0, &d));
            assert_ok(ps_step_rule_decide(&b, finite[i], 0, &d));
        }
        assert_memory_equal(&a.scale, &b.scale, sizeof a.scale);
        assert_int_equal(ps_step_rule_optimizer_step(&b, 7, 1).t, 8 - 2);
    }
    ps_config_fini(&cfg);
}

TEST(refuses_foreign_state)
{
    const char *const on[] = {"loss_scale={use: on, init: 4096}"};
    const char *const off[] = {"loss_scale.use=off"};
    ps_config cfg, other;
    ps_step_rule r, plain;
    uint8_t bytes[PS_STEP_RULE_STATE_BYTES + 1];
    size_t n;
    rule_of(&r, &cfg, on, 1);
    rule_of(&plain, &other, off, 1);
    assert_ok(ps_step_rule_save(&r, bytes, &n));
    assert_int_equal(ps_step_rule_load(&plain, bytes, n), PS_ERR_PROTOCOL);
    assert_true(plain.scale.scale == 1.0f);
    for (size_t cut = 0; cut < n; cut++)
        assert_int_equal(ps_step_rule_load(&r, bytes, cut), PS_ERR_PROTOCOL);
    assert_int_equal(ps_step_rule_load(&r, bytes, n + 1), PS_ERR_PROTOCOL);
    bytes[1] = 9; // another version
    assert_int_equal(ps_step_rule_load(&r, bytes, n), PS_ERR_PROTOCOL);
    ps_config_fini(&cfg);
    ps_config_fini(&other);
}
