/* The optimizer's kernels (cuda_kernels.h), and the checks of gradients before it. */
#ifndef PS_CUDA_OPTIMIZER_KERNELS_H
#define PS_CUDA_OPTIMIZER_KERNELS_H

#include "cuda_sum_kernels.h"
#include "flushed.h"
#include "optimizer.h"

/* The result of checking a step's gradients. It lies in the GPU's memory, so that the
 * host need not wait for it. */
typedef struct ps_verdict {
    uint64_t refused; // the first refused step; no later step is applied either; 0: none
    float scale;      // of the gradient
} ps_verdict;

/* The arguments of an optimizer step. */
typedef struct ps_k_optimizer {
    const ps_verdict *verdict; // NULL: the step is always applied
    float *p;
    const float *g;
    float *s0, *s1, *s2;       // states; NULL where the optimizer has none
    float *ema;                // the weights' average; NULL: none
    const uint32_t *starts;    // (n_tensors) offsets of the arena's tensors, ascending
    const uint8_t *groups;     // (n_tensors) 2 * its group, + 1 for biases and norms
    uint32_t n_tensors, first; // elements: first + i
    uint32_t group;            // whose tensors are stepped
    ps_optimizer_scalars by;   // its decay is for weights
    float spared_decay;        // for biases and norms
} ps_k_optimizer;

/* The tensor that holds element i of the arena; an element of a gap belongs to the tensor
 * before it. */
PS_ARITH uint32_t ps_tensor_of(const uint32_t *starts, uint32_t n, uint32_t i)
{
    uint32_t low = 0, high = n; // starts[low] <= i < starts[high]
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (starts[middle] <= i)
            low = middle;
        else
            high = middle;
    }
    return low;
}

PS_ARITH void ps_sgd_element(const ps_k_optimizer *k, float scale, float decay, size_t i)
{
    float p = k->p[i], d = fmaf(decay, p, scale * k->g[i]), up = d;
    if (k->s0) {
        float b = k->by.first ? d : fmaf(k->by.damp, d, k->by.momentum * k->s0[i]);
        b = ps_flushed(b);
        k->s0[i] = b;
        up = k->by.nesterov ? fmaf(k->by.momentum, b, d) : b;
    }
    k->p[i] = fmaf(k->by.lr_neg, up, p);
}

/* A moment m that is lerped towards g. */
PS_ARITH float ps_lerped(const ps_k_optimizer *k, float m, float g)
{
    if (k->by.pytorch1) return ps_flushed(fmaf(k->by.lerp, g, k->by.beta1 * m));
    if (k->by.lerp < 0.5f) return ps_flushed(fmaf(k->by.lerp, g - m, m));
    return ps_flushed(fmaf(k->by.lerp - 1.0f, g - m, g));
}

PS_ARITH void ps_adam_element(const ps_k_optimizer *k, float scale, float decay, size_t i)
{
    float g = scale * k->g[i], w = k->p[i];
    if (k->by.kind == PS_OPTIMIZER_ADAMW)
        w *= decay;
    else
        g = fmaf(decay, w, g);
    float mean = ps_lerped(k, k->s0[i], g);
    float square = fmaf(k->by.one_minus_beta2 * g, g, k->by.beta2 * k->s1[i]);
    float root = sqrtf(square) / k->by.root_correction + k->by.eps;
    k->s0[i] = mean;
    k->s1[i] = ps_flushed_under(mean, square, k->by.eps);
    k->p[i] = w + k->by.step_size_neg * mean / root;
}

PS_ARITH void ps_rmsprop_element(const ps_k_optimizer *k, float scale, float decay,
                                 size_t i)
{
    float p = k->p[i], g = fmaf(decay, p, scale * k->g[i]);
    float square = fmaf(k->by.one_minus_beta2 * g, g, k->by.beta2 * k->s0[i]),
          spread = square;
    float over = g;
    if (k->by.centered) {
        float *means = k->by.has_momentum ? k->s2 : k->s1;
        float m = ps_lerped(k, means[i], g);
        means[i] = over = m;
        spread = fmaf(-m, m, square);
    }
    float root = sqrtf(spread) + k->by.eps;
    k->s0[i] = ps_flushed_under(over, square, k->by.eps);
    if (k->by.has_momentum) {
        float b = ps_flushed(k->by.momentum * k->s1[i] + g / root);
        k->s1[i] = b;
        k->p[i] = fmaf(k->by.lr_neg, b, p);
    } else {
        k->p[i] = p + k->by.lr_neg * g / root;
    }
}

PS_ARITH void ps_adagrad_element(const ps_k_optimizer *k, float scale, float decay,
                                 size_t i)
{
    float p = k->p[i], g = fmaf(decay, p, scale * k->g[i]);
    float sum = fmaf(g, g, k->by.first ? k->by.accumulator : k->s0[i]);
    k->s0[i] = sum;
    k->p[i] = p + k->by.lr_neg * g / (sqrtf(sum) + k->by.eps);
}

PS_ARITH void ps_lion_element(const ps_k_optimizer *k, float scale, float decay, size_t i)
{
    float g = scale * k->g[i], w = k->p[i] * decay, m = k->s0[i];
    float to = fmaf(k->by.lerp, g, k->by.beta1 * m);
    float sign = to > 0.0f ? 1.0f : to < 0.0f ? -1.0f : to;
    k->s0[i] = ps_flushed(fmaf(k->by.one_minus_beta2, g, k->by.beta2 * m));
    k->p[i] = fmaf(k->by.lr_neg, sign, w);
}

/* Of a weight that the step has changed. */
PS_ARITH void ps_average_element(const ps_k_optimizer *k, size_t i)
{
    float p = k->p[i], e = k->ema[i], away = p - e;
    float next = k->by.ema_lerp < 0.5f ? fmaf(k->by.ema_lerp, away, e)
                                       : fmaf(k->by.ema_lerp - 1.0f, away, p);
    k->ema[i] = ps_flushed(k->by.first ? p : next);
}

/* A step over a range of the arena. Gaps are included and stay zero. Rounds exactly as
 * optimizer.c does. */
PS_ARITH void ps_k_optimizer_at(const ps_k_optimizer *k, uint32_t i)
{
    uint32_t at = k->first + i;
    uint32_t group = k->groups[ps_tensor_of(k->starts, k->n_tensors, at)];
    bool spared = group & 1;
    float decay = spared ? k->spared_decay : k->by.decay;
    float scale = k->verdict ? k->verdict->scale : k->by.scale;
    if (group / 2 != k->group || (k->verdict && k->verdict->refused)) return;
    if (k->by.kind == PS_OPTIMIZER_SGD)
        ps_sgd_element(k, scale, decay, at);
    else if (k->by.kind == PS_OPTIMIZER_RMSPROP)
        ps_rmsprop_element(k, scale, decay, at);
    else if (k->by.kind == PS_OPTIMIZER_ADAGRAD)
        ps_adagrad_element(k, scale, decay, at);
    else if (k->by.kind == PS_OPTIMIZER_LION)
        ps_lion_element(k, scale, decay, at);
    else
        ps_adam_element(k, scale, decay, at);
    if (k->ema) ps_average_element(k, at);
}

/* What ps_gradnorm_total adds up, in its order, the arena's: servers have the same bits.
 * A thread waits for the memory once for as many values, not for each. */
enum { PS_NORM_AHEAD = 32 };

PS_ARITH double ps_sum_in_order(const double *x, uint32_t n)
{
    double sum = 0.0;
    for (uint32_t b = 0; b < n; b += PS_NORM_AHEAD) {
        double v[PS_NORM_AHEAD];
        PS_UNROLLED
        for (uint32_t l = 0; l < PS_NORM_AHEAD; l++)
            v[l] = b + l < n ? x[b + l] : 0.0;
        PS_UNROLLED
        for (uint32_t l = 0; l < PS_NORM_AHEAD; l++)
            sum += v[l]; // beyond the end 0, which changes no sum of squares
    }
    return sum;
}

/* LAMB (lamb.h), in three kernels. The first makes the states, and u in place of the
 * gradients: kinds and counts as of ps_k_optimizer, whose p and g it reads. */
typedef struct ps_k_lamb_update {
    ps_k_optimizer step;
    float *u; // the gradients
} ps_k_lamb_update;

PS_ARITH bool ps_lamb_steps(const ps_k_optimizer *k, uint32_t tensor)
{
    return k->groups[tensor] / 2 == k->group && !(k->verdict && k->verdict->refused);
}

PS_ARITH float ps_lamb_decay(const ps_k_optimizer *k, uint32_t tensor)
{
    return k->groups[tensor] & 1 ? k->spared_decay : k->by.decay;
}

PS_ARITH void ps_k_lamb_update_at(const ps_k_lamb_update *k, uint32_t i)
{
    const ps_k_optimizer *s = &k->step;
    const uint32_t at = s->first + i;
    const uint32_t tensor = ps_tensor_of(s->starts, s->n_tensors, at);
    if (!ps_lamb_steps(s, tensor)) return;
    float g = (s->verdict ? s->verdict->scale : s->by.scale) * s->g[at];
    float mean = ps_flushed(fmaf(s->by.lerp, g, s->by.beta1 * s->s0[at]));
    float square = fmaf(s->by.one_minus_beta2 * g, g, s->by.beta2 * s->s1[at]);
    float root = sqrtf(square) / s->by.root_correction + s->by.eps;
    s->s0[at] = mean;
    s->s1[at] = ps_flushed_under(mean, square, s->by.eps);
    k->u[at] = fmaf(ps_lamb_decay(s, tensor), s->p[at], mean / s->by.correction / root);
}

/* Each tensor's ratio, from the sums of squares of its blocks. Count: tensors. */
typedef struct ps_k_lamb_ratio {
    ps_k_optimizer step;
    const double *weights, *updates; // (blocks)
    const uint32_t *blocks;          // (n_tensors + 1): where a tensor's begin
    float *ratios;                   // (n_tensors)
} ps_k_lamb_ratio;

PS_ARITH void ps_k_lamb_ratio_at(const ps_k_lamb_ratio *k, uint32_t i)
{
    if (!ps_lamb_steps(&k->step, i)) return;
    const uint32_t first = k->blocks[i], n = k->blocks[i + 1] - first;
    const double weights = sqrt(ps_sum_in_order(k->weights + first, n));
    const double updates = sqrt(ps_sum_in_order(k->updates + first, n));
    bool trusts = ps_lamb_decay(&k->step, i) != 0.0f && weights > 0.0 && updates > 0.0;
    k->ratios[i] = trusts ? (float)(weights / updates) : 1.0f;
}

/* Makes the new weights. Count: as of ps_k_optimizer, whose g is u. */
typedef struct ps_k_lamb_apply {
    ps_k_optimizer step;
    const float *ratios; // (n_tensors)
} ps_k_lamb_apply;

PS_ARITH void ps_k_lamb_apply_at(const ps_k_lamb_apply *k, uint32_t i)
{
    const ps_k_optimizer *s = &k->step;
    const uint32_t at = s->first + i;
    const uint32_t tensor = ps_tensor_of(s->starts, s->n_tensors, at);
    if (!ps_lamb_steps(s, tensor)) return;
    s->p[at] = fmaf(s->by.lr_neg, k->ratios[tensor] * s->g[at], s->p[at]);
    if (s->ema) ps_average_element(s, at);
}

/* The policy local (device_stream.h). */
typedef struct ps_k_mix_anchor {
    const float *anchor;
    float *weights;
    float kept; // 0: the anchor itself
} ps_k_mix_anchor;

PS_ARITH void ps_k_mix_anchor_at(const ps_k_mix_anchor *k, uint32_t i)
{
    const float taken = 1.0f - k->kept;
    k->weights[i] =
        k->kept == 0.0f ? k->anchor[i] : k->kept * k->weights[i] + taken * k->anchor[i];
}

typedef struct ps_k_change {
    const float *anchor, *weights;
    float *change;
    float share;
} ps_k_change;

PS_ARITH void ps_k_change_at(const ps_k_change *k, uint32_t i)
{
    k->change[i] = (k->anchor[i] - k->weights[i]) * k->share;
}

/* Wide. Elements first to first + count - 1 of n arenas, added in their order: the host's
 * sum of exchange.levels 2 (ps_ordered_sum), to the bit. first is a multiple of PS_WIDE.
 * sum is (count). */
typedef struct ps_k_add_arenas {
    const float *const *arenas; // (n), on the GPU
    uint32_t n, first, count;
    float *sum;
} ps_k_add_arenas;

PS_ARITH void ps_k_add_arenas_at(const ps_k_add_arenas *k, uint32_t i)
{
    const size_t at = (size_t)i * PS_WIDE;
    float sum[PS_WIDE], more[PS_WIDE];
    for (uint32_t r = 0; r < k->n; r++) {
        const ps_values x = {.at = (void *)(k->arenas[r] + k->first),
                             .format = PS_FORMAT_FP32};
        ps_get_some(x, at, k->count, r == 0 ? sum : more);
        for (int j = 0; j < PS_WIDE && r > 0; j++)
            sum[j] += more[j];
    }
    const ps_values out = {.at = k->sum, .format = PS_FORMAT_FP32};
    ps_set_some(out, at, k->count, sum, false);
}

typedef struct ps_k_unscale {
    float *x;
    float factor;
} ps_k_unscale;

PS_ARITH void ps_k_unscale_at(const ps_k_unscale *k, uint32_t i)
{
    k->x[i] *= k->factor;
}

/* parts[block].a = how many of the block's values of x (n) are not finite. One block for
 * each PS_BAD_PART values. */
enum { PS_BAD_PART = 64 * PS_SUM_LANES };

typedef struct ps_k_bad_values {
    const float *x;
    ps_sums *parts; // (blocks)
    uint32_t n;
} ps_k_bad_values;

PS_ARITH ps_sums ps_k_bad_values_lane(const ps_k_bad_values *k, uint32_t block,
                                      uint32_t lane)
{
    uint32_t begin = block * PS_BAD_PART, left = k->n - begin;
    uint32_t end = left < PS_BAD_PART ? k->n : begin + PS_BAD_PART, bad = 0;
    for (uint32_t i = begin + lane; i < end; i += PS_SUM_LANES)
        bad += !(k->x[i] - k->x[i] == 0.0f);
    ps_sums s = {(double)bad, 0.0};
    return s;
}

PS_ARITH void ps_k_bad_values_done(const ps_k_bad_values *k, uint32_t block, ps_sums s)
{
    k->parts[block] = s;
}

/* A block of the gradient norm (gradnorm.h): a range of the arena within one tensor. */
typedef struct ps_gradnorm_range {
    uint32_t begin, n;
} ps_gradnorm_range;

/* The same with one block for each block of the gradient norm. Once a step was refused,
 * parts keeps that step's counts. alone: independently of earlier steps. */
typedef struct ps_k_bad_blocks {
    const float *x; // the arena
    const ps_gradnorm_range *ranges;
    const ps_verdict *verdict;
    ps_sums *parts;
    bool alone;
} ps_k_bad_blocks;

PS_ARITH ps_sums ps_k_bad_blocks_lane(const ps_k_bad_blocks *k, uint32_t block,
                                      uint32_t lane)
{
    const float *x = k->x + k->ranges[block].begin;
    uint32_t bad = 0;
    for (uint32_t i = lane; i < k->ranges[block].n; i += PS_SUM_LANES)
        bad += !(x[i] - x[i] == 0.0f);
    ps_sums s = {(double)bad, 0.0};
    return s;
}

PS_ARITH void ps_k_bad_blocks_done(const ps_k_bad_blocks *k, uint32_t block, ps_sums s)
{
    if (k->alone || !k->verdict->refused) k->parts[block] = s;
}

/* One block. The step is refused when any part counts a bad value, or an earlier step was
 * refused. alone: earlier steps do not matter. */
typedef struct ps_k_verdict {
    const ps_sums *parts;
    uint32_t n;
    uint64_t step; // from 1
    ps_verdict *verdict;
    bool alone;
} ps_k_verdict;

PS_ARITH ps_sums ps_k_verdict_lane(const ps_k_verdict *k, uint32_t block, uint32_t lane)
{
    ps_sums s = {0.0, 0.0};
    for (uint32_t i = lane; i < k->n; i += PS_SUM_LANES)
        s.a += k->parts[i].a;
    return s;
}

PS_ARITH void ps_k_verdict_done(const ps_k_verdict *k, uint32_t block, ps_sums s)
{
    if (k->alone || !k->verdict->refused) k->verdict->refused = s.a > 0.0 ? k->step : 0;
}

/* ps_gradnorm_total and ps_gradnorm_clip. Count: 1. */
typedef struct ps_k_clip {
    const double *sums;
    uint32_t n;
    double max_norm;
    ps_verdict *verdict;
} ps_k_clip;

PS_ARITH void ps_k_clip_at(const ps_k_clip *k, uint32_t i)
{
    double factor = k->max_norm / (sqrt(ps_sum_in_order(k->sums, k->n)) + 1e-6);
    k->verdict->scale = (float)(factor >= 1.0 ? 1.0 : factor);
}

/* gradnorm.c's sums of a block: 16 lanes, whose halves are then added repeatedly. Count:
 * 16 * blocks. */
enum { PS_GRADNORM_LANES = 16 };

typedef struct ps_k_gradnorm_lane {
    const float *x; // the arena
    const ps_gradnorm_range *ranges;
    double *lanes; // (blocks, 16)
} ps_k_gradnorm_lane;

PS_ARITH void ps_k_gradnorm_lane_at(const ps_k_gradnorm_lane *k, uint32_t i)
{
    ps_gradnorm_range range = k->ranges[i / PS_GRADNORM_LANES];
    const float *x = k->x + range.begin;
    double sum = 0.0;
    for (uint32_t at = i % PS_GRADNORM_LANES; at < range.n; at += PS_GRADNORM_LANES)
        sum += (double)x[at] * (double)x[at];
    k->lanes[i] = sum;
}

typedef struct ps_k_gradnorm_block {
    double *lanes; // (blocks, 16); overwritten
    double *sums;  // (blocks)
} ps_k_gradnorm_block;

PS_ARITH void ps_k_gradnorm_block_at(const ps_k_gradnorm_block *k, uint32_t block)
{
    double *lanes = k->lanes + (size_t)block * PS_GRADNORM_LANES;
    for (uint32_t n = PS_GRADNORM_LANES / 2; n > 0; n /= 2) {
        for (uint32_t l = 0; l < n; l++)
            lanes[l] += lanes[l + n];
    }
    k->sums[block] = lanes[0];
}

#endif
