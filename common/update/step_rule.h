/* The rule of one optimizer step, the same in every exchange:
 *
 *   sum -> unscale -> finite? -> norm -> clip -> optimizer -> new loss scale
 *
 * The sum of all ranks' gradients, in rank order, is multiplied by 1 / loss scale. With
 * loss scaling, a sum with a number that is not finite keeps the whole step from being
 * made, and the scale backs off (loss_scale.h). Without it such a sum is an error, unless
 * exchange.nan allows it. A gradient whose norm is above clip_norm is scaled down to it
 * (gradnorm.h). Then the optimizer applies it (optimizer.h).
 *
 * Which process holds which part of the gradient, and how the norm is gathered, is up to
 * the exchange: shards, all-reduce workers, a lone worker, a GPU's queue. All decisions
 * are made here. Every shard, and in all-reduce mode every rank, keeps a rule of its own.
 * The rules stay equal because all are told the same outcome of every step.
 */
#ifndef PS_STEP_RULE_H
#define PS_STEP_RULE_H

#include "loss_scale.h"
#include "optimizer.h"
#include "schedule.h"

typedef struct ps_step_rule {
    ps_optimizer optimizer;
    ps_schedule schedule;
    ps_loss_scale scale; // the only part that changes from step to step
    double clip_norm;    // 0: gradients are not clipped
    bool refuses;        // a number that is not finite is an error
} ps_step_rule;

/* All except the schedule. CONFIG. */
ps_err ps_step_rule_init(ps_step_rule *r, const ps_config *cfg);

/* Must be called before the first step. total_steps: as ps_schedule_init's. CONFIG. */
ps_err ps_step_rule_start(ps_step_rule *r, const ps_config *cfg, uint64_t total_steps);

/* True when no part of a step can be applied before the whole gradient is known. */
bool ps_step_rule_waits(const ps_step_rule *r);

/* The learning rate of step `step` (from 0). group: 0, or i + 1 for optimizer.groups[i].
 */
double ps_step_rule_lr(const ps_step_rule *r, uint64_t step, int group);

/* What the schedule has made of optimizer.lr in step `step`, as a factor. Where that rate
 * is 0, which has none: what the schedule would make of a rate down to 0. */
double ps_step_rule_lr_factor(const ps_step_rule *r, uint64_t step);

/* What the optimizer needs for step `step` (from 0). Skipped steps do not count in its t.
 */
ps_optimizer_step ps_step_rule_optimizer_step(const ps_step_rule *r, uint64_t step,
                                              double grad_scale);

/* Multiplies sum (n) by 1 / loss scale. Nothing without loss scaling. */
void ps_step_rule_unscale(const ps_step_rule *r, uint64_t n, float *sum);

typedef struct ps_step_decision {
    bool make;         // false: weights and optimizer state stay as they are
    double grad_scale; // for ps_step_rule_optimizer_step: clips
} ps_step_decision;

/* Decides on a step from what is known of its whole gradient, and updates the loss scale.
 * finite: whether all of it is; norm: used with clip_norm alone. NUMERIC when the loss
 * scale has become too small for any use. */
ps_err ps_step_rule_decide(ps_step_rule *r, bool finite, double norm,
                           ps_step_decision *out);

/* The error of a gradient that is not finite: NUMERIC. rank: the worker that sent it;
 * PS_STEP_RULE_OVERFLOW where each worker's is finite and their sum is not;
 * PS_STEP_RULE_SUM where only the sum is known. */
enum { PS_STEP_RULE_SUM = -1, PS_STEP_RULE_OVERFLOW = -2 };
ps_err ps_step_rule_not_finite(int rank, const char *tensor, uint64_t step);

/* The state at the border between two steps: as bytes, and back. load: PROTOCOL for bytes
 * that save did not make, or that belong to a job with other loss scaling; r is then
 * unchanged. */
enum { PS_STEP_RULE_STATE_BYTES = 40 };
ps_err ps_step_rule_save(const ps_step_rule *r, uint8_t out[PS_STEP_RULE_STATE_BYTES],
                         size_t *bytes);
ps_err ps_step_rule_load(ps_step_rule *r, const void *state, size_t bytes);

#endif
