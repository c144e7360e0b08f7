/* The passes of the CUDA device: copies, layers and hooks in their order.
 *
 *   upload     batch  w1 w2 w3 ...          each layer's weights when the host has them
 *   compute       conv1 conv2 ... loss | loss' ... conv2' conv1'
 *   download                        sum           dw3 dw2 dw1 ...   home, then the hook
 */
#ifndef PS_CUDA_RUN_H
#define PS_CUDA_RUN_H

#include "cuda_plan.h"

typedef struct ps_cuda_run {
    ps_cuda_plan plan;
    int n;        // of the last forward pass; 0: none yet
    bool trained; // it was a training pass, and backward has not followed
    bool params_pinned, grads_pinned, buffers_pinned; // by us
    ps_gpu_event *idle;     // compute has done what came before this pass
    ps_gpu_event *uploaded; // the batch, or all parameters
    ps_gpu_event *finished; // the pass
} ps_cuda_run;

ps_err ps_cuda_run_init(ps_cuda_run *run, ps_gpu *gpu, const ps_program_options *options,
                        const ps_model_graph *graph, const ps_cuda_resident *resident);
void ps_cuda_run_fini(ps_cuda_run *run);

ps_err ps_cuda_run_forward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass,
                           ps_pass_result *result);
ps_err ps_cuda_run_backward(ps_cuda_run *run, const ps_batch *batch, const ps_pass *pass);
ps_err ps_cuda_run_outputs(ps_cuda_run *run, float *out, size_t count);

#endif
