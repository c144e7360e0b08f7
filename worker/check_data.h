/* ps-worker --check-data: reads a job's data as training will, and says what there is. */
#ifndef PS_CHECK_DATA_H
#define PS_CHECK_DATA_H

#include <stdio.h>

#include "data_sets.h"
#include "sampler.h"

typedef struct ps_check_data_options { // borrowed
    const ps_config *config;
    const ps_model_spec *spec;
    const ps_data_sets *data;
    const ps_sampler_options *sampler; // of the job's workers
    int64_t accumulate;                // micro-batches per step
    uint64_t total_steps;
} ps_check_data_options;

/* Prints, in lines of up to 80 columns, the samples of both parts, what a reader noted,
 * each column of a table, the target with its classes or its range, and the steps of an
 * epoch.
 * Training samples are decoded in random order, test samples in theirs, each for a few
 * seconds at most. The errors are those that the job would end with; of pictures that
 * cannot be taken the first ones are listed. */
ps_err ps_check_data(const ps_check_data_options *options, FILE *out);

#endif
