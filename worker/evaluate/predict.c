#include "predict.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "dataset.h"
#include "device.h"
#include "interrupt.h"
#include "loader.h"
#include "loss_terms.h"
#include "mem.h"
#include "model_file.h"
#include "npy.h"
#include "predictions.h"

enum { LOADER_MS = 60000 };

typedef struct predictor {
    const ps_config *config;
    const ps_cli *cli;
    ps_run_dir dir;
    ps_model_spec spec;
    ps_dataset set;
    ps_preprocessing *state; // of tables
    bool tested;             // the samples are the test set's
    ps_shared_mem params;
    void *buffers;
    ps_device *device;
    ps_program *program;
    ps_loader *loader;
    float *rows; // (data.eval_batch, outputs)
    ps_predictions files;
} predictor;

/* --- what goes in ------------------------------------------------------------------ */

static bool predict_is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static ps_err predict_read_array(const char *path, bool stream, ps_dataset *set)
{
    ps_source source = {0};
    ps_err err = ps_source_init(&source, path);
    if (err == PS_OK)
        err =
            stream ? ps_npy_open_values(&source, set) : ps_npy_read_values(&source, set);
    ps_source_fini(&source);
    if (err == PS_OK && set->n == 0)
        err = ps_err_set(PS_ERR_FORMAT, "%s: holds no sample", path);
    if (err == PS_OK)
        err = ps_mem_zalloc(&set->labels, (size_t)set->n, sizeof *set->labels, "labels");
    if (err == PS_ERR_FORMAT && !strstr(path, ".npy"))
        ps_err_prefix(err, "--predict takes an .npy or .csv file, a folder of pictures, "
                           "or test");
    return err;
}

static ps_err predict_read_file(predictor *p, const char *path, ps_dataset *set)
{
    const ps_wanted any = {0};
    PS_TRY(strstr(path, ".csv") || strstr(path, ".tsv")
               ? ps_dataset_of_table(p->config, &p->state, path, set)
               : predict_read_array(path, p->config->data.stream, set));
    const ps_err err = ps_dataset_check(set, 0, &any);
    return err == PS_OK ? PS_OK : ps_err_prefix(err, "%s", path);
}

static ps_err predict_read_samples(predictor *p)
{
    const char *what = p->cli->predict;
    p->tested = strcmp(what, "test") == 0;
    if (!p->tested) {
        PS_TRY(predict_is_folder(what)
                   ? ps_dataset_of_folder(p->config, what, &p->spec.input, &p->set)
                   : predict_read_file(p, what, &p->set));
        return ps_dataset_name_classes(p->config, &p->set);
    }
    PS_TRY(ps_dataset_load(p->config, PS_SPLIT_TEST, &p->spec.input, p->spec.n_outputs,
                           &p->state, &p->set));
    if (p->set.n > 0) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "--predict test: there is no test set (data.test); name a file");
}

static ps_err predict_read_weights(predictor *p)
{
    const ps_tensor_table *table = &p->spec.table;
    const char *path = p->config->train.init;
    if (path[0] == '\0')
        return ps_err_set(PS_ERR_ARG, "--predict needs weights: --init FILE");
    PS_TRY(ps_shared_mem_init_private(&p->params, table->arena_count * sizeof(float),
                                      "the weights"));
    PS_TRY(ps_mem_zalloc_aligned(&p->buffers, table->buffer_bytes, "the buffers"));
    return ps_model_file_load(path, table, true, p->params.base, p->buffers);
}

/* --- in between -------------------------------------------------------------------- */

/* Of samples that do not fit. The model is trained, and stays as it is. */
static const char *predict_mend(const predictor *p)
{
    const int64_t count = ps_dims_count(&p->set.dims);
    const int64_t wanted = ps_dims_count(&p->spec.input);
    const bool csv = strstr(p->cli->predict, ".csv") != NULL;
    if (csv && count == wanted + 1)
        return PS_LOSS_OF_NUMBERS(p->spec.loss)
                   ? "leave out the last column, which is to be predicted"
                   : "leave out the class column";
    if (!csv && !p->tested && p->set.n > 1 && p->set.n * count == wanted)
        return "this is one sample: save x[None]";
    return "give the samples the shape of those in training";
}

static ps_err open_program(predictor *p, int threads)
{
    const ps_config_train *t = &p->config->train;
    const int64_t batch = p->config->data.eval_batch;
    ps_device_options device = ps_device_options_of(t, p->cli->local_rank, threads);
    device.own_waits = p->cli->own_waits;
    PS_TRY(ps_device_open(t->device.kind, &device, &p->device));
    const ps_program_options program = {.spec = &p->spec,
                                        .max_batch = (int)batch,
                                        .params = p->params.base,
                                        .buffers = p->buffers};
    PS_TRY(ps_program_create(p->device, &program, &p->program));
    PS_TRY(ps_mem_zalloc_aligned(
        &p->rows, (size_t)(batch * p->spec.n_outputs) * sizeof(float), "the outputs"));
    const ps_loader_options loader = {.config = p->config,
                                      .dataset = &p->set,
                                      .input = &p->spec.input,
                                      .begin = p->files.first,
                                      .n = p->files.n,
                                      .max_batch = batch,
                                      .mend = predict_mend(p)};
    const ps_err err = ps_loader_create(&loader, &p->loader);
    return err == PS_OK ? PS_OK : ps_err_prefix(err, "--predict %s", p->cli->predict);
}

static ps_err predict_batch(predictor *p, const ps_loaded *b)
{
    ps_predictions *f = &p->files;
    const ps_pass pass = {.grad_scale = 1, .same_weights = f->done > 0};
    const ps_batch batch = {.n = (int)b->n,
                            .x = b->x,
                            .labels = b->labels,
                            .targets = b->targets,
                            .positions = b->positions};
    ps_pass_result result = {0};
    PS_TRY(ps_program_forward(p->program, &batch, &pass, p->tested ? &result : NULL));
    f->loss += result.loss_sum;
    if (p->tested) f->weight += ps_batch_weigh(&p->spec, &batch).weight;
    PS_TRY(ps_program_outputs(p->program, p->rows, (size_t)(b->n * p->spec.n_outputs)));
    ps_preprocessing_unscale(p->state, p->rows, b->n, p->spec.n_outputs);
    return ps_predictions_add(f, p->rows, b->n, b->labels);
}

static ps_err predict_all(predictor *p)
{
    const uint64_t begun_ns = ps_clock_ns();
    PS_TRY(ps_loader_epoch(p->loader, 0, 0));
    for (;;) {
        ps_loaded *b;
        PS_TRY(ps_interrupt_check());
        PS_TRY(ps_loader_next(p->loader, ps_deadline_in_ms(LOADER_MS), &b));
        if (!b) break;
        ps_err err = predict_batch(p, b);
        ps_loader_release(p->loader, b);
        PS_TRY(err);
    }
    p->files.seconds = ps_clock_seconds_since(begun_ns);
    return ps_predictions_keep(&p->files);
}

static ps_err predict_open_files(predictor *p)
{
    const ps_predictions_options o = {.spec = &p->spec,
                                      .set = &p->set,
                                      .tested = p->tested,
                                      .dir = &p->dir,
                                      .overwrite = p->cli->overwrite,
                                      .share = p->cli->share,
                                      .shares = p->cli->shares};
    PS_TRY(ps_run_dir_init(&p->dir, p->cli->out, p->config->job.name));
    return ps_predictions_open(&p->files, &o);
}

static ps_err predict_run(predictor *p, int threads)
{
    PS_TRY(ps_model_spec_init(&p->spec, p->config));
    PS_TRY(predict_read_weights(p));
    PS_TRY(ps_preprocessing_load(p->config->train.init, &p->state));
    PS_TRY(predict_read_samples(p));
    ps_dataset_log(&p->set, p->cli->predict);
    PS_TRY(predict_open_files(p));
    PS_TRY(open_program(p, threads));
    return predict_all(p);
}

ps_err ps_predict(const ps_cli *cli, const ps_config *config, int threads)
{
    predictor *p;
    PS_TRY(ps_mem_zalloc(&p, 1, sizeof *p, "predictions"));
    p->config = config;
    p->cli = cli;
    const ps_err err = predict_run(p, threads);
    const ps_err_saved end = ps_err_save(err);
    ps_predictions_drop(&p->files);
    ps_loader_destroy(&p->loader);
    ps_program_destroy(&p->program);
    ps_device_close(&p->device);
    ps_dataset_fini(&p->set);
    ps_preprocessing_destroy(&p->state);
    ps_shared_mem_fini(&p->params);
    ps_model_spec_fini(&p->spec);
    free(p->buffers);
    free(p->rows);
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
