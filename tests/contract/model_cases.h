/* Small models. Together they have every layer in every place where a device treats it
 * differently. */
#ifndef PS_TEST_MODEL_CASES_H
#define PS_TEST_MODEL_CASES_H

#include <stddef.h>

typedef struct model_case {
    const char *what, *input, *loss, *layers; // as in a configuration, except what;
                                              // loss: more keys may follow (rig_init)
} model_case;

extern const model_case model_cases[];
extern const size_t model_n_cases;

#endif
