/* The layers on the GPU: what each queues, forward and backward. */
#ifndef PS_CUDA_LAYERS_H
#define PS_CUDA_LAYERS_H

#include "cuda_pass.h"

/* values[node.out] from values[node.in]. */
ps_err ps_cuda_layer_forward(const ps_cuda_pass *r, const ps_cuda_step *s);

/* The gradient of the layer's parameters, then that of its inputs. */
ps_err ps_cuda_layer_backward(const ps_cuda_pass *r, const ps_cuda_step *s);

/* Loss and hits of the model's outputs into plan->total. */
ps_err ps_cuda_loss_forward(const ps_cuda_pass *r);
/* The gradient where the loss enters the graph; grad_scale: as ps_pass. */
ps_err ps_cuda_loss_backward(const ps_cuda_pass *r, float grad_scale);

#endif
