/* Batches on their way to the GPU, and what changes from step to step.
 *
 *   host      staging[k % 2], pinned     copied when the pass, or prefetch, is called
 *   upload       └──▶ incoming           beside the pass before
 *   compute              └──▶ labels, positions, x, key     when the pass before is done
 *
 * Passes read the last four, which stay where they are: they can be captured in graphs.
 */
#ifndef PS_CUDA_BATCH_H
#define PS_CUDA_BATCH_H

#include "cuda_gpu.h"
#include "device.h"

enum { PS_CUDA_STAGES = 2 };

typedef struct ps_cuda_batch {
    ps_gpu *gpu;                            // borrowed
    int64_t features;                       // of a sample
    size_t positions_at, x_at;              // bytes from the start of staging, incoming
    char *staging[PS_CUDA_STAGES];          // pinned
    ps_gpu_event *uploaded[PS_CUDA_STAGES]; // from there
    int stage;                              // the last one used
    char *incoming;                         // on the GPU
    ps_gpu_event *taken;                    // incoming may be written to again
    ps_batch waiting;                       // lies in incoming, for prefetch; n 0: none
    int32_t *labels;                        // (n) on the GPU, as are these:
    uint32_t *positions;                    // (n)
    ps_dropout_words *key;
} ps_cuda_batch;

/* Safe for fini after a failure, and on a zeroed one. */
ps_err ps_cuda_batch_init(ps_cuda_batch *b, ps_gpu *gpu, int max_batch, int64_t features);
void ps_cuda_batch_fini(ps_cuda_batch *b);

/* The batch is copied to staging now and to the GPU soon: what the next take wants. */
ps_err ps_cuda_batch_prefetch(ps_cuda_batch *b, const ps_batch *batch);

/* Queues what brings the batch, prefetched or not, to where passes read it: its samples
 * to x. */
ps_err ps_cuda_batch_take(ps_cuda_batch *b, const ps_batch *batch, ps_values x,
                          ps_dropout_key key);

#endif
