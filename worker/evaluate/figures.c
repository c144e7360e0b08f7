#include "figures.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "mem.h"
#include "readable.h"

enum { MATRIX_MAX = 128, CLASSES_MAX = 16384, NUMBERS_MAX = 12000 };

/* Of each number of a sample. Targets are counted from the set's first one: where they
 * are years, their squares would lose what differs. */
enum { COUNT, ABSOLUTE, SQUARED, TARGETS, TARGETS_SQUARED, SUMS };

const ps_measures ps_measures_none = {0, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN};

/* --- what there is to compare with -------------------------------------------------- */

static bool figures_all_yes_or_no(const ps_dataset *set)
{
    for (int64_t i = 0; i < set->n; i++)
        if (set->targets[i] != 0 && set->targets[i] != 1) return false;
    return set->n > 0;
}

static ps_truth figures_truth_of(const ps_model_spec *spec, const ps_dataset *set)
{
    const bool logits = spec->loss == PS_LOSS_BCE_WITH_LOGITS;
    if (set->labels)
        return spec->n_outputs <= CLASSES_MAX ? PS_TRUTH_CLASS : PS_TRUTH_NONE;
    if (!set->targets || set->n_targets != spec->n_outputs) return PS_TRUTH_NONE;
    if (!logits) return set->n_targets <= NUMBERS_MAX ? PS_TRUTH_NUMBERS : PS_TRUTH_NONE;
    return set->n_targets == 1 && figures_all_yes_or_no(set) ? PS_TRUTH_YES
                                                             : PS_TRUTH_NONE;
}

ps_err ps_figures_init_sum(ps_figures *f, const ps_model_spec *spec, ps_truth truth,
                           int64_t n, int64_t n_scores, const ps_class_names *names)
{
    *f = (ps_figures){.spec = spec, .truth = truth, .loss = NAN};
    if (truth == PS_TRUTH_NONE) return PS_OK;
    if (truth != PS_TRUTH_NUMBERS) {
        PS_TRY(ps_confusion_init(&f->confusion, n, names, n <= MATRIX_MAX));
        if (n != 2 || n_scores > PS_AUC_SAMPLES_MAX) return PS_OK;
        f->n_scores = n_scores;
        return PS_NEW(&f->scores, (size_t)n_scores, "the scores");
    }
    f->n_numbers = n;
    return PS_NEW(&f->sums, (size_t)(n * SUMS), "the figures");
}

ps_err ps_figures_init(ps_figures *f, const ps_model_spec *spec, const ps_dataset *set)
{
    const ps_truth truth = figures_truth_of(spec, set);
    const int64_t n = truth == PS_TRUTH_YES ? 2 : spec->n_outputs;
    PS_TRY(ps_figures_init_sum(f, spec, truth, n, set->n, &set->names));
    f->set = set;
    return PS_OK;
}

void ps_figures_fini(ps_figures *f)
{
    ps_confusion_fini(&f->confusion);
    free(f->sums);
    free(f->scores);
    *f = (ps_figures){0};
}

void ps_figures_clear(ps_figures *f)
{
    if (f->confusion.n > 0) ps_confusion_clear(&f->confusion);
    if (f->sums) memset(f->sums, 0, (size_t)(f->n_numbers * SUMS) * sizeof *f->sums);
    if (f->scores) memset(f->scores, 0, (size_t)f->n_scores * sizeof *f->scores);
}

/* --- counting ----------------------------------------------------------------------- */

static bool figures_is_ignored(const ps_figures *f, int64_t index)
{
    return f->truth == PS_TRUTH_CLASS && !PS_LOSS_OF_NUMBERS(f->spec->loss) &&
           f->set->labels[index] == f->spec->ignore_index;
}

static int32_t figures_label(const ps_figures *f, int64_t index)
{
    return f->truth == PS_TRUTH_CLASS ? f->set->labels[index]
                                      : f->set->targets[index] > 0.5f;
}

static void figures_add_class(ps_figures *f, int64_t index, const float *outputs)
{
    const float yes[2] = {0, outputs[0]};
    const float *of_classes = f->truth == PS_TRUTH_YES ? yes : outputs;
    const int32_t label = figures_label(f, index);
    ps_confusion_add(&f->confusion, label, of_classes);
    if (f->scores)
        f->scores[index] =
            (ps_score){(double)of_classes[1] - (double)of_classes[0], 1 + label};
}

static void figures_add_numbers(ps_figures *f, int64_t index, const float *outputs)
{
    const int64_t n = f->n_numbers;
    for (int64_t k = 0; k < n; k++) {
        double *s = f->sums + k * SUMS;
        const double unit = ps_preprocessing_unit(f->set->preprocessing, k);
        const double target = f->set->targets[index * n + k];
        const double from_first = (target - f->set->targets[k]) * unit;
        const double error = (outputs[k] - target) * unit;
        s[COUNT]++;
        s[ABSOLUTE] += fabs(error);
        s[SQUARED] += error * error;
        s[TARGETS] += from_first;
        s[TARGETS_SQUARED] += from_first * from_first;
    }
}

bool ps_figures_have_both_classes(const ps_figures *f)
{
    bool has[2] = {false};
    for (int64_t i = 0; i < f->set->n && f->scores; i++)
        if (!figures_is_ignored(f, i)) has[figures_label(f, i) != 0] = true;
    return has[0] && has[1];
}

ps_quality ps_figures_quality(const ps_figures *f)
{
    // Answers of yes and no are mostly the one or the other: accuracy says little.
    if (f->truth == PS_TRUTH_YES && ps_figures_have_both_classes(f))
        return PS_QUALITY_AUC;
    const bool numbers = f->truth == PS_TRUTH_NUMBERS && f->set->n > 1;
    return numbers ? PS_QUALITY_R2 : PS_QUALITY_ACCURACY;
}

void ps_figures_add(ps_figures *f, int64_t index, const float *outputs)
{
    if (f->truth == PS_TRUTH_NONE || figures_is_ignored(f, index)) return;
    if (f->truth == PS_TRUTH_NUMBERS)
        figures_add_numbers(f, index, outputs);
    else
        figures_add_class(f, index, outputs);
}

/* --- as numbers --------------------------------------------------------------------- */

enum { SAMPLES, TOP1, TOP5, HEAD };

int64_t ps_figures_size(const ps_figures *f)
{
    return HEAD + ps_confusion_size(&f->confusion) + f->n_numbers * SUMS +
           2 * f->n_scores;
}

static void figures_copy(void *to, const void *from, int64_t n)
{
    if (n > 0) memcpy(to, from, (size_t)n * sizeof(double));
}

void ps_figures_save(const ps_figures *f, double *values)
{
    const ps_confusion *c = &f->confusion;
    const int64_t n = ps_confusion_size(c);
    double *sums = values + HEAD + n;
    values[SAMPLES] = (double)c->samples;
    values[TOP1] = (double)c->top1;
    values[TOP5] = (double)c->top5;
    for (int64_t i = 0; i < n; i++)
        values[HEAD + i] = (double)c->counts[i];
    figures_copy(sums, f->sums, f->n_numbers * SUMS);
    figures_copy(sums + f->n_numbers * SUMS, f->scores, 2 * f->n_scores);
}

void ps_figures_load(ps_figures *f, const double *values)
{
    ps_confusion *c = &f->confusion;
    const int64_t n = ps_confusion_size(c);
    const double *sums = values + HEAD + n;
    c->samples = (int64_t)values[SAMPLES];
    c->top1 = (int64_t)values[TOP1];
    c->top5 = (int64_t)values[TOP5];
    for (int64_t i = 0; i < n; i++)
        c->counts[i] = (int64_t)values[HEAD + i];
    figures_copy(f->sums, sums, f->n_numbers * SUMS);
    figures_copy(f->scores, sums + f->n_numbers * SUMS, 2 * f->n_scores);
}

/* --- what follows from it ----------------------------------------------------------- */

static int compare_scores(const void *a, const void *b)
{
    const double x = ((const ps_score *)a)->score, y = ((const ps_score *)b)->score;
    return (x > y) - (x < y);
}

/* The share of pairs of a second-class and a first-class sample whose scores stand in
 * this order; an equal pair counts half (Mann-Whitney). */
static double figures_auc(const ps_figures *f)
{
    ps_score *s = f->scores;
    double pairs = 0, before[3] = {0};
    for (int64_t i = 0; i < f->n_scores; i++)
        if (isnan(s[i].score) || !(s[i].class >= 0 && s[i].class <= 2))
            return NAN; // it has no order, or comes from a torn file
    if (s) qsort(s, (size_t)f->n_scores, sizeof *s, compare_scores);
    for (int64_t i = 0; i < f->n_scores;) {
        double equal[3] = {0};
        for (const double score = s[i].score; i < f->n_scores && s[i].score == score; i++)
            equal[(int)s[i].class]++;
        pairs += equal[2] * (before[1] + equal[1] / 2);
        before[1] += equal[1];
        before[2] += equal[2];
    }
    return before[1] > 0 && before[2] > 0 ? pairs / (before[1] * before[2]) : NAN;
}

typedef struct errors {
    double mae, rmse, r2;
} errors;

/* r2 is 0 where the targets do not differ and the errors are not 0 (scikit-learn). */
static errors errors_of(const double *s)
{
    const double n = s[COUNT];
    const double spread = s[TARGETS_SQUARED] - s[TARGETS] * s[TARGETS] / n;
    const double r2 = spread > 0 ? 1 - s[SQUARED] / spread : s[SQUARED] == 0;
    return (errors){s[ABSOLUTE] / n, sqrt(s[SQUARED] / n), n > 1 ? r2 : NAN};
}

static void measure_numbers(const ps_figures *f, ps_measures *m)
{
    m->samples = (int64_t)f->sums[COUNT];
    if (m->samples == 0) return;
    m->mae = m->rmse = m->r2 = 0;
    for (int64_t k = 0; k < f->n_numbers; k++) {
        const errors e = errors_of(f->sums + k * SUMS);
        m->mae += e.mae / (double)f->n_numbers;
        m->rmse += e.rmse / (double)f->n_numbers;
        m->r2 += e.r2 / (double)f->n_numbers;
    }
}

static void measure_classes(const ps_figures *f, ps_measures *m)
{
    const ps_confusion *c = &f->confusion;
    double sum[3] = {0};
    int64_t n = 0;
    m->samples = c->samples;
    if (c->samples == 0) return;
    m->accuracy = (double)c->top1 / (double)c->samples;
    if (ps_confusion_has_top5(c)) m->top5 = (double)c->top5 / (double)c->samples;
    for (int64_t k = 0; k < c->n; k++) {
        const ps_class_rates r = ps_confusion_rates(c, k);
        if (isnan(r.f1)) continue; // no sample is of it or taken for it
        n++;
        sum[0] += isnan(r.precision) ? 0 : r.precision;
        sum[1] += isnan(r.recall) ? 0 : r.recall;
        sum[2] += r.f1;
    }
    m->precision = sum[0] / (double)n;
    m->recall = sum[1] / (double)n;
    m->f1 = sum[2] / (double)n;
    m->auc = figures_auc(f);
}

ps_measures ps_figures_measure(const ps_figures *f)
{
    ps_measures m = ps_measures_none;
    if (f->truth == PS_TRUTH_NUMBERS) measure_numbers(f, &m);
    if (f->confusion.n > 0) measure_classes(f, &m);
    return m;
}

/* --- for people and programs -------------------------------------------------------- */

static void figures_write_errors(const errors *e, FILE *out)
{
    ps_confusion_write_number(out, ", ", "mae", e->mae);
    ps_confusion_write_number(out, ", ", "rmse", e->rmse);
    ps_confusion_write_number(out, ", ", "r2", e->r2);
}

void ps_figures_write_json(const ps_figures *f, FILE *out)
{
    const ps_measures m = ps_figures_measure(f);
    if (f->truth != PS_TRUTH_NUMBERS) {
        const ps_class_rates mean = {m.precision, m.recall, m.f1};
        ps_confusion_write_json(&f->confusion, &mean, m.auc, f->loss, out);
        return;
    }
    const errors all = {m.mae, m.rmse, m.r2};
    const ps_preprocessing *state = f->set ? f->set->preprocessing : NULL;
    fprintf(out, "{\"samples\": %" PRId64, m.samples);
    ps_confusion_write_number(out, ", ", "loss", f->loss);
    figures_write_errors(&all, out);
    fputs(",\n\"numbers\": [", out);
    for (int64_t k = 0; k < f->n_numbers; k++) {
        const errors e = errors_of(f->sums + k * SUMS);
        fprintf(out, "%s\n  {\"number\": %" PRId64, k ? "," : "", k);
        if (state && state->named && k < state->n_targets)
            ps_confusion_write_name(out, state->targets[k].name);
        figures_write_errors(&e, out);
        fputc('}', out);
    }
    fputs("]}\n", out);
}

void ps_measures_text(const ps_measures *m, char *out, size_t bytes)
{
    const struct {
        const char *name;
        double value;
    } all[] = {
        {"accuracy", m->accuracy}, {"R2", m->r2}, {"MAE", m->mae}, {"RMSE", m->rmse},
        {"top-5", m->top5},        {"F1", m->f1}, {"AUC", m->auc}};
    char text[PS_READABLE_BYTES];
    size_t used = 0;
    out[0] = '\0';
    for (size_t i = 0; i < sizeof all / sizeof *all && used < bytes; i++)
        if (!isnan(all[i].value))
            used += (size_t)snprintf(out + used, bytes - used, "%s%s %s",
                                     used > 0 ? ", " : "", all[i].name,
                                     ps_readable_figure(all[i].value, text));
}
