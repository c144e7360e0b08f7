/* BasicNet without dropout on a device, and a teacher: a script of tests/contract that
 * trains it in PyTorch and writes the steps. Checks fail the running test. */
#ifndef PS_TEST_BASICNET_RIG_H
#define PS_TEST_BASICNET_RIG_H

#include <stdio.h>

#include "device.h"
#include "model_spec.h"

enum { RIG_PIXELS = 784, RIG_MOST_BATCH = 64 };

typedef struct basicnet_rig {
    ps_config cfg;
    ps_model_spec spec;
    ps_device *device;
    ps_program *program;
    int batch;
    float *params, *grads, *x; // x is (batch, 1, 28, 28)
    void *buffers;
    int32_t labels[RIG_MOST_BATCH];
} basicnet_rig;

void basicnet_init(basicnet_rig *r, ps_device_kind kind, const ps_device_options *device,
                   int batch);
void basicnet_fini(basicnet_rig *r);
/* A zeroed arena of the model's size; owned by the caller. */
float *basicnet_arena(const basicnet_rig *r);
/* Forward and backward pass of x and labels; returns the mean loss. */
double basicnet_step(basicnet_rig *r);

FILE *teacher_start(const char *python, const char *script, int steps);
/* Skips the test when the script found no PyTorch; must come after basicnet_fini. */
void teacher_end(FILE *teacher);

/* false at the end of the lessons. */
bool teacher_read(FILE *teacher, void *out, size_t bytes);
/* Reads the tensors of the model into their places in the arena. */
bool teacher_read_arena(FILE *teacher, const ps_tensor_table *table, float *arena);
/* Reads what each lesson begins with: weights, x and labels. */
bool teacher_read_batch(FILE *teacher, basicnet_rig *r);

#endif
