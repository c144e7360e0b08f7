/* Convolutions on the GPU. */
#ifndef PS_CUDA_CONV_H
#define PS_CUDA_CONV_H

#include "cuda_pass.h"

ps_err ps_cuda_conv_forward(const ps_cuda_pass *r, const ps_cuda_step *s);
ps_err ps_cuda_conv_backward(const ps_cuda_pass *r, const ps_cuda_step *s);

#endif
