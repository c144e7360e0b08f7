#include "ref_losses.h"

#include <math.h>

/* Returns a sample's loss of classes, from the softmax. d (classes), if not NULL, gets
 * its gradient. It is PyTorch's cross_entropy of the probabilities q. These are given, or
 * they are the label's and partly spread over all classes. *weight gets the weight of the
 * label's class. */
static double class_loss(const ps_model_spec *spec, const double *out, int32_t label,
                         const float *given, double *d, double *weight)
{
    const int64_t n = spec->n_outputs;
    const bool logits = spec->loss == PS_LOSS_CROSS_ENTROPY;
    const double s = (double)spec->label_smoothing;
    const float *w = spec->class_weights;
    double sum = 0, loss = 0, all = 0;
    for (int64_t c = 0; c < n; c++) {
        sum += logits ? exp(out[c]) : 0;
        if (d) d[c] = 0;
    }
    *weight = 0;
    if (!given && label == spec->ignore_index) return 0;
    *weight = w && !given ? (double)w[label] : 1;
    for (int64_t c = 0; c < n; c++) {
        const double own = given ? (double)given[c] : c == label;
        const double q = s / (double)n + (1 - s) * own;
        const double part = q * (w ? (double)w[c] : 1);
        loss -= part * (out[c] - (logits ? log(sum) : 0));
        all += part;
        if (d) d[c] = -part;
    }
    for (int64_t c = 0; c < n && d && logits; c++)
        d[c] += all * exp(out[c]) / sum;
    return loss;
}

/* Returns a number's loss. *d gets its gradient. */
static double number_loss(ps_loss_kind kind, double x, double t, double *d)
{
    const double off = x - t, sign = off > 0 ? 1 : off < 0 ? -1 : 0;
    switch (kind) {
    case PS_LOSS_L1:
        *d = sign;
        return sign * off;
    case PS_LOSS_SMOOTH_L1:
        *d = sign * off < 1 ? off : sign;
        return sign * off < 1 ? off * off / 2 : sign * off - 0.5;
    case PS_LOSS_BCE_WITH_LOGITS:
        *d = 1 / (1 + exp(-x)) - t;
        return -t * log(1 / (1 + exp(-x))) - (1 - t) * log(1 / (1 + exp(x)));
    default:
        *d = 2 * off;
        return off * off;
    }
}

double ref_loss(const ref_model *m, const ps_batch *batch, int64_t i, double *d,
                double *weight)
{
    const int64_t n = m->spec->n_outputs;
    const double *out = ref_outputs(m) + i * n;
    double sum = 0, one;
    if (m->spec->loss == PS_LOSS_NLL || m->spec->loss == PS_LOSS_CROSS_ENTROPY)
        return class_loss(m->spec, out, batch->targets ? 0 : batch->labels[i],
                          batch->targets ? batch->targets + i * n : NULL, d, weight);
    *weight = 1;
    for (int64_t c = 0; c < n; c++) {
        const double t =
            batch->targets ? (double)batch->targets[i * n + c] : c == batch->labels[i];
        sum += number_loss(m->spec->loss, out[c], t, &one) / (double)n;
        if (d) d[c] = one / (double)n;
    }
    return sum;
}
