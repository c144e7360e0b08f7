/* Gradients that tests make up, and what a plain loop makes of them: it adds those of all
 * ranks in the order of ranks and steps the optimizer, for the exchanges to agree with,
 * bit for bit. */
#ifndef PS_TEST_SERIAL_TRAINING_H
#define PS_TEST_SERIAL_TRAINING_H

#include "model_spec.h"

enum { TEST_STEPS = 6 };

/* A gradient that overflows: the first element of a tensor that the step picks. */
typedef struct test_overflow {
    uint64_t step;
    int rank;
    float value;
} test_overflow;

typedef struct test_overflows {
    const test_overflow *list;
    size_t n;
} test_overflows;

/* A draw in [-1, 1) for (rank, step, element). */
float test_noise(int rank, uint64_t step, uint64_t i);
/* Depends on the weights, so that weights of a wrong version show. */
float test_gradient(int rank, uint64_t step, uint64_t i, float param);
/* Puts the step's overflows of the rank into its gradients. */
void test_overflow_some(const test_overflows *overflows, const ps_model_spec *spec,
                        int rank, uint64_t step, float *grads);
void test_first_weights(const ps_model_spec *spec, float *params);

/* The weights after TEST_STEPS; owned by the caller. */
float *test_serial_weights(const ps_config *cfg, int workers,
                           const test_overflows *overflows);

#endif
