/* Arithmetic of the losses, written once for every device (arith.h). Source: PyTorch's
 * cross_entropy, nll_loss, mse_loss, l1_loss, smooth_l1_loss (beta 1) and
 * binary_cross_entropy_with_logits, reduction "mean".
 *
 * Losses of classes: with s the label smoothing, C classes, w their weights, p the
 * log-probabilities and y the label, a sample's loss is
 *
 *   (1 - s) w[y] (-p[y])  +  s / C  sum over c of w[c] (-p[c])
 *
 * and the batch's mean is the sum of these, divided by the sum of w[y]. A sample whose
 * label is ignore_index is in neither sum. With probabilities t in place of the label, a
 * sample's loss is the sum over c of ((1 - s) t[c] + s / C) w[c] (-p[c]), and the mean is
 * divided by the number of samples. */
#ifndef PS_LOSS_ARITH_H
#define PS_LOSS_ARITH_H

#include "arith.h"
#include "config_words.h"

typedef struct ps_loss_terms {
    ps_loss_kind kind;
    int32_t ignore_index;
    float smoothing;
    const float *weights; // (classes), in the device's memory; NULL: all 1
    float weight_sum;     // of all classes
} ps_loss_terms;

/* What one sample is compared with. */
typedef struct ps_answer {
    int32_t label;       // if target is NULL
    const float *target; // (outputs)
} ps_answer;

PS_ARITH ps_answer ps_answer_of(const int32_t *labels, const float *targets,
                                int64_t outputs, int64_t sample)
{
    ps_answer a;
    a.target = targets ? targets + sample * outputs : 0;
    a.label = targets ? -1 : labels[sample];
    return a;
}

/* A label is one-hot. */
PS_ARITH float ps_answer_at(const ps_answer *a, int64_t c)
{
    if (a->target) return a->target[c];
    return c == a->label ? 1.0f : 0.0f;
}

/* --- numbers ----------------------------------------------------------------------- */

PS_ARITH double ps_number_loss(ps_loss_kind kind, double x, double target)
{
    const double d = x - target, far = fabs(d);
    if (kind == PS_LOSS_L1) return far;
    if (kind == PS_LOSS_SMOOTH_L1) return far < 1.0 ? 0.5 * d * d : far - 0.5;
    if (kind == PS_LOSS_MSE) return d * d;
    return (x < 0.0 ? 0.0 : x) - x * target + log1p(exp(-fabs(x)));
}

PS_ARITH float ps_number_grad(ps_loss_kind kind, float x, float target)
{
    const float d = x - target;
    if (kind == PS_LOSS_MSE) return 2.0f * d;
    if (kind == PS_LOSS_BCE_WITH_LOGITS) return ps_sigmoid(x) - target;
    if (kind == PS_LOSS_SMOOTH_L1 && !(d <= -1.0f) && !(d >= 1.0f)) return d;
    return d > 0.0f ? 1.0f : d < 0.0f ? -1.0f : d; // NaN stays NaN
}

/* --- classes ----------------------------------------------------------------------- */

PS_ARITH float ps_class_weight(const ps_loss_terms *t, int64_t c)
{
    return t->weights ? t->weights[c] : 1.0f;
}

/* The factor of -p[c] in the sample's loss. */
PS_ARITH float ps_class_part(const ps_loss_terms *t, int64_t classes, int64_t c,
                             const ps_answer *a)
{
    float part = 0.0f;
    if (a->target)
        part = (1.0f - t->smoothing) * ps_class_weight(t, c) * a->target[c];
    else if (a->label == t->ignore_index)
        return part;
    else if (c == a->label)
        part = (1.0f - t->smoothing) * ps_class_weight(t, c);
    if (t->smoothing == 0.0f) return part;
    return part + t->smoothing / (float)classes * ps_class_weight(t, c);
}

/* The sum of these factors over own classes, where there are probabilities: the others'
 * follows from the label. */
PS_ARITH float ps_target_parts(const ps_loss_terms *t, int64_t classes,
                               const ps_answer *a, ps_stride own)
{
    float sum = 0.0f;
    for (int64_t c = own.first; a->target && c < classes; c += own.step)
        sum += ps_class_part(t, classes, c, a);
    return sum;
}

/* The sum of the factors of all classes; targets: ps_target_parts of all. */
PS_ARITH float ps_class_parts(const ps_loss_terms *t, int64_t classes, const ps_answer *a,
                              float targets)
{
    if (a->target) return targets;
    if (a->label == t->ignore_index) return 0.0f;
    const float sum = (1.0f - t->smoothing) * ps_class_weight(t, a->label);
    if (t->smoothing == 0.0f) return sum;
    return sum + t->smoothing / (float)classes * t->weight_sum;
}

/* --- one sample -------------------------------------------------------------------- */

/* Whether the loss needs a sum over the outputs (ps_sample_sum). */
PS_ARITH bool ps_sample_has_sum(const ps_loss_terms *t, const ps_answer *a)
{
    if (PS_LOSS_OF_NUMBERS(t->kind) || a->target) return true;
    return t->smoothing != 0.0f && a->label != t->ignore_index;
}

/* The part of own outputs. x (outputs) are the model's; z: zeros where they are
 * log-probabilities or numbers, their log_sum_exp where they are logits. */
PS_ARITH double ps_sample_sum(const ps_loss_terms *t, int64_t outputs, const float *x,
                              ps_log_sum z, const ps_answer *a, ps_stride own)
{
    double sum = 0.0;
    const bool numbers = PS_LOSS_OF_NUMBERS(t->kind);
    for (int64_t c = own.first; c < outputs; c += own.step) {
        if (numbers)
            sum += ps_number_loss(t->kind, x[c], ps_answer_at(a, c));
        else if (a->target)
            sum += ps_class_part(t, outputs, c, a) * (double)-ps_log_prob(x[c], z);
        else
            sum += ps_class_weight(t, c) * -ps_log_prob(x[c], z);
    }
    return sum;
}

/* The sample's loss. sum: of all outputs, or 0 where it has none. */
PS_ARITH double ps_loss_of_sum(const ps_loss_terms *t, int64_t outputs, const float *x,
                               ps_log_sum z, const ps_answer *a, double sum)
{
    if (PS_LOSS_OF_NUMBERS(t->kind)) return sum / (double)outputs;
    if (a->target) return sum;
    if (a->label == t->ignore_index) return 0.0;
    const double own = ps_class_weight(t, a->label) * -ps_log_prob(x[a->label], z);
    if (t->smoothing == 0.0f) return own;
    return (1.0f - t->smoothing) * own + t->smoothing / (float)outputs * sum;
}

PS_ARITH double ps_sample_loss(const ps_loss_terms *t, int64_t outputs, const float *x,
                               ps_answer a)
{
    ps_log_sum z = {0.0f, 0.0f};
    double sum = 0.0;
    if (t->kind == PS_LOSS_CROSS_ENTROPY) z = ps_log_sum_exp(outputs, x);
    if (ps_sample_has_sum(t, &a)) sum = ps_sample_sum(t, outputs, x, z, &a, ps_all());
    return ps_loss_of_sum(t, outputs, x, z, &a, sum);
}

/* Whether the largest output is the label's. */
PS_ARITH bool ps_largest_is_right(const ps_loss_terms *t, ps_largest largest,
                                  const ps_answer *a)
{
    if (a->target || largest.at != a->label) return false;
    return PS_LOSS_OF_NUMBERS(t->kind) || a->label != t->ignore_index;
}

PS_ARITH bool ps_sample_is_right(const ps_loss_terms *t, int64_t outputs, const float *x,
                                 ps_answer a)
{
    const ps_log_sum none = {0.0f, 0.0f};
    return !a.target &&
           ps_largest_is_right(t, ps_row_largest(outputs, x, none, ps_all()), &a);
}

/* The gradient of logits x; z: as above; parts: ps_class_parts. share: what the sample's
 * loss is multiplied by. */
PS_ARITH void ps_logits_grad(const ps_loss_terms *t, int64_t classes, const float *x,
                             ps_log_sum z, const ps_answer *a, float parts, float share,
                             float *dx, ps_stride own)
{
    for (int64_t c = own.first; c < classes; c += own.step) {
        const float part = ps_class_part(t, classes, c, a);
        dx[c] = share * (parts * expf(ps_log_prob(x[c], z)) - part);
    }
}

/* The gradient of the model's outputs, where they are not logits. */
PS_ARITH void ps_outputs_grad(const ps_loss_terms *t, int64_t outputs, const float *x,
                              const ps_answer *a, float share, float *dx, ps_stride own)
{
    for (int64_t c = own.first; c < outputs; c += own.step) {
        if (t->kind == PS_LOSS_NLL) {
            const float part = ps_class_part(t, outputs, c, a);
            dx[c] = part != 0.0f ? -share * part : 0.0f;
        } else {
            dx[c] = ps_number_grad(t->kind, x[c], ps_answer_at(a, c)) *
                    (share / (float)outputs);
        }
    }
}

/* folded: x is the output of a log_softmax, and the gradient that of its input. */
PS_ARITH void ps_sample_grad(const ps_loss_terms *t, int64_t outputs, const float *x,
                             ps_answer a, bool folded, float share, float *dx)
{
    ps_log_sum z = {0.0f, 0.0f};
    if (!folded && t->kind != PS_LOSS_CROSS_ENTROPY) {
        ps_outputs_grad(t, outputs, x, &a, share, dx, ps_all());
        return;
    }
    if (!folded) z = ps_log_sum_exp(outputs, x);
    const float targets = ps_target_parts(t, outputs, &a, ps_all());
    const float parts = ps_class_parts(t, outputs, &a, targets);
    ps_logits_grad(t, outputs, x, z, &a, parts, share, dx, ps_all());
}

#endif
