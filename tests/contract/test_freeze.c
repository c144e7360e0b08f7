/* train.freeze on a device (an argument; default: cpu). A model with some parameters
 * frozen has the same loss, statistics and gradients of the other parameters. It
 * announces only these gradients. */
#include <float.h>
#include <math.h>

#include "../support/device_there.h"
#include "check.h"
#include "device_rig.h"

enum { BATCH = 6 };

static ps_device_kind kind = PS_DEVICE_CPU;

static const char LAYERS[] =
    "conv2d: {name: a, out: 8, kernel: 3, padding: 1}, batch_norm2d: {name: n}, relu, "
    "max_pool2d: 2, residual: {name: r, body: [conv2d: {name: c, out: 8, kernel: 3, "
    "padding: 1, bias: false}, batch_norm2d: {name: m}], shortcut: [conv2d: {name: s, "
    "out: 8, kernel: 1}]}, relu, conv2d: {name: d, out: 8, kernel: 3, groups: 4}, "
    "group_norm: {name: o, groups: 2}, silu, flatten, linear: {name: f, out: 12}, "
    "layer_norm: {name: l}, tanh, linear: {name: g, out: 5}";

/* Where a parameter or buffer of the rig is. */
static float *values_of(const rig *r, const ps_tensor *t)
{
    const ps_tensor_table *table = &r->spec.table;
    const bool param = t >= table->tensors && t < table->tensors + table->n_tensors;
    if (param) return r->params + t->offset;
    return (float *)(void *)((char *)r->buffers + t->offset);
}

/* `to` gets the values of the tensors with the same names. */
static void copy_weights(const rig *from, rig *to)
{
    const ps_tensor_table *table = &to->spec.table;
    for (int i = 0; i < table->n_tensors + table->n_buffers; i++) {
        const ps_tensor *t = ps_tensor_table_at(table, i);
        const ps_tensor *other = ps_tensor_table_find(&from->spec.table, t->name);
        const size_t size = t->role == PS_TENSOR_COUNTER ? 8 : 4;
        memcpy(values_of(to, t), values_of(from, other), t->count * size);
    }
}

/* A frozen layer that passes no gradient on may add up its terms in another order: oneDNN
 * has other kernels for inference. In either order a sum is off by at most one rounding
 * for each term, and the layers behind pass that on. The longest way through such layers:
 * an output of `a` has 3 * 9 + 1 terms, of `c` 8 * 9, of `f` 8 * 4 * 4 + 1. */
static const double MOST_ROUNDINGS = 2 * (28 + 72 + 129), HALF_UNIT = FLT_EPSILON / 2;

static void assert_close(const char *what, const float *a, const float *b, uint64_t n)
{
    double worst = 0, largest = 0.01;
    for (uint64_t i = 0; i < n; i++) {
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    if (!(worst <= MOST_ROUNDINGS * HALF_UNIT * largest))
        fail_msg("%s: off by %g, the largest is %g", what, worst, largest);
}

typedef struct announced {
    uint64_t count;
    uint8_t *ready; // (arena)
} announced;

static ps_err on_grads(void *ctx, uint64_t begin, uint64_t end)
{
    announced *a = ctx;
    for (uint64_t i = begin; i < end; i++) {
        assert_true(i < a->count && !a->ready[i]);
        a->ready[i] = 1;
    }
    return PS_OK;
}

static void run(rig *r, bool accumulate, double *loss)
{
    const ps_tensor_table *table = &r->spec.table;
    announced seen = {table->arena_count, calloc(table->arena_count, 1)};
    const ps_pass_hooks hooks = {.ctx = &seen, .grads_ready = on_grads};
    ps_batch batch = rig_batch(r, BATCH);
    ps_pass pass = {.training = true,
                    .grad_scale = 0.5f,
                    .accumulate = accumulate,
                    .dropout = {7, 3},
                    .hooks = &hooks};
    ps_pass_result result;
    assert_ok(ps_program_forward(r->program, &batch, &pass, &result));
    assert_ok(ps_program_backward(r->program, &batch, &pass));
    assert_ok(ps_program_fetch_buffers(r->program));
    *loss = result.loss_sum;
    for (int t = 0; t < table->n_tensors; t++)
        for (uint64_t i = 0; i < table->tensors[t].count; i++)
            assert_true(seen.ready[table->tensors[t].offset + i]);
    free(seen.ready);
}

static void compare(const rig *whole, const rig *frozen)
{
    const ps_tensor_table *table = &frozen->spec.table;
    for (int i = 0; i < table->n_tensors; i++) {
        const ps_tensor *t = &table->tensors[i];
        const ps_tensor *other = ps_tensor_table_find(&whole->spec.table, t->name);
        assert_close(t->name, frozen->grads + t->offset, whole->grads + other->offset,
                     t->count);
    }
    for (int i = 0; i < table->n_buffers; i++) {
        const ps_tensor *t = &table->buffers[i];
        const ps_tensor *other = ps_tensor_table_find(&whole->spec.table, t->name);
        const size_t size = t->role == PS_TENSOR_COUNTER ? 8 : 4;
        if (t->role == PS_TENSOR_BUFFER)
            assert_close(t->name, values_of(frozen, t), values_of(whole, other),
                         t->count);
        else // counters and frozen parameters
            assert_memory_equal(values_of(frozen, t), values_of(whole, other),
                                t->count * size);
    }
}

static void check(const rig_device *on, const char *patterns, int n_frozen)
{
    static rig whole, frozen;
    char loss[160];
    double losses[2];
    print_message("%s\n", patterns);
    snprintf(loss, sizeof loss, "cross_entropy train.freeze=%s", patterns);
    rig_init(&whole, on, "[3, 8, 8]", "cross_entropy", LAYERS, BATCH);
    rig_init(&frozen, on, "[3, 8, 8]", loss, LAYERS, BATCH);
    assert_int_equal(frozen.spec.table.n_frozen, n_frozen);
    assert_int_equal(whole.spec.table.n_tensors, frozen.spec.table.n_tensors + n_frozen);
    copy_weights(&whole, &frozen);
    for (int pass = 0; pass < 3; pass++) { // the last two add to the gradients
        run(&whole, pass > 0, &losses[0]);
        run(&frozen, pass > 0, &losses[1]);
        assert_true(fabs(losses[0] - losses[1]) <= 1e-6 * fabs(losses[0]));
        compare(&whole, &frozen);
    }
    rig_fini(&whole);
    rig_fini(&frozen);
}

TEST(same_gradients)
{
    static const struct {
        const char *patterns;
        int n_frozen;
    } cases[] = {{"[a.*,n.*]", 4},
                 {"[a.*,n.*,r.*,f.*]", 11},
                 {"[r.*]", 5},
                 {"[g.*]", 2},
                 {"['*.bias']", 9},
                 {"['*.weight']", 10},
                 {"[n.*,r.m.*]", 4},
                 {"[d.*,o.*,l.*]", 6},
                 {"[o.weight,l.bias]", 2},
                 {"[r.c.*,r.m.*,a.weight,f.weight]", 5},
                 {"[r.s.weight,n.bias,g.bias]", 3}};
    const rig_device on = {.kind = kind, .rounding = &rig_float32};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check(&on, cases[i].patterns, cases[i].n_frozen);
}

TEST(in_bf16)
{
    const rig_device on = {.kind = kind, .rounding = &rig_sixteen_bits[0]};
    check(&on, "[a.*,n.*]", 4);
    check(&on, "['*.weight']", 10);
    check(&on, "[f.*]", 2);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !ps_word_find(ps_device_words, argv[1], (int *)&kind)) return 2;
    return device_is_there(kind, PS_PRECISION_FLOAT32) ? check_main(argc, argv, 2)
                                                       : check_skipped(ps_err_message());
}
