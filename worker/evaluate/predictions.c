#include "predictions.h"

#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "confusion_picture.h"
#include "log.h"
#include "loss_terms.h"
#include "mem.h"
#include "regular_file.h"

enum { NPY_HEADER = 128, COPIED_BYTES = 1 << 16, NAME_MAX_BYTES = 64 };

enum { NPY, CSV, JSON, SVG, COUNTS };

static const char *const suffixes[PS_PREDICTIONS_FILES] = {[NPY] = ".npy",
                                                           [CSV] = ".csv",
                                                           [JSON] = ".json",
                                                           [SVG] = ".svg",
                                                           [COUNTS] = ".counts"};

/* ---- which files ---- */

static bool is_share(const ps_predictions *p)
{
    return p->o.shares > 1;
}

static bool has_file(const ps_predictions *p, int file)
{
    if (file == COUNTS) return is_share(p);
    return file == NPY || file == CSV || (p->labelled && !is_share(p));
}

static void name_share(char *name, int share, int shares, int file)
{
    snprintf(name, NAME_MAX_BYTES, "%s/%d-of-%d%s", PS_PREDICTIONS_SHARES, share, shares,
             suffixes[file]);
}

static ps_err predictions_open_files(ps_predictions *p)
{
    char name[NAME_MAX_BYTES];
    for (int i = 0; i < PS_PREDICTIONS_FILES; i++) {
        if (!has_file(p, i)) continue;
        name_share(name, p->o.share, p->o.shares, i);
        if (!is_share(p))
            snprintf(name, sizeof name, "%s%s",
                     i == JSON || i == SVG ? "confusion" : "predictions", suffixes[i]);
        PS_TRY(ps_out_file_open(&p->files[i], p->o.dir, name, p->o.overwrite));
    }
    return PS_OK;
}

/* ---- what a sample's prediction is ---- */

static bool gives_probabilities(const ps_predictions *p)
{
    const ps_loss_kind loss = p->o.spec->loss;
    return !PS_LOSS_OF_NUMBERS(loss) || loss == PS_LOSS_BCE_WITH_LOGITS;
}

/* Whether it is one class; else it is all outputs. */
static bool gives_class(const ps_predictions *p)
{
    const ps_model_spec *spec = p->o.spec;
    if (!PS_LOSS_OF_NUMBERS(spec->loss) || p->labelled) return true;
    return spec->loss == PS_LOSS_MSE && spec->n_outputs > 1 && !p->o.tested;
}

static bool names_class(const ps_predictions *p)
{
    return gives_class(p) && p->o.set->names.n > 0;
}

static int64_t predictions_largest(const float *row, int64_t n)
{
    int64_t best = 0;
    for (int64_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

/* The softmax of cross_entropy's outputs; nll's outputs are its logarithm already. */
static void make_softmax(const ps_model_spec *spec, float *row)
{
    const int64_t n = spec->n_outputs;
    const bool logits = spec->loss == PS_LOSS_CROSS_ENTROPY;
    const float most = logits ? row[predictions_largest(row, n)] : 0;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += row[i] = expf(row[i] - most);
    for (int64_t i = 0; logits && i < n; i++)
        row[i] = (float)(row[i] / sum);
}

static void make_probabilities(const ps_model_spec *spec, float *row)
{
    if (!PS_LOSS_OF_NUMBERS(spec->loss)) make_softmax(spec, row);
    if (spec->loss != PS_LOSS_BCE_WITH_LOGITS) return;
    for (int64_t i = 0; i < spec->n_outputs; i++)
        row[i] = ps_sigmoid(row[i]);
}

/* ---- writing ---- */

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

static void write_csv_header(const ps_predictions *p)
{
    const char *what = gives_probabilities(p) ? "probability" : "output";
    FILE *file = p->files[CSV].file;
    fputs("index", file);
    if (gives_class(p)) fprintf(file, ",class,%s", what);
    for (int64_t i = 0; i < p->o.spec->n_outputs && !gives_class(p); i++)
        fprintf(file, ",%s_%" PRId64, what, i);
    if (p->o.set->files) fputs(",file", file);
    fputs(names_class(p) ? ",class_name\n" : "\n", file);
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

static void write_csv_row(const ps_predictions *p, int64_t index, const float *row)
{
    const int64_t n = p->o.spec->n_outputs, class = predictions_largest(row, n);
    const char *name = ps_class_name(&p->o.set->names, class);
    FILE *file = p->files[CSV].file;
    fprintf(file, "%" PRId64, index);
    if (gives_class(p)) fprintf(file, ",%" PRId64 ",%.9g", class, (double)row[class]);
    for (int64_t i = 0; i < n && !gives_class(p); i++)
        fprintf(file, ",%.9g", (double)row[i]);
    if (p->o.set->files) write_csv_text(file, p->o.set->files[index]);
    if (names_class(p)) write_csv_text(file, name ? name : "");
    fputc('\n', file);
}

static int64_t predictions_first_of(int64_t n, int share, int shares)
{
    return n / shares * share + n % shares * share / shares;
}

ps_err ps_predictions_open(ps_predictions *p, const ps_predictions_options *o)
{
    *p = (ps_predictions){.o = *o, .labelled = o->tested && o->set->labels != NULL};
    p->first = predictions_first_of(o->set->n, o->share, o->shares);
    p->n = predictions_first_of(o->set->n, o->share + 1, o->shares) - p->first;
    if (p->labelled)
        PS_TRY(
            ps_confusion_init(&p->confusion, o->spec->n_outputs, &o->set->names, true));
    PS_TRY(predictions_open_files(p));
    write_npy_header(p->files[NPY].file, p->n, o->spec->n_outputs);
    write_csv_header(p);
    return PS_OK;
}

/* A label that may be ignored is not counted. */
static void count_class(ps_predictions *p, int32_t label, const float *row)
{
    const bool all = PS_LOSS_OF_NUMBERS(p->o.spec->loss);
    if (p->labelled && (all || label != p->o.spec->ignore_index))
        ps_confusion_add(&p->confusion, label, row);
}

ps_err ps_predictions_add(ps_predictions *p, float *rows, int64_t n,
                          const int32_t *labels)
{
    const int64_t columns = p->o.spec->n_outputs;
    const ps_out_file *npy = &p->files[NPY];
    for (int64_t i = 0; i < n; i++) {
        float *row = rows + i * columns;
        if (labels) count_class(p, labels[i], row);
        make_probabilities(p->o.spec, row);
        write_csv_row(p, p->first + p->done + i, row);
    }
    fwrite(rows, sizeof *rows, (size_t)(n * columns), npy->file);
    p->done += n;
    if (!ferror(npy->file) && !ferror(p->files[CSV].file)) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "writing %s", npy->path);
}

/* ---- the figures of a share ---- */

/* What the file .counts begins with; the matrix and the names of classes follow. */
typedef struct counts {
    char magic[8];
    int64_t outputs, rows, classes; // classes: of the matrix; 0: there is none
    int64_t names;                  // of classes
    int64_t samples, top1, top5;
    double loss, weight, seconds;
} counts;

static const char MAGIC[8] = "psshare2";

static void write_counts(const ps_predictions *p, FILE *out)
{
    const ps_confusion *c = &p->confusion;
    const int64_t n = p->o.spec->n_outputs, known = p->o.set->names.n;
    counts head = {.outputs = n,
                   .rows = p->done,
                   .classes = p->labelled ? c->n : 0,
                   .names = !p->labelled ? 0
                            : known < n  ? known
                                         : n,
                   .samples = c->samples,
                   .top1 = c->top1,
                   .top5 = c->top5,
                   .loss = p->loss,
                   .weight = p->weight,
                   .seconds = p->seconds};
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    fwrite(&head, sizeof head, 1, out);
    if (p->labelled)
        fwrite(c->counts, sizeof *c->counts, (size_t)ps_confusion_size(c), out);
    ps_class_names_save(&p->o.set->names, head.names, out);
}

static ps_err wrong_share(const char *path, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT, "%s: %s", path, what);
}

/* Adds the matrix that follows in the file to p's. */
static ps_err add_matrix(ps_predictions *p, const counts *head, FILE *in,
                         const char *path)
{
    ps_confusion *c = &p->confusion;
    for (int64_t i = 0; i < head->classes * head->classes; i++) {
        int64_t count;
        if (fread(&count, sizeof count, 1, in) != 1 || count < 0 || count > head->samples)
            return wrong_share(path, "it is torn");
        c->counts[i] += count;
    }
    c->samples += head->samples;
    c->top1 += head->top1;
    c->top5 += head->top5;
    return PS_OK;
}

/* Adds a share's figures to p's; the first of all says whether there are classes. */
static ps_err add_counts(ps_predictions *p, FILE *in, const char *path, bool first,
                         int64_t *rows)
{
    const int64_t outputs = p->o.spec->n_outputs;
    counts head;
    if (fread(&head, sizeof head, 1, in) != 1 ||
        memcmp(head.magic, MAGIC, sizeof MAGIC) != 0)
        return wrong_share(path, "it holds no figures of a share");
    if (first && head.classes == outputs) {
        p->labelled = true;
        PS_TRY(ps_confusion_init(&p->confusion, outputs, &p->names, true));
    }
    if (head.outputs != outputs || head.classes != (p->labelled ? outputs : 0))
        return wrong_share(path, "it is of another model");
    if (head.rows < 0 || head.rows > INT64_MAX / outputs / (int64_t)sizeof(float) ||
        head.samples < 0 || head.samples > head.rows || head.names < 0 ||
        head.names > head.classes)
        return wrong_share(path, "it is torn");
    *rows = head.rows;
    p->n += head.rows;
    p->loss += head.loss;
    p->weight += head.weight;
    p->seconds = fmax(p->seconds, head.seconds);
    PS_TRY(add_matrix(p, &head, in, path));
    return first ? ps_class_names_load(in, head.names, path, &p->names) : PS_OK;
}

/* ---- the end ---- */

static void predictions_report(const ps_predictions *p)
{
    const ps_confusion *c = &p->confusion;
    char accuracy[32] = "", top5[32] = "", loss[32] = "", share[32] = "";
    if (c->samples > 0)
        snprintf(accuracy, sizeof accuracy, " accuracy=%.4f",
                 (double)c->top1 / (double)c->samples);
    if (c->samples > 0 && ps_confusion_has_top5(c))
        snprintf(top5, sizeof top5, " top5_accuracy=%.4f",
                 (double)c->top5 / (double)c->samples);
    if (p->weight > 0) snprintf(loss, sizeof loss, " loss=%.6g", p->loss / p->weight);
    if (is_share(p))
        snprintf(share, sizeof share, "share=%d/%d ", p->o.share, p->o.shares);
    PS_INFO("predicted", "%ssamples=%" PRId64 "%s%s%s samples_per_second=%.0f to=%s",
            share, p->done, accuracy, top5, loss,
            p->seconds > 0 ? (double)p->done / p->seconds : 0, p->files[NPY].path);
}

ps_err ps_predictions_keep(ps_predictions *p)
{
    if (has_file(p, JSON)) ps_confusion_write_json(&p->confusion, p->files[JSON].file);
    if (has_file(p, SVG)) ps_confusion_write_svg(&p->confusion, p->files[SVG].file);
    if (has_file(p, COUNTS)) write_counts(p, p->files[COUNTS].file);
    for (int i = 0; i < PS_PREDICTIONS_FILES; i++)
        if (has_file(p, i)) PS_TRY(ps_out_file_keep(&p->files[i]));
    predictions_report(p);
    return PS_OK;
}

void ps_predictions_drop(ps_predictions *p)
{
    for (int i = 0; i < PS_PREDICTIONS_FILES; i++)
        ps_out_file_drop(&p->files[i]);
    ps_confusion_fini(&p->confusion);
    ps_class_names_fini(&p->names);
}

/* ---- shares put together ---- */

static ps_err open_share(const ps_run_dir *dir, int share, int shares, int file,
                         char *path, FILE **in)
{
    char name[NAME_MAX_BYTES];
    name_share(name, share, shares, file);
    PS_TRY(ps_run_dir_path(dir, name, path));
    return ps_regular_file_stream(path, "r", in);
}

/* The rest of a file behind another; bytes: how many there must be, or -1. */
static ps_err predictions_append(FILE *in, const char *path, int64_t bytes, FILE *out)
{
    char piece[COPIED_BYTES];
    int64_t copied = 0;
    for (size_t n; (n = fread(piece, 1, sizeof piece, in)) > 0; copied += (int64_t)n)
        fwrite(piece, 1, n, out);
    if (ferror(in)) return ps_err_errno(PS_ERR_IO, "%s", path);
    return bytes < 0 || copied == bytes ? PS_OK : wrong_share(path, "it is torn");
}

static void skip_line(FILE *in)
{
    for (int c = getc(in); c != '\n' && c != EOF;)
        c = getc(in);
}

static ps_err append_share(ps_predictions *p, int share, int shares, int64_t rows)
{
    const ps_run_dir *dir = p->o.dir;
    const int64_t bytes = rows * p->o.spec->n_outputs * (int64_t)sizeof(float);
    char path[PATH_MAX];
    FILE *in;
    PS_TRY(open_share(dir, share, shares, NPY, path, &in));
    ps_err err = fseek(in, NPY_HEADER, SEEK_SET) == 0
                     ? predictions_append(in, path, bytes, p->files[NPY].file)
                     : ps_err_errno(PS_ERR_IO, "%s", path);
    fclose(in);
    PS_TRY(err);
    PS_TRY(open_share(dir, share, shares, CSV, path, &in));
    if (share > 0) skip_line(in);
    err = predictions_append(in, path, -1, p->files[CSV].file);
    fclose(in);
    p->done += rows;
    return err;
}

static void remove_shares(const ps_run_dir *dir, int shares)
{
    char name[NAME_MAX_BYTES], path[PATH_MAX];
    for (int share = 0; share < shares; share++)
        for (int i = 0; i < PS_PREDICTIONS_FILES; i++) {
            name_share(name, share, shares, i);
            if (ps_run_dir_path(dir, name, path) == PS_OK) unlink(path);
        }
    if (ps_run_dir_path(dir, PS_PREDICTIONS_SHARES, path) == PS_OK)
        rmdir(path); // unless something else is there
}

static ps_err predictions_join(ps_predictions *p, int shares, int64_t *rows)
{
    for (int share = 0; share < shares; share++) {
        char path[PATH_MAX];
        FILE *in;
        PS_TRY(open_share(p->o.dir, share, shares, COUNTS, path, &in));
        const ps_err err = add_counts(p, in, path, share == 0, &rows[share]);
        fclose(in);
        PS_TRY(err);
    }
    PS_TRY(predictions_open_files(p));
    write_npy_header(p->files[NPY].file, p->n, p->o.spec->n_outputs);
    for (int share = 0; share < shares; share++)
        PS_TRY(append_share(p, share, shares, rows[share]));
    return ps_predictions_keep(p);
}

ps_err ps_predictions_join(const ps_run_dir *dir, int shares, const ps_model_spec *spec,
                           bool overwrite)
{
    ps_predictions p = {
        .o = {.spec = spec, .dir = dir, .overwrite = overwrite, .shares = 1}};
    int64_t *rows;
    PS_TRY(ps_mem_zalloc(&rows, (size_t)shares, sizeof *rows, "shares"));
    const ps_err err = predictions_join(&p, shares, rows);
    const ps_err_saved end = ps_err_save(err);
    if (err == PS_OK) remove_shares(dir, shares);
    ps_predictions_drop(&p);
    free(rows);
    return ps_err_restore(&end);
}
