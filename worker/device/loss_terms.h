/* What the configuration says of the loss, as the devices' arithmetic takes it, and what
 * the mean over a batch is a mean of. */
#ifndef PS_LOSS_TERMS_H
#define PS_LOSS_TERMS_H

#include "device.h"
#include "loss_arith.h"

/* weights: spec->class_weights in the device's memory. */
ps_loss_terms ps_loss_terms_of(const ps_model_spec *spec, const float *weights);

/* ARG names the first sample of the batch whose label is neither a class nor
 * ignore_index; or what the batch lacks. */
ps_err ps_answers_check(const ps_model_spec *spec, const ps_batch *batch);

typedef struct ps_batch_weight {
    // The batch's loss is the sum of its samples' losses, divided by this; with targets
    // the number of samples, even if classes have weights.
    double weight;
    int64_t counted; // samples with a class: accuracy is the part of these
} ps_batch_weight;

ps_batch_weight ps_batch_weigh(const ps_model_spec *spec, const ps_batch *batch);

/* What each sample's loss is multiplied by, for the gradient of scale times the batch's
 * loss. 0 where no sample counts: PyTorch's loss is then NaN, and its gradient 0. */
float ps_batch_share(const ps_model_spec *spec, const ps_batch *batch, float scale);

#endif
