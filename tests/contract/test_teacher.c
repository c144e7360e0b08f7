/* BasicNet without dropout, teacher-forced: each of 100 steps starts from PyTorch's
 * weights; losses within 1e-5 relative, gradients within 1e-5 of the largest (on a GPU
 * 1e-4).
 *
 *   test_teacher [DEVICE]        default: auto */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include <cmocka.h>

#include "device.h"
#include "mem.h"
#include "model_spec.h"

enum { STEPS = 100, BATCH = 64, PIXELS = 784 };

static const char *device_name = "auto";

typedef struct pupil {
    ps_config cfg;
    ps_model_spec spec;
    ps_device *device;
    ps_program *program;
    float *params, *grads, *expected, *x;
    void *buffers;
    int32_t labels[BATCH];
    double worst_loss, worst_gradient, last_loss;
} pupil;

static void pupil_init(pupil *p)
{
    const char *const overrides[] = {"model.dropout=false"};
    if (ps_config_load(&p->cfg, "configs/mnist-basicnet.yaml", overrides, 1) != PS_OK ||
        ps_model_spec_init(&p->spec, &p->cfg) != PS_OK)
        fail_msg("%s", ps_err_message());
    size_t arena = sizeof(float) * p->spec.table.arena_count;
    assert_int_equal(ps_mem_zalloc_aligned(&p->params, arena, "params"), PS_OK);
    assert_int_equal(ps_mem_zalloc_aligned(&p->grads, arena, "grads"), PS_OK);
    assert_int_equal(ps_mem_zalloc_aligned(&p->expected, arena, "expected"), PS_OK);
    assert_int_equal(ps_mem_zalloc_aligned(&p->buffers, p->spec.table.buffer_bytes, "b"),
                     PS_OK);
    assert_int_equal(ps_mem_zalloc_aligned(&p->x, sizeof(float) * BATCH * PIXELS, "x"),
                     PS_OK);
    ps_device_choice choice;
    assert_true(ps_device_choice_parse(device_name, &choice));
    const ps_device_options device = {
        .index = choice.index, .local_rank = -1, .threads = 1};
    const ps_program_options program = {.spec = &p->spec,
                                        .max_batch = BATCH,
                                        .training = true,
                                        .params = p->params,
                                        .grads = p->grads,
                                        .buffers = p->buffers};
    if (ps_device_open(choice.kind, &device, &p->device) != PS_OK ||
        ps_program_create(p->device, &program, &p->program) != PS_OK)
        fail_msg("%s", ps_err_message());
}

static void pupil_fini(pupil *p)
{
    ps_program_destroy(&p->program);
    ps_device_close(&p->device);
    ps_model_spec_fini(&p->spec);
    ps_config_fini(&p->cfg);
    free(p->params);
    free(p->grads);
    free(p->expected);
    free(p->buffers);
    free(p->x);
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

static void compare_gradients(pupil *p)
{
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < p->spec.table.arena_count; i++) {
        worst = fmax(worst, fabs((double)p->grads[i] - p->expected[i]));
        largest = fmax(largest, fabs((double)p->expected[i]));
    }

    p->worst_gradient = fmax(p->worst_gradient, worst / largest);
}

/* false: the teacher has no lessons, or no more. */
static bool lesson(pupil *p, FILE *teacher)
{
    const uint32_t positions[BATCH] = {0};
    const ps_batch batch = {BATCH, p->x, p->labels, positions};
    const ps_pass pass = {.training = true, .grad_scale = 1.0f};
    ps_pass_result result;
    float loss;
    if (!read_tensors(p, teacher, p->params) ||
        !read_all(teacher, p->x, sizeof(float) * BATCH * PIXELS) ||
        !read_all(teacher, p->labels, sizeof p->labels) ||
        !read_all(teacher, &loss, sizeof loss) || !read_tensors(p, teacher, p->expected))
        return false;
    assert_int_equal(ps_program_forward(p->program, &batch, &pass, &result), PS_OK);
    assert_int_equal(ps_program_backward(p->program, &batch, &pass), PS_OK);
    p->last_loss = loss;
    double off = fabs(result.loss_sum / BATCH - loss) / loss;

    p->worst_loss = fmax(p->worst_loss, off);
    compare_gradients(p);
    return true;
}

static void test_teacher(void **state)
{
    pupil p = {0};
    char command[1024];
    int steps = 0;
    const char *python = getenv("PS_TEST_PYTHON");
    // PyTorch must not load the libraries that this program was given
    snprintf(command, sizeof command,
             "env -u LD_PRELOAD -u LD_LIBRARY_PATH %s tests/contract/teacher.py %d",
             python ? python : "/usr/bin/python3", STEPS);
    FILE *teacher = popen(command, "r");
    assert_non_null(teacher);
    pupil_init(&p);
    while (lesson(&p, teacher))
        steps++;
    int status = pclose(teacher);
    double loss = p.worst_loss, gradient = p.worst_gradient;
    bool gpu = strcmp(p.device->ops->name, "cuda") == 0;

    pupil_fini(&p);
    if (WIFEXITED(status) && (WEXITSTATUS(status) == 77 || WEXITSTATUS(status) == 127)) {
        print_message("skipped: there is no PyTorch (python3-torch, PS_TEST_PYTHON)\n");
        skip();
    }
    assert_int_equal(status, 0);
    assert_int_equal(steps, STEPS);
    print_message(
        "largest differences: loss %.2g relative, gradient %.2g of the largest\n", loss,
        gradient);
    assert_true(loss <= 1e-5);
    assert_true(gradient <= (gpu ? 1e-4 : 1e-5));
}

int main(int argc, char **argv)
{
    if (argc > 1) device_name = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_teacher)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
