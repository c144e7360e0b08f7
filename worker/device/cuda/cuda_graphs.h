/* Passes as graphs of launches (CUDA graphs), one for each group of layers and direction.
 *
 * A segment is one group in one direction, in passes of one kind. The first time it
 * queues its launches one by one, while libraries load what they need; the second time it
 * is captured, and from then on replayed. The events that wait for weights and announce
 * gradients are between segments. A captured launch has no argument that changes from
 * step to step: such values lie in the GPU's memory, or the launch is outside all
 * segments. */
#ifndef PS_CUDA_GRAPHS_H
#define PS_CUDA_GRAPHS_H

#include "cuda_gpu.h"

/* What captured launches depend on, besides the program. */
typedef struct ps_cuda_kind {
    int n; // samples: a short last batch is another kind
    bool training, accumulate, loss, targets;
} ps_cuda_kind;

typedef struct ps_cuda_segment {
    bool ran;
    ps_gpu_graph *graph; // NULL: not captured yet
} ps_cuda_segment;

typedef struct ps_cuda_set {
    ps_cuda_kind kind;                   // n 0: this entry is free
    ps_cuda_segment *forward, *backward; // (n_groups)
} ps_cuda_set;

/* Enough for full and short batches, first and further batches of a step, and evaluation.
 * Further kinds queue their launches one by one. */
enum { PS_CUDA_SETS = 8 };

typedef struct ps_cuda_graphs {
    ps_gpu *gpu; // borrowed
    int n_groups;
    bool off;
    ps_cuda_set sets[PS_CUDA_SETS];
} ps_cuda_graphs;

void ps_cuda_graphs_init(ps_cuda_graphs *graphs, ps_gpu *gpu, int n_groups, bool off);
void ps_cuda_graphs_fini(ps_cuda_graphs *graphs); // safe on a zeroed one

/* *set NULL: the caller launches one by one. */
ps_err ps_cuda_graphs_find(ps_cuda_graphs *graphs, ps_cuda_kind kind, ps_cuda_set **set);

/* Queues the group's launches on the compute queue: calls queue(run, group), which does
 * nothing but launch, or replays the segment's graph. segment NULL: always calls queue.
 */
ps_err ps_cuda_segment_run(ps_gpu *gpu, ps_cuda_segment *segment,
                           ps_err (*queue)(void *run, int group), void *run, int group);

#endif
