#include <math.h>

#include "check.h"
#include "param_groups.h"

/* Numbers hold from their step on. The last three sets are kept. */
TEST(test_steps)
{
    ps_param_groups g;
    assert_ok(ps_param_groups_init(&g, 2));
    assert_null(ps_param_groups_at(&g, 0));
    for (uint64_t step = 4; step < 40; step += 4) {
        const ps_group_numbers numbers[2] = {{.lr = (double)step}, {.lr = -1}};
        ps_param_groups_set(&g, step, numbers);
        assert_true(ps_param_groups_at(&g, step)[0].lr == (double)step);
        assert_true(ps_param_groups_at(&g, step + 9)[1].lr == -1);
        if (step == 4)
            assert_null(ps_param_groups_at(&g, step - 1));
        else
            assert_true(ps_param_groups_at(&g, step - 1)[0].lr == (double)(step - 4));
    }
    uint64_t from;
    assert_true(ps_param_groups_get(&g, 8, &from)[0].lr == 36);
    assert_int_equal(from, 36);
    ps_param_groups_fini(&g);
}

/* A group steps as an optimizer with its numbers would. */
TEST(test_apply)
{
    const ps_optimizer plain = {
        .kind = PS_OPTIMIZER_SGD, .lr = 0.5, .weight_decay = 0.25, .share = 1};
    const ps_group_numbers numbers[2] = {{.lr = 2}, {.lr = 0.5, .weight_decay = 0.25}};
    const ps_optimizer_step step = {.lr = 0.5, .t = 1, .grad_scale = 1, .step = 3};
    float a[3] = {1, 2, 3}, b[3] = {1, 2, 3}, grad[3] = {4, 5, 6};
    ps_param_groups g;
    assert_ok(ps_param_groups_init(&g, 2));
    ps_optimizer grouped = plain;
    grouped.groups = &g;
    ps_optimizer_scalars k = ps_optimizer_scalars_in(&grouped, &step, 1, 0.125);
    assert_true(k.lr_neg == -0.5f && k.decay == 0.125f); // no numbers yet
    ps_param_groups_set(&g, 3, numbers);
    k = ps_optimizer_scalars_in(&grouped, &step, 0, 0.125);
    assert_true(k.lr_neg == -2.0f && k.decay == 0);
    k = ps_optimizer_scalars_in(&grouped, &step, 1, 0.125);
    ps_optimizer_apply_by(&grouped, &k, 3, a, grad, NULL);
    ps_optimizer_apply(&plain, &step, 0.25, 3, b, grad, NULL);
    assert_memory_equal(a, b, sizeof a);
    ps_param_groups_fini(&g);
}

static void refused(const ps_optimizer *opt, ps_group_numbers n, const char *text)
{
    assert_int_equal(ps_param_groups_check(opt, &n, 5), PS_ERR_CONFIG);
    if (!strstr(ps_err_message(), text)) fail_msg("%s", ps_err_message());
}

TEST(test_check)
{
    const ps_optimizer sgd = {.kind = PS_OPTIMIZER_SGD},
                       adam = {.kind = PS_OPTIMIZER_ADAM, .n_states = 2},
                       rmsprop = {.kind = PS_OPTIMIZER_RMSPROP, .n_states = 1};
    const ps_group_numbers good = {.lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    ps_group_numbers n = good;
    assert_ok(ps_param_groups_check(&sgd, &good, 0));
    assert_ok(ps_param_groups_check(&adam, &good, 0));
    n.lr = NAN;
    refused(&sgd, n, "parameter group 5: lr is nan");
    n = good;
    n.momentum = 0.5;
    refused(&sgd, n, "momentum is 0.5");
    refused(&rmsprop, n, "momentum is 0.5");
    n = good;
    n.beta2 = 1;
    refused(&adam, n, "beta2 is 1");
    n = good;
    n.eps = -1;
    refused(&adam, n, "eps is -1");
}
