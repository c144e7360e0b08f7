/* A model on a device with everything that a pass needs. Its passes are compared with the
 * reference's (ref_layers.h); a failure fails the test. */
#ifndef PS_TEST_DEVICE_RIG_H
#define PS_TEST_DEVICE_RIG_H

#include "device.h"
#include "model_spec.h"
#include "ref_layers.h"

/* How products round their factors and the values between layers, and how far the device
 * may differ from a reference that rounds in the same way. Values between layers differ
 * in their last bits of float32, and then a few of them round to the other side of a tie.
 * So the bounds grow with the rounding unit. With more digits, more values are near a
 * tie. */
typedef struct rig_rounding {
    ps_precision precision;
    int digits, least; // as in ref_model
    double outputs, gradients, statistics;
} rig_rounding;

extern const rig_rounding rig_float32;
extern const rig_rounding rig_sixteen_bits[2]; // bf16, fp16

typedef struct rig_device {
    ps_device_kind kind;
    ps_switch cudnn, channels_last;
    ps_winograd winograd;
    const rig_rounding *rounding;
} rig_device;

/* What it takes to run the references again, with ties rounded otherwise. */
typedef struct rig_ties rig_ties;

typedef struct rig {
    ps_config cfg;
    ps_model_spec spec;
    int max_batch;
    const rig_rounding *rounding;
    bool whole_values, rounds_once; // as in ref_model
    float *params, *grads, *x;
    void *buffers;
    int32_t *labels;
    float *targets; // NULL: the labels
    uint32_t *positions;
    ps_device *device;
    ps_program *program;
    double worst;   // largest difference so far, relative to its bound
    rig_ties *ties; // NULL: a difference above the bound fails
} rig;

/* input, loss and layers are those of a configuration's model. After the loss, blanks and
 * more keys may follow. With the word "numbers" samples are compared with numbers. */
void rig_init(rig *r, const rig_device *on, const char *input, const char *loss,
              const char *layers, int max_batch);
void rig_fini(rig *r);

/* The first n samples. */
ps_batch rig_batch(const rig *r, int n);

/* Makes the reference of n samples, which rounds as the device does; the caller calls
 * ref_fini. */
void rig_reference(rig *r, ref_model *ref, int n);
/* Runs forward, and in training backward, of n samples on the device and in the
 * reference, and compares loss, outputs, gradients and statistics. */
void rig_compare(rig *r, int n, const ps_pass *pass);
/* Compares the device's gradients and statistics with the reference's. */
void rig_check_gradients(rig *r, const ref_model *ref);

#endif
