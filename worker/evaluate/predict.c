#include "predict.h"

#include <stdlib.h>

#include "clock.h"
#include "new_samples.h"
#include "predictions.h"

typedef struct predictor {
    ps_loaded_model model;
    ps_new_samples samples;
    ps_run_dir dir;
    ps_predictions files;
} predictor;

static ps_err predict_open_files(predictor *p, const ps_cli *cli)
{
    const ps_predictions_options o = {.spec = &p->model.spec,
                                      .set = &p->samples.set,
                                      .answered = p->samples.answered,
                                      .named = p->samples.named,
                                      .dir = &p->dir,
                                      .overwrite = cli->overwrite,
                                      .share = cli->share,
                                      .shares = cli->shares};
    PS_TRY(ps_run_dir_init(&p->dir, cli->out, p->model.config->job.name));
    return ps_predictions_open(&p->files, &o);
}

static ps_err predict_take(void *ctx, float *rows, int64_t n)
{
    predictor *p = ctx;
    return ps_predictions_add(&p->files, rows, n);
}

static ps_err predict_run(predictor *p, const ps_cli *cli, const ps_config *config,
                          int threads)
{
    PS_TRY(ps_loaded_model_open(&p->model, cli, config, threads));
    PS_TRY(ps_new_samples_read(&p->samples, &p->model, cli->predict));
    ps_dataset_log(&p->samples.set, p->samples.what);
    PS_TRY(predict_open_files(p, cli));
    const uint64_t begun_ns = ps_clock_ns();
    ps_predicting predicting = {.set = &p->samples.set,
                                .first = p->files.first,
                                .n = p->files.n,
                                .answered = p->samples.answered,
                                .what = p->samples.what,
                                .mend = p->samples.mend,
                                .take = predict_take,
                                .ctx = p};
    ps_err err = ps_loaded_model_predict(&p->model, &predicting);
    err = ps_new_samples_blame(&p->samples, &p->model, err);
    PS_TRY(ps_new_samples_name(&p->samples, err));
    p->files.loss = predicting.loss;
    p->files.weight = predicting.weight;
    p->files.seconds = ps_clock_seconds_since(begun_ns);
    return ps_predictions_keep(&p->files);
}

ps_err ps_predict(const ps_cli *cli, const ps_config *config, int threads)
{
    predictor *p;
    PS_TRY(PS_NEW(&p, 1, "predictions"));
    const ps_err err = predict_run(p, cli, config, threads);
    const ps_err_saved end = ps_err_save(err);
    ps_predictions_drop(&p->files);
    if (err != PS_OK && p->dir.path[0]) ps_run_dir_fini(&p->dir);
    ps_new_samples_fini(&p->samples, &p->model);
    ps_loaded_model_fini(&p->model);
    free(p);
    return ps_err_restore(&end);
}

ps_err ps_predict_join(const ps_cli *cli, const ps_config *config)
{
    ps_model_spec spec;
    ps_run_dir dir;
    PS_TRY(ps_run_dir_init(&dir, cli->out, config->job.name));
    PS_TRY(ps_model_spec_init(&spec, config));
    const ps_err err = ps_predictions_join(&dir, cli->join_shares, &spec, cli->overwrite);
    const ps_err_saved end = ps_err_save(err);
    ps_model_spec_fini(&spec);
    return ps_err_restore(&end);
}
