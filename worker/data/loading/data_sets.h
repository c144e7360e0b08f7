/* A job's training and test set, read at once or in a thread beside what else is to do.
 */
#ifndef PS_DATA_SETS_H
#define PS_DATA_SETS_H

#include "dataset.h"
#include "model_spec.h"
#include "thread.h"

typedef struct ps_data_sets {
    ps_dataset train, test;  // train: empty with train.epochs=0
    ps_preprocessing *state; // of tables; owned; NULL: none
    const ps_config *config;
    const ps_model_spec *spec;
    ps_thread thread;
    ps_err_saved result; // of the thread
} ps_data_sets;

/* Reads both. d is zeroed before, and safe for fini after a failure. CONFIG also where
 * the job needs a test set and there is none. */
ps_err ps_data_sets_read(ps_data_sets *d, const ps_config *config,
                         const ps_model_spec *spec);
/* Begins to read them in a thread, with borrowed config and spec; ps_data_sets_end waits
 * for it, and returns what ps_data_sets_read would have. */
ps_err ps_data_sets_begin(ps_data_sets *d, const ps_config *config,
                          const ps_model_spec *spec);
ps_err ps_data_sets_end(ps_data_sets *d);
void ps_data_sets_fini(ps_data_sets *d); // waits for the thread

/* Logs how many samples there are, and what the readers noted. */
void ps_data_sets_log(const ps_data_sets *d, const ps_config *config);

#endif
