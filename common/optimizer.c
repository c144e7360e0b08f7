#include "optimizer.h"

#include <math.h>
#include <string.h>

/* PyTorch's CPU kernels compute add(x, alpha) as one fused multiply-add, lerp and addcmul
 * likewise; addcdiv multiplies, divides, then adds. The same roundings here: a step from
 * PyTorch 1.13's state gives its bits, and from PyTorch 2's as well but for the square
 * root, which pip's builds take from MKL, one unit off for up to a fifth of the arguments:
 * how many depends on the processor. With AVX-512 it is s + r / 2 * (x - s * s) of fused
 * multiply-adds, where r is the 14-bit estimate of 1 / sqrt(x) and s = x * r, one unit low
 * for 0.7%; a step that takes it gives PyTorch 2.15's bits there, and nowhere else.
 *
 * A build for this machine vectorises fmaf. A portable one has to choose at run time, for
 * fmaf would be a call of the C library for every element. */
#if defined(__x86_64__) && !defined(__FMA__)
#define FOR_EACH_TARGET(X)                                                               \
    X(avx512, __attribute__((target("avx512f,avx512dq,avx512vl,fma"))))                  \
    X(avx2, __attribute__((target("avx2,fma"))))                                         \
    X(plain, )
#define HAS_TARGETS 1
#else
#define FOR_EACH_TARGET(X) X(plain, )
#define HAS_TARGETS        0
#endif

typedef ps_optimizer_scalars scalars;

#define KERNEL static inline __attribute__((always_inline)) void

KERNEL sgd_plain(scalars k, uint64_t n, float *restrict p, const float *restrict grad)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float d = fmaf(k.decay, p[i], k.scale * grad[i]);
        p[i] = fmaf(k.lr_neg, d, p[i]);
    }
}

KERNEL sgd_momentum(scalars k, uint64_t n, float *restrict p, const float *restrict grad,
                    float *restrict buf)
{
#pragma omp simd
    for (uint64_t i = 0; i < n; i++) {
        float d = fmaf(k.decay, p[i], k.scale * grad[i]);
        float next = fmaf(k.damp, d, k.momentum * buf[i]);
        float b = k.first ? d : next;
        float up = k.nesterov ? fmaf(k.momentum, b, d) : b;
        buf[i] = b;
        p[i] = fmaf(k.lr_neg, up, p[i]);
    }
}

/* How the first moment is rounded: at::lerp starts from the nearer end. */
typedef enum moment_form { LERP_FROM_M, LERP_FROM_G, SUM } moment_form;

/* decoupled: AdamW's decay of the weight instead of Adam's addition to the gradient. Both
 * it and the form are constants where this is inlined. */
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
            g = fmaf(k.decay, w, g);
        if (form == SUM)
            mean = fmaf(k.lerp, g, k.beta1 * m[i]);
        else if (form == LERP_FROM_M)
            mean = fmaf(k.lerp, g - m[i], m[i]);
        else
            mean = fmaf(k.lerp - 1.0f, g - m[i], g);
        float square = fmaf(k.one_minus_beta2 * g, g, k.beta2 * v[i]);
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

KERNEL apply_kind(ps_optimizer_kind kind, const scalars *k, uint64_t n, float *p,
                  const float *grad, float *const *states)
{
    if (kind == PS_OPTIMIZER_SGD && !states[0])
        sgd_plain(*k, n, p, grad);
    else if (kind == PS_OPTIMIZER_SGD)
        sgd_momentum(*k, n, p, grad, states[0]);
    else if (kind == PS_OPTIMIZER_ADAM)
        adam_form(k, false, n, p, grad, states);
    else
        adam_form(k, true, n, p, grad, states);
}

/* Elements of a block, and how far ahead of it memory is asked for: the four streams are
 * longer than a cache, and the processor's own prefetching stops at every page. */
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

KERNEL apply_blocks(ps_optimizer_kind kind, const scalars *k, uint64_t n, float *p,
                    const float *grad, float *const *states)
{
    for (uint64_t at = 0; at < n; at += BLOCK) {
        float *const here[] = {states[0] ? states[0] + at : NULL,
                               states[1] ? states[1] + at : NULL};
        uint64_t count = n - at < BLOCK ? n - at : BLOCK;
        if (n - at >= AHEAD + BLOCK) prefetch_block(p + at, grad + at, here);
        apply_kind(kind, k, count, p + at, grad + at, here);
    }
}

#define APPLY_FOR_TARGET(name, target)                                                   \
    target static void apply_##name(ps_optimizer_kind kind, const scalars *k,            \
                                    uint64_t n, float *p, const float *grad,             \
                                    float *const *states)                                \
    {                                                                                    \
        apply_blocks(kind, k, n, p, grad, states);                                       \
    }
FOR_EACH_TARGET(APPLY_FOR_TARGET)

ps_optimizer_scalars ps_optimizer_scalars_of(const ps_optimizer *opt,
                                             const ps_optimizer_step *step,
                                             double weight_decay)
{
    double t = (double)step->t;
    scalars k = {.scale = (float)step->grad_scale,
                 .decay = (float)weight_decay,
                 .lr_neg = (float)-step->lr,
                 .momentum = (float)opt->momentum,
                 .damp = (float)(1.0 - opt->dampening),
                 .first = step->t == 1,
                 .nesterov = opt->nesterov};
    if (opt->kind == PS_OPTIMIZER_SGD) return k;
    k.pytorch1 = opt->pytorch1;
    k.beta1 = (float)opt->beta1;
    k.lerp = (float)(1.0 - opt->beta1);
    k.beta2 = (float)opt->beta2;
    k.one_minus_beta2 = (float)(1.0 - opt->beta2);
    k.root_correction = (float)sqrt(1.0 - pow(opt->beta2, t));
    k.eps = (float)opt->eps;
    k.step_size_neg = (float)-(step->lr / (1.0 - pow(opt->beta1, t)));
    if (opt->kind == PS_OPTIMIZER_ADAMW) k.decay = (float)(1.0 - step->lr * weight_decay);
    return k;
}

void ps_optimizer_apply(const ps_optimizer *opt, const ps_optimizer_step *step,
                        double weight_decay, uint64_t n, float *param, const float *grad,
                        float *const *states)
{
    scalars k = ps_optimizer_scalars_of(opt, step, weight_decay);
    float *mine[PS_OPTIMIZER_MAX_STATES] = {NULL, NULL};
    for (int i = 0; i < opt->n_states; i++)
        mine[i] = states[i];
#if HAS_TARGETS
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        apply_avx512(opt->kind, &k, n, param, grad, mine);
    else if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        apply_avx2(opt->kind, &k, n, param, grad, mine);
    else
#endif
        apply_plain(opt->kind, &k, n, param, grad, mine);
}

static ps_err parse_kind(const char *name, ps_optimizer_kind *out)
{
    static const char *const names[] = {"sgd", "adam", "adamw"};
    for (int i = 0; i < 3; i++) {
        *out = (ps_optimizer_kind)i;
        if (strcmp(names[i], name) == 0) return PS_OK;
    }
    return ps_err_set(PS_ERR_CONFIG, "optimizer.name: \"%s\" is none of sgd, adam, adamw",
                      name);
}

/* What PyTorch's constructors refuse. */
static ps_err check(const ps_optimizer *opt)
{
    if (opt->lr < 0.0)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.lr: %g is below 0", opt->lr);
    if (opt->weight_decay < 0.0)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.weight_decay: %g is below 0",
                          opt->weight_decay);
    if (opt->nesterov && (opt->momentum <= 0.0 || opt->dampening != 0.0))
        return ps_err_set(PS_ERR_CONFIG, "optimizer.nesterov: wants momentum above 0 and "
                                         "no dampening");
    if (opt->beta1 < 0.0 || opt->beta1 >= 1.0 || opt->beta2 < 0.0 || opt->beta2 >= 1.0)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.betas: %g, %g are not in [0, 1)",
                          opt->beta1, opt->beta2);
    return PS_OK;
}

ps_err ps_optimizer_init(ps_optimizer *opt, const ps_config *cfg)
{
    const ps_config_optimizer *c = &cfg->optimizer;
    *opt = (ps_optimizer){.lr = c->lr,
                          .momentum = c->momentum,
                          .dampening = c->dampening,
                          .beta1 = 0.9,
                          .beta2 = 0.999,
                          .eps = c->eps,
                          .weight_decay = c->weight_decay,
                          .nesterov = c->nesterov,
                          .decay_bias_norm = c->decay_bias_norm,
                          .pytorch1 = c->pytorch == 1};
    if (c->betas.n != 0 && c->betas.n != 2)
        return ps_err_set(PS_ERR_CONFIG, "optimizer.betas: two numbers are wanted");
    if (c->betas.n == 2) opt->beta1 = c->betas.v[0], opt->beta2 = c->betas.v[1];
    PS_TRY(parse_kind(c->name, &opt->kind));
    PS_TRY(check(opt));
    opt->n_states = 2;
    if (opt->kind == PS_OPTIMIZER_SGD) opt->n_states = opt->momentum != 0.0;
    return PS_OK;
}

double ps_optimizer_decay(const ps_optimizer *opt, ps_tensor_role role)
{
    bool bias_or_norm = role == PS_TENSOR_BIAS || role == PS_TENSOR_NORM;
    return bias_or_norm && !opt->decay_bias_norm ? 0.0 : opt->weight_decay;
}
