/* Synthetic data for benchmarks: of any shape and size, and learnable. */
#ifndef PS_SYNTHETIC_H
#define PS_SYNTHETIC_H

#include "samples.h"

/* n uint8 samples of dims ((C, H, W) or (F)) in n_classes classes, a pure function of the
 * arguments, so every rank gets the same. Each class has a coarse pattern (one level per
 * channel and 4 x 4 pixels, or per feature); a sample is 3/8 its class's pattern and 5/8
 * noise. split 0 and 1 share the patterns and differ in the samples. CONFIG when a size
 * is not positive; NOMEM. */
ps_err ps_synthetic_make(uint64_t seed, uint32_t split, int64_t n, const ps_dims *dims,
                         int64_t n_classes, ps_dataset *out);

#endif
