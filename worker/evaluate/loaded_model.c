#include "loaded_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "dataset.h"
#include "fault_point.h"
#include "interrupt.h"
#include "loss_terms.h"
#include "model_file.h"
#include "run_config.h"

enum { LOADER_MS = 60000 };

static ps_err loaded_model_read(ps_loaded_model *m, const char *weights)
{
    const ps_tensor_table *table = &m->spec.table;
    if (m->spec.n_rows > 0) PS_TRY(ps_row_values_open(&m->tables, weights, &m->spec));
    PS_TRY(ps_shared_mem_init_private(&m->params, table->arena_count * sizeof(float),
                                      "the weights"));
    PS_TRY(ps_mem_zalloc_aligned(&m->buffers, table->buffer_bytes, "the buffers"));
    PS_TRY(ps_model_file_load(weights, table, true, m->params.base, m->buffers));
    PS_TRY(ps_preprocessing_load(weights, &m->state));
    PS_TRY(ps_dataset_trained_type(m->config, weights, &m->samples));
    return ps_dataset_check_categories(m->config, m->state);
}

ps_err ps_loaded_model_open(ps_loaded_model *m, const ps_cli *cli,
                            const ps_config *config, int threads)
{
    *m = (ps_loaded_model){.config = config};
    const char *weights = config->train.init;
    const int64_t batch = config->data.eval_batch;
    if (weights[0] == '\0')
        return ps_err_set(PS_ERR_ARG,
                          "--predict needs weights: --init FILE, or name a run's folder "
                          "instead of the configuration");
    PS_TRY(ps_model_spec_init(&m->spec, config));
    PS_TRY(loaded_model_read(m, weights));
    PS_TRY(ps_run_config_classes(config, &m->names));
    ps_device_options device = ps_device_options_of(config, cli->local_rank, threads);
    device.own_waits = cli->own_waits;
    PS_TRY(ps_device_open(config->train.device.kind, &device, &m->device));
    const ps_program_options program = {.spec = &m->spec,
                                        .max_batch = (int)batch,
                                        .params = m->params.base,
                                        .buffers = m->buffers};
    PS_TRY(ps_program_create(m->device, &program, &m->program));
    PS_TRY(ps_batch_rows_init(&m->batch_rows, NULL, &m->tables, &m->spec, batch, false));
    return ps_mem_zalloc_aligned(
        &m->rows, (size_t)(batch * m->spec.n_outputs) * sizeof(float), "the outputs");
}

void ps_loaded_model_fini(ps_loaded_model *m)
{
    ps_program_destroy(&m->program);
    ps_device_close(&m->device);
    ps_shared_mem_fini(&m->params);
    ps_model_spec_fini(&m->spec);
    ps_class_names_fini(&m->names);
    ps_preprocessing_destroy(&m->state);
    ps_batch_rows_fini(&m->batch_rows);
    ps_row_values_fini(&m->tables);
    free(m->buffers);
    free(m->rows);
    *m = (ps_loaded_model){0};
}

ps_dims ps_loaded_model_shape(const ps_loaded_model *m)
{
    const ps_dims *in = &m->spec.input;
    return m->spec.sequences ? (ps_dims){2, {in->d[0], in->d[2]}} : *in;
}

const char *ps_loaded_model_takes(const ps_loaded_model *m, char out[PS_TAKES_TEXT])
{
    enum { END = sizeof ", ..." };
    const ps_preprocessing *p = m->state;
    const ps_dims shape = ps_loaded_model_shape(m);
    char text[PS_DIMS_TEXT];
    int at = 0;
    if (m->spec.n_columns > 0) {
        snprintf(
            out, PS_TAKES_TEXT, "%s",
            "clicks: 13 counts and 26 ids (hexadecimal digits; in files with tabs "
            "between them, with or without a label before them; any may be missing)");
        return out;
    }
    if (!p || !p->named) {
        snprintf(out, PS_TAKES_TEXT, "%s %s",
                 p ? "a table with as many numbers in a line as"
                 : m->config->data.kind == PS_DATA_IMAGE_FOLDER ? "pictures of"
                                                                : "samples of the shape",
                 ps_dims_text(&shape, text));
        return out;
    }
    at = snprintf(out, PS_TAKES_TEXT, "a table with the columns");
    for (int64_t i = 0; i < p->n_columns; i++) {
        const char *name = p->columns[i].name, *between = i > 0 ? ", " : " ";
        if (at + strlen(name) + END + 2 > PS_TAKES_TEXT) {
            snprintf(out + at, (size_t)(PS_TAKES_TEXT - at), ", ...");
            break;
        }
        at += snprintf(out + at, (size_t)(PS_TAKES_TEXT - at), "%s%s", between, name);
    }
    return out;
}

static ps_err loaded_model_batch(ps_loaded_model *m, ps_predicting *p, const ps_loaded *b,
                                 bool same_weights)
{
    const ps_pass pass = {.grad_scale = 1, .same_weights = same_weights};
    ps_batch batch = ps_batch_of(b);
    ps_pass_result result = {0};
    PS_TRY(ps_batch_rows_pull(&m->batch_rows, b->ids, &batch));
    PS_TRY(ps_program_forward(m->program, &batch, &pass, p->answered ? &result : NULL));
    p->loss += result.loss_sum;
    if (p->answered) p->weight += ps_batch_weigh(&m->spec, &batch).weight;
    PS_TRY(ps_program_outputs(m->program, m->rows, (size_t)(b->n * m->spec.n_outputs)));
    return p->take(p->ctx, m->rows, b->n);
}

static ps_err loaded_model_batches(ps_loaded_model *m, ps_predicting *p, ps_loader *l)
{
    PS_TRY(ps_loader_epoch(l, 0, 0));
    for (bool first = true;; first = false) {
        ps_loaded *b;
        PS_TRY(ps_interrupt_check());
        PS_FAULT_POINT("prediction.batch");
        PS_TRY(ps_loader_next(l, ps_deadline_in_ms(LOADER_MS), &b));
        if (!b) return PS_OK;
        const ps_err err = loaded_model_batch(m, p, b, !first);
        ps_loader_release(l, b);
        PS_TRY(err);
    }
}

ps_err ps_loaded_model_predict(ps_loaded_model *m, ps_predicting *p)
{
    const ps_loader_options options = {.config = m->config,
                                       .dataset = p->set,
                                       .input = &m->spec.input,
                                       .begin = p->first,
                                       .n = p->n,
                                       .max_batch = m->config->data.eval_batch,
                                       .columns = m->spec.n_columns,
                                       .mend = p->mend};
    ps_loader *loader;
    ps_err err = ps_loader_create(&options, &loader);
    if (err != PS_OK) return ps_err_prefix(err, "%s", p->what);
    err = loaded_model_batches(m, p, loader);
    const ps_err_saved end = ps_err_save(err);
    ps_loader_destroy(&loader);
    return ps_err_restore(&end);
}
