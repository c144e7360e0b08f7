/* Passes as graphs of launches (CUDA graphs), one for each group of layers and direction.
 *
 * A segment - a group in one direction, of a pass of one kind - queues its launches one
 * by one the first time, when libraries load what they need; the second time it is
 * captured, and from then on replayed. Between segments stand the events that wait for
 * weights and tell of gradients. Nothing that changes from step to step is among what a
 * launch is given: it lies in the GPU's memory, or its launch is in no segment. */
#ifndef PS_CUDA_GRAPHS_H
#define PS_CUDA_GRAPHS_H

#include "cuda_gpu.h"

/* What captured launches depend on beside the program. */
typedef struct ps_cuda_kind {
    int n; // samples: a short last batch is another kind
    bool training, accumulate, loss;
} ps_cuda_kind;

typedef struct ps_cuda_segment {
    bool ran;
    ps_gpu_graph *graph; // NULL: not captured yet
} ps_cuda_segment;

typedef struct ps_cuda_set {
    ps_cuda_kind kind;                   // n 0: a free place
    ps_cuda_segment *forward, *backward; // by group
} ps_cuda_set;

/* Full and short batches, first and further of a step, with evaluation between; kinds
 * beyond these queue their launches one by one. */
enum { PS_CUDA_SETS = 8 };

typedef struct ps_cuda_graphs {
    ps_gpu *gpu; // borrowed
    int n_groups;
    bool off;
    ps_cuda_set sets[PS_CUDA_SETS];
} ps_cuda_graphs;

void ps_cuda_graphs_init(ps_cuda_graphs *graphs, ps_gpu *gpu, int n_groups, bool off);
void ps_cuda_graphs_fini(ps_cuda_graphs *graphs); // safe on a zeroed one

/* *set NULL: launches one by one. */
ps_err ps_cuda_graphs_find(ps_cuda_graphs *graphs, ps_cuda_kind kind, ps_cuda_set **set);

/* Queues the group's launches, which queue(run, group) does on the compute queue and
 * which are nothing but launches. segment may be NULL: directly. */
ps_err ps_cuda_segment_run(ps_gpu *gpu, ps_cuda_segment *segment,
                           ps_err (*queue)(void *run, int group), void *run, int group);

#endif
