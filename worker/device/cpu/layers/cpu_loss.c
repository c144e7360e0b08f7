#include "cpu_loss.h"

#include "loss_terms.h"

void ps_cpu_log_softmax_forward(int64_t n, int64_t classes, const float *x, float *y)
{
    for (int64_t i = 0; i < n; i++, x += classes, y += classes) {
        const ps_log_sum z = ps_log_sum_exp(classes, x);
        for (int64_t c = 0; c < classes; c++)
            y[c] = ps_log_prob(x[c], z);
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

void ps_cpu_loss_forward(const ps_model_spec *spec, const ps_batch *batch,
                         const float *out, ps_pass_result *result)
{
    const ps_loss_terms t = ps_loss_terms_of(spec, spec->class_weights);
    const int64_t outputs = spec->n_outputs;
    *result = (ps_pass_result){0};
    for (int64_t i = 0; i < batch->n; i++, out += outputs) {
        const ps_answer a = ps_answer_of(batch->labels, batch->targets, outputs, i);
        result->loss_sum += ps_sample_loss(&t, outputs, out, a);
        result->correct += ps_sample_is_right(&t, outputs, out, a);
    }
}

void ps_cpu_loss_backward(const ps_model_spec *spec, const ps_batch *batch,
                          const float *out, float scale, float *dout)
{
    const ps_loss_terms t = ps_loss_terms_of(spec, spec->class_weights);
    const int64_t outputs = spec->n_outputs;
    const float share = ps_batch_share(spec, batch, scale);
    for (int64_t i = 0; i < batch->n; i++, out += outputs, dout += outputs)
        ps_sample_grad(&t, outputs, out,
                       ps_answer_of(batch->labels, batch->targets, outputs, i), false,
                       share, dout);
}

void ps_cpu_nll_log_softmax_backward(const ps_model_spec *spec, const ps_batch *batch,
                                     const float *out, float scale, float *dx)
{
    const ps_loss_terms t = ps_loss_terms_of(spec, spec->class_weights);
    const int64_t classes = spec->n_outputs;
    const float share = ps_batch_share(spec, batch, scale);
    for (int64_t i = 0; i < batch->n; i++, out += classes, dx += classes)
        ps_sample_grad(&t, classes, out, ps_answer_of(batch->labels, NULL, classes, i),
                       true, share, dx);
}
