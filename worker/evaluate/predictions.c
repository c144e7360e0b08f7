#include "predictions.h"

#include <float.h>
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
#include "readable.h"
#include "regular_file.h"
#include "wrapped.h"

enum { NPY_HEADER = 128, COPIED_BYTES = 1 << 16, NAME_MAX_BYTES = 64 };
enum { FEWEST_DIGITS = 7, MOST_DIGITS = 17, NUMBER_BYTES = 32 }; // of a target
enum { PROBABILITIES_MAX = 128 }; // columns; predictions.npy has all

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
    if (file == NPY || file == CSV) return true;
    return !is_share(p) && (file == SVG ? p->figures.confusion.has_matrix
                                        : p->figures.truth != PS_TRUTH_NONE);
}

static const char *predictions_name(const ps_predictions *p, int file)
{
    if (file == NPY || file == CSV) return "predictions";
    return p->figures.truth == PS_TRUTH_NUMBERS ? "figures" : "confusion";
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
            snprintf(name, sizeof name, "%s%s", predictions_name(p, i), suffixes[i]);
        PS_TRY(ps_out_file_open(&p->files[i], p->o.dir, name, p->o.overwrite));
    }
    return PS_OK;
}

/* ---- what a sample's prediction is ---- */

bool ps_prediction_is_probability(const ps_model_spec *spec)
{
    return !PS_LOSS_OF_NUMBERS(spec->loss) || spec->loss == PS_LOSS_BCE_WITH_LOGITS;
}

int64_t ps_prediction_number(const ps_model_spec *spec, int64_t i)
{
    return spec->loss == PS_LOSS_BCE_WITH_LOGITS && spec->n_outputs == 1 ? 1 : i;
}

bool ps_prediction_is_class(const ps_model_spec *spec, const ps_dataset *set,
                            bool answered)
{
    const ps_preprocessing *state = set->preprocessing;
    if (!PS_LOSS_OF_NUMBERS(spec->loss)) return true;
    if (state && state->named) return state->classes;
    if (answered) return set->labels != NULL;
    return spec->loss == PS_LOSS_MSE && spec->n_outputs > 1;
}

const char *ps_prediction_number_name(const ps_model_spec *spec, const ps_dataset *set,
                                      int64_t i)
{
    const ps_preprocessing *state = set->preprocessing;
    const bool named = state && state->named && state->n_targets == spec->n_outputs;
    return named ? state->targets[i].name : NULL;
}

static bool gives_class(const ps_predictions *p)
{
    return ps_prediction_is_class(p->o.spec, p->o.set, p->o.answered);
}

/* Pictures have names, unless they came without one. */
static bool names_files(const ps_predictions *p)
{
    return p->o.named && p->o.set->files;
}

static bool names_class(const ps_predictions *p)
{
    return gives_class(p) && p->o.set->names.n > 0;
}

int64_t ps_prediction_class(const float *row, int64_t n)
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
    const float most = logits ? row[ps_prediction_class(row, n)] : 0;
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += row[i] = expf(row[i] - most);
    for (int64_t i = 0; logits && i < n; i++)
        row[i] = (float)(row[i] / sum);
}

void ps_prediction_finish(const ps_model_spec *spec, float *rows, int64_t n)
{
    const int64_t columns = spec->n_outputs;
    for (int64_t i = 0; !PS_LOSS_OF_NUMBERS(spec->loss) && i < n; i++)
        make_softmax(spec, rows + i * columns);
    for (int64_t i = 0; spec->loss == PS_LOSS_BCE_WITH_LOGITS && i < n * columns; i++)
        rows[i] = ps_sigmoid(rows[i]);
}

double ps_prediction_value(const ps_model_spec *spec, const ps_dataset *set,
                           const float *row, int64_t i)
{
    const ps_preprocessing *state = set->preprocessing;
    return ps_preprocessing_scales(state, spec->n_outputs)
               ? ps_preprocessing_number(state, i, row[i])
               : (double)row[i];
}

int ps_prediction_digits(const ps_model_spec *spec, const ps_dataset *set, int64_t i)
{
    const ps_preprocessing *state = set->preprocessing;
    return ps_preprocessing_scales(state, spec->n_outputs)
               ? ps_preprocessing_digits(state, i)
               : FLT_DECIMAL_DIG;
}

static bool is_scaled(const ps_predictions *p)
{
    return ps_preprocessing_scales(p->o.set->preprocessing, p->o.spec->n_outputs);
}

/* ---- writing ---- */

/* Version 1.0 of the format, padded so that the values begin at a multiple of 64. */
static void write_npy_header(FILE *file, int64_t value_bytes, int64_t rows,
                             int64_t columns)
{
    char header[NPY_HEADER];
    memset(header, ' ', sizeof header);
    memcpy(header, "\x93NUMPY\x01\x00\x76\x00", 10); // 0x76: the 118 bytes that follow
    const int n =
        snprintf(header + 10, sizeof header - 10,
                 "{'descr': '<f%" PRId64 "', 'fortran_order': False, 'shape': (%" PRId64
                 ", %" PRId64 "), }",
                 value_bytes, rows, columns);
    header[10 + n] = ' '; // in place of the string's end
    header[NPY_HEADER - 1] = '\n';
    fwrite(header, 1, sizeof header, file);
}

/* Where it has to be in double quotes, a double quote is written twice (RFC 4180). */
static void write_csv_text(FILE *file, const char *text)
{
    if (text[strcspn(text, ",;\t\r\n\" ")] == '\0') {
        fprintf(file, ",%s", text);
        return;
    }
    fputs(",\"", file);
    for (; *text != '\0'; text++) {
        if (*text == '"') fputc('"', file);
        fputc(*text, file);
    }
    fputc('"', file);
}

/* Of the class, or of the number. NULL: it has none. */
static const char *output_name(const ps_predictions *p, int64_t i)
{
    return gives_class(p) ? ps_class_name(&p->o.set->names, i)
                          : ps_prediction_number_name(p->o.spec, p->o.set, i);
}

/* A column of each output, by its name or number. */
static void write_csv_outputs(const ps_predictions *p, const char *what)
{
    FILE *file = p->files[CSV].file;
    char text[PATH_MAX];
    for (int64_t i = 0; i < p->o.spec->n_outputs; i++) {
        const char *name = output_name(p, i);
        if (!name) {
            fprintf(file, ",%s_%" PRId64, what, ps_prediction_number(p->o.spec, i));
            continue;
        }
        snprintf(text, sizeof text, "%s_%s", what, name);
        write_csv_text(file, text);
    }
}

static void write_csv_keys(const ps_predictions *p, const ps_class_names *texts,
                           int64_t first)
{
    for (int64_t i = 0; i < p->o.set->key_names.n; i++)
        write_csv_text(p->files[CSV].file, texts->names[first + i]);
}

static bool gives_each_output(const ps_predictions *p)
{
    return !gives_class(p) || p->o.spec->n_outputs <= PROBABILITIES_MAX;
}

static void write_csv_truth_header(const ps_predictions *p)
{
    FILE *file = p->files[CSV].file;
    if (!p->o.answered) return;
    if (p->o.set->labels)
        fputs(names_class(p) ? ",truth,truth_name" : ",truth", file);
    else if (p->o.set->n_targets == 1)
        fputs(",truth", file);
    else
        write_csv_outputs(p, "truth");
}

static void write_csv_header(const ps_predictions *p)
{
    const char *what = ps_prediction_is_probability(p->o.spec) ? "probability" : "output";
    FILE *file = p->files[CSV].file;
    fputs("index", file);
    write_csv_keys(p, &p->o.set->key_names, 0);
    if (gives_class(p)) fprintf(file, ",class,%s", what);
    if (names_files(p)) fputs(",file", file);
    if (names_class(p)) fputs(",class_name", file);
    write_csv_truth_header(p);
    if (gives_each_output(p)) write_csv_outputs(p, what);
    fputc('\n', file);
}

/* In the table's units, with as many digits as give the same target again. */
static void write_csv_target(FILE *file, const ps_dataset *set, int64_t index, int64_t i)
{
    const float value = set->targets[index * set->n_targets + i];
    const ps_preprocessing *state = set->preprocessing;
    const bool scaled = state && !state->classes && i < state->n_targets;
    const double mean = scaled ? state->targets[i].mean : 0;
    const double std = scaled ? state->targets[i].std : 1;
    char text[NUMBER_BYTES];
    int digits = FEWEST_DIGITS;
    do
        snprintf(text, sizeof text, "%.*g", digits, value * std + mean);
    while ((float)((strtod(text, NULL) - mean) / std) != value && digits++ < MOST_DIGITS);
    fprintf(file, ",%s", text);
}

static void write_csv_truth(const ps_predictions *p, int64_t index)
{
    const ps_dataset *set = p->o.set;
    FILE *file = p->files[CSV].file;
    if (!p->o.answered) return;
    if (set->labels) {
        const char *name = ps_class_name(&set->names, set->labels[index]);
        fprintf(file, ",%" PRId32, set->labels[index]);
        if (names_class(p)) write_csv_text(file, name ? name : "");
    }
    for (int64_t i = 0; !set->labels && i < set->n_targets; i++)
        write_csv_target(file, set, index, i);
}

static void write_csv_row(const ps_predictions *p, int64_t index, const float *row)
{
    const int64_t n = p->o.spec->n_outputs, class = ps_prediction_class(row, n);
    const char *name = ps_class_name(&p->o.set->names, class);
    FILE *file = p->files[CSV].file;
    fprintf(file, "%" PRId64, ps_dataset_place(p->o.set, index));
    write_csv_keys(p, &p->o.set->keys, index * p->o.set->key_names.n);
    if (gives_class(p)) fprintf(file, ",%" PRId64 ",%.9g", class, (double)row[class]);
    if (names_files(p)) write_csv_text(file, p->o.set->files[index]);
    if (names_class(p)) write_csv_text(file, name ? name : "");
    write_csv_truth(p, index);
    for (int64_t i = 0; gives_each_output(p) && i < n; i++)
        fprintf(file, ",%.*g", ps_prediction_digits(p->o.spec, p->o.set, i),
                ps_prediction_value(p->o.spec, p->o.set, row, i));
    fputc('\n', file);
}

static void write_npy_row(const ps_predictions *p, const float *row)
{
    const int64_t n = p->o.spec->n_outputs;
    FILE *file = p->files[NPY].file;
    if (!is_scaled(p)) fwrite(row, sizeof *row, (size_t)n, file);
    for (int64_t i = 0; is_scaled(p) && i < n; i++) {
        const double value = ps_prediction_value(p->o.spec, p->o.set, row, i);
        fwrite(&value, sizeof value, 1, file);
    }
}

static int64_t predictions_first_of(int64_t n, int share, int shares)
{
    return n / shares * share + n % shares * share / shares;
}

ps_err ps_predictions_open(ps_predictions *p, const ps_predictions_options *o)
{
    *p = (ps_predictions){.o = *o};
    p->first = predictions_first_of(o->set->n, o->share, o->shares);
    p->n = predictions_first_of(o->set->n, o->share + 1, o->shares) - p->first;
    if (o->answered) PS_TRY(ps_figures_init(&p->figures, o->spec, o->set));
    PS_TRY(predictions_open_files(p));
    p->value_bytes = is_scaled(p) ? sizeof(double) : sizeof(float);
    write_npy_header(p->files[NPY].file, p->value_bytes, p->n, o->spec->n_outputs);
    write_csv_header(p);
    return PS_OK;
}

ps_err ps_predictions_add(ps_predictions *p, float *rows, int64_t n)
{
    const int64_t columns = p->o.spec->n_outputs, first = p->first + p->done;
    const ps_out_file *npy = &p->files[NPY];
    for (int64_t i = 0; i < n; i++)
        ps_figures_add(&p->figures, first + i, rows + i * columns);
    ps_prediction_finish(p->o.spec, rows, n);
    for (int64_t i = 0; i < n; i++) {
        write_csv_row(p, first + i, rows + i * columns);
        write_npy_row(p, rows + i * columns);
    }
    p->done += n;
    if (!ferror(npy->file) && !ferror(p->files[CSV].file)) return PS_OK;
    return ps_err_errno(PS_ERR_IO, "writing %s", npy->path);
}

/* ---- the figures of a share ---- */

/* What the file .counts begins with; the figures' values and the names of classes follow.
 */
typedef struct counts {
    char magic[8];
    int64_t outputs, rows, value_bytes;
    int64_t truth, n; // ps_figures_init_sum
    int64_t values, scores, names;
    double loss, weight, seconds;
} counts;

static const char MAGIC[8] = "psshare5";

static int64_t figures_n(const ps_figures *f)
{
    return f->truth == PS_TRUTH_NUMBERS ? f->n_numbers : f->confusion.n;
}

static ps_err write_counts(const ps_predictions *p, FILE *out)
{
    const ps_figures *f = &p->figures;
    const int64_t known = f->confusion.n > 0 ? p->o.set->names.n : 0;
    counts head = {.outputs = p->o.spec->n_outputs,
                   .rows = p->done,
                   .value_bytes = p->value_bytes,
                   .truth = f->truth,
                   .n = figures_n(f),
                   .values = ps_figures_size(f),
                   .scores = f->n_scores,
                   .names = known < f->confusion.n ? known : f->confusion.n,
                   .loss = p->loss,
                   .weight = p->weight,
                   .seconds = p->seconds};
    double *values;
    PS_TRY(PS_NEW(&values, (size_t)head.values, "the figures"));
    ps_figures_save(f, values);
    memcpy(head.magic, MAGIC, sizeof MAGIC);
    fwrite(&head, sizeof head, 1, out);
    fwrite(values, sizeof *values, (size_t)head.values, out);
    ps_class_names_save(&p->o.set->names, head.names, out);
    free(values);
    return PS_OK;
}

static ps_err wrong_share(const char *path, const char *what)
{
    return ps_err_set(PS_ERR_FORMAT, "%s: %s", path, what);
}

/* Adds the values that follow in the file to p's. Counts stand before the scores. */
static ps_err add_values(ps_predictions *p, FILE *in, const char *path)
{
    const size_t n = (size_t)ps_figures_size(&p->figures);
    double *sum;
    PS_TRY(PS_NEW(&sum, n, "the figures"));
    ps_figures_save(&p->figures, sum);
    const size_t n_counts =
        p->figures.confusion.n > 0 ? n - 2 * (size_t)p->figures.n_scores : 0;
    ps_err err = PS_OK;
    for (size_t i = 0; i < n && err == PS_OK; i++) {
        double value;
        if (fread(&value, sizeof value, 1, in) != 1 ||
            (i < n_counts && !(value >= 0 && value <= 1e15)))
            err = wrong_share(path, "it is torn");
        else
            sum[i] += value;
    }
    if (err == PS_OK) ps_figures_load(&p->figures, sum);
    free(sum);
    return err;
}

/* Adds a share's figures to p's; the first of all says what was counted. */
static ps_err add_counts(ps_predictions *p, FILE *in, const char *path, bool first,
                         int64_t *rows)
{
    const int64_t outputs = p->o.spec->n_outputs;
    counts head;
    if (fread(&head, sizeof head, 1, in) != 1 ||
        memcmp(head.magic, MAGIC, sizeof MAGIC) != 0)
        return wrong_share(path, "it holds no figures of a share");
    const int64_t n = head.truth == PS_TRUTH_NONE  ? 0
                      : head.truth == PS_TRUTH_YES ? 2
                                                   : outputs;
    if (head.outputs != outputs || head.truth < 0 || head.truth > PS_TRUTH_NUMBERS ||
        head.n != n)
        return wrong_share(path, "it is of another model");
    if (head.scores < 0) return wrong_share(path, "it is torn");
    if (first)
        PS_TRY(ps_figures_init_sum(&p->figures, p->o.spec, (ps_truth)head.truth, n,
                                   head.scores, &p->names));
    if (first) p->value_bytes = head.value_bytes;
    if ((ps_truth)head.truth != p->figures.truth || head.value_bytes != p->value_bytes)
        return wrong_share(path, "it is of another model");
    if (head.rows < 0 || head.rows > INT64_MAX / outputs / (int64_t)sizeof(double) ||
        head.values != ps_figures_size(&p->figures) || head.names < 0 || head.names > n)
        return wrong_share(path, "it is torn");
    *rows = head.rows;
    p->n += head.rows;
    p->loss += head.loss;
    p->weight += head.weight;
    p->seconds = fmax(p->seconds, head.seconds);
    PS_TRY(add_values(p, in, path));
    return first ? ps_class_names_load(in, head.names, path, &p->names) : PS_OK;
}

/* ---- the end ---- */

/* As a line of psrun's summary. */
__attribute__((format(printf, 2, 3))) static void predictions_print(const char *label,
                                                                    const char *fmt, ...)
{
    char said[PATH_MAX + 256];
    const int at = printf("  %-11s ", label);
    PS_PRINT(said, fmt);
    ps_print_wrapped(stdout, ps_terminal_columns(stdout), at, at, said);
}

/* In the form of psrun's summary; a share's goes to the log. */
static void predictions_report(const ps_predictions *p)
{
    const ps_measures m = ps_figures_measure(&p->figures);
    const double rate = p->seconds > 0 ? (double)p->done / p->seconds : 0;
    char figures[200], text[PS_READABLE_BYTES];
    if (is_share(p)) {
        PS_INFO("predicted", "share=%d/%d samples=%" PRId64 " samples_per_second=%.0f",
                p->o.share, p->o.shares, p->done, rate);
        return;
    }
    predictions_print("predicted", "%s sample%s, %s samples/s", PS_COUNTED(p->done),
                      p->done == 1 ? "" : "s", PS_COUNTED(rint(rate)));
    ps_measures_text(&m, figures, sizeof figures);
    if (p->weight > 0)
        predictions_print("figures", "%s%sloss %s", figures, figures[0] ? ", " : "",
                          ps_readable_figure(p->loss / p->weight, text));
    predictions_print("results", "%s", p->files[CSV].path);
    fflush(stdout);
}

ps_err ps_predictions_keep(ps_predictions *p)
{
    ps_figures *f = &p->figures;
    f->loss = p->weight > 0 ? p->loss / p->weight : NAN;
    if (has_file(p, JSON)) ps_figures_write_json(f, p->files[JSON].file);
    if (has_file(p, SVG)) ps_confusion_write_svg(&f->confusion, p->files[SVG].file);
    if (has_file(p, COUNTS)) PS_TRY(write_counts(p, p->files[COUNTS].file));
    for (int i = 0; i < PS_PREDICTIONS_FILES; i++)
        if (has_file(p, i)) PS_TRY(ps_out_file_keep(&p->files[i]));
    predictions_report(p);
    return PS_OK;
}

void ps_predictions_drop(ps_predictions *p)
{
    for (int i = 0; i < PS_PREDICTIONS_FILES; i++)
        ps_out_file_drop(&p->files[i]);
    ps_figures_fini(&p->figures);
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

/* A line of fields, in which quoted ones may have ends of lines. */
static void skip_line(FILE *in)
{
    bool quoted = false;
    for (int c = getc(in); c != EOF && (c != '\n' || quoted); c = getc(in))
        quoted = quoted != (c == '"');
}

static ps_err append_share(ps_predictions *p, int share, int shares, int64_t rows)
{
    const ps_run_dir *dir = p->o.dir;
    const int64_t bytes = rows * p->o.spec->n_outputs * p->value_bytes;
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
    write_npy_header(p->files[NPY].file, p->value_bytes, p->n, p->o.spec->n_outputs);
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
    PS_TRY(PS_NEW(&rows, (size_t)shares, "shares"));
    const ps_err err = predictions_join(&p, shares, rows);
    const ps_err_saved end = ps_err_save(err);
    if (err == PS_OK) remove_shares(dir, shares);
    ps_predictions_drop(&p);
    free(rows);
    return ps_err_restore(&end);
}
