/* Products of matrices on the GPU as layers ask for them, and the linear layer. */
#ifndef PS_CUDA_PRODUCTS_H
#define PS_CUDA_PRODUCTS_H

#include "cuda_pass.h"

/* C (m, n) = op(A) op(B) + beta C in row-major order, leading dimensions those of the
 * rows as they lie. */
ps_err ps_cuda_multiply(const ps_cuda_pass *r, const char *who, ps_gpu_gemm g);

/* x as a factor of products: itself, or, where its format is not theirs, a copy of its n
 * values in scratch. */
ps_err ps_cuda_factor(const ps_cuda_pass *r, const ps_cuda_step *s, ps_values x,
                      int64_t n, ps_values scratch, ps_values *factor);

/* Called by the layer's forward pass: the weights as a factor, until the next. */
ps_err ps_cuda_narrow_weight(const ps_cuda_pass *r, const ps_cuda_step *s);
ps_values ps_cuda_weight(const ps_cuda_pass *r, const ps_cuda_step *s);

/* The layer's bias, and its folded relu, onto its output (.., channels, inner). */
ps_err ps_cuda_add_bias(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t inner,
                        int64_t channels);

ps_err ps_cuda_linear_forward(const ps_cuda_pass *r, const ps_cuda_step *s);
ps_err ps_cuda_linear_backward(const ps_cuda_pass *r, const ps_cuda_step *s);

#endif
