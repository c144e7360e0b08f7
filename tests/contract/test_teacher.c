/* BasicNet without dropout, teacher-forced: each of 100 steps (25 in the quick run)
 * starts from PyTorch's weights. Losses have to agree within 1e-5, gradients within 1e-5
 * of the largest.
 *
 * On a GPU sums are made in other orders. A relu whose input is within a rounding of 0
 * may then have either slope, and of two such inputs a max_pool may take either. Some
 * steps of a hundred meet one, and their gradients say nothing. So the median step's is
 * judged there, within 1e-4; the worst is printed, and must be below 0.1.
 *
 *   test_teacher [DEVICE]        default: auto */
#include <math.h>

#include "basicnet_rig.h"
#include "check.h"

enum { STEPS = 100, QUICK_STEPS = 25, BATCH = 64 };

static const char *device_name;

typedef struct pupil {
    basicnet_rig rig;
    float *expected; // gradients
    double worst_loss, worst_gradient, gradients[STEPS];
    int steps;
} pupil;

static void compare_gradients(pupil *p)
{
    double worst = 0, largest = 0;
    for (uint64_t i = 0; i < p->rig.spec.table.arena_count; i++) {
        const double off = fabs((double)p->rig.grads[i] - p->expected[i]);
        worst = off <= worst ? worst : off; // NaN stays
        largest = fmax(largest, fabs((double)p->expected[i]));
    }
    if (!(worst / largest <= p->worst_gradient)) p->worst_gradient = worst / largest;
    if (p->steps < STEPS) p->gradients[p->steps] = worst / largest;
    p->steps++;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* false: the teacher has no further lessons. */
static bool lesson(pupil *p, FILE *teacher)
{
    float loss;
    if (!teacher_read_batch(teacher, &p->rig) ||
        !teacher_read(teacher, &loss, sizeof loss) ||
        !teacher_read_arena(teacher, &p->rig.spec.table, p->expected))
        return false;
    const double off = fabs(basicnet_step(&p->rig) - loss) / loss;
    if (!(off <= p->worst_loss)) p->worst_loss = off;
    compare_gradients(p);
    return true;
}

TEST(test_teacher)
{
    pupil p = {0};
    ps_device_choice choice;
    const int steps = device_name || getenv("PS_NIGHTLY") ? STEPS : QUICK_STEPS;
    assert_true(ps_device_choice_parse(device_name ? device_name : "auto", &choice));
    const ps_device_options device = {
        .index = choice.index, .local_rank = -1, .threads = 1};
    const char *python = getenv("PS_TORCH_PYTHON");
    FILE *teacher =
        teacher_start(python ? python : "/usr/bin/python3", "teacher.py", steps);
    basicnet_init(&p.rig, choice.kind, &device, BATCH);
    p.expected = basicnet_arena(&p.rig);
    while (lesson(&p, teacher))
        ;
    const bool gpu = strcmp(p.rig.device->ops->name, "cuda") == 0;
    free(p.expected);
    basicnet_fini(&p.rig);
    teacher_end(teacher);
    assert_int_equal(p.steps, steps);
    qsort(p.gradients, steps, sizeof *p.gradients, ascending);
    const double median = p.gradients[steps / 2];
    int beyond = 0;
    while (beyond < steps && !(p.gradients[steps - 1 - beyond] <= 1e-4))
        beyond++;
    print_message("largest differences: loss %.2g relative, gradient %.2g of the largest "
                  "(the median step's %.2g; above 1e-4 in %d steps)\n",
                  p.worst_loss, p.worst_gradient, median, beyond);
    assert_true(p.worst_loss <= 1e-5);
    assert_true(p.worst_gradient <= 0.1);
    assert_true(gpu ? median <= 1e-4 : p.worst_gradient <= 1e-5);
}

int main(int argc, char **argv)
{
    if (argc > 1) device_name = argv[1];
    return check_run(NULL, NULL);
}
