/* Every loss, teacher-forced: each of 50 steps starts from PyTorch's weights. Losses have
 * to agree within 1e-5, gradients within 1e-5 of the largest.
 *
 *   test_loss_teacher [DEVICE]        default: cpu */
#include <math.h>

#include "basicnet_rig.h"
#include "check.h"
#include "device_rig.h"
#include "loss_terms.h"

enum { STEPS = 50, BATCH = 32, INPUTS = 7, OUTPUTS = 6 };

#define WEIGHTS "train.class_weights=[0.5,2,1,0,3,0.25]"

static const struct lessons {
    const char *name, *loss; // loss_teacher.py; rig_init
} all[] = {
    {"smoothing", "cross_entropy train.label_smoothing=0.1"},
    {"weights", "cross_entropy " WEIGHTS},
    {"ignore", "cross_entropy train.ignore_index=2"},
    {"all", "cross_entropy " WEIGHTS " train.ignore_index=2 train.label_smoothing=0.3"},
    {"nll", "nll " WEIGHTS " train.ignore_index=2"},
    {"soft", "cross_entropy numbers"},
    {"soft_all", "cross_entropy numbers " WEIGHTS " train.label_smoothing=0.3"},
    {"mse", "mse numbers"},
    {"l1", "l1 numbers"},
    {"smooth_l1", "smooth_l1 numbers"},
    {"bce", "bce_with_logits numbers"}};

static rig_device on = {.kind = PS_DEVICE_CPU, .rounding = &rig_float32};

typedef struct pupil {
    rig rig;
    float expected[INPUTS * 16 + 16 + 16 * OUTPUTS + OUTPUTS + 64];
    double worst_loss, worst_gradient;
} pupil;

static bool read_answers(FILE *teacher, rig *r)
{
    if (!r->targets) return teacher_read(teacher, r->labels, BATCH * sizeof *r->labels);
    return teacher_read(teacher, r->targets, BATCH * OUTPUTS * sizeof *r->targets);
}

static void compare(pupil *p, float loss)
{
    const ps_pass pass = {.training = true, .grad_scale = 1.0f};
    const ps_batch batch = rig_batch(&p->rig, BATCH);
    double worst = 0, largest = 0;
    ps_pass_result result;
    assert_ok(ps_program_forward(p->rig.program, &batch, &pass, &result));
    assert_ok(ps_program_backward(p->rig.program, &batch, &pass));
    const double mean = result.loss_sum / ps_batch_weigh(&p->rig.spec, &batch).weight;
    for (int t = 0; t < p->rig.spec.table.n_tensors; t++) {
        const ps_tensor *tensor = &p->rig.spec.table.tensors[t];
        for (uint64_t i = tensor->offset; i < tensor->offset + tensor->count; i++) {
            worst = fmax(worst, fabs((double)p->rig.grads[i] - p->expected[i]));
            largest = fmax(largest, fabs((double)p->expected[i]));
        }
    }
    p->worst_gradient = fmax(p->worst_gradient, worst / largest);
    p->worst_loss = fmax(p->worst_loss, fabs(mean - loss) / loss);
}

/* false: the teacher has no further lessons. */
static bool lesson(pupil *p, FILE *teacher)
{
    float loss;
    if (!teacher_read_arena(teacher, &p->rig.spec.table, p->rig.params) ||
        !teacher_read(teacher, p->rig.x, BATCH * INPUTS * sizeof *p->rig.x) ||
        !read_answers(teacher, &p->rig) || !teacher_read(teacher, &loss, sizeof loss) ||
        !teacher_read_arena(teacher, &p->rig.spec.table, p->expected))
        return false;
    compare(p, loss);
    return true;
}

/* false: the teacher has ended before. */
static bool learn(const struct lessons *l, FILE *teacher)
{
    char layers[128];
    pupil p = {0};
    int steps = 0;
    snprintf(layers, sizeof layers,
             "{linear: {name: '0', out: 16}}, tanh, {linear: {name: '2', out: 6}}%s",
             strcmp(l->name, "nll") == 0 ? ", log_softmax" : "");
    rig_init(&p.rig, &on, "[7]", l->loss, layers, BATCH);
    assert_true(p.rig.spec.table.arena_count <= sizeof p.expected / sizeof *p.expected);
    while (steps < STEPS && lesson(&p, teacher))
        steps++;
    rig_fini(&p.rig);
    if (steps < STEPS) return false;
    print_message("%s: largest differences: loss %.2g relative, gradient %.2g of the "
                  "largest\n",
                  l->name, p.worst_loss, p.worst_gradient);
    assert_true(p.worst_loss <= 1e-5);
    assert_true(p.worst_gradient <= 1e-5);
    return true;
}

TEST(test_losses)
{
    const size_t n = sizeof all / sizeof *all;
    const char *python = getenv("PS_TORCH_PYTHON");
    char script[256] = "loss_teacher.py";
    for (size_t i = 0; i < n; i++) {
        strcat(script, " ");
        strcat(script, all[i].name);
    }
    FILE *teacher = teacher_start(python ? python : "/usr/bin/python3", script, STEPS);
    size_t learnt = 0;
    while (learnt < n && learn(&all[learnt], teacher))
        learnt++;
    teacher_end(teacher);
    assert_int_equal(learnt, n);
}

int main(int argc, char **argv)
{
    if (argc > 1 && !ps_word_find(ps_device_words, argv[1], (int *)&on.kind)) return 2;
    return check_run(NULL, NULL);
}
