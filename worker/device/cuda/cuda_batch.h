/* Copies batches, and everything else that changes from step to step, to the GPU.
 *
 *   host      staging[k % 2], pinned     copied when the pass, or prefetch, is called
 *   upload       └──▶ incoming           beside the pass before
 *   compute              └──▶ labels, positions, x, targets, key     when the pass before
 * is done
 *
 * Passes read the last five. Their addresses never change, so passes can be captured in
 * graphs. */
#ifndef PS_CUDA_BATCH_H
#define PS_CUDA_BATCH_H

#include "cuda_gpu.h"
#include "device.h"

enum { PS_CUDA_STAGES = 2 };

typedef struct ps_cuda_batch {
    ps_gpu *gpu;                            // borrowed
    int64_t features, plane;                // of a sample
    ps_layout layout;                       // of the samples that passes read
    int64_t outputs;                        // numbers that it is compared with; 0: none
    int64_t channels;                       // of byte_values
    float *byte_values;                     // on the GPU; NULL: samples are floats
    size_t positions_at, x_at, targets_at;  // offsets in bytes in staging and incoming
    char *staging[PS_CUDA_STAGES];          // pinned
    ps_gpu_event *uploaded[PS_CUDA_STAGES]; // the copy out of this staging buffer is done
    int stage;                              // the last one used
    char *incoming;                         // on the GPU
    ps_gpu_event *taken;                    // incoming may be written to again
    ps_batch waiting;                       // the prefetched batch in incoming; n 0: none
    int32_t *labels;                        // (n); like the next three, on the GPU
    float *targets;                         // (n, outputs); NULL: outputs is 0
    uint32_t *positions;                    // (n)
    ps_dropout_words *key;
} ps_cuda_batch;

/* For a program of these options, whose passes read planes of that size in that layout. b
 * is safe for fini after a failure; fini is also safe on a zeroed one. */
ps_err ps_cuda_batch_init(ps_cuda_batch *b, ps_gpu *gpu, const ps_program_options *o,
                          int64_t plane, ps_layout layout);
void ps_cuda_batch_fini(ps_cuda_batch *b);

/* Copies the batch to staging now and queues its copy to the GPU, for the next take. ARG:
 * it has bytes where the program takes floats, or the other way round. */
ps_err ps_cuda_batch_prefetch(ps_cuda_batch *b, const ps_batch *batch);

/* Queues the copy of the batch, prefetched or not, to where passes read it; its samples
 * go to x. */
ps_err ps_cuda_batch_take(ps_cuda_batch *b, const ps_batch *batch, ps_values x,
                          ps_dropout_key key);

#endif
