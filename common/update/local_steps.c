#include "local_steps.h"

/* Of the round: its first step, and the one after its last if the job does not end. */
static void local_steps_bounds(const ps_config *cfg, uint64_t step, uint64_t *first,
                               uint64_t *end)
{
    const uint64_t alone = (uint64_t)cfg->sync.local_after;
    const uint64_t n = step < alone ? 1 : (uint64_t)cfg->sync.local_steps;
    const uint64_t from = step < alone ? 0 : alone;
    *first = step - (step - from) % n;
    *end = *first + n;
}

uint64_t ps_local_steps_round(const ps_config *cfg, uint64_t step)
{
    const uint64_t k = (uint64_t)cfg->sync.local_steps;
    if (ps_config_quorum(cfg)) return (step + k - 1) / k; // a job goes on between rounds
    const uint64_t alone = (uint64_t)cfg->sync.local_after;
    if (step < alone) return step;
    return alone + (step - alone) / k;
}

uint64_t ps_local_steps_begun(const ps_config *cfg, uint64_t step)
{
    return ps_config_quorum(cfg) && step > 0 ? (uint64_t)cfg->sync.overlap : 0;
}

uint64_t ps_local_steps_rounds(const ps_config *cfg, uint64_t total_steps)
{
    return total_steps == 0 ? 0 : ps_local_steps_round(cfg, total_steps - 1) + 1;
}

bool ps_local_steps_sends(const ps_config *cfg, uint32_t fragment, uint64_t step,
                          uint64_t total_steps)
{
    const uint64_t n = (uint64_t)cfg->sync.fragments;
    uint64_t first, end;
    local_steps_bounds(cfg, step, &first, &end);
    if (end >= total_steps) return step + 1 == total_steps;
    if (end - first == 1) return true;
    return step + 1 == first + (fragment + 1) * (end - first) / n;
}

uint64_t ps_local_steps_overlap(const ps_config *cfg, uint64_t step, uint64_t total_steps)
{
    uint64_t first, end;
    local_steps_bounds(cfg, step, &first, &end);
    return end - first == 1 || end >= total_steps ? 0 : (uint64_t)cfg->sync.overlap;
}

bool ps_local_steps_awaits(const ps_config *cfg, uint32_t fragment, uint64_t step,
                           uint64_t total_steps)
{
    const uint64_t most = (uint64_t)cfg->sync.overlap;
    for (uint64_t later = 1; later <= most && later <= step; later++)
        if (ps_local_steps_sends(cfg, fragment, step - later, total_steps))
            return later <= ps_local_steps_overlap(cfg, step - later, total_steps);
    return false;
}

bool ps_local_steps_fresh(const ps_config *cfg, uint32_t fragment, uint64_t step,
                          uint64_t total_steps)
{
    return step == 0 || (ps_local_steps_sends(cfg, fragment, step - 1, total_steps) &&
                         ps_local_steps_overlap(cfg, step - 1, total_steps) == 0);
}

uint32_t ps_local_steps_ahead(const ps_config *cfg, uint64_t step, uint64_t total_steps)
{
    uint64_t first, end;
    uint32_t n = 0;
    if (ps_config_quorum(cfg)) return 0;
    local_steps_bounds(cfg, step, &first, &end);
    for (uint64_t s = first; s < step; s++)
        for (uint32_t f = 0; f < (uint32_t)cfg->sync.fragments; f++)
            n += ps_local_steps_sends(cfg, f, s, total_steps);
    return n;
}

void ps_local_steps_outer(ps_config *out, const ps_config *cfg)
{
    const ps_config_sync *s = &cfg->sync;
    *out = *cfg;
    if (!ps_local_steps_on(cfg)) return;
    const ps_config_optimizer outer = {.name = s->outer,
                                       .lr = s->outer_lr,
                                       .momentum = s->outer_momentum,
                                       .nesterov = s->outer_nesterov,
                                       .betas = {2, {0.9, 0.999}},
                                       .eps = 1e-8,
                                       .decay_bias_norm = true,
                                       .pytorch = 2};
    out->optimizer = outer;
    out->schedule = (ps_config_schedule){.name = PS_SCHEDULE_CONSTANT, .gamma = 1};
    out->loss_scale.use = PS_SWITCH_OFF;
    out->sync = (ps_config_sync){
        .policy = PS_POLICY_BSP, .local_steps = 1, .fragments = s->fragments};
    if (!ps_config_quorum(cfg)) return;
    out->sync.policy = PS_POLICY_BACKUP;
    out->sync.late = PS_LATE_ADD;
    out->sync.backup = cfg->job.workers - s->quorum;
    out->sync.grace_ms = s->grace_ms;
}

ps_err ps_local_steps_outer_rule(const ps_config *cfg, ps_step_rule *out)
{
    ps_config outer;
    ps_local_steps_outer(&outer, cfg);
    PS_TRY(ps_step_rule_init(out, &outer));
    return ps_step_rule_start(out, &outer, PS_STEPS_UNKNOWN); // its rate is constant
}
