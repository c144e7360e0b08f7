/* train.precision bf16 against torch.autocast: BasicNet without dropout, each step from
 * PyTorch's weights.
 *
 * Both round the factors of products to bfloat16 and sum in float32. On the GPU both also
 * round the values between layers. Autocast rounds the logits and the gradients of
 * weights, too; here these stay float32. So the two differ by some units of bfloat16
 * (2^-8), by at most 8 in a gradient. Both are equally far from the float32 step (a
 * tenth). On x86 without AVX-512 PyTorch sums in bfloat16, too: then it is farther. */
#include <math.h>

#include "basicnet_rig.h"
#include "check.h"

enum { STEPS = 4, BATCH = 8 };

static ps_device_kind kind = PS_DEVICE_CUDA;

/* One way to make the step: its loss, and its gradient in an arena. */
typedef struct way {
    float loss;
    float *grads;
} way;

typedef struct pupil {
    basicnet_rig rig;
    way ours, float32, autocast; // ours.grads: the rig's
} pupil;

static bool read_way(const pupil *p, FILE *f, way *w)
{
    return teacher_read(f, &w->loss, sizeof w->loss) &&
           teacher_read_arena(f, &p->rig.spec.table, w->grads);
}

/* The largest difference over the largest element, and the difference's length over the
 * gradient's. */
typedef struct distance {
    double largest, length;
} distance;

static distance between(const pupil *p, const way *a, const way *b)
{
    double worst = 0, largest = 0, off = 0, whole = 0;
    for (uint64_t i = 0; i < p->rig.spec.table.arena_count; i++) {
        double d = fabs((double)a->grads[i] - b->grads[i]);
        worst = fmax(worst, d);
        largest = fmax(largest, fabs((double)b->grads[i]));
        off += d * d;
        whole += (double)b->grads[i] * b->grads[i];
    }
    return (distance){worst / largest, sqrt(off / whole)};
}

/* PyTorch's condition for its bfloat16 kernels that sum in float32
 * (mkldnn_bf16_device_check). */
static bool teacher_sums_in_float32(void)
{
#if defined __x86_64__
    return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512dq");
#else
    return true;
#endif
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
    if (teacher_sums_in_float32())
        assert_true(apart.largest <= 0x1p-5 && apart.length <= 0x1p-5);
    // Most of the distance comes from what both do: factors of 8 bits before a relu.
    assert_true(ours.length <= 1.1 * theirs.length);
    assert_true(ours.length > 0x1p-12); // it did round
}

/* false: the teacher has no further lessons. */
static bool lesson(pupil *p, FILE *teacher)
{
    if (!teacher_read_batch(teacher, &p->rig) || !read_way(p, teacher, &p->float32) ||
        !read_way(p, teacher, &p->autocast))
        return false;
    p->ours.loss = (float)basicnet_step(&p->rig);
    compare(p);
    return true;
}

TEST(test_bf16_is_as_near_as_autocast)
{
    pupil p = {0};
    int steps = 0;
    const ps_device_options device = {
        .index = -1, .local_rank = -1, .threads = 1, .precision = PS_PRECISION_BF16};
    FILE *teacher = teacher_start("/usr/bin/python3", "teacher.py autocast", STEPS);
    basicnet_init(&p.rig, kind, &device, BATCH);
    p.ours.grads = p.rig.grads;
    p.float32.grads = basicnet_arena(&p.rig);
    p.autocast.grads = basicnet_arena(&p.rig);
    while (lesson(&p, teacher))
        steps++;
    free(p.float32.grads);
    free(p.autocast.grads);
    basicnet_fini(&p.rig);
    teacher_end(teacher);
    assert_int_equal(steps, STEPS);
}

/* With the argument cpu it tests the CPU, else the GPU. */
int main(int argc, char **argv)
{
    if (argc > 1 && strcmp(argv[1], "cpu") == 0) kind = PS_DEVICE_CPU;
    return check_run(NULL, NULL);
}
