/* The loss scale against torch.amp.GradScaler's. */
#include "loss_scale.h"

#include <math.h>

#include "check.h"

typedef struct test_overflow {
    int step, rank;
    float value;
} test_overflow;

#include "../vectors/loss_scale_vectors.h"

static void load(ps_config *cfg, const char *const *sets, int n)
{
    assert_ok(ps_config_load(cfg, NULL, sets, n));
}

static bool overflows_in(int step)
{
    for (size_t i = 0; i < sizeof scaled_overflows / sizeof *scaled_overflows; i++)
        if (scaled_overflows[i].step == step) return true;
    return false;
}

TEST(follows_gradscaler)
{
    for (size_t i = 0; i < sizeof scaled_cases / sizeof *scaled_cases; i++) {
        const struct scaled_case *c = &scaled_cases[i];
        int n = 0;
        while (n < SCALED_SETTINGS && c->settings[n])
            n++;
        ps_config cfg;
        load(&cfg, c->settings, n);
        ps_loss_scale s;
        ps_loss_scale_init(&s, &cfg);
        for (int step = 0; step < SCALED_STEPS; step++) {
            // Near the largest float the vectors' gradients overflow by themselves.
            bool finite = !overflows_in(step) && !(c->scales[step + 1] < s.scale);
            assert_float_equal(s.scale, c->scales[step], 0);
            assert_ok(ps_loss_scale_update(&s, finite));
        }
        assert_float_equal(s.scale, c->scales[SCALED_STEPS], 0);
        assert_true(s.skipped >= 4);
        ps_config_fini(&cfg);
    }
}

/* A job that goes on may have a shorter interval than its streak is long: the scale grows
 * in the next finite step, and not only after an overflow. */
TEST(grows_after_a_streak_of_a_longer_interval)
{
    const char *sets[] = {"loss_scale={use: on, init: 1024, interval: 3}"};
    ps_config cfg;
    load(&cfg, sets, 1);
    ps_loss_scale s;
    ps_loss_scale_init(&s, &cfg);
    s.streak = 1500;
    assert_ok(ps_loss_scale_update(&s, true));
    assert_float_equal(s.scale, 2048, 0);
    for (int i = 0; i < 3; i++)
        assert_ok(ps_loss_scale_update(&s, true));
    assert_float_equal(s.scale, 4096, 0);
    ps_config_fini(&cfg);
}

TEST(is_on_with_fp16_alone)
{
    static const struct {
        const char *sets[2];
        bool on;
    } cases[] = {{{"train.precision=float32", "loss_scale.use=auto"}, false},
                 {{"train.precision=bf16", "loss_scale.use=auto"}, false},
                 {{"train.precision=fp16", "loss_scale.use=auto"}, true},
                 {{"train.precision=fp16", "loss_scale.use=off"}, false},
                 {{"train.precision=float32", "loss_scale.use=on"}, true}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ps_config cfg;
        load(&cfg, cases[i].sets, 2);
        ps_loss_scale s;
        ps_loss_scale_init(&s, &cfg);
        assert_int_equal(s.on, cases[i].on);
        assert_float_equal(s.scale, s.on ? 65536 : 1, 0);
        assert_float_equal(ps_loss_scale_inverse(&s), s.on ? 0x1p-16 : 1, 0);
        if (!s.on) {
            assert_ok(ps_loss_scale_update(&s, false));
            assert_float_equal(s.scale, 1, 0);
        }
        ps_config_fini(&cfg);
    }
}

/* GradScaler's scale would become 0, and it would skip every step. */
TEST(gives_up_when_nothing_is_small_enough)
{
    const char *sets[] = {"loss_scale.use=on"};
    ps_config cfg;
    load(&cfg, sets, 1);
    ps_loss_scale s;
    ps_loss_scale_init(&s, &cfg);
    int backoffs = 0;
    while (ps_loss_scale_update(&s, false) == PS_OK && backoffs < 1000)
        backoffs++;
    assert_int_equal(backoffs, 16 + 126); // 2^16 to 2^-126
    assert_int_equal(ps_loss_scale_update(&s, false), PS_ERR_NUMERIC);
    ps_config_fini(&cfg);
}
