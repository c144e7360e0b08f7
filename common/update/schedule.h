/* Learning rate per optimizer step: constant, step, cosine, cosine with restarts, linear,
 * polynomial, each after a linear warm-up; and one cycle. PyTorch's StepLR,
 * CosineAnnealingLR, CosineAnnealingWarmRestarts, LinearLR (factor 1 to min_lr/lr),
 * PolynomialLR (down to min_lr; PyTorch's is 0) and OneCycleLR (max_lr is optimizer.lr;
 * without cycle_momentum), in closed form, stepped once per optimizer step. With plateau
 * the main schedule is constant here: its lr is what plateau.h has made of it. */
#ifndef PS_SCHEDULE_H
#define PS_SCHEDULE_H

#include "config.h"

typedef struct ps_schedule {
    ps_config_schedule keys;
    double lr;
    uint64_t total; // schedule.total, or the job's steps
} ps_schedule;

/* The number of steps of a job that ends when its workers do. */
#define PS_STEPS_UNKNOWN UINT64_MAX

/* total_steps: optimizer steps of the whole job, or PS_STEPS_UNKNOWN. It is used when
 * schedule.total is 0. CONFIG, also when it is needed but unknown. */
ps_err ps_schedule_init(ps_schedule *s, const ps_config *cfg, uint64_t total_steps);

/* The rate of optimizer step `step`, counted from 0. Pure. */
double ps_schedule_lr(const ps_schedule *s, uint64_t step);

#endif
