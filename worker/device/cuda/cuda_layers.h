/* Queue the work of each layer on the GPU, forward and backward. */
#ifndef PS_CUDA_LAYERS_H
#define PS_CUDA_LAYERS_H

#include "cuda_pass.h"

/* Computes values[node.out] from values[node.in]. */
ps_err ps_cuda_layer_forward(const ps_cuda_pass *r, const ps_cuda_step *s);

/* Computes the gradients of the layer's parameters, then of its inputs. */
ps_err ps_cuda_layer_backward(const ps_cuda_pass *r, const ps_cuda_step *s);

/* Writes the loss and the number of correct samples to plan->total. */
ps_err ps_cuda_loss_forward(const ps_cuda_pass *r);
/* Computes the gradient of the value that the loss reads; share: ps_batch_share. */
ps_err ps_cuda_loss_backward(const ps_cuda_pass *r, float share);

#endif
