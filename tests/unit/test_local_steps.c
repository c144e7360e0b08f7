/* Rounds of the policy local, for every small job: counted one by one. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "job_start.h"
#include "local_steps.h"

static void load(ps_config *cfg, const char *const *sets, int n)
{
    assert_int_equal(ps_config_load(cfg, NULL, sets, n), PS_OK);
}

/* A round begins where the one before has ended, and has its number. */
static void check_job(const ps_config *cfg, uint64_t total)
{
    uint64_t round = 0, in_round = 0;
    for (uint64_t step = 0; step < total; step++) {
        assert_true(ps_local_steps_begins(cfg, step) == (in_round == 0));
        assert_int_equal(ps_local_steps_round(cfg, step), round);
        in_round++;
        const bool alone = step < (uint64_t)cfg->sync.local_after;
        const bool ends =
            alone || in_round == (uint64_t)cfg->sync.local_steps || step + 1 == total;
        assert_true(ps_local_steps_ends(cfg, step, total) == ends);
        if (!ends) continue;
        round++;
        in_round = 0;
    }
    assert_int_equal(ps_local_steps_rounds(cfg, total), round);
}

static void rounds_cover_every_step_once(void **state)
{
    const char *const sets[] = {"sync.policy=local"};
    ps_config cfg;
    load(&cfg, sets, 1);
    for (int k = 1; k <= 6; k++)
        for (int after = 0; after <= 7; after++)
            for (uint64_t total = 0; total <= 20; total++) {
                cfg.sync.local_steps = k;
                cfg.sync.local_after = after;
                check_job(&cfg, total);
            }
    ps_config_fini(&cfg);
}

/* The exchange is a job in bsp of the outer optimizer. What else it says stays. */
static void the_exchange_has_the_outer_optimizer(void **state)
{
    const char *const sets[] = {
        "sync.policy=local",        "sync.outer_lr=0.7",    "sync.outer_momentum=0.9",
        "sync.outer_nesterov=true", "optimizer.name=adamw", "optimizer.clip_norm=1",
        "schedule.name=cosine",     "loss_scale.use=on",    "exchange.codec=int8"};
    ps_config cfg, outer;
    load(&cfg, sets, 9);
    ps_local_steps_outer(&outer, &cfg);
    assert_false(ps_local_steps_on(&outer));
    assert_int_equal(outer.optimizer.name, PS_OPTIMIZER_SGD);
    assert_true(outer.optimizer.lr == 0.7 && outer.optimizer.momentum == 0.9);
    assert_true(outer.optimizer.nesterov && outer.optimizer.clip_norm == 0);
    assert_true(outer.optimizer.weight_decay == 0);
    assert_int_equal(outer.schedule.name, PS_SCHEDULE_CONSTANT);
    assert_int_equal(outer.loss_scale.use, PS_SWITCH_OFF);
    assert_int_equal(outer.exchange.codec, PS_CODEC_INT8);
    ps_config_fini(&cfg);
}

static void another_policy_stays_as_it_is(void **state)
{
    ps_config cfg, outer;
    const ps_job_start start = {.total_steps = 30, .step = 7, .rule_bytes = 5};
    load(&cfg, NULL, 0);
    ps_local_steps_outer(&outer, &cfg);
    assert_memory_equal(&outer, &cfg, sizeof cfg);
    const ps_job_start same = ps_job_start_of_exchange(&start, &cfg);
    assert_memory_equal(&same, &start, sizeof start);
    ps_config_fini(&cfg);
}

static void a_job_goes_on_in_its_round(void **state)
{
    const char *const sets[] = {"sync.policy=local", "sync.local_steps=4",
                                "sync.local_after=2"};
    ps_config cfg;
    load(&cfg, sets, 3);
    const ps_job_start start = {.total_steps = 11, .step = 7, .rule_bytes = 5};
    const ps_job_start outer = ps_job_start_of_exchange(&start, &cfg);
    assert_int_equal(outer.total_steps, 5); // 0 | 1 | 2 .. 5 | 6 .. 9 | 10
    assert_int_equal(outer.step, 3);
    assert_int_equal(outer.rule_bytes, 0);
    ps_config_fini(&cfg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rounds_cover_every_step_once),
        cmocka_unit_test(the_exchange_has_the_outer_optimizer),
        cmocka_unit_test(another_policy_stays_as_it_is),
        cmocka_unit_test(a_job_goes_on_in_its_round),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
