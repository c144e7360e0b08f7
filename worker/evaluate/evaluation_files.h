/* The last evaluation in the run's folder:
 *
 *   evaluation.json  the figures of all samples and of each class, and up to 128 classes
 *                    the matrix of labels and predicted classes (confusion.h); or those
 *                    of each number (figures.h)
 *   evaluation.svg   the matrix as a picture */
#ifndef PS_EVALUATION_FILES_H
#define PS_EVALUATION_FILES_H

#include "evaluate.h"
#include "run_dir.h"

/* Writes nothing where there was no evaluation. IO. */
ps_err ps_evaluation_write(const ps_evaluator *e, const ps_run_dir *dir);

#endif
