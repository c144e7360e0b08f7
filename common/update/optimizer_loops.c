#include "optimizer_loops.h"

#include <math.h>

#include "cpu_level.h"
#include "fused.h"

/* PyTorch's CPU kernels compute add(x, alpha) as one fused multiply-add, and so lerp and
 * addcmul; addcdiv multiplies, divides, then adds. The roundings here are the same. A
 * step from PyTorch 1.13's state gives its bits. A step from PyTorch 2's state does too,
 * except for the square root: pip's builds take it from MKL, which is one unit off for up
 * to a fifth of the arguments, depending on the processor. With AVX-512 MKL computes s +
 * r / 2 (x - s * s) by fused multiply-adds, where r is the 14-bit estimate of 1 / sqrt(x)
 * and s = x r. It is one unit low for 0.7% of the arguments. A step with that root gives
 * PyTorch 2.15's bits on such processors, and on no others. */
typedef ps_optimizer_scalars scalars;

#define KERNEL static inline __attribute__((always_inline)) void

KERNEL sgd_plain(scalars k, uint64_t n, float *restrict p, const float *restrict grad)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float d = ps_fused(k.decay, p[i], k.scale * grad[i]);
        p[i] = ps_fused(k.lr_neg, d, p[i]);
    }
}

KERNEL sgd_momentum(scalars k, uint64_t n, float *restrict p, const float *restrict grad,
                    float *restrict buf)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float d = ps_fused(k.decay, p[i], k.scale * grad[i]);
        float next = ps_fused(k.damp, d, k.momentum * buf[i]);
        float b = k.first ? d : next;
        float up = k.nesterov ? ps_fused(k.momentum, b, d) : b;
        buf[i] = b;
        p[i] = ps_fused(k.lr_neg, up, p[i]);
    }
}

/* How the first moment is rounded: at::lerp starts from the nearer end. */
typedef enum moment_form { LERP_FROM_M, LERP_FROM_G, SUM } moment_form;

/* decoupled: AdamW decays the weight, Adam adds the decay to the gradient. decoupled and
 * the form are constants where this is inlined. */
KERNEL adam_update(scalars k, bool decoupled, moment_form form, uint64_t n,
                   float *restrict p, const float *restrict grad, float *restrict m,
                   float *restrict v)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float g = k.scale * grad[i], w = p[i], mean;
        if (decoupled)
            w *= k.decay;
        else
            g = ps_fused(k.decay, w, g);
        if (form == SUM)
            mean = ps_fused(k.lerp, g, k.beta1 * m[i]);
        else if (form == LERP_FROM_M)
            mean = ps_fused(k.lerp, g - m[i], m[i]);
        else
            mean = ps_fused(k.lerp - 1.0f, g - m[i], g);
        float square = ps_fused(k.one_minus_beta2 * g, g, k.beta2 * v[i]);
        float root = sqrtf(square) / k.root_correction + k.eps;
        m[i] = mean;
        v[i] = square;
        p[i] = w + k.step_size_neg * mean / root;
    }
}

KERNEL adam_form(const scalars *k, bool decoupled, uint64_t n, float *p,
                 const float *grad, float *const *states)
{
    if (k->pytorch1)
        adam_update(*k, decoupled, SUM, n, p, grad, states[0], states[1]);
    else if (k->lerp < 0.5f)
        adam_update(*k, decoupled, LERP_FROM_M, n, p, grad, states[0], states[1]);
    else
        adam_update(*k, decoupled, LERP_FROM_G, n, p, grad, states[0], states[1]);
}

KERNEL take_sum(scalars k, uint64_t n, float *restrict p, const float *restrict grad)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        p[i] = k.scale * grad[i];
}

KERNEL apply_kind(ps_optimizer_kind kind, const scalars *k, uint64_t n, float *p,
                  const float *grad, float *const *states)
{
    if (kind == PS_OPTIMIZER_SGD && !states[0])
        sgd_plain(*k, n, p, grad);
    else if (kind == PS_OPTIMIZER_SGD)
        sgd_momentum(*k, n, p, grad, states[0]);
    else if (kind == PS_OPTIMIZER_SUM || kind == PS_OPTIMIZER_MEAN)
        take_sum(*k, n, p, grad);
    else
        adam_form(k, kind == PS_OPTIMIZER_ADAMW, n, p, grad, states);
}

/* Elements of a block, and how far ahead of it memory is prefetched: the four arrays are
 * larger than a cache, and the processor's own prefetching stops at every page. */
enum { BLOCK = 256, AHEAD = 2 * BLOCK, LINE = 16 };

KERNEL prefetch_block(const float *p, const float *grad, float *const *states)
{
    for (int i = AHEAD; i < AHEAD + BLOCK; i += LINE) {
        __builtin_prefetch(p + i, 1);
        __builtin_prefetch(grad + i);
        if (states[0]) __builtin_prefetch(states[0] + i, 1);
        if (states[1]) __builtin_prefetch(states[1] + i, 1);
    }
}

PS_PER_LEVEL(void, ps_optimizer_loops,
             (ps_optimizer_kind kind, const scalars *k, uint64_t n, float *p,
              const float *grad, float *const *states),
             (kind, k, n, p, grad, states))
{
    for (uint64_t at = 0; at < n; at += BLOCK) {
        float *const here[] = {states[0] ? states[0] + at : NULL,
                               states[1] ? states[1] + at : NULL};
        uint64_t count = n - at < BLOCK ? n - at : BLOCK;
        if (n - at >= AHEAD + BLOCK) prefetch_block(p + at, grad + at, here);
        apply_kind(kind, k, count, p + at, grad + at, here);
    }
}
