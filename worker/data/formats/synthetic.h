/* Synthetic data for benchmarks: of any shape and size, and learnable. */
#ifndef PS_SYNTHETIC_H
#define PS_SYNTHETIC_H

#include "samples.h"

typedef struct ps_synthetic_spec {
    uint64_t seed;
    uint32_t split; // 0 and 1 share the patterns, and differ in the samples
    int64_t n;
    ps_dims dims; // (C, H, W) or (F)
    int64_t n_classes;
    double label_noise; // share of the samples with a label that is drawn anew, below 1
} ps_synthetic_spec;

/* uint8 samples, a pure function of the spec, so every rank gets the same. Each class has
 * a coarse pattern (one level per channel and 4 x 4 pixels, or per feature); a sample is
 * 3/8 its class's pattern and 5/8 noise. A label that is drawn anew may be the same
 * again: with noise p and k classes no model's accuracy is expected to exceed
 * 1 - p (k - 1) / k. CONFIG when a size is not positive; NOMEM. */
ps_err ps_synthetic_make(const ps_synthetic_spec *spec, ps_dataset *out);

/* The same of clicks, as Criteo's (criteo.h): 13 counts and 26 ids, 1,000 of each column
 * by Zipf's law; a click's probability depends on all of them, and on pairs of ids. dims,
 * n_classes and label_noise count for nothing. */
ps_err ps_synthetic_clicks(const ps_synthetic_spec *spec, ps_dataset *out);

#endif
