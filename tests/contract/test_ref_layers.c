/* The reference that devices are compared with is right itself: its gradients are those
 * of finite differences of its losses. */
#include "ref_layers.h"

#include <math.h>

#include "check.h"
#include "device_rig.h"
#include "model_cases.h"

static const rig_device cpu = {.kind = PS_DEVICE_CPU, .rounding = &rig_float32};
static const ps_pass training = {
    .training = true, .grad_scale = 1.0f, .dropout = {0x123456789abcull, 3}};

/* (loss(p + h) - loss(p - h)) / 2h of the mean loss and one parameter. */
static double central_difference(ref_model *ref, const ps_batch *batch, double *p)
{
    const double h = 1e-6, at = *p;
    *p = at + h;
    double above = ref_forward(ref, batch, &training);
    *p = at - h;
    double below = ref_forward(ref, batch, &training);
    *p = at;
    return (above - below) / (2 * h * ref->weight);
}

/* The first, the middle and the last element of each tensor. */
static void check_differences(ref_model *ref, const ps_batch *batch)
{
    for (int t = 0; t < ref->spec->table.n_tensors; t++) {
        const ps_tensor *tensor = &ref->spec->table.tensors[t];
        for (uint64_t k = 0; k < 3; k++) {
            uint64_t i = tensor->offset + k * (tensor->count - 1) / 2;
            double want = central_difference(ref, batch, &ref->params[i]);
            if (fabs(ref->grads[i] - want) > 1e-6 * fmax(1, fabs(want)))
                fail_msg("%s: %g, and a difference of %g", tensor->name, ref->grads[i],
                         want);
        }
    }
}

TEST(gradients_are_those_of_differences)
{
    for (size_t i = 0; i < model_n_cases; i++) {
        rig r;
        ref_model ref;
        rig_init(&r, &cpu, model_cases[i].input, model_cases[i].loss,
                 model_cases[i].layers, 2);
        ps_batch batch = rig_batch(&r, 2);
        ref_init(&ref, &r.spec, 2, r.params, r.buffers);
        ref_forward(&ref, &batch, &training);
        ref_backward(&ref, &batch, &training);
        check_differences(&ref, &batch);
        ref_fini(&ref);
        rig_fini(&r);
    }
}
