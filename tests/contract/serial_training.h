/* Synthetic gradients, and a serial training loop on them: it adds the gradients of all
 * ranks in rank order and steps the optimizer. The exchanges must agree with it bit for
 * bit. */
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
/* Depends on the weights, so that weights of a wrong version are noticed. */
float test_gradient(int rank, uint64_t step, uint64_t i, float param);
/* Writes the rank's overflows of this step into its gradients. */
void test_overflow_some(const test_overflows *overflows, const ps_model_spec *spec,
                        int rank, uint64_t step, float *grads);
void test_first_weights(const ps_model_spec *spec, float *params);

/* The weights after TEST_STEPS; owned by the caller. hosts: by rank, the number of its
 * host. The ranks of a host are summed first. NULL: every rank has its own host. */
float *test_serial_weights(const ps_config *cfg, int workers, const int *hosts,
                           const test_overflows *overflows);

#endif
