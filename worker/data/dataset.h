/* Datasets: images (or feature vectors) with integer labels, in memory. */
#ifndef PS_DATASET_H
#define PS_DATASET_H

#include "config.h"
#include "tensor.h"

typedef struct ps_dataset {
    int64_t n;         // samples
    ps_dims dims;      // one sample's: (C, H, W) or (F)
    bool is_float;     // float32 values, else uint8 pixels
    void *values;      // (n, dims), row-major; owned
    int32_t *labels;   // (n), 0 .. n_classes - 1; owned
    int64_t n_classes; // 1 + the largest label
} ps_dataset;

typedef enum ps_split { PS_SPLIT_TRAIN, PS_SPLIT_TEST } ps_split;

/* Reads a split as data.* of the configuration says: kind from the table of readers,
 * files from data.path, data.train / data.test. Sizes are checked against headers before
 * anything is allocated. want: the model's input, which synthetic data takes as its shape
 * (others ignore it); n_classes likewise. IO, FORMAT or CONFIG on failure, naming file
 * and field. */
ps_err ps_dataset_load(const ps_config *cfg, ps_split split, const ps_dims *want,
                       int64_t n_classes, ps_dataset *out);
void ps_dataset_fini(ps_dataset *set);

#endif
