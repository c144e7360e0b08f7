/* Kernels (cuda_kernels.h) of the losses and of log_softmax. Rows are samples; `lanes`
 * (ps_team_lanes) do one together. */
#ifndef PS_CUDA_LOSS_KERNELS_H
#define PS_CUDA_LOSS_KERNELS_H

#include "cuda_sum_kernels.h"
#include "cuda_team.h"
#include "loss_arith.h"

PS_TEAM ps_log_sum ps_team_log_sum_exp(ps_team team, uint32_t classes, const float *x)
{
    float max[PS_TEAM_KEPT] = {0.0f};
    double sums[PS_TEAM_KEPT] = {0.0};
    ps_log_sum z;
    PS_TEAM_EACH (team, l)
        max[PS_TEAM_SLOT(l)] = ps_row_max(classes, x, ps_team_own(team, l));
    z.max = ps_team_max(team, max);
    PS_TEAM_EACH (team, l)
        sums[PS_TEAM_SLOT(l)] = ps_row_exp_sum(classes, x, z.max, ps_team_own(team, l));
    z.log = logf((float)ps_team_sum(team, sums));
    return z;
}

PS_TEAM void ps_team_log_probs(ps_team team, uint32_t classes, const float *x,
                               ps_log_sum z, float *y)
{
    PS_TEAM_EACH (team, l)
        for (uint32_t c = l; c < classes; c += team.lanes)
            y[c] = ps_log_prob(x[c], z);
}

typedef struct ps_k_log_softmax {
    const float *x;
    float *y;
    uint32_t classes, lanes;
} ps_k_log_softmax;

PS_TEAM void ps_k_log_softmax_row(const ps_k_log_softmax *k, uint32_t row, ps_team team)
{
    const size_t at = (size_t)row * k->classes;
    const ps_log_sum z = ps_team_log_sum_exp(team, k->classes, k->x + at);
    ps_team_log_probs(team, k->classes, k->x + at, z, k->y + at);
}

typedef struct ps_k_log_softmax_grad {
    const float *y, *dy;
    float *dx;
    uint32_t classes, lanes;
    bool add;
} ps_k_log_softmax_grad;

PS_TEAM void ps_k_log_softmax_grad_row(const ps_k_log_softmax_grad *k, uint32_t row,
                                       ps_team team)
{
    const size_t at = (size_t)row * k->classes;
    double sums[PS_TEAM_KEPT] = {0.0};
    PS_TEAM_EACH (team, l) {
        float sum = 0.0f;
        for (uint32_t c = l; c < k->classes; c += team.lanes)
            sum += k->dy[at + c];
        sums[PS_TEAM_SLOT(l)] = sum;
    }
    const float sum = (float)ps_team_sum(team, sums);
    PS_TEAM_EACH (team, l)
        for (uint32_t c = l; c < k->classes; c += team.lanes) {
            const float g = k->dy[at + c] - expf(k->y[at + c]) * sum;
            ps_store(&k->dx[at + c], g, k->add);
        }
}

/* total = the sum of the samples' losses, and the number of samples whose largest output
 * is the label's. logits, if not NULL: x is set to their log_softmax first. With one lane
 * a sample and at most PS_SUM_LANES samples, `loss` does all, in one block; else
 * loss_rows does each sample, and loss_total adds them up in the same order: sample i in
 * lane i % PS_SUM_LANES. */
typedef struct ps_k_loss {
    float *x;
    const float *logits;
    const int32_t *labels;
    const float *targets; // NULL: the labels
    ps_sums *rows;        // (n), of loss_rows
    ps_sums *total;
    uint32_t n, outputs, lanes;
    ps_loss_terms terms;
} ps_k_loss;

PS_TEAM ps_sums ps_loss_of_row(const ps_k_loss *k, uint32_t i, ps_team team)
{
    const ps_loss_terms *t = &k->terms;
    const uint32_t n = k->outputs;
    const size_t at = (size_t)i * n;
    const float *x = k->logits ? k->logits + at : k->x + at;
    const ps_answer a = ps_answer_of(k->labels, k->targets, n, i);
    const ps_log_sum none = {0.0f, 0.0f};
    ps_log_sum z = none;
    double sums[PS_TEAM_KEPT] = {0.0}, sum = 0.0;
    ps_largest largest[PS_TEAM_KEPT] = {{0.0f, -1}};
    ps_sums s = {0.0, 0.0};
    if (k->logits || t->kind == PS_LOSS_CROSS_ENTROPY)
        z = ps_team_log_sum_exp(team, n, x);
    if (k->logits) ps_team_log_probs(team, n, x, z, k->x + at);
    if (ps_sample_has_sum(t, &a)) {
        PS_TEAM_EACH (team, l)
            sums[PS_TEAM_SLOT(l)] = ps_sample_sum(t, n, x, z, &a, ps_team_own(team, l));
        sum = ps_team_sum(team, sums);
    }
    s.a = ps_loss_of_sum(t, n, x, z, &a, sum);
    if (a.target) return s; // which has no right class
    PS_TEAM_EACH (team, l)  // of the model's outputs
        largest[PS_TEAM_SLOT(l)] =
            ps_row_largest(n, x, k->logits ? z : none, ps_team_own(team, l));
    s.b = ps_largest_is_right(t, ps_team_largest(team, largest), &a) ? 1.0 : 0.0;
    return s;
}

PS_TEAM ps_sums ps_k_loss_lane(const ps_k_loss *k, uint32_t block, uint32_t lane)
{
    const ps_team alone = {1, 0};
    ps_sums s = {0.0, 0.0};
    for (uint32_t i = lane; i < k->n; i += PS_SUM_LANES) {
        const ps_sums one = ps_loss_of_row(k, i, alone);
        s.a += one.a;
        s.b += one.b;
    }
    return s;
}

PS_ARITH void ps_k_loss_done(const ps_k_loss *k, uint32_t block, ps_sums s)
{
    *k->total = s;
}

typedef ps_k_loss ps_k_loss_rows;

PS_TEAM void ps_k_loss_rows_row(const ps_k_loss *k, uint32_t row, ps_team team)
{
    const ps_sums s = ps_loss_of_row(k, row, team);
    PS_TEAM_EACH (team, l)
        if (l == 0) k->rows[row] = s;
}

/* One block. */
typedef struct ps_k_loss_total {
    const ps_sums *rows;
    ps_sums *total;
    uint32_t n;
} ps_k_loss_total;

PS_ARITH ps_sums ps_k_loss_total_lane(const ps_k_loss_total *k, uint32_t block,
                                      uint32_t lane)
{
    ps_sums s = {0.0, 0.0};
    for (uint32_t i = lane; i < k->n; i += PS_SUM_LANES) {
        s.a += k->rows[i].a;
        s.b += k->rows[i].b;
    }
    return s;
}

PS_ARITH void ps_k_loss_total_done(const ps_k_loss_total *k, uint32_t block, ps_sums s)
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
    uint32_t outputs, lanes;
    ps_loss_terms terms;
    bool folded;
    float share;
} ps_k_loss_grad;

/* The sum over all classes of the factors of their losses (ps_class_part). */
PS_TEAM float ps_team_class_parts(ps_team team, const ps_loss_terms *t, uint32_t classes,
                                  const ps_answer *a)
{
    double sums[PS_TEAM_KEPT] = {0.0};
    float targets = 0.0f;
    if (a->target) {
        PS_TEAM_EACH (team, l)
            sums[PS_TEAM_SLOT(l)] = ps_target_parts(t, classes, a, ps_team_own(team, l));
        targets = (float)ps_team_sum(team, sums);
    }
    return ps_class_parts(t, classes, a, targets);
}

PS_TEAM void ps_k_loss_grad_row(const ps_k_loss_grad *k, uint32_t i, ps_team team)
{
    const ps_loss_terms *t = &k->terms;
    const uint32_t n = k->outputs;
    const float *x = k->x + (size_t)i * n;
    float *dx = k->dx + (size_t)i * n;
    const ps_answer a = ps_answer_of(k->labels, k->targets, n, i);
    ps_log_sum z = {0.0f, 0.0f};
    if (!k->folded && t->kind != PS_LOSS_CROSS_ENTROPY) {
        PS_TEAM_EACH (team, l)
            ps_outputs_grad(t, n, x, &a, k->share, dx, ps_team_own(team, l));
        return;
    }
    if (!k->folded) z = ps_team_log_sum_exp(team, n, x);
    const float parts = ps_team_class_parts(team, t, n, &a);
    PS_TEAM_EACH (team, l)
        ps_logits_grad(t, n, x, z, &a, parts, k->share, dx, ps_team_own(team, l));
}

#endif
