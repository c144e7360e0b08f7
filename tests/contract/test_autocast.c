/* train.precision bf16 against torch.autocast: BasicNet without dropout, each step from
 * PyTorch's weights.
 *
 * Both round the factors of products and what lies between layers to bfloat16, and sum in
 * float32. Autocast rounds the logits too, and the gradients of weights; here these stay
 * float32. So the two differ by some units of bfloat16 (2^-8), 8 in a gradient at the
 * most, and both are as far from the float32 step (a tenth). */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "device.h"
#include "mem.h"
#include "model_spec.h"

enum { STEPS = 4, BATCH = 8, PIXELS = 784 };

/* One way of making the step: its loss, and its gradient in an arena. */
typedef struct way {
    float loss;
    float *grads;
} way;

typedef struct pupil {
    ps_config cfg;
    ps_model_spec spec;
    ps_device *device;
    ps_program *program;
    float *params, *x;
    void *buffers;
    int32_t labels[BATCH];
    way ours, float32, autocast;
} pupil;

static void pupil_init(pupil *p)
{
    const char *const overrides[] = {"model.dropout=false"};
    if (ps_config_load(&p->cfg, "configs/mnist-basicnet.yaml", overrides, 1) != PS_OK ||
        ps_model_spec_init(&p->spec, &p->cfg) != PS_OK)
        fail_msg("%s", ps_err_message());
    size_t arena = sizeof(float) * p->spec.table.arena_count;
    float **arenas[] = {&p->params, &p->ours.grads, &p->float32.grads,
                        &p->autocast.grads};
    for (int i = 0; i < 4; i++)
        assert_int_equal(ps_mem_zalloc_aligned(arenas[i], arena, "arena"), PS_OK);
    assert_int_equal(
        ps_mem_zalloc_aligned(&p->buffers, p->spec.table.buffer_bytes + 64, "b"), PS_OK);
    assert_int_equal(ps_mem_zalloc_aligned(&p->x, sizeof(float) * BATCH * PIXELS, "x"),
                     PS_OK);
    const ps_device_options device = {
        .index = -1, .local_rank = -1, .threads = 1, .precision = PS_PRECISION_BF16};
    const ps_program_options program = {.spec = &p->spec,
                                        .max_batch = BATCH,
                                        .training = true,
                                        .params = p->params,
                                        .grads = p->ours.grads,
                                        .buffers = p->buffers};
    if (ps_device_open(PS_DEVICE_CUDA, &device, &p->device) != PS_OK ||
        ps_program_create(p->device, &program, &p->program) != PS_OK)
        fail_msg("%s", ps_err_message());
}

static void pupil_fini(pupil *p)
{
    ps_program_destroy(&p->program);
    ps_device_close(&p->device);
    ps_model_spec_fini(&p->spec);
    ps_config_fini(&p->cfg);
    free(p->params), free(p->buffers), free(p->x);
    free(p->ours.grads), free(p->float32.grads), free(p->autocast.grads);
}

static bool read_all(FILE *f, void *out, size_t bytes)
{
    return fread(out, 1, bytes, f) == bytes;
}

static bool read_tensors(const pupil *p, FILE *f, float *arena)
{
    for (int t = 0; t < p->spec.table.n_tensors; t++) {
        const ps_tensor *tensor = &p->spec.table.tensors[t];
        if (!read_all(f, arena + tensor->offset, sizeof(float) * tensor->count))
            return false;
    }
    return true;
}

static bool read_way(const pupil *p, FILE *f, way *w)
{
    return read_all(f, &w->loss, sizeof w->loss) && read_tensors(p, f, w->grads);
}

/* The largest difference over the largest element, and the difference's length over the
 * gradient's. */
typedef struct distance {
    double largest, length;
} distance;

static distance between(const pupil *p, const way *a, const way *b)
{
    double worst = 0, largest = 0, off = 0, whole = 0;
    for (uint64_t i = 0; i < p->spec.table.arena_count; i++) {
        double d = fabs((double)a->grads[i] - b->grads[i]);
        worst = fmax(worst, d);
        largest = fmax(largest, fabs((double)b->grads[i]));
        off += d * d;
        whole += (double)b->grads[i] * b->grads[i];
    }
    return (distance){worst / largest, sqrt(off / whole)};
}

static void compare(const pupil *p)
{
    distance apart = between(p, &p->ours, &p->autocast);
    distance ours = between(p, &p->ours, &p->float32);
    distance theirs = between(p, &p->autocast, &p->float32);
    double loss = fabs((double)p->ours.loss - p->autocast.loss) / p->float32.loss;
    print_message("apart: loss %.2g, gradient %.2g of the largest, %.2g of its length; "
                  "from float32: %.2g, autocast %.2g\n",
                  loss, apart.largest, apart.length, ours.length, theirs.length);
    assert_true(loss <= 0x1p-8);
    assert_true(apart.largest <= 0x1p-5 && apart.length <= 0x1p-5);
    // What the two have in common, factors of 8 bits before a relu, is most of it.
    assert_true(ours.length <= 1.1 * theirs.length);
    assert_true(ours.length > 0x1p-12); // it did round
}

/* false: the teacher has no lessons, or no more. */
static bool lesson(pupil *p, FILE *teacher)
{
    const uint32_t positions[BATCH] = {0};
    const ps_batch batch = {BATCH, p->x, p->labels, positions};
    const ps_pass pass = {.training = true, .grad_scale = 1.0f};
    ps_pass_result result;
    if (!read_tensors(p, teacher, p->params) ||
        !read_all(teacher, p->x, sizeof(float) * BATCH * PIXELS) ||
        !read_all(teacher, p->labels, sizeof p->labels) ||
        !read_way(p, teacher, &p->float32) || !read_way(p, teacher, &p->autocast))
        return false;
    assert_int_equal(ps_program_forward(p->program, &batch, &pass, &result), PS_OK);
    assert_int_equal(ps_program_backward(p->program, &batch, &pass), PS_OK);
    p->ours.loss = (float)(result.loss_sum / BATCH);
    compare(p);
    return true;
}

static void test_bf16_is_as_near_as_autocast(void **state)
{
    pupil p = {0};
    char command[64];
    int steps = 0;
    snprintf(command, sizeof command, "/usr/bin/python3 tests/contract/autocast.py %d",
             STEPS);
    FILE *teacher = popen(command, "r");
    assert_non_null(teacher);
    pupil_init(&p);
    while (lesson(&p, teacher))
        steps++;
    int status = pclose(teacher);
    pupil_fini(&p);
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127)) {
        print_message(
            "skipped: /usr/bin/python3 has no PyTorch >= 1.10 (python3-torch)\n");
        skip();
    }
    assert_int_equal(status, 0);
    assert_int_equal(steps, STEPS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bf16_is_as_near_as_autocast)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
