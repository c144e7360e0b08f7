/* One suite over every device: each against a reference in double (ref_layers.h), layer
 * by layer and in models, and the rules of device.h. */
#include <math.h>

#include "../support/device_there.h"
#include "check.h"
#include "device_rig.h"
#include "finite.h"
#include "model_cases.h"
#include "model_spec.h"

#define FLAT "flatten, linear: {name: fc, out: 5}"

enum { NARROW = sizeof rig_sixteen_bits / sizeof *rig_sixteen_bits };

static rig_device on = {.kind = PS_DEVICE_CPU,
                        .rounding = &rig_float32}; // the arguments may change it

static const ps_pass plain_pass = {
    .training = true, .grad_scale = 1.0f, .dropout = {0x123456789abcull, 3}};

/* Returns the largest difference, relative to its bound. few: leaves out the passes that
 * differ from these only in what has nothing to do with formats and layouts. */
static double check_passes(const rig_device *device, const model_case *c, bool few)
{
    rig r;
    print_message("%s\n", c->what);
    rig_init(&r, device, c->input, c->loss, c->layers, 6);
    ps_pass scaled = plain_pass, added = plain_pass, evaluation = plain_pass;
    scaled.grad_scale = 0.25f;
    added.accumulate = true;
    evaluation.training = false;
    if (!few) rig_compare(&r, 6, &plain_pass);
    if (!few) rig_compare(&r, 6, &scaled);
    rig_compare(&r, 5, &plain_pass); // a short last batch
    rig_compare(&r, 6, &added);
    rig_compare(&r, 2, &evaluation);
    if (!few) rig_compare(&r, 6, &evaluation);
    if (!few) rig_compare(&r, 6, &plain_pass);
    rig_fini(&r);
    return r.worst;
}

static double check_model(const rig_device *device, const model_case *c)
{
    return check_passes(device, c, false);
}

static double check_models(const rig_device *device, bool few)
{
    double worst = 0;
    for (size_t i = 0; i < model_n_cases; i++)
        worst = fmax(worst, check_passes(device, &model_cases[i], few));
    return worst;
}

TEST(test_models)
{
    check_models(&on, false);
}

/* With weights such as 1/3 exact results are ties, and two orders of summing round them
 * to different numbers of 16 bits. So these cases are compared only in float32. */
TEST(test_any_size)
{
    static const model_case cases[] = {
        {"upsample to any size", "[3, 5, 4]", "cross_entropy",
         "{conv2d: {name: a, out: 20, kernel: 3, padding: 1}}, tanh, {upsample: {size: "
         "[12, 7], mode: bilinear}}, {conv2d: {name: b, out: 16, kernel: 3, stride: 2}}, "
         "tanh, {residual: {name: r, body: [{conv2d: {name: c, out: 16, kernel: 3, "
         "padding: 1}}], shortcut: [{upsample: {size: [1, 2], mode: bilinear}}, "
         "{upsample: {size: [5, 3], mode: bilinear}}]}}, {upsample: {size: [3, 7]}}, "
         "flatten, {linear: {name: fc, out: 5}}"},
        {"adaptive pools of any size", "[3, 11, 13]", "cross_entropy",
         "{conv2d: {name: a, out: 21, kernel: 2}}, tanh, {adaptive_avg_pool2d: [4, 7]}, "
         "{conv2d: {name: b, out: 16, kernel: 1}}, tanh, {adaptive_avg_pool2d: {size: "
         "[6, 9]}}, {adaptive_max_pool2d: [4, 3]}, {conv2d: {name: c, out: 6, kernel: "
         "1}}, tanh, {adaptive_avg_pool2d: [1, 2]}, flatten, {linear: {name: fc, out: "
         "5}}"},
        {"a sequence in unequal windows", "[3, 40]", "cross_entropy",
         "{conv1d: {name: a, out: 8, kernel: 5}}, tanh, {adaptive_avg_pool1d: 7}, "
         "flatten, {linear: {name: fc, out: 5}}"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_model(&on, &cases[i]);
}

/* A GPU adds up the columns of a bias's gradient by 16 rows at a time, above 128 rows by
 * blocks; above 256 samples their losses, too. */
TEST(test_many_samples)
{
    static const int samples[] = {700, 257, 256, 129, 128, 75, 60, 45, 30, 15};
    rig r;
    rig_init(&r, &on, "[7]", "mse",
             "{linear: {name: a, out: 19}}, tanh, {linear: {name: b, out: 3}}", 700);
    for (size_t i = 0; i < sizeof samples / sizeof *samples; i++)
        rig_compare(&r, samples[i], &plain_pass);
    rig_fini(&r);
}

/* On a GPU a warp does a row of more than 63 outputs, and a block one of more than 512.
 */
TEST(test_many_outputs)
{
    static const char *const losses[] = {"cross_entropy",
                                         "cross_entropy train.label_smoothing=0.1 "
                                         "train.ignore_index=3",
                                         "cross_entropy numbers",
                                         "cross_entropy numbers "
                                         "train.label_smoothing=0.2",
                                         "nll",
                                         "nll train.label_smoothing=0.3 "
                                         "train.ignore_index=10",
                                         "mse",
                                         "mse numbers",
                                         "l1 numbers",
                                         "smooth_l1 numbers",
                                         "bce_with_logits numbers"};
    static const int outputs[] = {64, 75, 513};
    for (size_t l = 0; l < sizeof losses / sizeof *losses; l++)
        for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++) {
            // a log_softmax before mse does not go together with the loss
            const bool log = losses[l][0] == 'n' || strcmp(losses[l], "mse") == 0;
            char layers[80];
            snprintf(layers, sizeof layers, "{linear: {name: a, out: %d}}%s", outputs[o],
                     log ? ", log_softmax" : "");
            check_model(&on, &(model_case){losses[l], "[7]", losses[l], layers});
        }
}

TEST(test_many_classes_with_weights)
{
    enum { CLASSES = 70 };
    char loss[400] = "train.class_weights=[";
    for (int c = 0; c < CLASSES; c++)
        snprintf(loss + strlen(loss), sizeof loss - strlen(loss), "%s%d", c ? "," : "",
                 c * 5 % 4);
    strcat(loss, "]");
    char all[3][500];
    snprintf(all[0], sizeof *all, "nll %s train.label_smoothing=0.3", loss);
    snprintf(all[1], sizeof *all, "cross_entropy %s train.ignore_index=3", loss);
    snprintf(all[2], sizeof *all, "cross_entropy numbers %s", loss);
    for (int i = 0; i < 3; i++) {
        const char *layers = i == 0 ? "{linear: {name: a, out: 70}}, log_softmax"
                                    : "{linear: {name: a, out: 70}}";
        check_model(&on, &(model_case){"weights of 70 classes", "[7]", all[i], layers});
    }
}

TEST(test_without_winograd)
{
    if (on.kind != PS_DEVICE_CPU) return; // no other device has the choice
    const model_case *c = model_cases;
    while (strcmp(c->what, "winograd's shapes") != 0)
        assert_true(++c < model_cases + model_n_cases);
    rig_device without = on;
    without.winograd = PS_WINOGRAD_OFF;
    check_model(&without, c);
}

/* Sets the device to one of rig_sixteen_bits. Returns whether the device has it. */
static bool narrow(size_t i, rig_device *device)
{
    *device = on;
    device->rounding = &rig_sixteen_bits[i];
    const bool has = device_is_there(device->kind, device->rounding->precision);
    if (!has) print_message("skipped: %s\n", ps_err_message());
    return has;
}

TEST(test_narrow_models)
{
    for (size_t i = 0; i < NARROW; i++) {
        rig_device device;
        if (!narrow(i, &device)) return;
        if (on.rounding == &rig_sixteen_bits[i]) continue; // test_models has them
        // own products read both formats in the same way
        const bool both =
            device.kind == PS_DEVICE_CUDA && (device.cudnn != PS_SWITCH_OFF || i == 0);
        for (int last = 0; last <= both; last++) {
            device.channels_last = last ? PS_SWITCH_ON : PS_SWITCH_OFF;
            const bool few = (i || last) && !getenv("PS_NIGHTLY");
            double worst = check_models(&device, few);
            print_message(
                "%s%s: at most %.2g of the bounds\n",
                ps_word_name(ps_precision_words, (int)device.rounding->precision),
                last ? ", channels last" : "", worst);
        }
    }
}

/* Samples that come as bytes have the bits of the floats that these stand for. */
static void check_bytes(const rig_device *device)
{
    enum { SAMPLES = 6, CHANNELS = 3, PLANE = 4 * 5, FEATURES = CHANNELS * PLANE };
    static float values[CHANNELS * 256];
    static uint8_t bytes[SAMPLES * FEATURES];
    float out[2][SAMPLES * 5];
    rig r;
    ps_program *program;
    rig_init(&r, device, "[3, 4, 5]", "cross_entropy",
             "{conv2d: {name: a, out: 4, kernel: 3}}, tanh, " FLAT, SAMPLES);
    for (int i = 0; i < CHANNELS * 256; i++)
        values[i] = sinf((float)i * 0.7f);
    for (int i = 0; i < SAMPLES * FEATURES; i++) {
        bytes[i] = (uint8_t)(i * 37 + i / 11);
        r.x[i] = values[256 * (i / PLANE % CHANNELS) + bytes[i]];
    }
    const ps_program_options options = {.spec = &r.spec,
                                        .max_batch = SAMPLES,
                                        .params = r.params,
                                        .buffers = r.buffers,
                                        .byte_values = values,
                                        .channels = CHANNELS};
    assert_ok(ps_program_create(r.device, &options, &program));
    const ps_pass evaluation = {.training = false};
    ps_batch batch = rig_batch(&r, SAMPLES), same = batch;
    same.x = NULL;
    same.bytes = bytes;
    assert_ok(ps_program_forward(r.program, &batch, &evaluation, NULL));
    assert_ok(ps_program_forward(program, &same, &evaluation, NULL));
    assert_ok(ps_program_outputs(r.program, out[0], SAMPLES * 5));
    assert_ok(ps_program_outputs(program, out[1], SAMPLES * 5));
    assert_memory_equal(out[0], out[1], sizeof out[0]);
    ps_program_destroy(&program);
    rig_fini(&r);
}

TEST(test_bytes)
{
    rig_device device;
    if (on.kind != PS_DEVICE_CUDA) return; // which alone takes them
    check_bytes(&on);
    if (!narrow(0, &device)) return;
    check_bytes(&device);
    device.channels_last = PS_SWITCH_ON;
    check_bytes(&device);
}

/* On a GPU teams of one lane, of a warp or of a block add up a norm's parts: of its
 * positions, of a group's channels, of a channel's samples. */
static void check_large_norms(const rig_device *device)
{
    check_model(device, &(model_case){"groups of many positions and channels",
                                      "[2, 40, 36]", "cross_entropy",
                                      "{conv2d: {name: a, out: 64, kernel: 1}}, "
                                      "{group_norm: {name: g, groups: 1}}, tanh, "
                                      "{conv2d: {name: b, out: 16, kernel: 1, stride: "
                                      "4}}, {group_norm: {name: h, groups: 2}}, tanh, "
                                      "{avg_pool2d: global}, " FLAT});
    rig r;
    rig_init(&r, device, "[9]", "cross_entropy",
             "{linear: {name: a, out: 75}}, {layer_norm: {name: l}}, tanh, {linear: "
             "{name: b, out: 530}}, {layer_norm: {name: m}}, tanh, {linear: {name: c, "
             "out: 4}}",
             70);
    rig_compare(&r, 70, &plain_pass);
    rig_fini(&r);
}

TEST(test_large_norms)
{
    check_large_norms(&on);
    for (size_t i = 0; i < NARROW; i++) {
        rig_device device;
        if (!narrow(i, &device)) return;
        device.channels_last = i == 0 ? PS_SWITCH_ON : PS_SWITCH_OFF;
        check_large_norms(&device);
    }
}

/* The cpu device computes this convolution by Winograd's algorithm, with rounded factors,
 * where its processor has no faster products of bf16. */
TEST(test_narrow_winograd)
{
    rig r;
    rig_device device;
    if (on.kind != PS_DEVICE_CPU || !narrow(0, &device)) return;
    device.winograd = PS_WINOGRAD_GRADIENTS;
    rig_init(
        &r, &device, "[64, 19, 19]", "cross_entropy",
        "{batch_norm2d: {name: bn}}, {conv2d: {name: a, out: 64, kernel: 3, padding: "
        "1}}, relu, {avg_pool2d: global}, flatten, {linear: {name: b, out: 3}}",
        6);
    rig_compare(&r, 6, &plain_pass);
    print_message("%.2g of the bounds\n", r.worst);
    rig_fini(&r);
}

/* Sums of 3 equal inputs times 1: the inputs are rounded to nearest, ties to even, and
 * what 16 bits cannot hold is infinite; sums are not rounded to 16 bits. */
TEST(test_narrow_factors)
{
    static const struct {
        float x, bf16, fp16;
    } values[] = {{1.0f + 0x1p-9f, 1.0f, 1.0f + 0x1p-9f},
                  {1.0f + 0x1p-8f, 1.0f, 1.0f + 0x1p-8f},
                  {1.0f + 0x3p-8f, 1.0f + 0x1p-6f, 1.0f + 0x3p-8f},
                  {1.0f + 0x1p-11f, 1.0f, 1.0f},
                  {1.0f + 0x3p-11f, 1.0f, 1.0f + 0x1p-9f},
                  {-0x1.8p-24f, -0x1.8p-24f, -0x1p-23f},
                  {65519.0f, 65536.0f, 65504.0f},
                  {65520.0f, 65536.0f, INFINITY},
                  {-1e30f, -0x1.94p99f, -INFINITY}};
    for (size_t i = 0; i < NARROW; i++) {
        rig r;
        rig_device device;
        float out[4];
        if (!narrow(i, &device)) return;
        rig_init(&r, &device, "[3]", "mse", "{linear: {name: a, out: 1, bias: false}}",
                 4);
        ps_batch batch = rig_batch(&r, 4);
        for (size_t c = 0; c < sizeof values / sizeof *values; c++) {
            for (int k = 0; k < 12; k++)
                r.x[k] = values[c].x;
            for (int k = 0; k < 3; k++)
                r.params[r.spec.table.tensors[0].offset + (uint64_t)k] = 1.0f;
            memset(r.labels, 0, 4 * sizeof *r.labels);
            assert_ok(ps_program_forward(r.program, &batch, &plain_pass, NULL));
            assert_ok(ps_program_outputs(r.program, out, 4));
            float want = 3 * (i == 0 ? values[c].bf16 : values[c].fp16);
            if (out[3] != want)
                fail_msg(
                    "%s: %a gives %a, not %a",
                    ps_word_name(ps_precision_words, (int)device.rounding->precision),
                    (double)values[c].x, (double)out[3], (double)want);
        }
        rig_fini(&r);
    }
}

/* Values between layers are rounded, the input of the loss is not. The input is 1 +
 * step, which 16 bits cannot hold, through one layer and through two; all weights are 1.
 */
TEST(test_narrow_values)
{
    static const char *const layers[] = {
        "{linear: {name: a, out: 1, bias: false}}",
        "{linear: {name: a, out: 1, bias: false}}, {linear: {name: b, out: 1, bias: "
        "false}}"};
    for (size_t i = 0; i < 2 * NARROW; i++) {
        rig r;
        rig_device device;
        if (!narrow(i / 2, &device)) return;
        float out[1], step = ldexpf(1.0f, -device.rounding->digits);
        rig_init(&r, &device, "[2]", "mse", layers[i % 2], 1);
        ps_batch batch = rig_batch(&r, 1);
        for (uint64_t k = 0; k < r.spec.table.arena_count; k++)
            r.params[k] = 1.0f;
        r.x[0] = 1.0f, r.x[1] = step, r.labels[0] = 0;
        assert_ok(ps_program_forward(r.program, &batch, &plain_pass, NULL));
        assert_ok(ps_program_outputs(r.program, out, 1));
        if (out[0] != (i % 2 == 0 ? 1.0f + step : 1.0f))
            fail_msg("%s: %a", layers[i % 2], (double)out[0]);
        rig_fini(&r);
    }
}

static const char *const basicnet =
    "{conv2d: {name: conv1, out: 32, kernel: 3}}, relu, {conv2d: {name: conv2, out: 64, "
    "kernel: 3}}, relu, {max_pool2d: 2}, {dropout: 0.25}, flatten, {linear: {name: fc1, "
    "out: 128}}, relu, {dropout: 0.5}, {linear: {name: fc2, out: 10}}, log_softmax";

static void check_same_bits(const char *layers)
{
    rig a, b;
    ps_pass_result first, second;
    rig_init(&a, &on, "[1, 28, 28]", "nll", layers, 8);
    void *hole = malloc(12345); // other addresses
    rig_init(&b, &on, "[1, 28, 28]", "nll", layers, 10);
    size_t bytes = sizeof(float) * a.spec.table.arena_count;
    memcpy(b.params, a.params, bytes);
    memcpy(b.x, a.x, sizeof(float) * 8 * 784);
    ps_batch x = rig_batch(&a, 8), y = rig_batch(&b, 8);
    for (int i = 0; i < 3; i++) {
        assert_ok(ps_program_forward(a.program, &x, &plain_pass, &first));
        assert_ok(ps_program_backward(a.program, &x, &plain_pass));
        assert_ok(ps_program_forward(b.program, &y, &plain_pass, &second));
        assert_ok(ps_program_backward(b.program, &y, &plain_pass));
        assert_memory_equal(a.grads, b.grads, bytes);
        assert_memory_equal(&first.loss_sum, &second.loss_sum, sizeof(double));
    }
    free(hole);
    rig_fini(&a);
    rig_fini(&b);
}

/* The same inputs give the same bits, also in a second program. */
TEST(test_same_bits)
{
    check_same_bits(basicnet);
    check_same_bits("flatten, {linear: {name: a, out: 75}}, log_softmax");
    check_same_bits("flatten, {linear: {name: a, out: 1000}}, log_softmax");
}

typedef struct hook_log {
    int n;
    uint64_t begin[64], end[64];
    int fail_at;
} hook_log;

static ps_err note(void *ctx, uint64_t begin, uint64_t end)
{
    hook_log *log = ctx;
    if (log->n == log->fail_at) return ps_err_set(PS_ERR_TIMEOUT, "told to fail");
    log->begin[log->n] = begin;
    log->end[log->n++] = end;
    return PS_OK;
}

TEST(test_hooks)
{
    rig r;
    hook_log needed = {.fail_at = -1}, ready = {.fail_at = -1};
    rig_init(&r, &on, "[1, 28, 28]", "nll", basicnet, 4);
    ps_batch batch = rig_batch(&r, 4);
    ps_pass_hooks hooks = {.ctx = &needed, .params_needed = note};
    ps_pass pass = plain_pass;
    pass.hooks = &hooks;
    assert_ok(ps_program_forward(r.program, &batch, &pass, NULL));
    hooks = (ps_pass_hooks){.ctx = &ready, .grads_ready = note};
    assert_ok(ps_program_backward(r.program, &batch, &pass));
    assert_int_equal(needed.n, 4);
    assert_int_equal(ready.n, 4);
    for (int i = 0; i < 4; i++) {
        uint64_t begin, end; // of the layer's weight and bias
        ps_tensor_table_range(&r.spec.table, 2 * i, 2, &begin, &end);
        assert_int_equal(needed.begin[i], begin);
        assert_int_equal(needed.end[i], end);
        assert_int_equal(ready.begin[3 - i], begin);
        assert_int_equal(ready.end[3 - i], end);
    }
    hook_log failing = {.fail_at = 1};
    hooks = (ps_pass_hooks){.ctx = &failing, .params_needed = note};
    assert_int_equal(ps_program_forward(r.program, &batch, &pass, NULL), PS_ERR_TIMEOUT);
    rig_fini(&r);
}

/* This exchange has weights only after they were waited for. It takes weights and
 * gradients away once they are announced. */
typedef struct taker {
    rig *r;
    float *weights, *sums; // arenas
    int n;
} taker;

static ps_err bring(void *ctx, uint64_t begin, uint64_t end)
{
    taker *t = ctx;
    t->n++;
    memcpy(t->r->params + begin, t->weights + begin, (end - begin) * sizeof(float));
    return PS_OK;
}

static ps_err take(void *ctx, uint64_t begin, uint64_t end)
{
    taker *t = ctx;
    t->n++;
    memcpy(t->sums + begin, t->r->grads + begin, (end - begin) * sizeof(float));
    for (uint64_t i = begin; i < end; i++)
        t->r->params[i] = t->r->grads[i] = NAN;
    return PS_OK;
}

/* A step whose hooks get blocks of rows, of two micro-batches or of one. */
static void step_by_rows(taker *t, ps_program *program, const ps_batch *batch, int micro)
{
    for (int m = 0; m < micro; m++) {
        const ps_pass_hooks hooks = {.ctx = t,
                                     .params_needed = m == 0 ? bring : NULL,
                                     .grads_ready = m == micro - 1 ? take : NULL};
        ps_pass pass = plain_pass;
        pass.accumulate = m > 0;
        pass.hooks = &hooks;
        assert_ok(ps_program_forward(program, batch, &pass, NULL));
        assert_ok(ps_program_backward(program, batch, &pass));
    }
}

TEST(test_rows)
{
    enum { CALLS = 8 }; // of four layers, if each is announced as a whole
    rig r;
    ps_program *program;
    rig_init(&r, &on, "[1, 28, 28]", "nll", basicnet, 4);
    const size_t count = r.spec.table.arena_count, bytes = count * sizeof(float);
    taker whole = {.r = &r}, rows = {.r = &r};
    taker *const takers[] = {&whole, &rows};
    const ps_program_options options = {.spec = &r.spec,
                                        .max_batch = 4,
                                        .training = true,
                                        .params = r.params,
                                        .grads = r.grads,
                                        .buffers = r.buffers,
                                        .row_bytes = 256 << 10};
    assert_ok(ps_program_create(r.device, &options, &program));
    float *weights = malloc(bytes);
    memcpy(weights, r.params, bytes);
    ps_batch batch = rig_batch(&r, 4);
    for (int micro = 1; micro <= 2; micro++) {
        for (int i = 0; i < 2; i++) {
            takers[i]->n = 0;
            takers[i]->weights = weights;
            takers[i]->sums = calloc(count, sizeof(float));
            for (size_t k = 0; k < count; k++)
                r.params[k] = NAN;
            step_by_rows(takers[i], i ? program : r.program, &batch, micro);
        }
        assert_int_equal(whole.n, CALLS);
        assert_true(rows.n >= CALLS);
        assert_memory_equal(whole.sums, rows.sums, bytes);
        free(whole.sums);
        free(rows.sums);
    }
    free(weights);
    ps_program_destroy(&program);
    rig_fini(&r);
}

/* A step of two micro-batches with different samples: the gradients of both are added.
 * The device may still work on the first one when it gets the second. */
TEST(test_micro_batches)
{
    rig r;
    ref_model first, second;
    rig_init(&r, &on, "[16]", "cross_entropy",
             "{linear: {name: a, out: 16}}, tanh, {linear: {name: b, out: 4}}", 6);
    ps_batch a = rig_batch(&r, 3), b = a;
    b.x += 3 * 16, b.labels += 3, b.positions += 3;
    ps_pass_hooks none = {.ctx = NULL};
    ps_pass begin = plain_pass, end = plain_pass;
    begin.hooks = &none;
    end.accumulate = true;
    assert_ok(ps_program_forward(r.program, &a, &begin, NULL));
    assert_ok(ps_program_backward(r.program, &a, &begin));
    assert_ok(ps_program_forward(r.program, &b, &end, NULL));
    assert_ok(ps_program_backward(r.program, &b, &end));
    rig_reference(&r, &first, 3);
    rig_reference(&r, &second, 3);
    ref_forward(&first, &a, &begin);
    ref_backward(&first, &a, &begin);
    memcpy(second.grads, first.grads, sizeof(double) * r.spec.table.arena_count);
    ref_forward(&second, &b, &end);
    ref_backward(&second, &b, &end);
    rig_check_gradients(&r, &second);
    ref_fini(&first);
    ref_fini(&second);
    rig_fini(&r);
}

/* One layer of dropout on ones shows its mask; p = 0.25 of 4 x 20,000 draws. */
TEST(test_dropout)
{
    rig r;
    rig_init(&r, &on, "[20000]", "cross_entropy",
             "{dropout: 0.25}, {linear: {name: a, out: 3}}", 4);
    ps_batch batch = rig_batch(&r, 4);
    float out[12], again[12];
    memset(r.params, 0, sizeof(float) * r.spec.table.arena_count);
    for (int i = 0; i < 4 * 20000; i++)
        r.x[i] = 1.0f;
    for (int i = 0; i < 20000; i++)
        r.params[r.spec.table.tensors[0].offset + (uint64_t)i] = 1.0f;
    assert_ok(ps_program_forward(r.program, &batch, &plain_pass, NULL));
    assert_ok(ps_program_outputs(r.program, out, 12));
    for (int i = 0; i < 4; i++) // the mean is 20,000, one standard deviation 81.6
        assert_true(fabs(out[i * 3] - 20000.0) < 5 * 81.7);
    assert_true(out[0] != out[3]);
    // the samples have another order: draws depend on the position
    r.positions[0] = 5 + 31 * 3;
    r.positions[3] = 5;
    assert_ok(ps_program_forward(r.program, &batch, &plain_pass, NULL));
    assert_ok(ps_program_outputs(r.program, again, 12));
    assert_true(again[0] == out[9] && again[9] == out[0] && again[3] == out[3]);
    ps_pass other = plain_pass;
    other.dropout.epoch++;
    assert_ok(ps_program_forward(r.program, &batch, &other, NULL));
    assert_ok(ps_program_outputs(r.program, again, 12));
    assert_true(again[3] != out[3]);
    other = plain_pass;
    other.dropout.seed += 1ull << 40;
    assert_ok(ps_program_forward(r.program, &batch, &other, NULL));
    assert_ok(ps_program_outputs(r.program, again, 12));
    assert_true(again[3] != out[3]);
    rig_fini(&r);
}

/* torch.argmax: the first of equal maxima. */
TEST(test_correct)
{
    rig r;
    ps_pass_result result;
    rig_init(&r, &on, "[3]", "cross_entropy", "{linear: {name: a, out: 3}}", 4);
    float *weight = r.params + r.spec.table.tensors[0].offset;
    memset(r.params, 0, sizeof(float) * r.spec.table.arena_count);
    weight[0] = weight[4] = weight[8] = 1.0f; // the identity
    const float x[12] = {1, 1, 0, 0, 2, 2, 0, 0, 0, 5, 1, 9};
    const int32_t labels[4] = {0, 2, 0, 2};
    memcpy(r.x, x, sizeof x);
    memcpy(r.labels, labels, sizeof labels);
    ps_batch batch = rig_batch(&r, 4);
    assert_ok(ps_program_forward(r.program, &batch, &plain_pass, &result));
    assert_int_equal(result.correct, 3); // the second sample's first maximum is class 1
    rig_fini(&r);
}

/* Of one sample, whose outputs are the biases. */
static int64_t correct_of(rig *r, int32_t label)
{
    const ps_batch batch = rig_batch(r, 1);
    ps_pass_result result;
    r->labels[0] = label;
    assert_ok(ps_program_forward(r->program, &batch, &plain_pass, &result));
    return result.correct;
}

/* The same where several lanes of a GPU look for the maximum; a NaN is one. */
TEST(test_correct_of_many)
{
    static const int classes[] = {90, 700};
    for (int i = 0; i < 4; i++) {
        rig r;
        const int n = classes[i / 2];
        char layers[100];
        snprintf(layers, sizeof layers, "{linear: {name: a, out: %d}}%s", n,
                 i % 2 ? ", log_softmax" : "");
        rig_init(&r, &on, "[3]", i % 2 ? "nll" : "cross_entropy", layers, 1);
        float *bias = r.params + r.spec.table.tensors[1].offset;
        memset(r.params, 0, sizeof(float) * r.spec.table.arena_count);
        bias[n - 7] = bias[37] = bias[69] = 5.0f;
        assert_int_equal(correct_of(&r, 37), 1);
        assert_int_equal(correct_of(&r, 69), 0);
        assert_int_equal(correct_of(&r, n - 7), 0);
        bias[n - 2] = bias[71] = NAN;
        if (i % 2 == 0) assert_int_equal(correct_of(&r, 71), 1);
        if (i % 2 == 0) assert_int_equal(correct_of(&r, n - 2), 0);
        if (i % 2) assert_int_equal(correct_of(&r, 0), 1); // all of log_softmax is NaN
        rig_fini(&r);
    }
}

/* Like torch: a NaN anywhere in a window is the window's maximum, and a relu before the
 * pool keeps it. */
TEST(test_nan_is_kept)
{
    static const char *const models[] = {
        "{max_pool2d: {kernel: 2}}, " FLAT,
        "relu, {max_pool2d: {kernel: 3, stride: 2, padding: 1}}, " FLAT,
        "{conv2d: {name: c, out: 20, kernel: 3, padding: 1}}, relu, "
        "{max_pool2d: {kernel: 2}}, " FLAT,
        "flatten, {linear: {name: a, out: 7}}, relu, {linear: {name: fc, out: 5}}"};
    const int places[] = {-1, 0, 5, 10, 15}; // in the 4 x 4 pixels of each sample
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        rig r;
        rig_init(&r, &on, "[1, 4, 4]", "cross_entropy", models[m], 5);
        for (int i = 1; i < 5; i++)
            r.x[i * 16 + places[i]] = NAN;
        ps_batch batch = rig_batch(&r, 5);
        float out[25];
        assert_ok(ps_program_forward(r.program, &batch, &plain_pass, NULL));
        assert_ok(ps_program_outputs(r.program, out, 25));
        for (int i = 0; i < 25; i++)
            if (!isnan(out[i]) != (i < 5))
                fail_msg("model %zu, sample %d: %g", m, i / 5, (double)out[i]);
        rig_fini(&r);
    }
}

static void check_shows(rig *r, const ps_pass *pass, const char *what)
{
    ps_batch batch = rig_batch(r, 4);
    ps_pass_result result;
    assert_ok(ps_program_forward(r->program, &batch, pass, &result));
    if (pass->training) assert_ok(ps_program_backward(r->program, &batch, pass));
    assert_ok(ps_program_fetch_buffers(r->program));
    bool loss = isnan(result.loss_sum);
    bool gradient = pass->training && !ps_finite_all(r->grads, r->spec.table.arena_count);
    if (!loss && !gradient) fail_msg("%s: a loss of %g", what, result.loss_sum);
}

static void check_shows_nan(rig *r, const ps_pass *pass, const ps_tensor *tensor,
                            float *at)
{
    const float good = *at;
    *at = NAN;
    check_shows(r, pass, tensor->name);
    *at = good;
}

/* NaN in parameters, statistics or values between layers shows in the loss or, in
 * training, in a gradient. This is so in torch, and has to be so whatever is fused. */
TEST(test_divergence_shows)
{
    static const char *const models[] = {
        "{conv2d: {name: a, out: 20, kernel: 3}}, relu, "
        "{conv2d: {name: b, out: 16, kernel: 3, padding: 1}}, relu, " FLAT,
        "{conv2d: {name: a, out: 16, kernel: 3}}, {batch_norm2d: {name: n}}, relu, "
        "{conv2d: {name: b, out: 8, kernel: 3}}, {max_pool2d: {kernel: 2}}, relu, " FLAT,
        "{conv2d: {name: a, out: 16, kernel: 3}}, relu, {max_pool2d: {kernel: 2}}, "
        "{conv2d: {name: b, out: 8, kernel: 1}}, relu, " FLAT,
        "{conv2d: {name: a, out: 16, kernel: 3}}, relu, {adaptive_max_pool2d: [4, 5]}, "
        "{conv2d: {name: b, out: 8, kernel: 1}}, relu, " FLAT};
    for (size_t m = 0; m < sizeof models / sizeof *models; m++) {
        rig r;
        rig_init(&r, &on, "[1, 8, 8]", "cross_entropy", models[m], 4);
        ps_pass evaluation = plain_pass;
        evaluation.training = false;
        const ps_model_spec *spec = &r.spec;
        for (int t = 0; t < spec->table.n_tensors; t++)
            check_shows_nan(&r, &evaluation, &spec->table.tensors[t],
                            r.params + spec->table.tensors[t].offset);
        for (int b = 0; b < spec->table.n_buffers; b++)
            if (spec->table.buffers[b].role == PS_TENSOR_BUFFER)
                check_shows_nan(
                    &r, &evaluation, &spec->table.buffers[b],
                    (float *)(void *)((char *)r.buffers + spec->table.buffers[b].offset));
        for (int t = 0; t < spec->table.n_tensors; t++)
            check_shows_nan(&r, &plain_pass, &spec->table.tensors[t],
                            r.params + spec->table.tensors[t].offset);
        r.x[5] = NAN;
        check_shows(&r, &plain_pass, "NaN between layers");
        r.x[5] = INFINITY;
        check_shows(&r, &plain_pass, "infinity between layers");
        rig_fini(&r);
    }
}

TEST(test_counts_batches)
{
    rig r;
    rig_init(&r, &on, "[2, 3, 3]", "cross_entropy",
             "{batch_norm2d: {name: bn}}, flatten, {linear: {name: fc, out: 3}}", 4);
    ps_batch batch = rig_batch(&r, 4);
    const ps_tensor *t = NULL;
    for (int b = 0; b < r.spec.table.n_buffers; b++) {
        if (r.spec.table.buffers[b].role == PS_TENSOR_COUNTER)
            t = &r.spec.table.buffers[b];
    }
    assert_non_null(t);
    const int64_t *counter = (const int64_t *)((const char *)r.buffers + t->offset);
    ps_pass evaluation = plain_pass;
    evaluation.training = false;
    for (int i = 0; i < 3; i++)
        assert_ok(ps_program_forward(r.program, &batch, &plain_pass, NULL));
    assert_ok(ps_program_forward(r.program, &batch, &evaluation, NULL));
    assert_ok(ps_program_fetch_buffers(r.program));
    assert_int_equal(*counter, 3);
    rig_fini(&r);
}

/* Either the device has fp16, or its refusal names what it has instead. */
static void check_fp16(void)
{
    ps_device *device = NULL;
    const ps_device_options options = {
        .index = -1, .threads = 1, .precision = PS_PRECISION_FP16};
    ps_err err = ps_device_open(PS_DEVICE_CPU, &options, &device);
    if (err == PS_OK) {
        char text[200];
        ps_device_describe(device, text, sizeof text);
        assert_non_null(strstr(text, ", products in fp16: a"));
        ps_device_close(&device);
        return;
    }
    assert_int_equal(err, PS_ERR_UNSUPPORTED);
    assert_null(device);
    assert_non_null(strstr(ps_err_message(), "oneDNN"));
    assert_true(strstr(ps_err_message(), "take train.precision=bf16") ||
                strstr(ps_err_message(), "take train.precision=float32"));
}

TEST(test_refusals)
{
    rig r;
    if (on.kind == PS_DEVICE_CPU) check_fp16();
    rig_init(&r, &on, "[3]", "cross_entropy", "{linear: {name: a, out: 3}}", 4);
    ps_batch batch = rig_batch(&r, 4);
    float out[12];
    assert_int_equal(ps_program_outputs(r.program, out, 12), PS_ERR_ARG);
    assert_int_equal(ps_program_backward(r.program, &batch, &plain_pass), PS_ERR_ARG);
    batch.n = 5;
    assert_int_equal(ps_program_forward(r.program, &batch, &plain_pass, NULL),
                     PS_ERR_ARG);
    batch.n = 4;
    r.labels[2] = 3;
    assert_error(ps_program_forward(r.program, &batch, &plain_pass, NULL), PS_ERR_ARG,
                 "label 3");
    r.labels[2] = 2;
    assert_ok(ps_program_forward(r.program, &batch, &plain_pass, NULL));
    assert_int_equal(ps_program_outputs(r.program, out, 11), PS_ERR_ARG);
    char text[200];
    ps_device_describe(r.device, text, sizeof text);
    assert_non_null(strstr(text, on.kind == PS_DEVICE_CPU ? "oneDNN" : "cuda"));
    rig_fini(&r);
}

/* Whether ONEDNN_MAX_CPU_ISA bounds anything: a processor without AVX-512 does with
 * AVX512_CORE what it does with AVX2. */
static bool is_bound(void)
{
    const char *most = getenv("ONEDNN_MAX_CPU_ISA");
#ifdef __x86_64__
    return !most || strcmp(most, "AVX512_CORE") != 0 ||
           __builtin_cpu_supports("avx512bw");
#else
    return !most;
#endif
}

/* Arguments: device, cuDNN (auto, on, off), precision of all tests, and what check_choose
 * takes. */
int main(int argc, char **argv)
{
    bool known = true;
    if (argc > 1) known = ps_word_find(ps_device_words, argv[1], (int *)&on.kind);
    if (argc > 2) known &= ps_word_find(ps_switch_words, argv[2], (int *)&on.cudnn);
    for (size_t i = 0; argc > 3 && i < NARROW; i++) {
        const int precision = (int)rig_sixteen_bits[i].precision;
        if (strcmp(argv[3], ps_word_name(ps_precision_words, precision)) == 0)
            on.rounding = &rig_sixteen_bits[i];
    }
    if (!known) return 2;
    const char *why = is_bound() ? NULL : "no AVX-512 here: see test_device_avx2";
    if (!why && !device_is_there(on.kind, on.rounding->precision)) why = ps_err_message();
    return why ? check_skipped(why) : check_main(argc, argv, 4);
}
