/* Kernels (cuda_kernels.h) of the losses and of log_softmax. */
#ifndef PS_CUDA_LOSS_KERNELS_H
#define PS_CUDA_LOSS_KERNELS_H

#include "cuda_sum_kernels.h"

/* One call does one row of classes: there are few classes, and few rows. */
typedef struct ps_k_log_softmax {
    const float *x;
    float *y;
    uint32_t classes;
} ps_k_log_softmax;

PS_ARITH void ps_log_softmax_row(const float *x, float *y, uint32_t classes)
{
    float lse = ps_log_sum_exp(classes, x);
    for (uint32_t c = 0; c < classes; c++)
        y[c] = x[c] - lse;
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

/* NLL_LOGITS: nll together with the log_softmax before it; x is log_softmax's output, and
 * the gradient is that of its input. */
typedef enum ps_cuda_loss {
    PS_CUDA_NLL,
    PS_CUDA_CROSS_ENTROPY,
    PS_CUDA_MSE,
    PS_CUDA_NLL_LOGITS
} ps_cuda_loss;

/* total = the sum of the samples' losses, and the number of samples whose largest output
 * is the label's. One block. logits, if not NULL: x is set to their log_softmax first. */
typedef struct ps_k_loss {
    float *x;
    const float *logits;
    const int32_t *labels;
    ps_sums *total;
    uint32_t n, classes;
    ps_cuda_loss kind;
} ps_k_loss;

PS_ARITH double ps_loss_of(const ps_k_loss *k, const float *x, int32_t label)
{
    if (k->kind == PS_CUDA_MSE) return ps_mse_one_hot(k->classes, x, label);
    bool logits = k->kind == PS_CUDA_CROSS_ENTROPY;
    return logits ? ps_log_sum_exp(k->classes, x) - x[label] : -x[label];
}

PS_ARITH ps_sums ps_k_loss_lane(const ps_k_loss *k, uint32_t block, uint32_t lane)
{
    ps_sums s = {0.0, 0.0};
    for (uint32_t i = lane; i < k->n; i += PS_SUM_LANES) {
        float *x = k->x + (size_t)i * k->classes;
        if (k->logits)
            ps_log_softmax_row(k->logits + (size_t)i * k->classes, x, k->classes);
        s.a += ps_loss_of(k, x, k->labels[i]);
        s.b += ps_argmax(k->classes, x) == k->labels[i] ? 1.0 : 0.0;
    }
    return s;
}

PS_ARITH void ps_k_loss_done(const ps_k_loss *k, uint32_t block, ps_sums s)
{
    *k->total = s;
}

/* The gradient of the mean loss times the pass's scale; share: scale / n. */
typedef struct ps_k_loss_grad {
    const float *x;
    const int32_t *labels;
    float *dx;
    uint32_t classes;
    ps_cuda_loss kind;
    float share;
} ps_k_loss_grad;

PS_ARITH void ps_k_loss_grad_at(const ps_k_loss_grad *k, uint32_t n)
{
    const float *x = k->x + (size_t)n * k->classes;
    float *dx = k->dx + (size_t)n * k->classes;
    bool logits = k->kind == PS_CUDA_CROSS_ENTROPY;
    float lse = logits ? ps_log_sum_exp(k->classes, x) : 0.0f;
    for (int64_t c = 0; c < k->classes; c++) {
        bool hit = c == k->labels[n];
        if (k->kind == PS_CUDA_NLL)
            dx[c] = hit ? -k->share : 0.0f;
        else if (k->kind == PS_CUDA_MSE)
            dx[c] = 2.0f * (x[c] - (float)hit) * (k->share / (float)k->classes);
        else
            dx[c] = ps_nll_softmax_grad(x[c] - lse, hit, k->share);
    }
}

#endif
