#include "schedule.h"

#include <inttypes.h>
#include <math.h>

static bool schedule_ends(ps_schedule_kind kind)
{
    return kind == PS_SCHEDULE_COSINE || kind == PS_SCHEDULE_LINEAR ||
           kind == PS_SCHEDULE_POLYNOMIAL || kind == PS_SCHEDULE_ONECYCLE;
}

ps_err ps_schedule_init(ps_schedule *s, const ps_config *cfg, uint64_t total_steps)
{
    const ps_config_schedule *c = &cfg->schedule;
    *s = (ps_schedule){.kind = c->name,
                       .lr = cfg->optimizer.lr,
                       .warmup_start = c->warmup_start,
                       .gamma = c->gamma,
                       .min_lr = c->min_lr,
                       .power = c->power,
                       .pct_start = c->pct_start,
                       .div_factor = c->div_factor,
                       .final_div_factor = c->final_div_factor,
                       .anneal = c->anneal,
                       .three_phase = c->three_phase,
                       .warmup = (uint64_t)c->warmup,
                       .step_size = (uint64_t)c->step_size,
                       .total = c->total > 0 ? (uint64_t)c->total : total_steps,
                       .t_0 = (uint64_t)c->t_0,
                       .t_mult = (uint64_t)c->t_mult};
    if (schedule_ends(s->kind) && s->total == PS_STEPS_UNKNOWN)
        return ps_err_set(
            PS_ERR_CONFIG,
            "schedule.name: %s ends with the job, which has no known number "
            "of steps: set schedule.total",
            ps_word_name(ps_schedule_words, (int)c->name));
    if (schedule_ends(s->kind) && c->total > 0 && s->total <= s->warmup)
        return ps_err_set(PS_ERR_CONFIG,
                          "schedule.total: %" PRIu64 " steps are over before the warm-up "
                          "of %" PRIu64 " is",
                          s->total, s->warmup);
    return PS_OK;
}

static double schedule_cosine(double from, double to, double done)
{
    return to + (from - to) * (1.0 + cos(M_PI * done)) / 2.0;
}

/* Where the step is in its period, from 0 to below 1. */
static double of_period(const ps_schedule *s, uint64_t step)
{
    uint64_t period = s->t_0;
    if (s->t_mult == 1) return (double)(step % period) / (double)period;
    while (step >= period) {
        step -= period;
        if (period > UINT64_MAX / s->t_mult) break;
        period *= s->t_mult;
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
    const double n = (double)s->total, first = s->lr / s->div_factor;
    const double last = first / s->final_div_factor;
    const double top = s->pct_start * n - 1.0, middle = 2.0 * s->pct_start * n - 2.0;
    double from = s->lr, to = last, done = schedule_part(step, top, n - 1.0);
    if (step <= top) {
        from = first, to = s->lr, done = schedule_part(step, 0.0, top);
    } else if (s->three_phase && step <= middle) {
        from = s->lr, to = first, done = schedule_part(step, top, middle);
    } else if (s->three_phase) {
        from = first, to = last, done = schedule_part(step, middle, n - 1.0);
    }
    if (s->anneal == PS_ANNEAL_LINEAR) return from + (to - from) * done;
    return schedule_cosine(from, to, done);
}

/* The rate of the main schedule, which begins when the warm-up is over. */
static double main_lr(const ps_schedule *s, uint64_t step)
{
    uint64_t total = s->total > s->warmup ? s->total - s->warmup : 1;
    double done = step < total ? (double)step / (double)total : 1.0;
    switch (s->kind) {
    case PS_SCHEDULE_STEP:
        return s->lr * pow(s->gamma, (double)(step / s->step_size));
    case PS_SCHEDULE_COSINE:
        return schedule_cosine(s->lr, s->min_lr, done);
    case PS_SCHEDULE_COSINE_RESTARTS:
        return schedule_cosine(s->lr, s->min_lr, of_period(s, step));
    case PS_SCHEDULE_LINEAR:
        return s->lr + (s->min_lr - s->lr) * done;
    case PS_SCHEDULE_POLYNOMIAL:
        return s->min_lr + (s->lr - s->min_lr) * pow(1.0 - done, s->power);
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
    if (step >= s->warmup) return main_lr(s, step - s->warmup);
    double done = (double)step / (double)s->warmup;
    return s->lr * (s->warmup_start + (1.0 - s->warmup_start) * done);
}
