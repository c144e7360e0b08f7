#include "loss_terms.h"

ps_loss_terms ps_loss_terms_of(const ps_model_spec *spec, const float *weights)
{
    double sum = 0;
    for (int64_t c = 0; c < spec->n_outputs; c++)
        sum += spec->class_weights ? spec->class_weights[c] : 1.0;
    return (ps_loss_terms){.kind = spec->loss,
                           .ignore_index = spec->ignore_index,
                           .smoothing = spec->label_smoothing,
                           .weights = weights,
                           .weight_sum = (float)sum};
}

static bool is_ignored(const ps_model_spec *spec, int32_t label)
{
    return !PS_LOSS_OF_NUMBERS(spec->loss) && label == spec->ignore_index;
}

ps_err ps_answers_check(const ps_model_spec *spec, const ps_batch *batch)
{
    const bool numbers = PS_LOSS_OF_NUMBERS(spec->loss);
    if (batch->targets && !numbers && spec->loss != PS_LOSS_CROSS_ENTROPY)
        return ps_err_set(PS_ERR_ARG,
                          "the loss needs classes, and the batch has numbers");
    for (int i = 0; batch->labels && !batch->targets && i < batch->n; i++) {
        const int32_t label = batch->labels[i];
        if ((label < 0 || label >= spec->n_outputs) && !is_ignored(spec, label))
            return ps_err_set(PS_ERR_ARG,
                              "sample %d of the batch has label %d; the model has %lld "
                              "outputs",
                              i, label, (long long)spec->n_outputs);
    }
    return PS_OK;
}

ps_batch_weight ps_batch_weigh(const ps_model_spec *spec, const ps_batch *batch)
{
    ps_batch_weight w = {0};
    if (PS_LOSS_OF_NUMBERS(spec->loss) || batch->targets)
        return (ps_batch_weight){batch->n, batch->targets ? 0 : batch->n};
    for (int i = 0; i < batch->n; i++) {
        const int32_t label = batch->labels[i];
        if (is_ignored(spec, label)) continue;
        w.weight += spec->class_weights ? spec->class_weights[label] : 1.0;
        w.counted++;
    }
    return w;
}

float ps_batch_share(const ps_model_spec *spec, const ps_batch *batch, float scale)
{
    const double weight = ps_batch_weigh(spec, batch).weight;
    return weight > 0 ? scale / (float)weight : 0.0f;
}
