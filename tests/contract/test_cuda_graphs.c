/* A GPU's passes replayed as graphs against the same passes launch by launch: the same
 * bits, while everything changes that may change from step to step. The exchange is as
 * hard as its contract allows: weights appear when they are asked for, and turn to
 * garbage when their gradients are given. Samples of one side may come as bytes. It runs
 * on the host in a GPU's place, which counts launches and copies, and, as gpu_graphs, on
 * a GPU. Without a GPU that is skipped. */
#include <math.h>

#include "../support/device_there.h"
#include "check.h"
#include "host_gpu.h"
#include "init_weights.h"
#include "mem.h"
#include "model_spec.h"

#ifdef PS_HOST_GPU
static host_gpu_counts *const counted = &host_gpu_counted;
#else
static host_gpu_counts *const counted = NULL;
#endif

enum {
    BATCH = 5,
    SHORT = 3,
    CHANNELS = 2,
    FEATURES = CHANNELS * 64,
    STEPS = 4,
    EPOCHS = 4,
    CLASSES = 6
};

typedef struct samples {
    uint8_t bytes[BATCH * FEATURES];
    float x[BATCH * FEATURES]; // what the bytes stand for
    int32_t labels[BATCH];
    uint32_t positions[BATCH];
} samples;

/* [0]: launch by launch, and the host waits for each pass. [1]: graphs and prefetching;
 * the host reads results one pass late. */
typedef struct side {
    bool graphs, bytes;
    ps_device *device;
    ps_program *program, *evaluation;
    float *params, *grads; // the device's arenas
    float *weights, *sums; // what the exchange knows
    void *buffers;
    samples batches[2]; // in turn: the next is prepared beside the present one
    double losses[EPOCHS * STEPS * 2];
    int n_losses, n_passes;
} side;

typedef struct rig {
    ps_config cfg;
    ps_model_spec spec;
    side sides[2];
} rig;

static void check(ps_err err)
{
    if (err != PS_OK) fail_msg("%s", ps_err_message());
}

/* --------------------------------------------------------------------------- set up */

static float byte_values[CHANNELS * 256];
static bool channels_last; // and 16 bits

static void open_side(rig *r, side *s, bool graphs, bool as_bytes, size_t group_bytes)
{
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    const ps_device_options options = {
        .index = -1,
        .local_rank = -1,
        .precision = channels_last ? PS_PRECISION_BF16 : PS_PRECISION_FLOAT32,
        .channels_last = channels_last ? PS_SWITCH_ON : PS_SWITCH_OFF,
        .no_graphs = !graphs};
    s->graphs = graphs;
    s->bytes = as_bytes;
    for (int i = 0; i < CHANNELS * 256; i++)
        byte_values[i] = sinf((float)i * 0.7f);
    check(ps_device_open(PS_DEVICE_CUDA, &options, &s->device));
    check(ps_mem_map_zeroed(&s->params, bytes, "p")); // these are pinned
    check(ps_mem_map_zeroed(&s->grads, bytes, "g"));
    check(ps_mem_zalloc_aligned(&s->weights, bytes, "w"));
    check(ps_mem_zalloc_aligned(&s->sums, bytes, "s"));
    check(ps_mem_zalloc_aligned(&s->buffers, r->spec.table.buffer_bytes, "b"));
    ps_init_weights(&r->spec, 3, 1, s->weights, s->buffers);
    ps_program_options program = {.spec = &r->spec,
                                  .max_batch = BATCH,
                                  .training = true,
                                  .params = s->params,
                                  .grads = s->grads,
                                  .buffers = s->buffers,
                                  .byte_values = as_bytes ? byte_values : NULL,
                                  .channels = CHANNELS,
                                  .group_bytes = group_bytes};
    check(ps_program_create(s->device, &program, &s->program));
    program.training = false;
    check(ps_program_create(s->device, &program, &s->evaluation));
}

static void rig_init(rig *r, bool as_bytes, size_t group_bytes)
{
    const char *overrides[] = {
        "model.input=[2, 8, 8]", "model.loss=nll",
        "model.layers=[{conv2d: {name: a, out: 8, kernel: 3, padding: 1}}, "
        "{batch_norm2d: {name: n}}, relu, {residual: {name: r, body: [{conv2d: {name: b, "
        "out: 8, kernel: 3, padding: 1}}, {dropout: 0.3}]}}, relu, {max_pool2d: 2}, "
        "{dropout: 0.25}, flatten, {linear: {name: c, out: 20}}, tanh, {dropout: 0.5}, "
        "{linear: {name: d, out: 6}}, log_softmax]"};
    memset(r, 0, sizeof *r);
    check(ps_config_load(&r->cfg, NULL, overrides, 3));
    check(ps_model_spec_init(&r->spec, &r->cfg));
    open_side(r, &r->sides[0], false, false, group_bytes);
    open_side(r, &r->sides[1], true, as_bytes, group_bytes);
}

static void rig_fini(rig *r)
{
    for (int i = 0; i < 2; i++) {
        side *s = &r->sides[i];
        ps_program_destroy(&s->program);
        ps_program_destroy(&s->evaluation);
        ps_device_close(&s->device);
        ps_mem_unmap(s->params, r->spec.table.arena_count * sizeof(float));
        ps_mem_unmap(s->grads, r->spec.table.arena_count * sizeof(float));
        free(s->weights);
        free(s->sums);
        free(s->buffers);
    }
    ps_model_spec_fini(&r->spec);
    ps_config_fini(&r->cfg);
}

/* ------------------------------------------------------------------------- exchange */

static ps_err on_needed(void *ctx, uint64_t begin, uint64_t end)
{
    const side *s = ctx;
    memcpy(s->params + begin, s->weights + begin, (end - begin) * sizeof(float));
    return PS_OK;
}

static ps_err on_ready(void *ctx, uint64_t begin, uint64_t end)
{
    const side *s = ctx;
    memcpy(s->sums + begin, s->grads + begin, (end - begin) * sizeof(float));
    for (uint64_t i = begin; i < end; i++)
        s->params[i] = s->grads[i] = NAN;
    return PS_OK;
}

/* ----------------------------------------------------------------------------- steps */

/* Samples, labels and positions are different in every pass. */
static void make_samples(samples *b, int pass)
{
    for (int i = 0; i < BATCH * FEATURES; i++) {
        b->bytes[i] = (uint8_t)(i * (pass + 3) * 7 + i / 5);
        b->x[i] = byte_values[i / 64 % CHANNELS * 256 + b->bytes[i]];
    }
    for (int i = 0; i < BATCH; i++) {
        b->labels[i] = (i * 5 + pass) % CLASSES;
        b->positions[i] = (uint32_t)(pass * 31 + i * 7);
    }
}

static ps_batch batch_of(side *s, int pass, int n)
{
    samples *b = &s->batches[pass % 2];
    return (ps_batch){.n = n,
                      .x = s->bytes ? NULL : b->x,
                      .bytes = s->bytes ? b->bytes : NULL,
                      .labels = b->labels,
                      .positions = b->positions};
}

static void take_result(side *s)
{
    ps_pass_result result;
    check(ps_program_result(s->program, &result));
    s->losses[s->n_losses++] = result.loss_sum;
}

typedef struct micro_batch {
    int epoch, n, next_n; // next_n 0: nothing follows
    bool first, last;
} micro_batch;

static void train_pass(rig *r, side *s, const micro_batch *m)
{
    int number = s->n_passes++;
    ps_pass_hooks hooks = {.ctx = s,
                           .params_needed = m->first ? on_needed : NULL,
                           .grads_ready = m->last ? on_ready : NULL};
    ps_pass pass = {.training = true,
                    .accumulate = !m->first,
                    .loss_later = s->graphs,
                    .grad_scale = 1.0f / (float)(1 + number % 3),
                    .dropout = {.seed = 11 + (uint64_t)m->epoch / 2 * (1ull << 33),
                                .epoch = (uint32_t)m->epoch},
                    .hooks = &hooks};
    if (number == 0) make_samples(&s->batches[0], 0);
    ps_batch batch = batch_of(s, number, m->n);
    ps_batch next = batch_of(s, number + 1, m->next_n);
    ps_pass_result result;
    check(ps_program_forward(s->program, &batch, &pass, s->graphs ? NULL : &result));
    if (!s->graphs) s->losses[s->n_losses++] = result.loss_sum;
    make_samples(&s->batches[(number + 1) % 2], number + 1);
    // now and then the loader is late
    if (s->graphs && m->next_n && number % 5 != 3)
        check(ps_program_prefetch(s->program, &next));
    check(ps_program_backward(s->program, &batch, &pass));
    if (s->graphs && number > 0) take_result(s);
}

/* The exchange changes the learning rate in every step. */
static void make_weights(rig *r, side *s, int step)
{
    for (uint64_t i = 0; i < r->spec.table.arena_count; i++)
        s->weights[i] -= 0.05f / (float)(1 + step) * s->sums[i];
}

/* Every third step has two micro-batches; an epoch's last batch is short. */
static void train_epoch(rig *r, side *s, int epoch)
{
    for (int i = 0; i < STEPS; i++) {
        int parts = i % 3 == 1 ? 2 : 1;
        for (int m = 0; m < parts; m++) {
            micro_batch b = {.epoch = epoch,
                             .n = i == STEPS - 1 ? SHORT : BATCH,
                             .first = m == 0,
                             .last = m == parts - 1};
            bool next_short = i + (b.last ? 1 : 0) == STEPS - 1;
            b.next_n = i == STEPS - 1 ? 0 : next_short ? SHORT : BATCH;
            train_pass(r, s, &b);
        }
        make_weights(r, s, epoch * STEPS + i);
    }
}

/* Evaluates two batches. In the second, the device still has the weights of the first. */
static double evaluate(rig *r, side *s)
{
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    double sum = 0;
    memcpy(s->params, s->weights, bytes);
    for (int i = 0; i < 2; i++) {
        const ps_batch batch = batch_of(s, 0, BATCH - i);
        ps_pass pass = {.grad_scale = 1, .same_weights = s->graphs && i > 0};
        ps_pass_result result;
        check(ps_program_forward(s->evaluation, &batch, &pass, &result));
        sum += result.loss_sum;
        if (s->graphs) memset(s->params, 0xFF, bytes); // NaN: not to be read again
    }
    return sum;
}

static void compare(const rig *r)
{
    const side *a = &r->sides[0], *b = &r->sides[1];
    size_t bytes = r->spec.table.arena_count * sizeof(float);
    assert_memory_equal(a->sums, b->sums, bytes);
    assert_memory_equal(a->weights, b->weights, bytes);
    assert_memory_equal(a->buffers, b->buffers, r->spec.table.buffer_bytes);
    assert_memory_equal(a->losses, b->losses, sizeof(double) * (size_t)b->n_losses);
    assert_int_equal(a->n_losses, a->n_passes);
}

static int64_t counter_of(const rig *r, const char *buffers)
{
    int64_t value = -1;
    for (int i = 0; i < r->spec.table.n_buffers; i++)
        if (r->spec.table.buffers[i].role == PS_TENSOR_COUNTER)
            memcpy(&value, buffers + r->spec.table.buffers[i].offset, sizeof value);
    return value;
}

/* Only replays, the two launches around them, and one of evaluation. n_groups: see below.
 */
static void check_replays(const host_gpu_counts *before, long n_groups)
{
    assert_int_equal(counted->captures - before->captures, 0);
    assert_int_equal(counted->replays - before->replays,
                     (STEPS + 1) * 2 * n_groups + 2 * n_groups);
    assert_int_equal(counted->launches - before->launches, (STEPS + 1) * 2 + 2);
}

/* n_groups: into how many groups of that many bytes the model's layers go. */
static void assert_same_bits(bool as_bytes, size_t group_bytes, long n_groups)
{
    rig *r = malloc(sizeof *r);
    const long passes = EPOCHS * (STEPS + 1);
    size_t bytes;
    // forward and backward for full batches, short batches and a step's second one, and
    // forward for two sizes of evaluation
    const long captures = 3 * 2 * n_groups + 2 * n_groups;
    rig_init(r, as_bytes, group_bytes);
    bytes = r->spec.table.buffer_bytes;
    for (int epoch = 0; epoch < EPOCHS; epoch++) {
        double evaluated[2];
        char *trained[2] = {malloc(bytes), malloc(bytes)};
        host_gpu_counts before = {0};
        for (int i = 0; i < 2; i++) {
            side *s = &r->sides[i];
            if (i == 1 && counted) before = *counted;
            train_epoch(r, s, epoch);
            check(ps_program_fetch_buffers(s->program));
            memcpy(trained[i], s->buffers, bytes);
            evaluated[i] = evaluate(r, s);
        }
        compare(r);
        assert_memory_equal(trained[0], trained[1], bytes);
        assert_int_equal(counter_of(r, trained[1]), (epoch + 1) * (STEPS + 1));
        free(trained[0]);
        free(trained[1]);
        assert_memory_equal(&evaluated[0], &evaluated[1], sizeof(double));
        if (epoch >= 2 && counted) check_replays(&before, n_groups);
    }
    take_result(&r->sides[1]);
    compare(r);
    assert_int_equal(r->sides[1].n_losses, passes);
    if (counted) assert_int_equal(counted->captures, captures);
    rig_fini(r);
    free(r);
}

static int reset_counts(void **state)
{
    if (counted) *counted = (host_gpu_counts){0};
    return 0;
}

TEST_WITH(test_layer_by_layer, reset_counts, NULL)
{
    assert_same_bits(false, 0, 5);
}

TEST_WITH(test_groups, reset_counts, NULL)
{
    assert_same_bits(false, 2000, 3);
}

TEST_WITH(test_whole_model, reset_counts, NULL)
{
    assert_same_bits(false, SIZE_MAX, 1);
}

TEST_WITH(test_bytes, reset_counts, NULL)
{
    assert_same_bits(true, SIZE_MAX, 1);
}

static int begin_channels_last(void **state)
{
    channels_last = true;
    return reset_counts(state);
}

static int end_channels_last(void **state)
{
    channels_last = false;
    return 0;
}

TEST_WITH(test_channels_last, begin_channels_last, end_channels_last)
{
    assert_same_bits(true, 2000, 3);
}

TEST(test_bytes_are_a_quarter)
{
    size_t copied[2];
    if (!counted) return;
    rig *r = malloc(sizeof *r);
    rig_init(r, true, SIZE_MAX);
    for (int i = 0; i < 2; i++) {
        side *s = &r->sides[i];
        const ps_batch batch = batch_of(s, 0, BATCH);
        ps_batch other = batch;
        other.x = batch.x ? NULL : s->batches[0].x;
        other.bytes = batch.x ? s->batches[0].bytes : NULL;
        copied[i] = counted->copied;
        check(ps_program_prefetch(s->program, &batch));
        copied[i] = counted->copied - copied[i];
        assert_error(ps_program_prefetch(s->program, &other), PS_ERR_ARG,
                     i ? "the batch's samples are not bytes" : "are not floats");
    }
    assert_int_equal(copied[0] - copied[1], 3 * BATCH * FEATURES);
    rig_fini(r);
    free(r);
}

/* Weights, gradients and the loss have priority, and wait for no batch. */
TEST(test_only_batches_can_wait)
{
    if (!counted) return;
    rig *r = malloc(sizeof *r);
    rig_init(r, false, SIZE_MAX);
    side *s = &r->sides[0];
    const ps_batch batch = batch_of(s, 0, BATCH);
    const micro_batch m = {.n = BATCH, .first = true, .last = true};
    const size_t arena = r->spec.table.arena_count * sizeof(float);
    check(ps_program_prefetch(s->program, &batch)); // of zeros
    const host_gpu_counts prefetched = *counted;
    train_pass(r, s, &m);
    const size_t urgent = counted->urgent - prefetched.urgent;
    assert_int_equal(counted->copied - prefetched.copied, urgent);
    assert_true(urgent >= 2 * arena + sizeof(ps_sums));
    const host_gpu_counts trained = *counted;
    check(ps_program_prefetch(s->program, &batch));
    assert_int_equal(counted->urgent, trained.urgent);
    assert_true(counted->copied - trained.copied >= sizeof r->sides->batches->x);
    rig_fini(r);
    free(r);
}

TEST(test_a_profiler_sees_spans)
{
    if (!counted) return;
    rig *r = malloc(sizeof *r);
    rig_init(r, false, SIZE_MAX);
    const long before = counted->ranges;
    const uint64_t begin_ns = ps_trace_begin(PS_TRACE_FORWARD);
    assert_int_equal(counted->ranges - before, 1);
    assert_int_equal(counted->open_ranges, 1);
    ps_trace_add(PS_TRACE_FORWARD, begin_ns, 0);
    assert_int_equal(counted->open_ranges, 0);
    rig_fini(r);
    free(r);
}

/* A capture that fails leaves a device that can be closed. */
TEST(test_refusals)
{
    rig *r = malloc(sizeof *r);
    rig_init(r, false, SIZE_MAX);
    side *s = &r->sides[1];
    ps_pass_result result;
    ps_pass pass = {.training = true, .loss_later = true, .grad_scale = 1};
    make_samples(&s->batches[0], 0);
    ps_batch batch = batch_of(s, 0, BATCH);
    assert_int_equal(ps_program_result(s->program, &result), PS_ERR_ARG);
    for (int i = 0; i < PS_RESULTS_KEPT; i++)
        check(ps_program_forward(s->program, &batch, &pass, NULL));
    assert_int_equal(ps_program_forward(s->program, &batch, &pass, NULL), PS_ERR_ARG);
    for (int i = 0; i < PS_RESULTS_KEPT; i++)
        check(ps_program_result(s->program, &result));
    assert_int_equal(ps_program_result(s->program, &result), PS_ERR_ARG);
    batch.n = BATCH + 1;
    assert_int_equal(ps_program_prefetch(s->program, &batch), PS_ERR_ARG);
    rig_fini(r);
    free(r);
}

int main(int argc, char **argv)
{
    return device_is_there(PS_DEVICE_CUDA, PS_PRECISION_FLOAT32)
               ? check_main(argc, argv, 1)
               : check_skipped(ps_err_message());
}
