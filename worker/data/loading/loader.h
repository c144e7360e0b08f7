/* Threads that prepare batches in advance: they gather or decode samples, augment and
 * normalise them. Each prepares a batch of its own, and the caller gets them in order;
 * what is in a batch does not depend on the number of threads (data.threads). */
#ifndef PS_LOADER_H
#define PS_LOADER_H

#include "clock.h"
#include "dataset.h"
#include "sampler.h"

typedef struct ps_loader ps_loader;

/* A prepared micro-batch; borrowed from the loader until it is released, or until the
 * loader is destroyed. */
typedef struct ps_loaded {
    int64_t n, global_n; // global_n: over all ranks; n in evaluation
    float *x;            // (n, input), 64-byte aligned; NULL: bytes
    uint8_t *bytes;      // (n, input), of ps_loader_byte_values; NULL: x
    int32_t *labels;     // (n); NULL: targets
    float *targets; // (n, the data set's n_targets), with data.mixup (n, classes); NULL:
                    // labels
    uint32_t *positions; // (n)
    int64_t *ids;        // (columns, n); NULL: none
} ps_loaded;

typedef struct ps_loader_options { // borrowed for the loader's life
    const ps_config *config;
    const ps_dataset *dataset;
    const ps_dims *input; // model input; samples are resized or cropped to it
    const ps_sampler_options *sampler; // training; NULL: evaluation of [begin, begin + n)
    int64_t begin, n;                  // evaluation; n may be 0
    int64_t max_batch; // batch size of evaluation; in training at least the rank's batch
    int64_t classes;   // the model's; for data.mixup
    int64_t columns;   // of ids that the model reads; 0: none
    bool bytes;        // batches may stay bytes: the caller normalises them
    const char *mend;  // of samples to predict that do not fit (transform.h); or NULL
} ps_loader_options;

/* The threads prepare data.prefetch batches ahead of the one in use, and at least one
 * each. SHAPE when the dataset's samples cannot become the model's input; CONFIG, ARG,
 * NOMEM. */
ps_err ps_loader_create(const ps_loader_options *options, ps_loader **out);

/* With the option bytes: what byte v of channel c stands for, in element 256 c + v.
 * channels: equal parts of a sample. NULL: batches are floats, as samples are, or become
 * by data.resize or data.mixup. Borrowed from the loader. */
const float *ps_loader_byte_values(const ps_loader *loader, int64_t *channels);

/* Starts preparing that epoch's batches, from batch `first` on. Prepared batches of
 * another epoch are dropped; batches not yet released stay valid. */
ps_err ps_loader_epoch(ps_loader *loader, uint64_t epoch, int64_t first);

/* The next batch; *out NULL at the end of the epoch. TIMEOUT at the deadline, for example
 * because the caller holds data.prefetch + 1 batches; else the error of the epoch's
 * preparation, such as a picture that cannot be read. The loader stays usable. */
ps_err ps_loader_next(ps_loader *loader, ps_deadline deadline, ps_loaded **out);

/* Whether ps_loader_next would give a batch at once. */
bool ps_loader_ready(ps_loader *loader);

/* Gives back a batch of ps_loader_next, in any order; batch may be NULL. */
void ps_loader_release(ps_loader *loader, ps_loaded *batch);

/* Stops the threads at once; clears the caller's pointer. */
void ps_loader_destroy(ps_loader **loader);

#endif
