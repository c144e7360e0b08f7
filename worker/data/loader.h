/* A thread that prepares batches ahead: gathers, augments, normalises. */
#ifndef PS_LOADER_H
#define PS_LOADER_H

#include "clock.h"
#include "dataset.h"
#include "sampler.h"

typedef struct ps_loader ps_loader;

/* A prepared micro-batch; borrowed from the loader until it is released. */
typedef struct ps_loaded {
    int64_t n, global_n;
    float *x;            // (n, input), 64-byte aligned
    int32_t *labels;     // (n)
    uint32_t *positions; // (n)
} ps_loaded;

typedef struct ps_loader_options { // borrowed for the loader's life
    const ps_config *config;
    const ps_dataset *dataset;
    const ps_dims *input; // the model's; the samples are resized or cropped to it
    const ps_sampler_options *sampler; // training; NULL: evaluation of [begin, begin + n)
    int64_t begin, n;
    int64_t max_batch;
} ps_loader_options;

/* SHAPE when the dataset's samples cannot become the model's input. */
ps_err ps_loader_create(const ps_loader_options *options, ps_loader **out);
/* Starts preparing that epoch's batches from batch `first` on. */
ps_err ps_loader_epoch(ps_loader *loader, uint64_t epoch, int64_t first);
/* The next batch; *out NULL at the end of the epoch. */
ps_err ps_loader_next(ps_loader *loader, ps_deadline deadline, ps_loaded **out);
void ps_loader_release(ps_loader *loader, ps_loaded *batch);
void ps_loader_destroy(ps_loader **loader);

#endif
