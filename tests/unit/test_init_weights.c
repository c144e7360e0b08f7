/* Initial weights against PyTorch's for the same seed. */
#include "init_weights.h"

#include "../support/python.h"
#include "check.h"
#include "mem.h"
#include "model_spec.h"

typedef struct model {
    ps_config cfg;
    ps_model_spec spec;
    float *params;
    void *buffers;
} model;

static void tear(model *m)
{
    free(m->params);
    free(m->buffers);
    ps_model_spec_fini(&m->spec);
    ps_config_fini(&m->cfg);
}

static void make(model *m, const char *file, const char *const *set, int n_set)
{
    *m = (model){.params = NULL};
    assert_ok(ps_config_load(&m->cfg, file, set, n_set));
    assert_ok(ps_model_spec_init(&m->spec, &m->cfg));
    assert_ok(ps_mem_zalloc(&m->params, m->spec.table.arena_count, 4, "params"));
    assert_ok(ps_mem_zalloc(&m->buffers, m->spec.table.buffer_bytes, 1, "buffers"));
}

/* torch.manual_seed(0); torch.nn.Linear(2, 3). */
TEST(a_linear_layer_is_pytorchs)
{
    const float weight[] = {-0.00529398f, 0.37932289f,  -0.58198076f,
                            -0.52038747f, -0.27234524f, 0.18961589f};
    const float bias[] = {-0.01401003f, 0.56065750f, -0.06275152f};
    const char *set[] = {"model.input=[2]", "model.loss=mse",
                         "model.layers=[{linear: 3}]"};
    for (int fused = 0; fused < 2; fused++) {
        model m;
        make(&m, NULL, set, 3);
        ps_init_weights(&m.spec, 0, fused, m.params, m.buffers);
        for (int i = 0; i < 6; i++)
            assert_float_equal(m.params[i], weight[i], 6e-8);
        for (int i = 0; i < 3; i++)
            assert_float_equal(m.params[m.spec.table.tensors[1].offset + i], bias[i],
                               5e-8);
        tear(&m);
    }
}

TEST(norms_start_as_identities_and_gaps_are_zero)
{
    model m;
    make(&m, "configs/resnet18-cifar10.yaml", NULL, 0);
    memset(m.params, 0xff, m.spec.table.arena_count * 4);
    memset(m.buffers, 0xff, m.spec.table.buffer_bytes);
    ps_init_weights(&m.spec, 1, 1, m.params, m.buffers);
    const ps_tensor *weight = ps_tensor_table_find(&m.spec.table, "layer2.0.bn1.weight");
    const ps_tensor *bias = ps_tensor_table_find(&m.spec.table, "layer2.0.bn1.bias");
    const ps_tensor *mean = ps_tensor_table_find(&m.spec.table, "bn1.running_mean");
    const ps_tensor *var = ps_tensor_table_find(&m.spec.table, "bn1.running_var");
    const ps_tensor *n = ps_tensor_table_find(&m.spec.table, "bn1.num_batches_tracked");
    assert_true(m.params[weight->offset + 127] == 1.0f);
    assert_true(m.params[bias->offset + 127] == 0.0f);
    const char *buffers = m.buffers;
    assert_true(((const float *)(const void *)(buffers + mean->offset))[63] == 0.0f);
    assert_true(((const float *)(const void *)(buffers + var->offset))[63] == 1.0f);
    assert_true(*(const int64_t *)(const void *)(buffers + n->offset) == 0);
    for (int i = 0; i + 1 < m.spec.table.n_tensors; i++) {
        const ps_tensor *t = &m.spec.table.tensors[i];
        for (uint64_t k = t->offset + t->count; k < t[1].offset; k++)
            assert_true(m.params[k] == 0.0f);
    }
    tear(&m);
}

/* Whether all parameters, in order, have the wanted bits when they are drawn in that
 * form. */
static bool equal_form(model *m, uint64_t seed, int fused, const float *wanted)
{
    ps_init_weights(&m->spec, seed, fused, m->params, m->buffers);
    for (int i = 0; i < m->spec.table.n_tensors; i++) {
        const ps_tensor *t = &m->spec.table.tensors[i];
        if (memcmp(m->params + t->offset, wanted, t->count * 4) != 0) return false;
        wanted += t->count;
    }
    return true;
}

static void compare(FILE *in, const char *file, const char *const *set, int n_set,
                    uint64_t seed)
{
    model m;
    make(&m, file, set, n_set);
    float *wanted = malloc(m.spec.table.n_params * 4);
    assert_int_equal(fread(wanted, 4, m.spec.table.n_params, in), m.spec.table.n_params);
    bool fused = equal_form(&m, seed, 1, wanted);
    bool unfused = equal_form(&m, seed, 0, wanted);
    print_message("%llu weights are PyTorch's, %s\n",
                  (unsigned long long)m.spec.table.n_params, fused ? "fused" : "unfused");
    assert_true(fused || unfused);
    free(wanted);
    tear(&m);
}

TEST(weights_of_the_installed_pytorch_are_met_bit_for_bit)
{
    const char *small[] = {"model.input=[3, 8, 6]", "model.loss=mse",
                           "model.layers=[{conv2d: {out: 5, kernel: [3, 2], bias: "
                           "false}}, batch_norm2d, {conv2d: {out: 10, kernel: 1, "
                           "groups: 5}}, {group_norm: 2}, flatten, layer_norm, {linear: "
                           "7}]"};
    FILE *in = python_output("init_vectors.py");
    if (!in) skip();
    compare(in, "configs/mnist-basicnet.yaml", NULL, 0, 7);
    compare(in, NULL, small, 3, 3);
    fclose(in);
}

/* The high half of a seed is ignored, as torch.Generator's mt19937 does. */
TEST(seeds_are_reproducible)
{
    model a, b;
    make(&a, "configs/digits-basicnet.yaml", NULL, 0);
    make(&b, "configs/digits-basicnet.yaml", NULL, 0);
    ps_init_weights(&a.spec, 5, 1, a.params, a.buffers);
    ps_init_weights(&b.spec, 5 | UINT64_C(1) << 40, 1, b.params, b.buffers);
    assert_memory_equal(a.params, b.params, a.spec.table.arena_count * 4);
    ps_init_weights(&b.spec, 6, 1, b.params, b.buffers);
    assert_memory_not_equal(a.params, b.params, a.spec.table.arena_count * 4);
    tear(&a);
    tear(&b);
}
