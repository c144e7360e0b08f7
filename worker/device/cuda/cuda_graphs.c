#include "cuda_graphs.h"

#include <stdlib.h>

#include "mem.h"

void ps_cuda_graphs_init(ps_cuda_graphs *g, ps_gpu *gpu, int n_groups, bool off)
{
    *g = (ps_cuda_graphs){.gpu = gpu, .n_groups = n_groups, .off = off};
}

void ps_cuda_graphs_fini(ps_cuda_graphs *g)
{
    for (int i = 0; i < PS_CUDA_SETS; i++) {
        ps_cuda_segment *segments = g->sets[i].forward; // then backward's
        for (int k = 0; segments && k < 2 * g->n_groups; k++)
            ps_gpu_graph_destroy(g->gpu, &segments[k].graph);
        free(segments);
    }
    *g = (ps_cuda_graphs){0};
}

static bool graphs_same(ps_cuda_kind a, ps_cuda_kind b)
{
    return a.n == b.n && a.training == b.training && a.accumulate == b.accumulate &&
           a.loss == b.loss && a.targets == b.targets;
}

ps_err ps_cuda_graphs_find(ps_cuda_graphs *g, ps_cuda_kind kind, ps_cuda_set **out)
{
    *out = NULL;
    for (int i = 0; i < PS_CUDA_SETS && !g->off && !*out; i++) {
        ps_cuda_set *s = &g->sets[i];
        if (s->kind.n == 0) {
            PS_TRY(PS_NEW(&s->forward, 2 * (size_t)g->n_groups, "graphs"));
            s->backward = s->forward + g->n_groups;
            s->kind = kind;
        }
        if (graphs_same(s->kind, kind)) *out = s;
    }
    return PS_OK;
}

/* A capture is always ended, also after an error: until then the GPU accepts no other
 * work. */
static ps_err graphs_capture(ps_gpu *gpu, ps_cuda_segment *segment,
                             ps_err (*queue)(void *run, int group), void *run, int group)
{
    PS_TRY(ps_gpu_capture_begin(gpu));
    ps_err err = queue(run, group);
    if (err == PS_OK) return ps_gpu_capture_end(gpu, &segment->graph);
    ps_gpu_capture_cancel(gpu);
    return err;
}

ps_err ps_cuda_segment_run(ps_gpu *gpu, ps_cuda_segment *segment,
                           ps_err (*queue)(void *run, int group), void *run, int group)
{
    if (!segment || !segment->ran) {
        if (segment) segment->ran = true;
        return queue(run, group);
    }
    if (!segment->graph) PS_TRY(graphs_capture(gpu, segment, queue, run, group));
    return ps_gpu_replay(gpu, segment->graph);
}
