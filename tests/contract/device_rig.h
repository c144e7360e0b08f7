/* A model on a device with everything that a pass needs, and its passes compared with the
 * reference's (ref_layers.h). What does not work fails the test. */
#ifndef PS_TEST_DEVICE_RIG_H
#define PS_TEST_DEVICE_RIG_H

#include "device.h"
#include "model_spec.h"
#include "ref_layers.h"

/* How products round their factors, and what is stored between layers, and how far the
 * device may be from the reference that does the same. Values between layers differ in
 * their last bits of float32, and a few of them then fall to the other side of a tie: so
 * the bounds grow with the unit. */
typedef struct rig_rounding {
    ps_precision precision;
    int digits, least; // as in ref_model
    double outputs, gradients, statistics;
} rig_rounding;

extern const rig_rounding rig_float32;
extern const rig_rounding rig_sixteen_bits[2]; // bf16, fp16

typedef struct rig_device {
    ps_device_kind kind;
    ps_switch cudnn;
    ps_winograd winograd;
    const rig_rounding *rounding;
} rig_device;

typedef struct rig {
    ps_config cfg;
    ps_model_spec spec;
    int max_batch;
    const rig_rounding *rounding;
    float *params, *grads, *x;
    void *buffers;
    int32_t *labels;
    uint32_t *positions;
    ps_device *device;
    ps_program *program;
    double worst; // of what was compared, relative to the bound
} rig;

/* input, loss and layers are those of a configuration's model. */
void rig_init(rig *r, const rig_device *on, const char *input, const char *loss,
              const char *layers, int max_batch);
void rig_fini(rig *r);

/* The first n samples. */
ps_batch rig_batch(const rig *r, int n);

/* Forward, and in training backward, of n samples on the device and in the reference:
 * loss, outputs, gradients and statistics. */
void rig_compare(rig *r, int n, const ps_pass *pass);
/* The device's gradients and statistics with the reference's. */
void rig_check_gradients(rig *r, const ref_model *ref);

#endif
