/* The files that --predict writes: of all samples, or of one share of them; and shares
 * put together. In the folder of the results:
 *
 *   predictions.npy  (samples, outputs) float32: probabilities where the loss is
 *                    cross_entropy, nll or bce_with_logits; else the outputs. float64:
 *                    numbers of a table, in its units
 *   predictions.csv  index of the sample among all of its files, from 0; its key columns,
 *                    where the data have some;
 *                    class (the largest output), its probability or output; where the
 *                    model is trained on numbers, all outputs; of pictures the file; the
 *                    class's name where it has one; the truth where it is known; up to
 *                    128 classes the probability or output of each. The only output of
 *                    bce_with_logits is that of the label 1: probability_1
 *   confusion.json   where classes are known: the matrix of labels and classes, and what
 *                    follows from it (confusion.h)
 *   confusion.svg    the same as a picture
 *   figures.json     where numbers are known: the errors (figures.h)
 *
 * Share R of N is R-of-N.npy and .csv in the folder's PS_PREDICTIONS_SHARES, like those
 * of all samples, and R-of-N.counts: what the figures need. */
#ifndef PS_PREDICTIONS_H
#define PS_PREDICTIONS_H

#include "dataset.h"
#include "figures.h"
#include "model_spec.h"
#include "run_dir.h"

#define PS_PREDICTIONS_SHARES "predict"

typedef struct ps_predictions_options { // borrowed while the files are open
    const ps_model_spec *spec;
    const ps_dataset *set;
    bool answered;         // the samples have their classes or numbers
    bool named;            // files of pictures are named
    const ps_run_dir *dir; // where the files go
    bool overwrite;        // files of these names
    int share, shares;     // from 0; shares 1: all
} ps_predictions_options;

enum { PS_PREDICTIONS_FILES = 5 };

typedef struct ps_predictions {
    ps_predictions_options o;
    int64_t first, n;    // of the set's samples
    int64_t done;        // of those
    int64_t value_bytes; // of a value in .npy
    double loss, weight; // of samples with answers: sums
    double seconds;
    ps_class_names names; // of shares that are put together
    ps_figures figures;
    ps_out_file files[PS_PREDICTIONS_FILES];
} ps_predictions;

/* IO: a file is there and may not be replaced, or cannot be made. NOMEM. p is safe for
 * drop in every case. */
ps_err ps_predictions_open(ps_predictions *p, const ps_predictions_options *o);
/* The next n samples; rows: (n, outputs), which ps_prediction_finish changes in place.
 * IO. */
ps_err ps_predictions_add(ps_predictions *p, float *rows, int64_t n);
/* Gives the files their names, and logs what they say. IO. */
ps_err ps_predictions_keep(ps_predictions *p);
/* Nothing is left of files that were not kept. */
void ps_predictions_drop(ps_predictions *p);

/* A model's outputs of n samples become probabilities where the loss knows them. In
 * place. */
void ps_prediction_finish(const ps_model_spec *spec, float *rows, int64_t n);
/* What people get for output i of such a row: a number of a table in its units. */
double ps_prediction_value(const ps_model_spec *spec, const ps_dataset *set,
                           const float *row, int64_t i);
/* The digits of output i's values. */
int ps_prediction_digits(const ps_model_spec *spec, const ps_dataset *set, int64_t i);
/* Whether an output is a probability then. */
bool ps_prediction_is_probability(const ps_model_spec *spec);
/* The number that an output without a name goes by: i, or 1 where the only output is the
 * probability of the label 1. */
int64_t ps_prediction_number(const ps_model_spec *spec, int64_t i);
/* Whether people get one class of a sample; else they get all outputs. set: the samples;
 * answered: they have their classes or numbers. */
bool ps_prediction_is_class(const ps_model_spec *spec, const ps_dataset *set,
                            bool answered);
/* Of a number that a table's column has: its name; NULL: it has none. */
const char *ps_prediction_number_name(const ps_model_spec *spec, const ps_dataset *set,
                                      int64_t i);
/* The largest of a row, the first among equals. */
int64_t ps_prediction_class(const float *row, int64_t n);

/* Puts the shares that lie in the folder together, logs what they say, and removes them.
 * IO, FORMAT: a share is missing, torn, or of another model. */
ps_err ps_predictions_join(const ps_run_dir *dir, int shares, const ps_model_spec *spec,
                           bool overwrite);

#endif
