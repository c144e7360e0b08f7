/* The layers on the GPU: what each queues, forward and backward. */
#ifndef PS_CUDA_LAYERS_H
#define PS_CUDA_LAYERS_H

#include "cuda_plan.h"

/* What the layers of one pass have in common. */
typedef struct ps_cuda_pass {
    const ps_cuda_plan *plan;
    int64_t n; // samples
    const ps_pass *pass;
    const uint32_t *positions; // on the GPU
} ps_cuda_pass;

/* values[node.out] from values[node.in]. */
ps_err ps_cuda_layer_forward(const ps_cuda_pass *r, const ps_cuda_step *s);

/* The gradient of the layer's parameters, then that of its inputs. made is recorded
 * between the two for layers with parameters: their copy need not wait for the rest. */
ps_err ps_cuda_layer_backward(const ps_cuda_pass *r, const ps_cuda_step *s);

/* Loss and hits of the model's outputs into plan->total. */
ps_err ps_cuda_loss_forward(const ps_cuda_pass *r, const int32_t *labels);
/* The gradient where the loss enters the graph. */
ps_err ps_cuda_loss_backward(const ps_cuda_pass *r, const int32_t *labels);

#endif
