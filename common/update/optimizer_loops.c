#include "optimizer_loops.h"

#include <math.h>

#include "cpu_level.h"
#include "flushed.h"
#include "fused.h"

/* PyTorch's CPU kernels compute add(x, alpha) as one fused multiply-add, and so lerp and
 * addcmul; addcdiv multiplies, divides, then adds. The roundings here are the same. A
 * step from PyTorch 1.13's state gives its bits. A step from PyTorch 2's state does too,
 * except for the square root: pip's builds take it from MKL, which is one unit off for up
 * to a fifth of the arguments, depending on the processor. With AVX-512 MKL computes s +
 * r / 2 (x - s * s) by fused multiply-adds, where r is the 14-bit estimate of 1 / sqrt(x)
 * and s = x r. It is one unit low for 0.7% of the arguments. A step with that root gives
 * PyTorch 2.15's bits on such processors, and on no others. Moments that PyTorch lets
 * become subnormal become 0 (flushed.h). */
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
        float b = ps_flushed(k.first ? d : next);
        float up = k.nesterov ? ps_fused(k.momentum, b, d) : b;
        buf[i] = b;
        p[i] = ps_fused(k.lr_neg, up, p[i]);
    }
}

/* How the first moment is rounded: at::lerp starts from the nearer end. */
typedef enum moment_form { LERP_FROM_M, LERP_FROM_G, SUM } moment_form;

/* A moment that is lerped towards g. The form is a constant where this is inlined. */
static inline __attribute__((always_inline)) float lerped(float m, float g, float lerp,
                                                          float keep, moment_form form)
{
    if (form == SUM) return ps_flushed(ps_fused(lerp, g, keep * m));
    if (form == LERP_FROM_M) return ps_flushed(ps_fused(lerp, g - m, m));
    return ps_flushed(ps_fused(lerp - 1.0f, g - m, g));
}

static inline moment_form form_of(const scalars *k)
{
    if (k->pytorch1) return SUM;
    return k->lerp < 0.5f ? LERP_FROM_M : LERP_FROM_G;
}

/* decoupled: AdamW decays the weight, Adam adds the decay to the gradient. decoupled and
 * the form are constants where this is inlined. */
KERNEL adam_update(scalars k, bool decoupled, moment_form form, uint64_t n,
                   float *restrict p, const float *restrict grad, float *restrict m,
                   float *restrict v)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float g = k.scale * grad[i], w = p[i];
        if (decoupled)
            w *= k.decay;
        else
            g = ps_fused(k.decay, w, g);
        float mean = lerped(m[i], g, k.lerp, k.beta1, form);
        float square = ps_fused(k.one_minus_beta2 * g, g, k.beta2 * v[i]);
        float root = sqrtf(square) / k.root_correction + k.eps;
        m[i] = mean;
        v[i] = ps_flushed_under(mean, square, k.eps);
        p[i] = w + k.step_size_neg * mean / root;
    }
}

KERNEL adam_form(const scalars *k, bool decoupled, uint64_t n, float *p,
                 const float *grad, float *const *states)
{
    switch (form_of(k)) {
    case SUM:
        adam_update(*k, decoupled, SUM, n, p, grad, states[0], states[1]);
        break;
    case LERP_FROM_M:
        adam_update(*k, decoupled, LERP_FROM_M, n, p, grad, states[0], states[1]);
        break;
    case LERP_FROM_G:
        adam_update(*k, decoupled, LERP_FROM_G, n, p, grad, states[0], states[1]);
        break;
    }
}

/* buf and mean: not used without momentum, and without centered. The rest are constants
 * where this is inlined. */
KERNEL rmsprop_update(scalars k, bool momentum, bool centered, moment_form form,
                      uint64_t n, float *restrict p, const float *restrict grad,
                      float *restrict v, float *restrict buf, float *restrict mean)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float g = ps_fused(k.decay, p[i], k.scale * grad[i]);
        float square = ps_fused(k.one_minus_beta2 * g, g, k.beta2 * v[i]),
              spread = square;
        if (centered) {
            float m = lerped(mean[i], g, k.lerp, k.beta1, form);
            mean[i] = m;
            spread = ps_fused(-m, m, square);
        }
        float root = sqrtf(spread) + k.eps;
        v[i] = ps_flushed_under(centered ? mean[i] : g, square, k.eps);
        if (momentum) {
            float b = ps_flushed(k.momentum * buf[i] + g / root);
            buf[i] = b;
            p[i] = ps_fused(k.lr_neg, b, p[i]);
        } else {
            p[i] = p[i] + k.lr_neg * g / root;
        }
    }
}

/* form as above; with and without the other two arrays. */
KERNEL rmsprop_form(const scalars *k, moment_form form, uint64_t n, float *p,
                    const float *grad, float *const *states)
{
    if (k->has_momentum && k->centered)
        rmsprop_update(*k, true, true, form, n, p, grad, states[0], states[1], states[2]);
    else if (k->has_momentum)
        rmsprop_update(*k, true, false, SUM, n, p, grad, states[0], states[1], NULL);
    else if (k->centered)
        rmsprop_update(*k, false, true, form, n, p, grad, states[0], NULL, states[1]);
    else
        rmsprop_update(*k, false, false, SUM, n, p, grad, states[0], NULL, NULL);
}

KERNEL rmsprop(const scalars *k, uint64_t n, float *p, const float *grad,
               float *const *states)
{
    switch (form_of(k)) {
    case SUM:
        rmsprop_form(k, SUM, n, p, grad, states);
        break;
    case LERP_FROM_M:
        rmsprop_form(k, LERP_FROM_M, n, p, grad, states);
        break;
    case LERP_FROM_G:
        rmsprop_form(k, LERP_FROM_G, n, p, grad, states);
        break;
    }
}

KERNEL adagrad(scalars k, uint64_t n, float *restrict p, const float *restrict grad,
               float *restrict sum)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float g = ps_fused(k.decay, p[i], k.scale * grad[i]);
        float square = ps_fused(g, g, k.first ? k.accumulator : sum[i]);
        sum[i] = square;
        p[i] = p[i] + k.lr_neg * g / (sqrtf(square) + k.eps);
    }
}

/* A direction that is not a number stays so. */
KERNEL lion(scalars k, uint64_t n, float *restrict p, const float *restrict grad,
            float *restrict m)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float g = k.scale * grad[i], w = p[i] * k.decay;
        float to = ps_fused(k.lerp, g, k.beta1 * m[i]);
        float sign = to > 0.0f ? 1.0f : to < 0.0f ? -1.0f : to;
        m[i] = ps_flushed(ps_fused(k.one_minus_beta2, g, k.beta2 * m[i]));
        p[i] = ps_fused(k.lr_neg, sign, w);
    }
}

KERNEL take_sum(scalars k, uint64_t n, float *restrict p, const float *restrict grad)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        p[i] = k.scale * grad[i];
}

/* at::lerp's roundings. */
KERNEL average(scalars k, uint64_t n, const float *restrict p, float *restrict ema)
{
    const bool near = k.ema_lerp < 0.5f;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float away = p[i] - ema[i];
        float next = near ? ps_fused(k.ema_lerp, away, ema[i])
                          : ps_fused(k.ema_lerp - 1.0f, away, p[i]);
        ema[i] = ps_flushed(k.first ? p[i] : next);
    }
}

KERNEL apply_kind(const scalars *k, uint64_t n, float *p, const float *grad,
                  float *const *states)
{
    switch (k->kind) {
    case PS_OPTIMIZER_SGD:
        if (states[0])
            sgd_momentum(*k, n, p, grad, states[0]);
        else
            sgd_plain(*k, n, p, grad);
        break;
    case PS_OPTIMIZER_ADAM:
    case PS_OPTIMIZER_ADAMW:
        adam_form(k, k->kind == PS_OPTIMIZER_ADAMW, n, p, grad, states);
        break;
    case PS_OPTIMIZER_RMSPROP:
        rmsprop(k, n, p, grad, states);
        break;
    case PS_OPTIMIZER_ADAGRAD:
        adagrad(*k, n, p, grad, states[0]);
        break;
    case PS_OPTIMIZER_LION:
        lion(*k, n, p, grad, states[0]);
        break;
    case PS_OPTIMIZER_SUM:
    case PS_OPTIMIZER_MEAN:
        take_sum(*k, n, p, grad);
        break;
    case PS_OPTIMIZER_LAMB: // in two passes, below
        break;
    }
}

/* Elements of a block, and how far ahead of it memory is prefetched: the four arrays are
 * larger than a cache, and the processor's own prefetching stops at every page. */
enum { BLOCK = 256, AHEAD = 2 * BLOCK, LINE = 16 };

KERNEL prefetch_block(const float *p, const float *grad, float *const *states,
                      const float *ema)
{
    for (int i = AHEAD; i < AHEAD + BLOCK; i += LINE) {
        __builtin_prefetch(p + i, 1);
        __builtin_prefetch(grad + i);
        for (int s = 0; s < PS_OPTIMIZER_MAX_STATES; s++)
            if (states[s]) __builtin_prefetch(states[s] + i, 1);
        if (ema) __builtin_prefetch(ema + i, 1);
    }
}

PS_PER_LEVEL(void, ps_optimizer_loops,
             (const scalars *k, uint64_t n, float *p, const float *grad,
              float *const *states, float *ema),
             (k, n, p, grad, states, ema))
{
    for (uint64_t at = 0; at < n; at += BLOCK) {
        float *here[PS_OPTIMIZER_MAX_STATES];
        for (int s = 0; s < PS_OPTIMIZER_MAX_STATES; s++)
            here[s] = states[s] ? states[s] + at : NULL;
        uint64_t count = n - at < BLOCK ? n - at : BLOCK;
        if (n - at >= AHEAD + BLOCK)
            prefetch_block(p + at, grad + at, here, ema ? ema + at : NULL);
        apply_kind(k, count, p + at, grad + at, here);
        if (ema) average(*k, count, p + at, ema + at);
    }
}

/* timm's roundings. */
PS_PER_LEVEL(void, ps_lamb_loop_update,
             (const scalars *k, uint64_t n, const float *restrict p, float *restrict grad,
              float *restrict m, float *restrict v),
             (k, n, p, grad, m, v))
{
    const scalars s = *k;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float g = s.scale * grad[i];
        float mean = ps_flushed(ps_fused(s.lerp, g, s.beta1 * m[i]));
        float square = ps_fused(s.one_minus_beta2 * g, g, s.beta2 * v[i]);
        float root = sqrtf(square) / s.root_correction + s.eps;
        m[i] = mean;
        v[i] = ps_flushed_under(mean, square, s.eps);
        grad[i] = ps_fused(s.decay, p[i], mean / s.correction / root);
    }
}

PS_PER_LEVEL(void, ps_lamb_loop_apply,
             (const scalars *k, float ratio, uint64_t n, float *restrict p,
              const float *restrict update, float *restrict ema),
             (k, ratio, n, p, update, ema))
{
    const float lr_neg = k->lr_neg;
#pragma omp simd
    for (uint64_t i = 0; i < n; i++)
        p[i] = ps_fused(lr_neg, ratio * update[i], p[i]);
    if (ema) average(*k, n, p, ema);
}
