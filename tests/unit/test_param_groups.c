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

/* One group that began with `first`. */
static void refused(ps_group_numbers first, ps_group_numbers n, const char *text)
{
    const ps_optimizer plain = {.kind = (ps_optimizer_kind)first.kind, .share = 1};
    ps_param_groups g;
    assert_ok(ps_param_groups_init(&g, 1));
    assert_ok(ps_param_groups_open(&g, &plain, &first));
    assert_ok(ps_param_groups_check(&g, &first, 0));
    assert_error(ps_param_groups_check(&g, &n, 0), PS_ERR_CONFIG, text);
    ps_param_groups_fini(&g);
}

static ps_group_numbers good_numbers(ps_optimizer_kind kind)
{
    return (ps_group_numbers){
        .kind = kind, .lr = 1, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
}

TEST(test_check)
{
    const ps_group_numbers sgd = good_numbers(PS_OPTIMIZER_SGD),
                           adam = good_numbers(PS_OPTIMIZER_ADAM),
                           rmsprop = good_numbers(PS_OPTIMIZER_RMSPROP);
    ps_group_numbers n = sgd;
    n.lr = NAN;
    refused(sgd, n, "parameter group 0: lr is nan");
    n = sgd;
    n.momentum = 0.5;
    refused(sgd, n, "momentum is 0.5");
    n = rmsprop;
    n.momentum = 0.5;
    refused(rmsprop, n, "momentum is 0.5");
    n = adam;
    n.beta2 = 1;
    refused(adam, n, "beta2 is 1");
    n = adam;
    n.eps = -1;
    refused(adam, n, "eps is -1");
    refused(adam, sgd, "have to stay");
    n = rmsprop;
    n.centered = 1;
    refused(rmsprop, n, "have to stay");
    n = sgd;
    n.owner = 1;
    refused(sgd, n, "have to stay");
    n.owner = NAN;
    refused(sgd, n, "owner is nan");
    n = sgd;
    n.kind = 1e9;
    refused(sgd, n, "kind is 1e+09");
}

/* Groups of different kinds step as these do, and the state has room for the largest. */
TEST(test_kinds)
{
    const ps_group_numbers first[2] = {good_numbers(PS_OPTIMIZER_SGD),
                                       good_numbers(PS_OPTIMIZER_ADAMW)};
    const ps_optimizer_step step = {.lr = 0.5, .t = 1, .grad_scale = 1};
    ps_optimizer opt = {.kind = PS_OPTIMIZER_SGD, .share = 1};
    ps_param_groups g;
    assert_ok(ps_param_groups_init(&g, 2));
    assert_ok(ps_param_groups_open(&g, &opt, first));
    ps_param_groups_use(&g, &opt);
    assert_int_equal(opt.n_states, 2);
    ps_param_groups_set(&g, 0, first);
    float p[1] = {1}, m[1] = {0}, v[1] = {0}, grad[1] = {4};
    float *const states[PS_OPTIMIZER_MAX_STATES] = {m, v};
    ps_optimizer_scalars k = ps_optimizer_scalars_in(&opt, &step, 0, 0);
    ps_optimizer_apply_by(&opt, &k, 1, p, grad, states);
    assert_true(p[0] == -3 && m[0] == 0 && v[0] == 0); // p -= lr * g, lr 1
    k = ps_optimizer_scalars_in(&opt, &step, 1, 0);
    ps_optimizer_apply_by(&opt, &k, 1, p, grad, states);
    assert_true(fabsf(p[0] + 4) < 1e-6f); // AdamW's first step is lr long
    assert_true(m[0] != 0 && v[0] != 0);
    ps_param_groups_fini(&g);
}

/* Sums and LAMB are for all groups. */
TEST(test_company)
{
    const ps_group_numbers first[2] = {good_numbers(PS_OPTIMIZER_SGD),
                                       good_numbers(PS_OPTIMIZER_LAMB)};
    const ps_optimizer opt = {.kind = PS_OPTIMIZER_SGD, .share = 1};
    ps_param_groups g;
    assert_ok(ps_param_groups_init(&g, 2));
    assert_int_equal(ps_param_groups_open(&g, &opt, first), PS_ERR_CONFIG);
    assert_non_null(strstr(ps_err_message(), "parameter group 1: lamb"));
    ps_param_groups_fini(&g);
}
