#include "schedule.h"

#include <math.h>

ps_err ps_schedule_init(ps_schedule *s, const ps_config *cfg, uint64_t total_steps)
{
    const ps_config_schedule *c = &cfg->schedule;
    *s = (ps_schedule){.keys = *c,
                       .lr = cfg->optimizer.lr,
                       .total = c->total > 0 ? (uint64_t)c->total : total_steps};
    if (ps_config_schedule_ends(cfg) && s->total == PS_STEPS_UNKNOWN)
        return ps_err_set(
            PS_ERR_CONFIG,
            "schedule.name: %s ends with the job, which has no known number "
            "of steps: set schedule.total",
            ps_word_name(ps_schedule_words, (int)c->name));
    return PS_OK;
}

static double schedule_cosine(double from, double to, double done)
{
    return to + (from - to) * (1.0 + cos(M_PI * done)) / 2.0;
}

/* Where the step is in its period, from 0 to below 1. */
static double of_period(const ps_config_schedule *c, uint64_t step)
{
    uint64_t period = (uint64_t)c->t_0, t_mult = (uint64_t)c->t_mult;
    if (t_mult == 1) return (double)(step % period) / (double)period;
    while (step >= period) {
        step -= period;
        if (period > UINT64_MAX / t_mult) break;
        period *= t_mult;
    }
    return (double)step / (double)period;
}

/* The part of the way from one step to another, which may be fractions. */
static double schedule_part(double step, double from, double to)
{
    return to > from ? fmin((step - from) / (to - from), 1.0) : 1.0;
}

static double one_cycle(const ps_schedule *s, double step)
{
    const ps_config_schedule *c = &s->keys;
    const double n = (double)s->total, first = s->lr / c->div_factor;
    const double last = first / c->final_div_factor;
    const double top = c->pct_start * n - 1.0, middle = 2.0 * c->pct_start * n - 2.0;
    double from = s->lr, to = last, done = schedule_part(step, top, n - 1.0);
    if (step <= top) {
        from = first, to = s->lr, done = schedule_part(step, 0.0, top);
    } else if (c->three_phase && step <= middle) {
        from = s->lr, to = first, done = schedule_part(step, top, middle);
    } else if (c->three_phase) {
        from = first, to = last, done = schedule_part(step, middle, n - 1.0);
    }
    if (c->anneal == PS_ANNEAL_LINEAR) return from + (to - from) * done;
    return schedule_cosine(from, to, done);
}

/* The rate of the main schedule, which begins when the warm-up is over. */
static double main_lr(const ps_schedule *s, uint64_t step)
{
    const ps_config_schedule *c = &s->keys;
    const uint64_t warmup = (uint64_t)c->warmup,
                   total = s->total > warmup ? s->total - warmup : 1;
    double done = step < total ? (double)step / (double)total : 1.0;
    switch (c->name) {
    case PS_SCHEDULE_STEP:
        return s->lr * pow(c->gamma, (double)(step / (uint64_t)c->step_size));
    case PS_SCHEDULE_COSINE:
        return schedule_cosine(s->lr, c->min_lr, done);
    case PS_SCHEDULE_COSINE_RESTARTS:
        return schedule_cosine(s->lr, c->min_lr, of_period(c, step));
    case PS_SCHEDULE_LINEAR:
        return s->lr + (c->min_lr - s->lr) * done;
    case PS_SCHEDULE_POLYNOMIAL:
        return c->min_lr + (s->lr - c->min_lr) * pow(1.0 - done, c->power);
    case PS_SCHEDULE_ONECYCLE:
        return one_cycle(s, (double)step);
    case PS_SCHEDULE_CONSTANT:
    case PS_SCHEDULE_PLATEAU: // s->lr is that of the evaluations so far
        break;
    }
    return s->lr;
}

double ps_schedule_lr(const ps_schedule *s, uint64_t step)
{
    const uint64_t warmup = (uint64_t)s->keys.warmup;
    if (step >= warmup) return main_lr(s, step - warmup);
    double done = (double)step / (double)warmup;
    return s->lr * (s->keys.warmup_start + (1.0 - s->keys.warmup_start) * done);
}
