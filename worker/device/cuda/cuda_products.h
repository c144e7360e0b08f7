/* Matrix products on the GPU for layers, and the linear layer. */
#ifndef PS_CUDA_PRODUCTS_H
#define PS_CUDA_PRODUCTS_H

#include "cuda_pass.h"

/* C (m, n) = op(A) op(B) + beta C in row-major order. Leading dimensions are the lengths
 * of stored rows. */
ps_err ps_cuda_multiply(const ps_cuda_pass *r, const char *who, ps_gpu_gemm g);

/* Converts the layer's weights to the format of products, until its next forward pass.
 * Called by the layer's forward pass. */
ps_err ps_cuda_narrow_weight(const ps_cuda_pass *r, const ps_cuda_step *s);
ps_values ps_cuda_weight(const ps_cuda_pass *r, const ps_cuda_step *s);
/* Whether these weights, and their gradient, are computed with in another order than the
 * arena's: (C', kh, kw, C / groups). */
bool ps_cuda_turns_weight(const ps_cuda_plan *plan, const ps_layer *layer);

/* Adds the layer's bias to its output (outer, channels, inner), and applies its folded
 * relu. */
ps_err ps_cuda_add_bias(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t inner,
                        int64_t channels);

/* Writes, or adds, the gradient of the layer's bias: sums of its output's gradient (rows,
 * channels), by blocks, on the side queue. */
ps_err ps_cuda_bias_by_blocks(const ps_cuda_pass *r, const ps_cuda_step *s, int64_t rows);

ps_err ps_cuda_linear_forward(const ps_cuda_pass *r, const ps_cuda_step *s);
ps_err ps_cuda_linear_backward(const ps_cuda_pass *r, const ps_cuda_step *s);

#endif
