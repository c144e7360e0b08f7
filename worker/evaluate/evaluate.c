#include "evaluate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fault_point.h"
#include "loss_terms.h"
#include "mem.h"

enum { MATRIX_MAX = 128, CLASSES_MAX = 16384 };

/* A rank may take this many step timeouts longer than the fastest one for its slice.
 * Missing heartbeats show its death sooner. */
enum { SLOWEST_RANK = 10 };

static ps_err create_loader(ps_evaluator *e)
{
    const ps_evaluator_options *o = &e->o;
    if (e->n == 0) return PS_OK;
    ps_loader_options options = {.config = o->config,
                                 .dataset = o->dataset,
                                 .input = &o->spec->input,
                                 .begin = e->begin,
                                 .n = e->n,
                                 .max_batch = o->config->data.eval_batch};
    const ps_err err = ps_loader_create(&options, &e->loader);
    return err == PS_ERR_SHAPE ? ps_err_prefix(err, "data.test") : err;
}

ps_err ps_evaluator_share(ps_evaluator *e, const int64_t *shares)
{
    int64_t begin, n;
    const ps_session *s = e->o.session;
    ps_sampler_eval_slice(e->n_samples, shares, ps_session_world_size(s),
                          ps_session_rank(s), &begin, &n);
    if (begin == e->begin && n == e->n) return PS_OK;
    ps_loader_destroy(&e->loader);
    e->begin = begin;
    e->n = n;
    return create_loader(e);
}

enum { LOSS, WEIGHT, CORRECT, COUNTED, SAMPLES, INTERRUPTED, TOP5, SUMS };

/* What follows the sums in values: counts of classes, if there are classes. */
static ps_err init_counts(ps_evaluator *e, const ps_evaluator_options *o)
{
    const int64_t n = o->spec->n_outputs;
    const bool classes = o->dataset->labels != NULL && n <= CLASSES_MAX;
    if (classes) {
        const size_t outputs = (size_t)(o->config->data.eval_batch * n);
        PS_TRY(ps_confusion_init(&e->confusion, n, &o->dataset->names, n <= MATRIX_MAX));
        PS_TRY(ps_mem_zalloc(&e->outputs, outputs, sizeof *e->outputs, "the outputs"));
    }
    const size_t counts = SUMS + (size_t)ps_confusion_size(&e->confusion);
    return ps_mem_zalloc(&e->values, counts, sizeof *e->values, "the evaluation");
}

ps_err ps_evaluator_init(ps_evaluator *e, const ps_evaluator_options *o)
{
    *e = (ps_evaluator){.o = *o,
                        .member = ps_session_member(o->session),
                        .timeout_ms =
                            (uint64_t)o->config->net.step_timeout_ms * SLOWEST_RANK,
                        .n_samples = o->dataset->n};
    ps_program_options program = {.spec = o->spec,
                                  .max_batch = (int)o->config->data.eval_batch,
                                  .params = ps_session_params(o->session),
                                  .buffers = ps_session_buffers(o->session)};
    PS_TRY(ps_program_create(o->device, &program, &e->program));
    PS_TRY(init_counts(e, o));
    return ps_evaluator_share(e, NULL);
}

void ps_evaluator_fini(ps_evaluator *e)
{
    ps_loader_destroy(&e->loader);
    ps_program_destroy(&e->program);
    ps_confusion_fini(&e->confusion);
    free(e->outputs);
    free(e->values);
    *e = (ps_evaluator){0};
}

static ps_err evaluate_count_classes(ps_evaluator *e, const ps_batch *b)
{
    const int64_t n = e->o.spec->n_outputs;
    const bool all = PS_LOSS_OF_NUMBERS(e->o.spec->loss);
    if (e->confusion.n == 0) return PS_OK;
    PS_TRY(ps_program_outputs(e->program, e->outputs, (size_t)(b->n * n)));
    for (int i = 0; i < b->n; i++)
        if (all || b->labels[i] != e->o.spec->ignore_index)
            ps_confusion_add(&e->confusion, b->labels[i], e->outputs + i * n);
    return PS_OK;
}

static ps_err evaluate_batch(ps_evaluator *e, const ps_loaded *b, const ps_pass *pass)
{
    const ps_batch batch = {.n = (int)b->n,
                            .x = b->x,
                            .labels = b->labels,
                            .targets = b->targets,
                            .positions = b->positions};
    ps_pass_result result;
    PS_TRY(ps_program_forward(e->program, &batch, pass, &result));
    const ps_batch_weight w = ps_batch_weigh(e->o.spec, &batch);
    e->values[LOSS] += result.loss_sum;
    e->values[WEIGHT] += w.weight;
    e->values[CORRECT] += (double)result.correct;
    e->values[COUNTED] += (double)w.counted;
    e->values[SAMPLES] += (double)batch.n;
    return evaluate_count_classes(e, &batch);
}

static ps_err evaluate_slice(ps_evaluator *e)
{
    if (!e->loader) return PS_OK;
    PS_TRY(ps_loader_epoch(e->loader, 0, 0));
    ps_pass pass = {.grad_scale = 1};
    while (!ps_session_told_to_end(e->o.session)) {
        ps_loaded *b;
        PS_FAULT_POINT("evaluation.batch");
        PS_TRY(ps_loader_next(e->loader, ps_deadline_in_ms(e->timeout_ms), &b));
        if (!b) return PS_OK;
        ps_err err = evaluate_batch(e, b, &pass);
        ps_loader_release(e->loader, b);
        PS_TRY(err);
        pass.same_weights = true; // as the first batch
    }
    e->values[INTERRUPTED] = 1;
    return PS_OK;
}

/* Adds up the sums and the counts of all ranks. */
static ps_err evaluate_reduce(ps_evaluator *e, const char *name)
{
    ps_confusion *c = &e->confusion;
    const int64_t n = ps_confusion_size(c);
    e->values[TOP5] = (double)c->top5;
    for (int64_t i = 0; i < n; i++)
        e->values[SUMS + i] = (double)c->counts[i];
    if (e->member)
        PS_TRY(ps_member_reduce(e->member, name, e->values, SUMS + (size_t)n,
                                ps_deadline_in_ms(e->timeout_ms)));
    for (int64_t i = 0; i < n; i++)
        c->counts[i] = (int64_t)e->values[SUMS + i];
    c->samples = (int64_t)e->values[COUNTED];
    c->top1 = (int64_t)e->values[CORRECT];
    c->top5 = (int64_t)e->values[TOP5];
    return PS_OK;
}

ps_err ps_evaluate(ps_evaluator *e, const char *name, ps_evaluation *out)
{
    double *v = e->values;
    memset(v, 0, SUMS * sizeof *v);
    if (e->confusion.n > 0) ps_confusion_clear(&e->confusion);
    PS_TRY(evaluate_slice(e));
    PS_FAULT_POINT("evaluation.made");
    PS_TRY(evaluate_reduce(e, name));
    const bool many = ps_confusion_has_top5(&e->confusion) && v[COUNTED] > 0;
    *out = (ps_evaluation){.loss = v[WEIGHT] > 0 ? v[LOSS] / v[WEIGHT] : NAN,
                           .accuracy = v[COUNTED] > 0 ? v[CORRECT] / v[COUNTED] : NAN,
                           .top5 = many ? v[TOP5] / v[COUNTED] : NAN,
                           .samples = (int64_t)v[SAMPLES],
                           .interrupted = v[INTERRUPTED] > 0};
    return PS_OK;
}
