#include "loss_scale.h"

#include <float.h>
#include <math.h>

void ps_loss_scale_init(ps_loss_scale *s, const ps_config *cfg)
{
    *s = (ps_loss_scale){.scale = 1};
    if (!ps_config_scales_loss(cfg)) return;
    *s = (ps_loss_scale){
        .on = true,
        .scale = (float)cfg->loss_scale.init,
        .growth = cfg->loss_scale.growth,
        .backoff = cfg->loss_scale.backoff,
        .interval = (uint64_t)cfg->loss_scale.interval,
    };
}

float ps_loss_scale_inverse(const ps_loss_scale *s)
{
    return (float)(1.0 / (double)s->scale);
}

static void loss_scale_grow(ps_loss_scale *s)
{
    float grown = (float)((double)s->scale * s->growth);
    s->streak = 0;
    if (isfinite(grown)) s->scale = grown;
}

ps_err ps_loss_scale_update(ps_loss_scale *s, bool finite)
{
    if (!s->on) return PS_OK;
    if (finite) {
        if (++s->streak >= s->interval) loss_scale_grow(s);
        return PS_OK;
    }
    s->skipped++;
    s->streak = 0;
    s->scale = (float)((double)s->scale * s->backoff);
    if (s->scale >= FLT_MIN) return PS_OK;
    return ps_err_set(PS_ERR_NUMERIC,
                      "the gradients stay infinite or NaN however small the loss scale, "
                      "%g now (a lower optimizer.lr or optimizer.clip_norm may help)",
                      (double)s->scale);
}
