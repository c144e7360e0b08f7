/* Gradients of several workers, added up on one of their GPUs (device_sums.h), and
 * weights that they take from each other: the bits of the sum in host memory, as soon as
 * gradients are announced, and no other bytes cross the bus. The host takes the GPUs'
 * place. */
#include <math.h>
#include <stdlib.h>

#include "check.h"
#include "device.h"
#include "device_sums.h"
#include "host_gpu.h"
#include "init_weights.h"
#include "mem.h"
#include "model_spec.h"
#include "ordered_sum.h"

enum { WORKERS = 3, BATCH = 5, FEATURES = 64, STEPS = 2 };

typedef struct side {
    ps_device *device;
    ps_shared_mem params, grads;
    void *buffers;
    ps_device_sums *sums;
    ps_program *program;
    float x[BATCH * FEATURES];
} side;

typedef struct rig {
    ps_config cfg;
    ps_model_spec spec;
    side plain[WORKERS], shared[WORKERS];
    float *weights, *sum; // the leader's arenas
    int32_t labels[BATCH];
    uint32_t positions[BATCH];
} rig;

static rig r;

static void open_program(side *s)
{
    const ps_program_options program = {.spec = &r.spec,
                                        .max_batch = BATCH,
                                        .training = true,
                                        .params = s->params.base,
                                        .grads = s->grads.base,
                                        .buffers = s->buffers,
                                        .group_bytes = 4096};
    assert_ok(ps_program_create(s->device, &program, &s->program));
}

static void open_side(side *s, int worker, bool shares)
{
    const size_t bytes = r.spec.table.arena_count * sizeof(float);
    const ps_device_options device = {.index = -1, .local_rank = -1};
    assert_ok(ps_device_open(PS_DEVICE_CUDA, &device, &s->device));
    assert_ok(ps_shared_mem_init(&s->params, bytes, "p"));
    assert_ok(ps_shared_mem_init(&s->grads, bytes, "g"));
    assert_ok(ps_mem_zalloc_aligned(&s->buffers, r.spec.table.buffer_bytes + 64, "b"));
    ps_init_weights(&r.spec, 3, 1, s->params.base, s->buffers);
    for (int i = 0; i < BATCH * FEATURES; i++)
        s->x[i] = sinf((float)(i * i + worker));
    if (!shares) return;
    const ps_device_sums_options sums = {.table = &r.spec.table,
                                         .params = s->params.base,
                                         .grads = s->grads.base,
                                         .most = r.spec.table.arena_count};
    assert_ok(s->device->ops->sums_create(s->device, &sums, &s->sums));
}

static int make_rig(void **state)
{
    const char *overrides[] = {
        "model.input=[1, 8, 8]", "model.loss=cross_entropy",
        "model.layers=[{conv2d: {name: a, out: 30, kernel: 3}}, {batch_norm2d: {name: "
        "n}}, relu, flatten, {linear: {name: fc, out: 7}}]"};
    memset(&r, 0, sizeof r);
    assert_ok(ps_config_load(&r.cfg, NULL, overrides, 3));
    assert_ok(ps_model_spec_init(&r.spec, &r.cfg));
    const size_t bytes = (r.spec.table.arena_count * sizeof(float) + 4095) / 4096 * 4096;
    r.sum = aligned_alloc(4096, bytes);
    r.weights = aligned_alloc(4096, bytes);
    for (int i = 0; i < BATCH; i++)
        r.labels[i] = i % 7;
    for (int i = 0; i < WORKERS; i++) {
        open_side(&r.plain[i], i, false);
        open_side(&r.shared[i], i, true);
        open_program(&r.plain[i]);
    }
    memcpy(r.weights, r.plain[0].params.base, r.spec.table.arena_count * sizeof(float));
    return 0;
}

static void close_side(side *s)
{
    ps_program_destroy(&s->program);
    if (s->sums) s->sums->ops->destroy(&s->sums, false);
    ps_device_close(&s->device);
    ps_shared_mem_fini(&s->params);
    ps_shared_mem_fini(&s->grads);
    free(s->buffers);
}

static int free_rig(void **state)
{
    for (int i = 0; i < WORKERS; i++) {
        close_side(&r.plain[i]);
        close_side(&r.shared[i]);
    }
    free(r.sum);
    free(r.weights);
    ps_model_spec_fini(&r.spec);
    ps_config_fini(&r.cfg);
    return 0;
}

static ps_err meet(int own)
{
    const uint8_t *list[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        list[i] = r.shared[i].sums->handle;
    ps_device_sums *s = r.shared[own].sums;
    return s->ops->meet(s, list, WORKERS, own, r.weights, r.sum);
}

/* The first worker brings all weights, the second one takes them from there, the third
 * does both. Their own arenas in host memory have others. */
static void meet_all_and_bring(void)
{
    const uint64_t count = r.spec.table.arena_count, half = count / 2;
    for (int i = 0; i < WORKERS; i++) {
        memset(r.shared[i].params.base, 0x7f, count * sizeof(float));
        assert_ok(meet(i));
        open_program(&r.shared[i]);
    }
    ps_device_sums *const s[] = {r.shared[0].sums, r.shared[1].sums, r.shared[2].sums};
    assert_ok(s[0]->ops->bring(s[0], 0, count));
    assert_ok(s[1]->ops->take(s[1], 0, 0, count));
    assert_ok(s[2]->ops->bring(s[2], 0, half));
    assert_ok(s[2]->ops->take(s[2], 1, half, count - half));
}

/* Two micro-batches, the second of which is announced. */
static void pass_over(side *s, const ps_pass_hooks *last)
{
    const ps_pass_hooks none = {0};
    for (int m = 0; m < 2; m++) {
        const ps_batch batch = {
            .n = BATCH - m, .x = s->x, .labels = r.labels, .positions = r.positions};
        const ps_pass pass = {.training = true,
                              .accumulate = m > 0,
                              .grad_scale = 0.5f,
                              .hooks = m > 0 ? last : &none};
        assert_ok(ps_program_forward(s->program, &batch, &pass, NULL));
        assert_ok(ps_program_backward(s->program, &batch, &pass));
    }
}

static size_t added; // bytes

/* The last worker's: the others' gradients are there already. */
static ps_err add_now(void *ctx, uint64_t begin, uint64_t end)
{
    ps_device_sums *s = ctx;
    added += (end - begin) * sizeof(float);
    return s->ops->add(s, begin, end - begin);
}

static ps_err on_grads(void *ctx, uint64_t begin, uint64_t end)
{
    return PS_OK;
}

static void wanted_sum(float *out)
{
    const float *from[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        from[i] = r.plain[i].grads.base;
    ps_ordered_sum(out, from, WORKERS, 0, r.spec.table.arena_count);
}

TEST_WITH(sums_have_the_bits_of_host_memory, make_rig, free_rig)
{
    const uint64_t count = r.spec.table.arena_count;
    const size_t bytes = count * sizeof(float);
    float *want = malloc(bytes), *zero = calloc(count, sizeof *zero);
    ps_device_sums *s = r.shared[WORKERS - 1].sums;
    const ps_pass_hooks plain = {.grads_ready = on_grads};
    const ps_pass_hooks last = {.ctx = s, .grads_ready = add_now};
    meet_all_and_bring();
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < WORKERS; i++)
            pass_over(&r.plain[i], &plain);
        wanted_sum(want);
        memset(r.sum, 0, bytes);
        for (int i = 0; i < WORKERS - 1; i++)
            pass_over(&r.shared[i], &plain);
        added = 0;
        pass_over(&r.shared[WORKERS - 1], &last);
        assert_true(added >= r.spec.table.n_params * sizeof(float));
        assert_memory_equal(r.sum, want, bytes);
        for (int i = 0; i < WORKERS; i++) {
            assert_memory_equal(r.shared[i].grads.base, zero, bytes);
            assert_ok(s->ops->fetch(s, i, 0, count, want));
            assert_memory_equal(want, r.plain[i].grads.base, bytes);
        }
        for (uint64_t i = 0; i < count; i++)
            r.weights[i] -= 0.01f * r.sum[i];
        for (int i = 0; i < WORKERS; i++)
            memcpy(r.plain[i].params.base, r.weights, bytes);
        assert_ok(s->ops->bring(s, 0, count));
        for (int i = 0; i < WORKERS - 1; i++)
            assert_ok(
                r.shared[i].sums->ops->take(r.shared[i].sums, WORKERS - 1, 0, count));
    }
    free(want);
    free(zero);
}

TEST_WITH(only_sums_cross_the_bus, make_rig, free_rig)
{
    const ps_pass_hooks last = {.ctx = r.shared[0].sums, .grads_ready = add_now};
    const ps_pass_hooks plain = {.grads_ready = on_grads};
    size_t copied[2];
    added = 0;
    meet_all_and_bring();
    for (int i = 0; i < 2; i++) {
        pass_over(&r.shared[i], &plain); // with what only the first pass copies
        const size_t before = host_gpu_counted.copied;
        pass_over(&r.shared[i], i == 0 ? &last : &plain);
        copied[i] = host_gpu_counted.copied - before;
    }
    assert_true(added > 0);
    assert_int_equal(copied[0], copied[1] + added);
}

/* Then gradients come to host memory. */
TEST_WITH(who_cannot_read_another_gpu_says_so, make_rig, free_rig)
{
    const ps_pass_hooks plain = {.grads_ready = on_grads};
    side *s = &r.shared[0];
    setenv("PS_HOST_GPU_ALONE", "1", 1);
    assert_int_equal(meet(0), PS_ERR_UNSUPPORTED);
    unsetenv("PS_HOST_GPU_ALONE");
    s->sums->ops->destroy(&s->sums, true);
    open_program(s);
    pass_over(s, &plain);
    pass_over(&r.plain[0], &plain);
    assert_memory_equal(s->grads.base, r.plain[0].grads.base,
                        r.spec.table.arena_count * sizeof(float));
}
