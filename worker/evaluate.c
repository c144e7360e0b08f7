#include "evaluate.h"

/* A rank may take this many step timeouts longer than the fastest one for its slice.
 * Missing heartbeats show its death sooner. */
enum { SLOWEST_RANK = 10 };

static ps_err create_loader(ps_evaluator *e, const ps_evaluator_options *o)
{
    int64_t begin, n;
    ps_sampler_eval_slice(o->dataset->n, ps_session_world_size(o->session),
                          ps_session_rank(o->session), &begin, &n);
    if (n == 0) return PS_OK;
    ps_loader_options options = {.config = o->config,
                                 .dataset = o->dataset,
                                 .input = &o->spec->input,
                                 .begin = begin,
                                 .n = n,
                                 .max_batch = o->config->data.eval_batch};
    return ps_loader_create(&options, &e->loader);
}

ps_err ps_evaluator_init(ps_evaluator *e, const ps_evaluator_options *o)
{
    *e = (ps_evaluator){.session = o->session,
                        .member = ps_session_member(o->session),
                        .timeout_ms =
                            (uint64_t)o->config->net.step_timeout_ms * SLOWEST_RANK,
                        .n_samples = o->dataset->n};
    ps_program_options program = {.spec = o->spec,
                                  .max_batch = (int)o->config->data.eval_batch,
                                  .params = ps_session_params(o->session),
                                  .buffers = ps_session_buffers(o->session)};
    PS_TRY(ps_program_create(o->device, &program, &e->program));
    return create_loader(e, o);
}

void ps_evaluator_fini(ps_evaluator *e)
{
    ps_loader_destroy(&e->loader);
    ps_program_destroy(&e->program);
}

typedef struct sums {
    double loss, correct, samples, interrupted;
} sums;

static ps_err evaluate_slice(ps_evaluator *e, sums *s)
{
    if (!e->loader) return PS_OK;
    PS_TRY(ps_loader_epoch(e->loader, 0, 0));
    ps_pass pass = {.grad_scale = 1};
    while (!ps_session_told_to_end(e->session)) {
        ps_loaded *b;
        PS_TRY(ps_loader_next(e->loader, ps_deadline_in_ms(e->timeout_ms), &b));
        if (!b) return PS_OK;
        ps_batch batch = {
            .n = (int)b->n, .x = b->x, .labels = b->labels, .positions = b->positions};
        ps_pass_result result;
        ps_err err = ps_program_forward(e->program, &batch, &pass, &result);
        ps_loader_release(e->loader, b);
        PS_TRY(err);
        pass.same_weights = true; // as the first batch
        s->loss += result.loss_sum;
        s->correct += (double)result.correct;
        s->samples += (double)batch.n;
    }
    s->interrupted = 1;
    return PS_OK;
}

ps_err ps_evaluate(ps_evaluator *e, const char *name, ps_evaluation *out)
{
    sums s = {0};
    PS_TRY(evaluate_slice(e, &s));
    double values[4] = {s.loss, s.correct, s.samples, s.interrupted};
    if (e->member)
        PS_TRY(ps_member_reduce(e->member, name, values, 4,
                                ps_deadline_in_ms(e->timeout_ms)));
    double n = values[2] > 0 ? values[2] : 1;
    *out = (ps_evaluation){.loss = values[0] / n,
                           .accuracy = values[1] / n,
                           .samples = (int64_t)values[2],
                           .interrupted = values[3] > 0};
    return PS_OK;
}
