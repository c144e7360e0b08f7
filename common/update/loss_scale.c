#include "loss_scale.h"

#include <float.h>
#include <math.h>

static bool loss_scale_wanted(const ps_config *cfg)
{
    const ps_switch use = cfg->loss_scale.use;
    return use == PS_SWITCH_AUTO ? cfg->train.precision == PS_PRECISION_FP16
                                 : use == PS_SWITCH_ON;
}

/* Error feedback would carry an infinite gradient into every later step. */
static ps_err check_codec(const ps_config *cfg)
{
    const ps_codec codec = cfg->exchange.codec;
    if (!ps_codec_feeds_back(codec)) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "exchange.codec: %s keeps what it has not sent, which a gradient "
                      "that overflows would spoil for good: with loss scaling use none, "
                      "bf16, fp16 or int8",
                      ps_word_name(ps_codec_words, (int)codec));
}

static ps_err check_factors(const ps_config_loss_scale *c)
{
    if (c->growth <= 1)
        return ps_err_set(PS_ERR_CONFIG, "loss_scale.growth: %g; it has to be above 1",
                          c->growth);
    if (c->backoff <= 0 || c->backoff >= 1)
        return ps_err_set(PS_ERR_CONFIG,
                          "loss_scale.backoff: %g; it has to be above 0 and below 1",
                          c->backoff);
    if ((float)c->init >= FLT_MIN) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG, "loss_scale.init: %g is too small for a float32",
                      c->init);
}

ps_err ps_loss_scale_init(ps_loss_scale *s, const ps_config *cfg)
{
    *s = (ps_loss_scale){.scale = 1};
    if (!loss_scale_wanted(cfg)) return PS_OK;
    PS_TRY(check_factors(&cfg->loss_scale));
    PS_TRY(check_codec(cfg));
    *s = (ps_loss_scale){
        .on = true,
        .scale = (float)cfg->loss_scale.init,
        .growth = cfg->loss_scale.growth,
        .backoff = cfg->loss_scale.backoff,
        .interval = (uint64_t)cfg->loss_scale.interval,
    };
    return PS_OK;
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
