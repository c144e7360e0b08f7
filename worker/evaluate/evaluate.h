/* Evaluation: every rank evaluates its own slice of the test split. Exact counts and sums
 * are reduced over the ranks. */
#ifndef PS_EVALUATE_H
#define PS_EVALUATE_H

#include "batch_rows.h"
#include "device.h"
#include "figures.h"
#include "loader.h"
#include "model_spec.h"
#include "run_dir.h"
#include "session.h"

typedef struct ps_evaluator_options { // borrowed for the evaluator's life
    const ps_config *config;
    const ps_model_spec *spec;
    const ps_dataset *dataset;
    ps_device *device;
    const ps_session *session; // joined
    ps_row_client *rows;       // of embedding tables; NULL: none
} ps_evaluator_options;

typedef struct ps_evaluator {
    ps_evaluator_options o;
    ps_program *program; // forward only
    ps_batch_rows rows;
    ps_loader *loader; // NULL: this rank has no sample of the test split
    bool takes_bytes;  // the program's batches, where samples are bytes
    ps_member *member; // borrowed; NULL: alone
    uint64_t timeout_ms;
    int64_t begin, n;   // its slice
    int64_t n_samples;  // of all ranks
    ps_figures figures; // of all ranks, after an evaluation
    bool whole;         // they are of the whole split
    float *outputs;     // (data.eval_batch, outputs)
    double *values;     // what is reduced
} ps_evaluator;

typedef struct ps_evaluation {
    double loss; // mean over all samples of the split
    ps_measures measures;
    int64_t samples;
    bool interrupted; // by a signal; the figures cover a part of the split
} ps_evaluation;

ps_err ps_evaluator_init(ps_evaluator *e, const ps_evaluator_options *options);
void ps_evaluator_fini(ps_evaluator *e); // safe after a failed init

/* Divides the split anew: in proportion to shares, the same on all ranks, or equally
 * (ps_sampler_eval_slice). At first it is divided equally. */
ps_err ps_evaluator_share(ps_evaluator *e, const int64_t *shares);

/* All ranks call it at the same step, after the exchange has been drained and the buffers
 * are rank 0's; all get the same figures. name: of the reduction, unique in the job. */
ps_err ps_evaluate(ps_evaluator *e, const char *name, ps_evaluation *out);

/* The last evaluation in the run's folder; nothing where there was none. IO.
 *
 *   evaluation.json  the figures of all samples and of each class, and up to 128 classes
 *                    the matrix of labels and predicted classes (confusion.h); or those
 *                    of each number (figures.h)
 *   evaluation.svg   the matrix as a picture */
ps_err ps_evaluation_write(const ps_evaluator *e, const ps_run_dir *dir);

#endif
