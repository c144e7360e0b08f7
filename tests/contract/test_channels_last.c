/* The CUDA device with the channels of pictures last against the device with (C, H, W),
 * in 16 bits, the host in the GPU's place. Convolutions' sums are rounded once, from
 * double; pools, dropout and all the rest add the same values in the same order. So the
 * bits are the same, except where norms and biases add up channels. */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "device_rig.h"
#include "host_gpu.h"
#include "model_cases.h"

enum { BATCH = 6, SHORT = 5 };

/* Sums in another order differ in float32's last bits, and so does what is computed from
 * them; one value in many is then rounded to the other side of a tie in 16 bits, which
 * changes it by 2^-8. Of the largest value, which counts as at least 0.125. */
static const double ORDER = 0x1p-14, TIE = 0x1p-7;

static const ps_pass training = {
    .training = true, .grad_scale = 1.0f, .dropout = {0x123456789abcull, 3}};

typedef struct pair {
    rig sides[2]; // (C, H, W), and channels last
    bool norms;   // the model has a norm
} pair;

static void use_library(bool wanted)
{
    setenv("PS_HOST_CONV", wanted ? "1" : "0", 1);
}

static rig_device device_of(ps_switch channels_last, int precision)
{
    return (rig_device){.kind = PS_DEVICE_CUDA,
                        .channels_last = channels_last,
                        .rounding = &rig_sixteen_bits[precision]};
}

static void pair_init(pair *p, const model_case *c, int precision)
{
    print_message("%s\n", c->what);
    p->norms = strstr(c->layers, "_norm") != NULL;
    for (int s = 0; s < 2; s++) {
        const rig_device device = device_of(s ? PS_SWITCH_ON : PS_SWITCH_OFF, precision);
        rig_init(&p->sides[s], &device, c->input, c->loss, c->layers, BATCH);
    }
}

static void pair_fini(pair *p)
{
    for (int s = 0; s < 2; s++)
        rig_fini(&p->sides[s]);
}

/* bound 0: the same bits. */
static void check_close(const char *what, const float *a, const float *b, uint64_t n,
                        double bound)
{
    double worst = 0, largest = 0.125;
    for (uint64_t i = 0; i < n; i++) {
        assert_true(isfinite(a[i]) && isfinite(b[i]));
        worst = fmax(worst, fabs((double)a[i] - (double)b[i]));
        largest = fmax(largest, fabs((double)b[i]));
    }
    if (worst > bound * largest)
        fail_msg("%s: off by %g, the largest is %g", what, worst, largest);
}

static void check_outputs(pair *p, int n)
{
    const size_t count = (size_t)(n * p->sides[0].spec.n_outputs);
    float *out[2];
    for (int s = 0; s < 2; s++) {
        out[s] = malloc(count * sizeof(float));
        assert_ok(ps_program_outputs(p->sides[s].program, out[s], count));
    }
    check_close("outputs", out[1], out[0], count, p->norms ? TIE : 0);
    free(out[0]);
    free(out[1]);
}

/* added: own products' sums are rounded before they are added to the arena's. */
static void check_gradients(const pair *p, bool added)
{
    const ps_tensor_table *table = &p->sides[0].spec.table;
    for (int i = 0; i < table->n_tensors; i++) {
        const ps_tensor *t = &table->tensors[i];
        const bool sums = added || p->norms || t->dims.n == 1; // a bias
        check_close(t->name, p->sides[1].grads + t->offset, p->sides[0].grads + t->offset,
                    t->count, sums ? ORDER : 0);
    }
}

static void pair_pass(pair *p, int n, const ps_pass *pass)
{
    for (int s = 0; s < 2; s++) {
        rig *r = &p->sides[s];
        ps_batch batch = rig_batch(r, n);
        assert_ok(ps_program_forward(r->program, &batch, pass, NULL));
        if (pass->training) assert_ok(ps_program_backward(r->program, &batch, pass));
    }
    check_outputs(p, n);
    if (pass->training) check_gradients(p, pass->accumulate);
}

static void check_model(const model_case *c, int precision)
{
    pair p;
    ps_pass added = training, evaluation = training;
    added.accumulate = true;
    evaluation.training = false;
    pair_init(&p, c, precision);
    pair_pass(&p, BATCH, &training);
    pair_pass(&p, SHORT, &added); // the library lacks some kernels for it
    pair_pass(&p, BATCH, &training);
    pair_pass(&p, BATCH, &evaluation);
    pair_fini(&p);
}

TEST(test_models)
{
    for (size_t i = 0; i < model_n_cases; i++) {
        use_library(i % 2 == 0);
        check_model(&model_cases[i], i % 3 == 0);
    }
}

#define HEAD "{adaptive_avg_pool2d: [3, 2]}, flatten, {linear: {name: fc, out: 5}}"

/* Their weights lie in the buffers, their 16 bits behind those of the others. */
TEST(test_frozen_convolutions)
{
    static const model_case frozen = {
        "frozen", "[3, 9, 7]", "cross_entropy train.freeze=[a.*,n.*,c.weight]",
        "{conv2d: {name: a, out: 8, kernel: 3}}, {batch_norm2d: {name: n}}, relu, "
        "{conv2d: {name: b, out: 12, "
        "kernel: 3, groups: 2, bias: false}}, tanh, {conv2d: {name: c, out: 6, kernel: "
        "[2, 1]}}, tanh, " HEAD};
    for (int library = 0; library < 2; library++) {
        use_library(library);
        check_model(&frozen, 0);
    }
}

/* More positions and channels than a block of sums takes. */
TEST(test_many_positions_and_channels)
{
    static const model_case cases[] = {
        {"many positions", "[3, 75, 71]", "cross_entropy",
         "{conv2d: {name: a, out: 6, kernel: 1}}, {batch_norm2d: {name: n}}, relu, "
         "{conv2d: {name: b, out: 4, kernel: 1}}, {group_norm: {name: m, groups: 2}}, "
         "tanh, {max_pool2d: 2}, " HEAD},
        {"many channels", "[2, 6, 5]", "cross_entropy",
         "{conv2d: {name: a, out: 130, kernel: 1}}, {batch_norm2d: {name: n}}, relu, "
         "{conv2d: {name: b, out: 72, kernel: 1}}, {group_norm: {name: m, groups: 8}}, "
         "tanh, " HEAD},
        {"from one position", "[7, 1, 1]", "cross_entropy",
         "{upsample: {size: [4, 3], mode: bilinear}}, {conv2d: {name: a, out: 9, kernel: "
         "3, padding: 1}}, tanh, {avg_pool2d: global}, {upsample: {size: [2, 3]}}, "
         "{dropout: 0.3}, " HEAD}};
    use_library(false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_model(&cases[i], 0);
}

/* The memory for a batch's parts is enough for every shorter one, and each part has a
 * lane that adds it. */
TEST(test_parts_fit)
{
    static const int64_t channels[] = {1, 3, 4, 5, 64, 130};
    for (size_t c = 0; c < sizeof channels / sizeof *channels; c++) {
        int64_t most = 0;
        for (int64_t length = 1; length < 700000; length += 1 + length / 97) {
            const ps_columns made = ps_columns_of(length, channels[c]);
            assert_true(made.parts.by * (int64_t)made.part_length >= length);
            assert_true((made.parts.by - 1) * (int64_t)made.part_length < length);
            if (made.parts.by > most) most = made.parts.by;
            assert_true(most <= ps_columns_most_parts(length, channels[c]));
            assert_true(most <= PS_SUM_LANES);
        }
    }
}

/* Returns whether the library got pictures with channels last. The model has windows of 1
 * x 1 and of kernel x kernel. */
static bool chosen(ps_switch channels_last, const rig_rounding *rounding, int batch,
                   int kernel)
{
    char layers[256];
    rig r;
    rig_device device = device_of(channels_last, 0);
    device.rounding = rounding;
    use_library(true);
    snprintf(layers, sizeof layers,
             "{conv2d: {name: a, out: 4, kernel: 1}}, tanh, {conv2d: {name: b, out: 4, "
             "kernel: %d}}, tanh, " HEAD,
             kernel);
    rig_init(&r, &device, "[2, 6, 6]", "cross_entropy", layers, batch);
    const long before = host_gpu_counted.channels_last;
    ps_batch x = rig_batch(&r, batch);
    assert_ok(ps_program_forward(r.program, &x, &training, NULL));
    assert_ok(ps_program_backward(r.program, &x, &training));
    rig_fini(&r);
    return host_gpu_counted.channels_last > before;
}

/* auto: in 16 bits, unless the library has kernels for fewer convolutions then: here with
 * 4 x 4 windows and an odd number of samples. With 3 x 3 windows it lacks as many in both
 * layouts. */
TEST(test_choice)
{
    const rig_rounding *bf16 = &rig_sixteen_bits[0];
    assert_true(chosen(PS_SWITCH_AUTO, bf16, BATCH, 4));
    assert_true(chosen(PS_SWITCH_AUTO, bf16, SHORT, 3));
    assert_false(chosen(PS_SWITCH_AUTO, bf16, SHORT, 4));
    assert_true(chosen(PS_SWITCH_ON, bf16, SHORT, 4));
    assert_false(chosen(PS_SWITCH_OFF, bf16, BATCH, 4));
    assert_false(chosen(PS_SWITCH_ON, &rig_float32, BATCH, 4));
}
