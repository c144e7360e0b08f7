#include "predict.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "confusion.h"
#include "dataset.h"
#include "device.h"
#include "interrupt.h"
#include "loader.h"
#include "log.h"
#include "loss_terms.h"
#include "mem.h"
#include "model_file.h"
#include "npy.h"
#include "out_file.h"

enum { NPY_HEADER = 128, LOADER_MS = 60000 };

typedef struct predictor {
    const ps_config *config;
    const ps_cli *cli;
    ps_model_spec spec;
    ps_dataset set;
    bool tested;         // the samples are the test set's
    bool labelled;       // and they have classes
    double loss, weight; // of the test set
    ps_shared_mem params;
    void *buffers;
    ps_device *device;
    ps_program *program;
    ps_loader *loader;
    float *rows;                     // (data.eval_batch, outputs)
    ps_out_file npy, csv, json, svg; // json, svg: of classes, where they are known
    int64_t done;
    ps_confusion confusion;
} predictor;

/* --- what goes in ------------------------------------------------------------------ */

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

static ps_err read_file(const char *path, bool stream, ps_dataset *set)
{
    const ps_wanted any = {0};
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
    if (err == PS_OK) err = ps_dataset_check(set, 0, &any);
    return err;
}

static ps_err read_samples(predictor *p)
{
    p->tested = strcmp(p->cli->predict, "test") == 0;
    if (!p->tested && is_folder(p->cli->predict))
        return ps_dataset_of_folder(p->config, p->cli->predict, &p->spec.input, &p->set);
    if (!p->tested) return read_file(p->cli->predict, p->config->data.stream, &p->set);
    PS_TRY(ps_dataset_load(p->config, PS_SPLIT_TEST, &p->spec.input, p->spec.n_outputs,
                           &p->set));
    p->labelled = p->set.labels != NULL;
    if (p->set.n > 0) return PS_OK;
    return ps_err_set(PS_ERR_CONFIG,
                      "--predict test: there is no test set (data.test); name a file");
}

static ps_err read_weights(predictor *p)
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

/* --- what comes out ---------------------------------------------------------------- */

/* Version 1.0 of the format, padded so that the values begin at a multiple of 64. */
static void write_npy_header(FILE *file, int64_t rows, int64_t columns)
{
    char header[NPY_HEADER];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10); // 0x76: the 118 bytes that follow
    const int n = snprintf(header + 10, sizeof header - 10,
                           "{'descr': '<f4', 'fortran_order': False, 'shape': (%" PRId64
                           ", %" PRId64 "), }",
                           rows, columns);
    header[10 + n] = ' '; // in place of the string's end
    header[NPY_HEADER - 1] = '\n';
    fwrite(header, 1, sizeof header, file);
}

static bool gives_probabilities(const predictor *p)
{
    return !PS_LOSS_OF_NUMBERS(p->spec.loss) || p->spec.loss == PS_LOSS_BCE_WITH_LOGITS;
}

/* Whether a sample's prediction is one class; else it is all outputs. */
static bool gives_class(const predictor *p)
{
    if (!PS_LOSS_OF_NUMBERS(p->spec.loss) || p->labelled) return true;
    return p->spec.loss == PS_LOSS_MSE && p->spec.n_outputs > 1 && !p->tested;
}

static void write_csv_header(const predictor *p)
{
    const char *what = gives_probabilities(p) ? "probability" : "output";
    FILE *file = p->csv.file;
    fputs("index", file);
    if (gives_class(p)) fprintf(file, ",class,%s", what);
    for (int64_t i = 0; i < p->spec.n_outputs && !gives_class(p); i++)
        fprintf(file, ",%s_%" PRId64, what, i);
    fputs(p->set.files ? ",file\n" : "\n", file);
}

static ps_err open_outputs(predictor *p)
{
    ps_run_dir dir;
    PS_TRY(ps_run_dir_init(&dir, p->cli->out, p->config->job.name));
    PS_TRY(ps_out_file_open(&p->npy, &dir, "predictions.npy", p->cli->overwrite));
    PS_TRY(ps_out_file_open(&p->csv, &dir, "predictions.csv", p->cli->overwrite));
    if (p->labelled) {
        PS_TRY(ps_out_file_open(&p->json, &dir, "confusion.json", p->cli->overwrite));
        PS_TRY(ps_out_file_open(&p->svg, &dir, "confusion.svg", p->cli->overwrite));
        PS_TRY(ps_confusion_init(&p->confusion, p->spec.n_outputs, true));
    }
    write_npy_header(p->npy.file, p->set.n, p->spec.n_outputs);
    write_csv_header(p);
    return PS_OK;
}

static int64_t largest(const float *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* The softmax of cross_entropy's outputs; nll's outputs are its logarithm already. */
static void make_softmax(const predictor *p, float *row)
{
    const int64_t n = p->spec.n_outputs;
    const bool logits = p->spec.loss == PS_LOSS_CROSS_ENTROPY;
    const float most = logits ? row[largest(row, n)] : 0;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += row[i] = expf(row[i] - most);
    for (int64_t i = 0; logits && i < n; i++)
        row[i] = (float)(row[i] / sum);
}

static void make_probabilities(const predictor *p, float *row)
{
    if (!PS_LOSS_OF_NUMBERS(p->spec.loss)) make_softmax(p, row);
    if (p->spec.loss != PS_LOSS_BCE_WITH_LOGITS) return;
    for (int64_t i = 0; i < p->spec.n_outputs; i++)
        row[i] = ps_sigmoid(row[i]);
}

/* In double quotes, where a double quote is written twice (RFC 4180). */
static void write_csv_text(FILE *file, const char *text)
{
    fputs(",\"", file);
    for (; *text != '\0'; text++) {
        if (*text == '"') fputc('"', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

static void write_csv_row(const predictor *p, int64_t index, const float *row)
{
    const int64_t n = p->spec.n_outputs, class = largest(row, n);
    FILE *file = p->csv.file;
    fprintf(file, "%" PRId64, index);
    if (gives_class(p)) fprintf(file, ",%" PRId64 ",%.9g", class, (double)row[class]);
    for (int64_t i = 0; i < n && !gives_class(p); i++)
        fprintf(file, ",%.9g", (double)row[i]);
    if (p->set.files) write_csv_text(file, p->set.files[index]);
    fputc('\n', file);
}

/* A label that may be ignored is not counted. */
static void count_class(predictor *p, int32_t label, const float *row)
{
    const bool all = PS_LOSS_OF_NUMBERS(p->spec.loss);
    if (p->labelled && (all || label != p->spec.ignore_index))
        ps_confusion_add(&p->confusion, label, row);
}

static ps_err write_rows(predictor *p, int64_t n, const int32_t *labels)
{
    const int64_t columns = p->spec.n_outputs;
    for (int64_t i = 0; i < n; i++) {
        float *row = p->rows + i * columns;
        if (labels) count_class(p, labels[i], row);
        make_probabilities(p, row);
        write_csv_row(p, p->done + i, row);
    }
    fwrite(p->rows, sizeof(float), (size_t)(n * columns), p->npy.file);
    p->done += n;
    if (!ferror(p->npy.file) && !ferror(p->csv.file)) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "writing %s", p->npy.path);
}

/* --- in between -------------------------------------------------------------------- */

static ps_err open_program(predictor *p, int threads)
{
    const ps_config_train *t = &p->config->train;
    const int64_t batch = p->config->data.eval_batch;
    const ps_device_options device = ps_device_options_of(t, p->cli->local_rank, threads);
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
                                      .n = p->set.n,
                                      .max_batch = batch};
    return ps_loader_create(&loader, &p->loader);
}

static ps_err predict_batch(predictor *p, const ps_loaded *b)
{
    const ps_pass pass = {.grad_scale = 1, .same_weights = p->done > 0};
    const ps_batch batch = {.n = (int)b->n,
                            .x = b->x,
                            .labels = b->labels,
                            .targets = b->targets,
                            .positions = b->positions};
    ps_pass_result result = {0};
    PS_TRY(ps_program_forward(p->program, &batch, &pass, p->tested ? &result : NULL));
    p->loss += result.loss_sum;
    if (p->tested) p->weight += ps_batch_weigh(&p->spec, &batch).weight;
    PS_TRY(ps_program_outputs(p->program, p->rows, (size_t)(b->n * p->spec.n_outputs)));
    return write_rows(p, b->n, b->labels);
}

static ps_err predict_all(predictor *p)
{
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
    PS_TRY(ps_out_file_keep(&p->npy));
    PS_TRY(ps_out_file_keep(&p->csv));
    if (!p->labelled) return PS_OK;
    ps_confusion_write_json(&p->confusion, p->json.file);
    ps_confusion_write_svg(&p->confusion, p->svg.file);
    PS_TRY(ps_out_file_keep(&p->json));
    return ps_out_file_keep(&p->svg);
}

static void report(const predictor *p, uint64_t begun_ns)
{
    const double seconds = ps_clock_seconds_since(begun_ns);
    const ps_confusion *c = &p->confusion;
    char accuracy[64] = "", loss[32] = "";
    if (c->samples > 0)
        snprintf(accuracy, sizeof accuracy, " accuracy=%.4f top5_accuracy=%.4f",
                 (double)c->top1 / (double)c->samples,
                 (double)c->top5 / (double)c->samples);
    if (p->weight > 0) snprintf(loss, sizeof loss, " loss=%.6g", p->loss / p->weight);
    PS_INFO("predicted", "samples=%" PRId64 "%s%s samples_per_second=%.0f to=%s", p->done,
            accuracy, loss, (double)p->done / seconds, p->npy.path);
}

static ps_err run(predictor *p, int threads)
{
    PS_TRY(ps_model_spec_init(&p->spec, p->config));
    PS_TRY(read_weights(p));
    PS_TRY(read_samples(p));
    PS_TRY(open_program(p, threads));
    PS_TRY(open_outputs(p));
    const uint64_t begun_ns = ps_clock_ns();
    PS_TRY(predict_all(p));
    report(p, begun_ns);
    return PS_OK;
}

ps_err ps_predict(const ps_cli *cli, const ps_config *config, int threads)
{
    predictor *p;
    PS_TRY(ps_mem_zalloc(&p, 1, sizeof *p, "predictions"));
    p->config = config;
    p->cli = cli;
    const ps_err err = run(p, threads);
    const ps_err_saved end = ps_err_save(err);
    ps_out_file_drop(&p->npy);
    ps_out_file_drop(&p->csv);
    ps_out_file_drop(&p->json);
    ps_out_file_drop(&p->svg);
    ps_confusion_fini(&p->confusion);
    ps_loader_destroy(&p->loader);
    ps_program_destroy(&p->program);
    ps_device_close(&p->device);
    ps_dataset_fini(&p->set);
    ps_shared_mem_fini(&p->params);
    ps_model_spec_fini(&p->spec);
    free(p->buffers);
    free(p->rows);
    free(p);
    return ps_err_restore(&end);
}
