/* The passes of the CUDA device: copies, groups of layers and hooks in their order.
 *
 *   upload     weights 1  weights 2 ..         batch k+1      each group's when the host
 *                  │          │                                has them
 *   compute    forward 1  forward 2 .. loss | loss' .. backward 2  backward 1
 *                                       │                  │           │
 *   download                          result          gradients 2  gradients 1
 *
 * The host waits for gradients that it has to send, never for a loss: it queues work and
 * asks for results later. */
#ifndef PS_CUDA_RUN_H
#define PS_CUDA_RUN_H

#include "cuda_batch.h"
#include "cuda_graphs.h"
#include "cuda_layers.h"

/* A ring of losses on their way to the host, the oldest first. */
typedef struct ps_cuda_results {
    ps_sums *home; // (PS_RESULTS_KEPT), pinned
    ps_gpu_event *there[PS_RESULTS_KEPT];
    int first, n;
    ps_gpu_event *last; // the event in there that was queued last; NULL: none
} ps_cuda_results;

typedef struct ps_cuda_run {
    ps_cuda_plan plan;
    ps_cuda_batch batch;
    ps_cuda_graphs graphs;
    ps_cuda_results results;
    ps_cuda_pass pass; // of the last forward
    ps_cuda_set *set;  // the pass's graphs; NULL: none
    bool trained;      // the last pass was a training forward, without a backward yet
    bool buffers_here; // the newest buffers are on the GPU
    int64_t counted;   // training passes since the host had the newest buffers
    bool params_pinned, grads_pinned; // pinned by this run
    ps_gpu_event *uploaded;           // all parameters, or the buffers
    ps_gpu_event *finished;           // the pass
} ps_cuda_run;

ps_err ps_cuda_run_init(ps_cuda_run *run, ps_gpu *gpu, ps_conv_library *library,
                        ps_switch channels_last, const ps_program_options *options,
                        const ps_model_graph *graph, ps_cuda_kept kept, bool no_graphs);
void ps_cuda_run_fini(ps_cuda_run *run);

/* As their namesakes in device.h. */
ps_err ps_cuda_run_forward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass,
                           ps_pass_result *result);
ps_err ps_cuda_run_backward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass);
ps_err ps_cuda_run_outputs(ps_cuda_run *run, float *out, size_t count);
ps_err ps_cuda_run_result(ps_cuda_run *run, ps_pass_result *out);
ps_err ps_cuda_run_prefetch(ps_cuda_run *run, const ps_batch *batch);
ps_err ps_cuda_run_fetch_buffers(ps_cuda_run *run);

#endif
