/* Parameters chosen by patterns: which are frozen, which have numbers of their own, and
 * the error for a mistyped pattern. */

#include "check.h"
#include "model_spec.h"
#include "step_rule.h"

static const char MODEL[] =
    "model={input: [1, 8, 8], layers: [{conv2d: {name: conv1, out: 4, kernel: 3}}, "
    "{batch_norm2d: {name: bn1}}, relu, flatten, {linear: {name: fc1, out: 9}}, relu, "
    "{linear: {name: fc2, out: 3}}]}";

typedef struct fixture {
    ps_config cfg;
    ps_model_spec spec;
} fixture;

static ps_err make(fixture *f, const char *a, const char *b)
{
    const char *const sets[] = {MODEL, a, b};
    memset(f, 0, sizeof *f);
    PS_TRY(ps_config_load(&f->cfg, NULL, sets, 3));
    return ps_model_spec_init(&f->spec, &f->cfg);
}

static void done(fixture *f)
{
    ps_model_spec_fini(&f->spec);
    ps_config_fini(&f->cfg);
}

static const char *weight_of(const fixture *f, int layer)
{
    const ps_layer *l = &f->spec.layers[layer];
    return ps_tensor_table_at(&f->spec.table, l->weight)->name;
}

TEST(frozen_parameters_are_buffers)
{
    fixture f, whole;
    assert_ok(make(&f, "train.freeze=[conv1.*, fc1.weight]", "train.seed=1"));
    assert_ok(make(&whole, "train.seed=1", "train.seed=1"));
    const ps_tensor_table *t = &f.spec.table;
    assert_int_equal(t->n_tensors, 5);
    assert_int_equal(t->n_frozen, 3);
    assert_int_equal(t->n_buffers, 3 + 3); // batch norm's first
    assert_string_equal(t->buffers[3].name, "conv1.weight");
    assert_string_equal(t->buffers[5].name, "fc1.weight");
    assert_int_equal(t->buffers[3].offset, whole.spec.table.buffer_bytes);
    assert_int_equal(t->buffer_bytes, t->buffers[3].offset + t->frozen_bytes);
    assert_int_equal(t->n_params + 4 * 9 + 4 + 9 * 144, whole.spec.table.n_params);
    for (int i = 0; i < f.spec.n_layers; i++) { // each layer still has its own
        if (f.spec.layers[i].weight == PS_NONE) continue;
        assert_string_equal(weight_of(&f, i), weight_of(&whole, i));
    }
    const ps_layer *fc1 = &f.spec.layers[4];
    assert_false(ps_tensor_table_trains(t, fc1->weight));
    assert_true(ps_tensor_table_trains(t, fc1->bias));
    done(&f);
    done(&whole);
}

static void refused(const char *set, const char *text)
{
    fixture f;
    assert_error(make(&f, set, "train.seed=1"), PS_ERR_CONFIG, text);
    done(&f);
}

TEST(a_wrong_pattern_is_explained)
{
    refused(
        "train.freeze=[conv2.weight]",
        "train.freeze: 'conv2.weight' matches no parameter of the model; did you mean "
        "conv1.weight?");
    refused("train.freeze=[conv1]", "for the layer write 'conv1.*'");
    refused("train.freeze=[encoder.*]", "it has conv1.weight, conv1.bias, bn1.weight");
    refused("train.freeze=[bn1.running_mean]", "matches no parameter");
    refused("train.freeze='*'", "all parameters of the model are frozen");
    refused("train.freeze=[[a]]", "train.freeze: has to be patterns of parameter names");
    refused("train.freeze={a: b}", "train.freeze: has to be patterns of parameter names");
    refused("optimizer.groups=[{match: fc3.*, lr: 1}]",
            "optimizer.groups: 'fc3.*' matches no parameter of the model");
    refused("optimizer.groups=[{match: fc2.*}]", "a group needs lr or weight_decay");
    refused("optimizer.groups=[{lr: 1}]", "a group needs match");
    refused("optimizer.groups=[fc2.*]", "a group looks like {match: ['*.bias']");
    refused("optimizer.groups={match: fc2.*}", "optimizer.groups: has to be a list");
    refused("optimizer.groups=[{match: fc2.*, momentum: 1}]",
            "a group has no 'momentum'; it has match, lr and weight_decay");
    refused("optimizer.groups=[{match: fc2.*, lr: -1}]",
            "optimizer.groups: lr: -1 is below 0");
    refused("optimizer.groups=[{match: fc2.*, lr: fast}]", "'fast' is not a number");
}

static const ps_tensor *tensor(const fixture *f, const char *name)
{
    return ps_tensor_table_find(&f->spec.table, name);
}

TEST(the_first_match_counts)
{
    fixture f;
    ps_step_rule rule;
    assert_ok(make(&f,
                   "optimizer={name: adamw, lr: 0.1, groups: [{match: ['*.bias', bn1.*], "
                   "weight_decay: 0}, {match: fc2.*, lr: 0.5, weight_decay: 0.2}]}",
                   "schedule={name: linear, min_lr: 0.05, warmup: 2}"));
    assert_int_equal(tensor(&f, "conv1.weight")->group, 0);
    assert_int_equal(tensor(&f, "bn1.weight")->group, 1);
    assert_int_equal(tensor(&f, "fc2.bias")->group, 1);
    assert_int_equal(tensor(&f, "fc2.weight")->group, 2);
    assert_ok(ps_step_rule_init(&rule, &f.cfg));
    assert_ok(ps_step_rule_start(&rule, &f.cfg, 12));
    // each group's rate follows the schedule from its own
    const ps_optimizer_step now = ps_step_rule_optimizer_step(&rule, 7, 1);
    assert_float_equal(now.lr, 0.075, 1e-12);
    assert_float_equal(now.fixed_lr[0], 0.075, 1e-12);
    assert_float_equal(now.fixed_lr[1], 0.275, 1e-12);
    const double decays[] = {0.01, 0, 0.2}, rates[] = {0.075, 0.075, 0.275};
    for (int group = 0; group < 3; group++) {
        const ps_optimizer_scalars k =
            ps_optimizer_scalars_in(&rule.optimizer, &now, group, 0.01);
        assert_float_equal(k.decay, 1 - rates[group] * decays[group], 1e-7);
    }
    done(&f);
}

/* Patterns have to be equal on all members, so they are part of the hash. */
TEST(the_hash_knows_them)
{
    static const char *const sets[] = {
        "train.freeze=[]",
        "train.freeze=[conv1.*]",
        "train.freeze=[conv1.*, bn1.*]",
        "optimizer.groups=[{match: fc1.*, lr: 1}]",
        "optimizer.groups=[{match: fc1.*, weight_decay: 1}]",
        "optimizer.groups=[{match: fc1.*, lr: 2}]"};
    enum { N = sizeof sets / sizeof *sets };
    uint64_t hashes[N];
    for (int i = 0; i < N; i++) {
        fixture f;
        assert_ok(make(&f, sets[i], "train.seed=1"));
        hashes[i] = ps_config_hash(&f.cfg);
        for (int k = 0; k < i; k++)
            assert_true(hashes[i] != hashes[k]);
        done(&f);
    }
}
