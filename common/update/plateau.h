/* A learning rate that falls when evaluations stop getting better: PyTorch's
 * ReduceLROnPlateau (torch/optim/lr_scheduler.py), threshold_mode rel, eps 1e-8.
 *
 * All workers have the same evaluations, so each of them decides for itself. Worker 0
 * tells the servers the new rates as the numbers of parameter groups (param_groups.h):
 * group 0 is that of the tensors without a group, group i + 1 is optimizer.groups[i].
 */
#ifndef PS_PLATEAU_H
#define PS_PLATEAU_H

#include "param_groups.h"

typedef struct ps_plateau {
    double best;      // result so far; NAN: there was none
    int64_t bad;      // evaluations since then, as patience counts them
    int64_t cooldown; // evaluations that do not count yet
    int64_t cuts;     // of the rates, so far
} ps_plateau;

static inline bool ps_plateau_on(const ps_config *cfg)
{
    return cfg->schedule.name == PS_SCHEDULE_PLATEAU;
}

/* Takes one evaluation into account: the test loss, or the accuracy where schedule.metric
 * says so. Returns whether the rates are cut once more. */
bool ps_plateau_step(ps_plateau *p, const ps_config_schedule *c, double value);

/* The rate after that many cuts of lr. */
double ps_plateau_rate(const ps_config_schedule *c, double lr, int64_t cuts);

/* Groups whose rates the servers are told; 0 with other schedules. */
int ps_plateau_groups(const ps_config *cfg);

/* Their numbers (ps_plateau_groups) after that many cuts. */
void ps_plateau_numbers(const ps_config *cfg, const ps_optimizer *opt, int64_t cuts,
                        ps_group_numbers *out);

#endif
