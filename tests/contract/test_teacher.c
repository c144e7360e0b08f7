/* BasicNet without dropout, teacher-forced: each of 100 steps starts from PyTorch's
 * weights. Losses have to agree within 1e-5, gradients within 1e-5 of the largest (on a
 * GPU 1e-4).
 *
 *   test_teacher [DEVICE]        default: auto */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "basicnet_rig.h"

enum { STEPS = 100, BATCH = 64 };

static const char *device_name = "auto";

typedef struct pupil {
    basicnet_rig rig;
    float *expected; // gradients
    double worst_loss, worst_gradient;
} pupil;

static void compare_gradients(pupil *p)
{
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < p->rig.spec.table.arena_count; i++) {
        worst = fmax(worst, fabs((double)p->rig.grads[i] - p->expected[i]));
        largest = fmax(largest, fabs((double)p->expected[i]));
    }
    p->worst_gradient = fmax(p->worst_gradient, worst / largest);
}

/* false: the teacher has no further lessons. */
static bool lesson(pupil *p, FILE *teacher)
{
    float loss;
    if (!teacher_read_batch(teacher, &p->rig) ||
        !teacher_read(teacher, &loss, sizeof loss) ||
        !teacher_read_arena(teacher, &p->rig, p->expected))
        return false;
    const double off = fabs(basicnet_step(&p->rig) - loss) / loss;
    p->worst_loss = fmax(p->worst_loss, off);
    compare_gradients(p);
    return true;
}

static void test_teacher(void **state)
{
    pupil p = {0};
    ps_device_choice choice;
    int steps = 0;
    assert_true(ps_device_choice_parse(device_name, &choice));
    const ps_device_options device = {
        .index = choice.index, .local_rank = -1, .threads = 1};
    const char *python = getenv("PS_TEST_PYTHON");
    FILE *teacher =
        teacher_start(python ? python : "/usr/bin/python3", "teacher.py", STEPS);
    basicnet_init(&p.rig, choice.kind, &device, BATCH);
    p.expected = basicnet_arena(&p.rig);
    while (lesson(&p, teacher))
        steps++;
    const bool gpu = strcmp(p.rig.device->ops->name, "cuda") == 0;
    free(p.expected);
    basicnet_fini(&p.rig);
    teacher_end(teacher);
    assert_int_equal(steps, STEPS);
    print_message(
        "largest differences: loss %.2g relative, gradient %.2g of the largest\n",
        p.worst_loss, p.worst_gradient);
    assert_true(p.worst_loss <= 1e-5);
    assert_true(p.worst_gradient <= (gpu ? 1e-4 : 1e-5));
}

int main(int argc, char **argv)
{
    if (argc > 1) device_name = argv[1];
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_teacher)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
