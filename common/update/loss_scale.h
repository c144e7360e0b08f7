/* The loss scale of mixed precision: the state of torch.amp.GradScaler.
 *
 * The loss is multiplied by the scale before the backward pass, so that small gradients
 * survive in 16 bits, and the sum of all ranks' gradients by its inverse afterwards. When
 * any element of that sum is not finite, the step is skipped: weights, states and the
 * optimizer's step count stay as they are, and the scale backs off. After `interval`
 * finite steps in a row it grows (torch/amp/grad_scaler.py, _amp_update_scale_).
 *
 * Every shard, and in all-reduce mode every rank, keeps a state of its own. They stay
 * equal because all are told the same outcome of every step. The schedule counts every
 * step of the job, skipped ones too, as a loop does that always calls scheduler.step().
 */
#ifndef PS_LOSS_SCALE_H
#define PS_LOSS_SCALE_H

#include "config.h"

typedef struct ps_loss_scale {
    bool on;
    float scale; // of the next step; 1 when off
    double growth, backoff;
    uint64_t interval;
    uint64_t streak;  // finite steps since the scale last changed
    uint64_t skipped; // steps in all
} ps_loss_scale;

/* On with train.precision fp16, or as loss_scale.use says. */
void ps_loss_scale_init(ps_loss_scale *s, const ps_config *cfg);

/* What the summed gradient is multiplied by: 1 / scale, rounded as GradScaler does. */
float ps_loss_scale_inverse(const ps_loss_scale *s);

/* Updates the scale by a step's outcome. NUMERIC when the scale has become too small for
 * any use: then the gradients are not finite for another reason. Does nothing when off.
 */
ps_err ps_loss_scale_update(ps_loss_scale *s, bool finite);

#endif
