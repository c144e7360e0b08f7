#include "cpu_loss.h"

#include "arith.h"

ps_err ps_cpu_labels_check(int64_t n, int64_t classes, const int32_t *labels)
{
    for (int64_t i = 0; i < n; i++) {
        if (labels[i] < 0 || labels[i] >= classes)
            return ps_err_set(PS_ERR_ARG,
                              "sample %lld of the batch has label %d; the model has %lld "
                              "outputs",
                              (long long)i, labels[i], (long long)classes);
    }
    return PS_OK;
}

void ps_cpu_log_softmax_forward(int64_t n, int64_t classes, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++, x += classes, y += classes) {
        float lse = ps_log_sum_exp(classes, x);
        for (int64_t c = 0; c < classes; c++)
            y[c] = x[c] - lse;
    }
}

void ps_cpu_log_softmax_backward(int64_t n, int64_t classes, const float *y,
                                 const float *dy, float *dx, bool add)
{
    for (int64_t i = 0; i < n; i++, y += classes, dy += classes, dx += classes) {
        float sum = 0.0f;
        for (int64_t c = 0; c < classes; c++)
            sum += dy[c];
        for (int64_t c = 0; c < classes; c++) {
            float g = dy[c] - expf(y[c]) * sum;
            dx[c] = add ? dx[c] + g : g;
        }
    }
}

static double sample_loss(ps_loss_kind kind, int64_t classes, const float *x,
                          int32_t label)
{
    if (kind == PS_LOSS_NLL) return -x[label];
    if (kind == PS_LOSS_CROSS_ENTROPY) return ps_log_sum_exp(classes, x) - x[label];
    return ps_mse_one_hot(classes, x, label);
}

void ps_cpu_loss_forward(ps_loss_kind kind, int64_t n, int64_t classes, const float *out,
                         const int32_t *labels, ps_pass_result *result)
{
    *result = (ps_pass_result){0};
    for (int64_t i = 0; i < n; i++, out += classes) {
        result->loss_sum += sample_loss(kind, classes, out, labels[i]);
        result->correct += ps_argmax(classes, out) == labels[i];
    }
}

void ps_cpu_loss_backward(ps_loss_kind kind, int64_t n, int64_t classes, const float *out,
                          const int32_t *labels, float scale, float *dout)
{
    float share = scale / (float)n;
    for (int64_t i = 0; i < n; i++, out += classes, dout += classes) {
        float lse = kind == PS_LOSS_CROSS_ENTROPY ? ps_log_sum_exp(classes, out) : 0.0f;
        for (int64_t c = 0; c < classes; c++) {
            bool hit = c == labels[i];
            if (kind == PS_LOSS_NLL)
                dout[c] = hit ? -share : 0.0f;
            else if (kind == PS_LOSS_CROSS_ENTROPY)
                dout[c] = ps_nll_softmax_grad(out[c] - lse, hit, share);
            else
                dout[c] = 2.0f * (out[c] - (float)hit) * (share / (float)classes);
        }
    }
}

void ps_cpu_nll_log_softmax_backward(int64_t n, int64_t classes, const float *out,
                                     const int32_t *labels, float scale, float *dx)
{
    float share = scale / (float)n;
    for (int64_t i = 0; i < n; i++, out += classes, dx += classes) {
        for (int64_t c = 0; c < classes; c++)
            dx[c] = ps_nll_softmax_grad(out[c], c == labels[i], share);
    }
}
