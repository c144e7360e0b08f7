#include "stream_step.h"

ps_stream_step ps_stream_step_of(ps_step_rule *rule, ps_device_stream *stream)
{
    return (ps_stream_step){.rule = rule, .stream = stream};
}

ps_err ps_stream_step_lamb(const ps_device_stream *stream)
{
    if (stream->ops->lamb_update) return PS_OK;
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "optimizer.name: on GPUs lamb needs exchange.name ps, nccl or "
                      "none");
}

ps_err ps_stream_step_queue(ps_stream_step *s, uint64_t step)
{
    const ps_device_stream_ops *ops = s->stream->ops;
    ps_step_rule *rule = s->rule;
    PS_TRY(ps_stream_step_learn(s)); // the optimizer's count of steps follows, too
    const ps_optimizer_step now = ps_step_rule_optimizer_step(rule, step, 1);
    PS_TRY(ops->wait_compute(s->stream));
    s->unknown = rule->scale.on;
    if (rule->scale.on)
        PS_TRY(ops->scaled_step(s->stream, &now, ps_loss_scale_inverse(&rule->scale),
                                rule->clip_norm));
    else
        PS_TRY(ops->step(s->stream, &now, rule->refuses, rule->clip_norm));
    return ops->release_compute(s->stream);
}

ps_err ps_stream_step_learn(ps_stream_step *s)
{
    bool made;
    if (!s->unknown) return PS_OK;
    PS_TRY(s->stream->ops->scaled_step_made(s->stream, &made));
    s->unknown = false;
    return ps_loss_scale_update(&s->rule->scale, made);
}

ps_err ps_stream_step_refused(ps_stream_step *s, bool wait, uint64_t *t, int *tensor)
{
    *t = 0;
    if (s->rule->scale.on) return PS_OK;
    PS_TRY(s->stream->ops->refused(s->stream, wait, t, tensor));
    if (*t > 0) *t += s->rule->scale.skipped; // which the optimizer does not count
    return PS_OK;
}
