#include "step_rule.h"

#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "floats.h"
#include "gradnorm.h"
#include "lamb.h"
#include "mp.h"
#include "param_groups.h"

ps_err ps_step_rule_init(ps_step_rule *r, const ps_config *cfg)
{
    *r = (ps_step_rule){.clip_norm = cfg->optimizer.clip_norm};
    ps_optimizer_init(&r->optimizer, cfg);
    ps_loss_scale_init(&r->scale, cfg);
    r->refuses = !r->scale.on && cfg->exchange.nan == PS_NAN_ERROR;
    return PS_OK;
}

ps_err ps_step_rule_start(ps_step_rule *r, const ps_config *cfg, uint64_t total_steps)
{
    return ps_schedule_init(&r->schedule, cfg, total_steps);
}

bool ps_step_rule_waits(const ps_step_rule *r)
{
    return r->clip_norm > 0 || r->scale.on || ps_lamb_on(&r->optimizer);
}

double ps_step_rule_lr(const ps_step_rule *r, uint64_t step, int group)
{
    const ps_optimizer *opt = &r->optimizer;
    const ps_group_numbers *told =
        opt->groups && opt->rates_only ? ps_param_groups_at(opt->groups, step) : NULL;
    ps_schedule of_group = r->schedule;
    if (group > 0 && !isnan(opt->fixed[group - 1].lr))
        of_group.lr = opt->fixed[group - 1].lr;
    if (told) of_group.lr = told[group].lr;
    return ps_schedule_lr(&of_group, step);
}

double ps_step_rule_lr_factor(const ps_step_rule *r, uint64_t step)
{
    ps_schedule of_one = r->schedule;
    if (r->optimizer.lr > 0) return ps_step_rule_lr(r, step, 0) / r->optimizer.lr;
    of_one.lr = 1;
    of_one.keys.min_lr = 0;
    return ps_schedule_lr(&of_one, step);
}

ps_optimizer_step ps_step_rule_optimizer_step(const ps_step_rule *r, uint64_t step,
                                              double grad_scale)
{
    const ps_optimizer *opt = &r->optimizer;
    ps_optimizer_step now = {.lr = ps_step_rule_lr(r, step, 0),
                             .t = step + 1 - r->scale.skipped,
                             .grad_scale = grad_scale,
                             .step = step};
    for (int i = 0; i < opt->n_fixed; i++)
        now.fixed_lr[i] = ps_step_rule_lr(r, step, i + 1);
    return now;
}

void ps_step_rule_unscale(const ps_step_rule *r, uint64_t n, float *sum)
{
    if (r->scale.on) ps_floats_scale(sum, ps_loss_scale_inverse(&r->scale), n);
}

ps_err ps_step_rule_decide(ps_step_rule *r, bool finite, double norm,
                           ps_step_decision *out)
{
    out->make = finite || !r->scale.on;
    out->grad_scale = r->clip_norm > 0 ? ps_gradnorm_clip(norm, r->clip_norm) : 1;
    return ps_loss_scale_update(&r->scale, out->make);
}

ps_err ps_step_rule_not_finite(int rank, const char *tensor, uint64_t step)
{
    const bool overflow = rank == PS_STEP_RULE_OVERFLOW;
    char whose[64] = "the workers' gradients";
    if (rank == PS_STEP_RULE_SUM)
        snprintf(whose, sizeof whose, "the sum of the workers' gradients");
    else if (!overflow)
        snprintf(whose, sizeof whose, "the gradient of worker %d", rank);
    return ps_err_set(PS_ERR_NUMERIC,
                      "%s for %s in step %" PRIu64
                      " %s (a lower optimizer.lr or optimizer.clip_norm may help; "
                      "exchange.nan=allow goes on)",
                      whose, tensor, step,
                      overflow ? "overflow when added"
                               : "has a number that is not finite");
}

/* --- the state -------------------------------------------------------------------- */

enum { VERSION = 1, N_ITEMS = 4 };

/* [version, bits of the loss scale, streak, skipped] */
ps_err ps_step_rule_save(const ps_step_rule *r, uint8_t out[PS_STEP_RULE_STATE_BYTES],
                         size_t *bytes)
{
    ps_mp_writer w;
    uint32_t bits;
    memcpy(&bits, &r->scale.scale, sizeof bits);
    ps_mp_writer_init_fixed(&w, out, PS_STEP_RULE_STATE_BYTES);
    ps_mp_write_array(&w, N_ITEMS);
    ps_mp_write_uint(&w, VERSION);
    ps_mp_write_uint(&w, bits);
    ps_mp_write_uint(&w, r->scale.streak);
    ps_mp_write_uint(&w, r->scale.skipped);
    *bytes = w.used;
    return ps_mp_writer_end(&w);
}

static bool scale_fits(const ps_step_rule *r, float scale)
{
    return r->scale.on ? isfinite(scale) && scale >= FLT_MIN : scale == 1.0f;
}

ps_err ps_step_rule_load(ps_step_rule *r, const void *state, size_t bytes)
{
    ps_mp_reader m;
    float scale;
    ps_mp_reader_init(&m, state, bytes);
    const bool shape = ps_mp_read_array(&m, N_ITEMS) == N_ITEMS &&
                       ps_mp_read_uint(&m, UINT32_MAX) == VERSION;
    const uint32_t bits = (uint32_t)ps_mp_read_uint(&m, UINT32_MAX);
    const uint64_t streak = ps_mp_read_uint(&m, UINT64_MAX);
    const uint64_t skipped = ps_mp_read_uint(&m, UINT64_MAX);
    memcpy(&scale, &bits, sizeof scale);
    if (!shape || !ps_mp_reader_end(&m))
        return ps_err_set(PS_ERR_PROTOCOL, "%zu bytes are not the state of a step rule",
                          bytes);
    if (!scale_fits(r, scale))
        return ps_err_set(PS_ERR_PROTOCOL,
                          "the state of the step rule has the loss scale %g, which this "
                          "job's loss_scale.use does not allow",
                          (double)scale);
    r->scale.scale = scale;
    r->scale.streak = streak;
    r->scale.skipped = skipped;
    return PS_OK;
}
