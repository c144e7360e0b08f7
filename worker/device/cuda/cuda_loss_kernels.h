/* Kernels (cuda_kernels.h) of the losses and of log_softmax. */
#ifndef PS_CUDA_LOSS_KERNELS_H
#define PS_CUDA_LOSS_KERNELS_H

#include "cuda_sum_kernels.h"
#include "loss_arith.h"

/* One call does one row of classes: there are few classes, and few rows. */
typedef struct ps_k_log_softmax {
    const float *x;
    float *y;
    uint32_t classes;
} ps_k_log_softmax;

PS_ARITH void ps_log_softmax_row(const float *x, float *y, uint32_t classes)
{
    const ps_log_sum z = ps_log_sum_exp(classes, x);
    for (uint32_t c = 0; c < classes; c++)
        y[c] = ps_log_prob(x[c], z);
}

PS_ARITH void ps_k_log_softmax_at(const ps_k_log_softmax *k, uint32_t row)
{
    size_t at = (size_t)row * k->classes;
    ps_log_softmax_row(k->x + at, k->y + at, k->classes);
}

typedef struct ps_k_log_softmax_grad {
    const float *y, *dy;
    float *dx;
    uint32_t classes;
    bool add;
} ps_k_log_softmax_grad;

PS_ARITH void ps_k_log_softmax_grad_at(const ps_k_log_softmax_grad *k, uint32_t row)
{
    size_t at = (size_t)row * k->classes;
    float sum = 0.0f;
    for (uint32_t c = 0; c < k->classes; c++)
        sum += k->dy[at + c];
    for (uint32_t c = 0; c < k->classes; c++) {
        float g = k->dy[at + c] - expf(k->y[at + c]) * sum;
        ps_store(&k->dx[at + c], g, k->add);
    }
}

/* total = the sum of the samples' losses, and the number of samples whose largest output
 * is the label's. One block. logits, if not NULL: x is set to their log_softmax first. */
typedef struct ps_k_loss {
    float *x;
    const float *logits;
    const int32_t *labels;
    const float *targets; // NULL: the labels
    ps_sums *total;
    uint32_t n, outputs;
    ps_loss_terms terms;
} ps_k_loss;

PS_ARITH ps_sums ps_k_loss_lane(const ps_k_loss *k, uint32_t block, uint32_t lane)
{
    ps_sums s = {0.0, 0.0};
    for (uint32_t i = lane; i < k->n; i += PS_SUM_LANES) {
        float *x = k->x + (size_t)i * k->outputs;
        const ps_answer a = ps_answer_of(k->labels, k->targets, k->outputs, i);
        if (k->logits)
            ps_log_softmax_row(k->logits + (size_t)i * k->outputs, x, k->outputs);
        s.a += ps_sample_loss(&k->terms, k->outputs, x, a);
        s.b += ps_sample_is_right(&k->terms, k->outputs, x, a) ? 1.0 : 0.0;
    }
    return s;
}

PS_ARITH void ps_k_loss_done(const ps_k_loss *k, uint32_t block, ps_sums s)
{
    *k->total = s;
}

/* The gradient of the mean loss times the pass's scale; share: of each sample's loss.
 * folded: nll together with the log_softmax before it; x is log_softmax's output, and the
 * gradient is that of its input. */
typedef struct ps_k_loss_grad {
    const float *x;
    const int32_t *labels;
    const float *targets;
    float *dx;
    uint32_t outputs;
    ps_loss_terms terms;
    bool folded;
    float share;
} ps_k_loss_grad;

PS_ARITH void ps_k_loss_grad_at(const ps_k_loss_grad *k, uint32_t n)
{
    const float *x = k->x + (size_t)n * k->outputs;
    float *dx = k->dx + (size_t)n * k->outputs;
    const ps_answer a = ps_answer_of(k->labels, k->targets, k->outputs, n);
    const ps_log_sum none = {0.0f, 0.0f};
    if (k->folded)
        ps_logits_grad(&k->terms, k->outputs, x, none, a, k->share, dx);
    else
        ps_sample_grad(&k->terms, k->outputs, x, a, k->share, dx);
}

#endif
