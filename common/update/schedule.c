#include "schedule.h"

#include <inttypes.h>
#include <math.h>

ps_err ps_schedule_init(ps_schedule *s, const ps_config *cfg, uint64_t total_steps)
{
    const ps_config_schedule *c = &cfg->schedule;
    *s = (ps_schedule){.kind = c->name,
                       .lr = cfg->optimizer.lr,
                       .warmup_start = c->warmup_start,
                       .gamma = c->gamma,
                       .min_lr = c->min_lr,
                       .warmup = (uint64_t)c->warmup,
                       .step_size = (uint64_t)c->step_size,
                       .total = c->total > 0 ? (uint64_t)c->total : total_steps};
    bool decays = s->kind == PS_SCHEDULE_COSINE || s->kind == PS_SCHEDULE_LINEAR;
    if (decays && s->total == PS_STEPS_UNKNOWN)
        return ps_err_set(
            PS_ERR_CONFIG,
            "schedule.name: %s ends with the job, which has no known number "
            "of steps: set schedule.total",
            ps_word_name(ps_schedule_words, (int)c->name));
    if (decays && c->total > 0 && s->total <= s->warmup)
        return ps_err_set(PS_ERR_CONFIG,
                          "schedule.total: %" PRIu64 " steps are over before the warm-up "
                          "of %" PRIu64 " is",
                          s->total, s->warmup);
    return PS_OK;
}

/* The factor of the main schedule, which begins when the warm-up is over. */
static double main_lr(const ps_schedule *s, uint64_t step)
{
    uint64_t total = s->total > s->warmup ? s->total - s->warmup : 1;
    double done = step < total ? (double)step / (double)total : 1.0;
    switch (s->kind) {
    case PS_SCHEDULE_STEP:
        return s->lr * pow(s->gamma, (double)(step / s->step_size));
    case PS_SCHEDULE_COSINE:
        return s->min_lr + (s->lr - s->min_lr) * (1.0 + cos(M_PI * done)) / 2.0;
    case PS_SCHEDULE_LINEAR:
        return s->lr + (s->min_lr - s->lr) * done;
    case PS_SCHEDULE_CONSTANT:
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
