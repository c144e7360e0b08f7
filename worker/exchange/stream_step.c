#include "stream_step.h"

#include <string.h>

ps_stream_step ps_stream_step_of(const ps_exchange_options *at, ps_device_stream *stream,
                                 ps_loss_scale *scale)
{
    return (ps_stream_step){.at = at, .stream = stream, .scale = scale};
}

ps_err ps_stream_step_queue(ps_stream_step *s, uint64_t step)
{
    const ps_device_stream_ops *ops = s->stream->ops;
    const ps_config *cfg = s->at->config;
    bool check = strcmp(cfg->exchange.nan, "allow") != 0;
    PS_TRY(ps_stream_step_learn(s)); // the optimizer's count of steps follows, too
    const ps_optimizer_step k = {.lr = ps_schedule_lr(s->at->schedule, step),
                                 .t = step + 1 - s->scale->skipped,
                                 .grad_scale = 1};
    PS_TRY(ops->wait_compute(s->stream));
    s->unknown = s->scale->on;
    if (s->scale->on)
        PS_TRY(ops->scaled_step(s->stream, &k, ps_loss_scale_inverse(s->scale),
                                cfg->optimizer.clip_norm));
    else
        PS_TRY(ops->step(s->stream, &k, check, cfg->optimizer.clip_norm));
    return ops->release_compute(s->stream);
}

ps_err ps_stream_step_learn(ps_stream_step *s)
{
    bool made;
    if (!s->unknown) return PS_OK;
    PS_TRY(s->stream->ops->scaled_step_made(s->stream, &made));
    s->unknown = false;
    return ps_loss_scale_update(s->scale, made);
}

ps_err ps_stream_step_refused(ps_stream_step *s, bool wait, uint64_t *t, int *tensor)
{
    *t = 0;
    return s->scale->on ? PS_OK : s->stream->ops->refused(s->stream, wait, t, tensor);
}
