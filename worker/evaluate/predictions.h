/* The files that --predict writes: of all samples, or of one share of them; and shares
 * put together. In the folder of the results:
 *
 *   predictions.npy  (samples, outputs) float32: probabilities where the loss is
 *                    cross_entropy, nll or bce_with_logits; else the outputs
 *   predictions.csv  index of the sample, class (the largest output), its probability or
 *                    output; where the model is trained on numbers, all outputs; of
 *                    pictures also the file; the class's name where it has one
 *   confusion.json   of a test set with classes: the matrix of labels and classes, and
 *                    what follows from it (confusion.h)
 *   confusion.svg    the same as a picture
 *
 * Share R of N is R-of-N.npy and .csv in the folder's PS_PREDICTIONS_SHARES, like those
 * of all samples, and R-of-N.counts: the figures that confusion.json and the log need. */
#ifndef PS_PREDICTIONS_H
#define PS_PREDICTIONS_H

#include "confusion.h"
#include "dataset.h"
#include "model_spec.h"
#include "run_dir.h"

#define PS_PREDICTIONS_SHARES "predict"

typedef struct ps_predictions_options { // borrowed while the files are open
    const ps_model_spec *spec;
    const ps_dataset *set;
    bool tested;           // the samples are the test set's
    const ps_run_dir *dir; // where the files go
    bool overwrite;        // files of these names
    int share, shares;     // from 0; shares 1: all
} ps_predictions_options;

enum { PS_PREDICTIONS_FILES = 5 };

typedef struct ps_predictions {
    ps_predictions_options o;
    int64_t first, n;    // of the set's samples
    int64_t done;        // of those
    double loss, weight; // of the test set: sums
    double seconds;
    bool labelled;        // the samples have classes
    ps_class_names names; // of shares that are put together
    ps_confusion confusion;
    ps_out_file files[PS_PREDICTIONS_FILES];
} ps_predictions;

/* IO: a file is there and may not be replaced, or cannot be made. NOMEM. p is safe for
 * drop in every case. */
ps_err ps_predictions_open(ps_predictions *p, const ps_predictions_options *o);
/* The next n samples; rows: (n, outputs), of which probabilities are made in place;
 * labels: (n), or NULL. IO. */
ps_err ps_predictions_add(ps_predictions *p, float *rows, int64_t n,
                          const int32_t *labels);
/* Gives the files their names, and logs what they say. IO. */
ps_err ps_predictions_keep(ps_predictions *p);
/* Nothing is left of files that were not kept. */
void ps_predictions_drop(ps_predictions *p);

/* Puts the shares that lie in the folder together, logs what they say, and removes them.
 * IO, FORMAT: a share is missing, torn, or of another model. */
ps_err ps_predictions_join(const ps_run_dir *dir, int shares, const ps_model_spec *spec,
                           bool overwrite);

#endif
