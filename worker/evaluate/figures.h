/* How good predictions are: what is counted of each sample, added up over processes, and
 * the figures that follow from it, as scikit-learn defines them. */
#ifndef PS_FIGURES_H
#define PS_FIGURES_H

#include "confusion.h"
#include "dataset.h"
#include "metric_table.h"
#include "model_spec.h"

typedef enum ps_truth {
    PS_TRUTH_NONE,
    PS_TRUTH_CLASS,   // labels
    PS_TRUTH_YES,     // one output of bce_with_logits, targets 0 and 1: two classes
    PS_TRUTH_NUMBERS, // targets
} ps_truth;

/* What speaks for the second of two classes, and which it is: 1 or 2; 0: not counted. */
typedef struct ps_score {
    double score, class;
} ps_score;

typedef struct ps_figures {
    const ps_model_spec *spec; // borrowed
    const ps_dataset *set;     // borrowed; NULL: of other processes' samples alone
    ps_truth truth;
    int64_t n_numbers;      // of a sample; PS_TRUTH_NUMBERS
    ps_confusion confusion; // n 0: no classes
    double *sums;           // (n_numbers, sums of figures.c); owned
    ps_score *scores;       // (n_scores) of two classes: of each sample; owned
    int64_t n_scores;
    double loss; // mean over the samples; set by the caller; NAN: not known
} ps_figures;

/* NAN: there is none. */
typedef struct ps_measures {
    int64_t samples;
    double accuracy, top5;        // top5: also NAN for five or fewer classes
    double precision, recall, f1; // means over the classes that occur (macro)
    double auc;                   // two classes: the area under the ROC curve
    double mae, rmse, r2;         // means over the numbers of a sample
} ps_measures;

extern const ps_measures ps_measures_none;

enum { PS_AUC_SAMPLES_MAX = 1 << 22 }; // of more there is no AUC

/* What the samples can be compared with. names: of the classes; borrowed. NOMEM; f is
 * safe for fini in every case. */
ps_err ps_figures_init(ps_figures *f, const ps_model_spec *spec, const ps_dataset *set);
/* For samples that other processes have counted. n: classes or numbers; n_scores:
 * samples, where there are two classes. */
ps_err ps_figures_init_sum(ps_figures *f, const ps_model_spec *spec, ps_truth truth,
                           int64_t n, int64_t n_scores, const ps_class_names *names);
void ps_figures_fini(ps_figures *f);
void ps_figures_clear(ps_figures *f);

/* Of two classes: whether the set has samples of both, without which there is no AUC. */
bool ps_figures_have_both_classes(const ps_figures *f);

/* Which figure says how good the model is. It follows from the set alone: outputs that
 * are not finite change it for no evaluation. */
ps_quality ps_figures_quality(const ps_figures *f);

/* The set's sample of that index; outputs: the model's, before a softmax. A label that
 * may be ignored is not counted. */
void ps_figures_add(ps_figures *f, int64_t index, const float *outputs);

/* What was counted, as numbers that are added up over processes: (ps_figures_size). */
int64_t ps_figures_size(const ps_figures *f);
void ps_figures_save(const ps_figures *f, double *values);
void ps_figures_load(ps_figures *f, const double *values);

/* Sorts the scores. */
ps_measures ps_figures_measure(const ps_figures *f);

/* Of classes: confusion.h's JSON with the means and the AUC. Of numbers: samples, loss,
 * mae, rmse, r2, and the same of each number. */
void ps_figures_write_json(const ps_figures *f, FILE *out);

/* For people: "accuracy 0.9833, F1 0.9830". */
void ps_measures_text(const ps_measures *m, char *out, size_t bytes);

#endif
