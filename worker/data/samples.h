/* Samples in memory: images or feature vectors, each with an integer label. */
#ifndef PS_SAMPLES_H
#define PS_SAMPLES_H

#include "err.h"
#include "tensor.h"

typedef struct ps_dataset {
    int64_t n;         // samples
    ps_dims dims;      // one sample's: (C, H, W) or (F)
    bool is_float;     // float32 values, else uint8 pixels
    void *values;      // (n, dims), row-major; owned
    int32_t *labels;   // (n), 0 .. n_classes - 1; owned
    int64_t n_classes; // 1 + the largest label
} ps_dataset;

void ps_dataset_fini(ps_dataset *set); // safe on a zeroed set, or after a failure

/* The bytes of n samples of dims. FORMAT when the number overflows or exceeds the address
 * space; the message begins with name. */
ps_err ps_dataset_bytes(const char *name, int64_t n, const ps_dims *dims, bool is_float,
                        uint64_t *bytes);

/* Keeps only the samples first .. last (inclusive). FORMAT when last does not exist. */
ps_err ps_dataset_slice(ps_dataset *set, int64_t first, int64_t last);

/* Sets n_classes from the labels. FORMAT when one is negative or not below limit (0: no
 * limit), naming the sample by its index in the file (first: of the slice). NUMERIC when
 * a float value is not finite. */
ps_err ps_dataset_check(ps_dataset *set, int64_t first, int64_t limit);

#endif
