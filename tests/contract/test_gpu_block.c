/* Kernels whose blocks run with threads (gpu_block.h) have the bits that the host finds
 * lane by lane (host_gpu.c), in both orders of the threads: what GPUs do in barriers and
 * shuffles is what all other tests look at. */
#include <stdlib.h>

#include "check.h"
#include "device_rig.h"
#include "model_cases.h"

enum { BATCH = 2, WAYS = 3 };

static const ps_pass training = {
    .training = true, .grad_scale = 1.0f, .dropout = {0x123456789abcull, 3}};

typedef struct outcome {
    double loss;
    int64_t correct;
    float *outputs, *grads;
    void *buffers;
} outcome;

static void *copy_of(const void *from, size_t bytes)
{
    void *copy = malloc(bytes + 1);
    memcpy(copy, from, bytes);
    return copy;
}

/* PS_HOST_GPU_THREADS, PS_HOST_GPU_BACKWARD */
static const char *const ways[WAYS][2] = {{"0", "0"}, {"1", "0"}, {"1", "1"}};

/* A step, whose arrays the caller frees. The sizes are the same each time. */
static outcome train(const model_case *c, const rig_device *device, int way,
                     size_t bytes[3])
{
    rig r;
    ps_pass_result result;
    setenv("PS_HOST_GPU_THREADS", ways[way][0], 1);
    setenv("PS_HOST_GPU_BACKWARD", ways[way][1], 1);
    rig_init(&r, device, c->input, c->loss, c->layers, BATCH);
    const ps_batch batch = rig_batch(&r, BATCH);
    const size_t count = BATCH * (size_t)r.spec.n_outputs;
    bytes[0] = count * sizeof(float);
    bytes[1] = r.spec.table.arena_count * sizeof(float);
    bytes[2] = r.spec.table.buffer_bytes;
    outcome o = {.outputs = malloc(bytes[0])};
    assert_ok(ps_program_forward(r.program, &batch, &training, &result));
    assert_ok(ps_program_outputs(r.program, o.outputs, count));
    assert_ok(ps_program_backward(r.program, &batch, &training));
    assert_ok(ps_program_fetch_buffers(r.program));
    o.loss = result.loss_sum;
    o.correct = result.correct;
    o.grads = copy_of(r.grads, bytes[1]);
    o.buffers = copy_of(r.buffers, bytes[2]);
    rig_fini(&r);
    return o;
}

static void check_same(const model_case *c, const rig_device *device)
{
    outcome found[WAYS];
    size_t bytes[3];
    print_message("%s\n", c->what);
    for (int i = 0; i < WAYS; i++) {
        outcome *o = &found[i];
        *o = train(c, device, i, bytes);
        assert_memory_equal(&o->loss, &found->loss, sizeof o->loss);
        assert_int_equal(o->correct, found->correct);
        assert_memory_equal(o->outputs, found->outputs, bytes[0]);
        assert_memory_equal(o->grads, found->grads, bytes[1]);
        assert_memory_equal(o->buffers, found->buffers, bytes[2]);
    }
    for (int i = 0; i < WAYS; i++) {
        free(found[i].outputs);
        free(found[i].grads);
        free(found[i].buffers);
    }
}

#define NORMS                                                                            \
    "{conv2d: {name: a, out: 3, kernel: 3}}, {batch_norm2d: {name: n}}, relu, {conv2d: " \
    "{name: b, out: 6, kernel: 1}}, {group_norm: {name: g, groups: 2}}, tanh, flatten, " \
    "{linear: {name: c, out: 5}}, {layer_norm: {name: l}}, "

/* Teams of one lane, of a warp and of a block. */
TEST(test_same_bits)
{
    static const model_case cases[] = {
        {"norms, and a few classes", "[2, 7, 5]", "cross_entropy",
         NORMS "{linear: {name: d, out: 4}}"},
        {"a warp for each sample", "[7]", "nll",
         "{linear: {name: a, out: 70}}, log_softmax"},
        {"a block for each sample, with a sum over the classes", "[7]",
         "cross_entropy train.label_smoothing=0.1", "{linear: {name: a, out: 531}}"},
        {"probabilities of many classes", "[7]", "cross_entropy numbers",
         "{linear: {name: a, out: 70}}"},
        {"a layer norm of many features", "[7]", "cross_entropy",
         "{linear: {name: a, out: 530}}, {layer_norm: {name: l}}, {linear: {name: b, "
         "out: "
         "3}}"},
        {"log_softmax alone, of a warp", "[7]", "mse",
         "{linear: {name: a, out: 75}}, log_softmax"},
        {"log_softmax alone, of a block", "[7]", "mse",
         "{linear: {name: a, out: 513}}, log_softmax"}};
    const rig_device device = {.kind = PS_DEVICE_CUDA, .rounding = &rig_float32};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_same(&cases[i], &device);
}

TEST(test_channels_last)
{
    static const model_case cases[] = {
        {"norms", "[2, 7, 5]", "cross_entropy", NORMS "{linear: {name: d, out: 4}}"},
        {"more channels than a block takes", "[2, 3, 3]", "cross_entropy",
         "{conv2d: {name: a, out: 70, kernel: 1}}, {batch_norm2d: {name: n}}, relu, "
         "flatten, {linear: {name: d, out: 4}}"}};
    const rig_device device = {.kind = PS_DEVICE_CUDA,
                               .channels_last = PS_SWITCH_ON,
                               .rounding = &rig_sixteen_bits[0]};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_same(&cases[i], &device);
}
