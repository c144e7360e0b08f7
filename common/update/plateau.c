#include "plateau.h"

#include <math.h>

/* A smaller change is not made; PyTorch's default. */
static const double EPS = 1e-8;

static bool plateau_is_better(const ps_plateau *p, const ps_config_schedule *c,
                              double value)
{
    const bool loss = c->metric == PS_PLATEAU_LOSS, none = isnan(p->best);
    const double best = none ? (loss ? INFINITY : -INFINITY) : p->best;
    return loss ? value < best * (1.0 - c->threshold) : value > best * (c->threshold + 1);
}

bool ps_plateau_step(ps_plateau *p, const ps_config_schedule *c, double value)
{
    p->bad++;
    if (plateau_is_better(p, c, value)) {
        p->best = value;
        p->bad = 0;
    }
    if (p->cooldown > 0) {
        p->cooldown--;
        p->bad = 0;
    }
    if (p->bad <= c->patience) return false;
    p->cooldown = c->cooldown;
    p->bad = 0;
    p->cuts++;
    return true;
}

double ps_plateau_rate(const ps_config_schedule *c, double lr, int64_t cuts)
{
    for (; cuts > 0; cuts--) {
        const double next = fmax(lr * c->factor, c->min_lr);
        if (!(lr - next > EPS)) break; // so it is with every later cut
        lr = next;
    }
    return lr;
}

int ps_plateau_groups(const ps_config *cfg)
{
    return ps_plateau_on(cfg) ? 1 + cfg->optimizer.groups.n : 0;
}

void ps_plateau_numbers(const ps_config *cfg, const ps_optimizer *opt, int64_t cuts,
                        ps_group_numbers *out)
{
    for (int i = 0; i < ps_plateau_groups(cfg); i++) {
        const double own = i > 0 ? opt->fixed[i - 1].lr : NAN;
        out[i] = ps_param_groups_numbers(opt);
        out[i].lr = ps_plateau_rate(&cfg->schedule, isnan(own) ? opt->lr : own, cuts);
    }
}
