#include "evaluate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "confusion_picture.h"
#include "fault_point.h"
#include "loss_terms.h"
#include "mem.h"
#include "plateau.h"
#include "run_dir.h"

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
                                 .columns = o->spec->n_columns,
                                 .bytes = e->takes_bytes,
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

// In values; the figures follow.
enum { LOSS, WEIGHT, CORRECT, COUNTED, SAMPLES, INTERRUPTED, SUMS };

/* Whether there will be the figures by which the best weights are chosen, and the rate is
 * cut. Of more classes than have figures the device counts right answers, too. */
static ps_err evaluator_check_wanted(const ps_evaluator *e)
{
    const ps_config *cfg = e->o.config;
    const ps_best best = cfg->checkpoint.best;
    const bool classes = e->o.dataset->labels || e->figures.truth == PS_TRUTH_YES;
    if (e->n_samples == 0) return PS_OK;
    if (ps_plateau_on(cfg) && cfg->schedule.metric == PS_PLATEAU_ACCURACY && !classes)
        return ps_err_set(PS_ERR_CONFIG,
                          "schedule.metric: accuracy is of classes, and the test set has "
                          "numbers: take loss");
    if (best == PS_BEST_ACCURACY && !classes)
        return ps_err_set(PS_ERR_CONFIG,
                          "checkpoint.best: accuracy is of classes, and the test set has "
                          "numbers: take loss");
    if (best == PS_BEST_AUC && !e->figures.scores)
        return ps_err_set(
            PS_ERR_CONFIG,
            "checkpoint.best: auc is of two classes, and of at most %d test "
            "samples: take loss",
            PS_AUC_SAMPLES_MAX);
    if (best == PS_BEST_AUC && !ps_figures_have_both_classes(&e->figures))
        return ps_err_set(PS_ERR_CONFIG,
                          "checkpoint.best: auc compares two classes, and all samples of "
                          "the test set are of one: take loss, or another data.test");
    return PS_OK;
}

ps_err ps_evaluator_init(ps_evaluator *e, const ps_evaluator_options *o)
{
    *e = (ps_evaluator){.o = *o,
                        .member = ps_session_member(o->session),
                        .timeout_ms =
                            (uint64_t)o->config->net.step_timeout_ms * SLOWEST_RANK,
                        .n_samples = o->dataset->n,
                        .takes_bytes = o->device->ops->takes_bytes};
    PS_TRY(ps_evaluator_share(e, NULL));
    ps_program_options program = {.spec = o->spec,
                                  .max_batch = (int)o->config->data.eval_batch,
                                  .params = ps_session_params(o->session),
                                  .buffers = ps_session_buffers(o->session)};
    if (e->loader)
        program.byte_values = ps_loader_byte_values(e->loader, &program.channels);
    e->takes_bytes = program.byte_values != NULL; // of other shares, too
    PS_TRY(ps_program_create(o->device, &program, &e->program));
    PS_TRY(ps_batch_rows_init(&e->rows, o->rows, NULL, o->spec,
                              o->config->data.eval_batch, false));
    PS_TRY(ps_figures_init(&e->figures, o->spec, o->dataset));
    PS_TRY(evaluator_check_wanted(e));
    PS_TRY(PS_NEW(&e->outputs, (size_t)(o->config->data.eval_batch * o->spec->n_outputs),
                  "the outputs"));
    return PS_NEW(&e->values, SUMS + (size_t)ps_figures_size(&e->figures),
                  "the evaluation");
}

void ps_evaluator_fini(ps_evaluator *e)
{
    ps_loader_destroy(&e->loader);
    ps_program_destroy(&e->program);
    ps_batch_rows_fini(&e->rows);
    ps_figures_fini(&e->figures);
    free(e->outputs);
    free(e->values);
    *e = (ps_evaluator){0};
}

static ps_err evaluate_count(ps_evaluator *e, const ps_batch *b)
{
    const int64_t n = e->o.spec->n_outputs;
    if (e->figures.truth == PS_TRUTH_NONE) return PS_OK;
    PS_TRY(ps_program_outputs(e->program, e->outputs, (size_t)(b->n * n)));
    for (int i = 0; i < b->n; i++)
        ps_figures_add(&e->figures, b->positions[i], e->outputs + i * n);
    return PS_OK;
}

static ps_err evaluate_batch(ps_evaluator *e, const ps_loaded *b, const ps_pass *pass)
{
    ps_batch batch = ps_batch_of(b);
    ps_pass_result result;
    PS_TRY(ps_batch_rows_pull(&e->rows, b->ids, &batch));
    PS_TRY(ps_program_forward(e->program, &batch, pass, &result));
    const ps_batch_weight w = ps_batch_weigh(e->o.spec, &batch);
    e->values[LOSS] += result.loss_sum;
    e->values[WEIGHT] += w.weight;
    e->values[CORRECT] += (double)result.correct;
    e->values[COUNTED] += (double)w.counted;
    e->values[SAMPLES] += (double)batch.n;
    return evaluate_count(e, &batch);
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

/* Adds up what all ranks have counted, as many numbers at once as the coordinator takes.
 */
static ps_err evaluate_reduce(ps_evaluator *e, const char *name)
{
    const size_t n = SUMS + (size_t)ps_figures_size(&e->figures);
    char part[64];
    ps_figures_save(&e->figures, e->values + SUMS);
    for (size_t at = 0, some; at < n && e->member; at += some) {
        some = n - at < PS_CONTROL_GATHER_MAX ? n - at : PS_CONTROL_GATHER_MAX;
        snprintf(part, sizeof part, "%s/%zu", name, at);
        PS_TRY(ps_member_reduce(e->member, at > 0 ? part : name, e->values + at, some,
                                ps_deadline_in_ms(e->timeout_ms)));
    }
    ps_figures_load(&e->figures, e->values + SUMS);
    return PS_OK;
}

ps_err ps_evaluate(ps_evaluator *e, const char *name, ps_evaluation *out)
{
    double *v = e->values;
    memset(v, 0, SUMS * sizeof *v);
    ps_figures_clear(&e->figures);
    PS_TRY(evaluate_slice(e));
    PS_FAULT_POINT("evaluation.made");
    PS_TRY(evaluate_reduce(e, name));
    *out = (ps_evaluation){.loss = v[WEIGHT] > 0 ? v[LOSS] / v[WEIGHT] : NAN,
                           .measures = ps_figures_measure(&e->figures),
                           .samples = (int64_t)v[SAMPLES],
                           .interrupted = v[INTERRUPTED] > 0};
    e->figures.loss = out->loss;
    e->whole = !out->interrupted;
    // The device counts them however many classes there are.
    if (v[COUNTED] > 0) out->measures.accuracy = v[CORRECT] / v[COUNTED];
    return PS_OK;
}

static ps_err evaluation_write_one(const ps_figures *f, const ps_run_dir *dir,
                                   const char *name,
                                   void (*write)(const ps_figures *f, FILE *out))
{
    ps_out_file file = {0};
    ps_err err = ps_out_file_open(&file, dir, name, true);
    if (err == PS_OK) {
        write(f, file.file);
        err = ps_out_file_keep(&file);
    }
    return err;
}

static void evaluation_write_picture(const ps_figures *f, FILE *out)
{
    ps_confusion_write_svg(&f->confusion, out);
}

ps_err ps_evaluation_write(const ps_evaluator *e, const ps_run_dir *dir)
{
    const ps_figures *f = &e->figures;
    if (ps_figures_measure(f).samples == 0) return PS_OK;
    PS_TRY(evaluation_write_one(f, dir, "evaluation.json", ps_figures_write_json));
    if (!f->confusion.has_matrix) return PS_OK;
    return evaluation_write_one(f, dir, "evaluation.svg", evaluation_write_picture);
}
