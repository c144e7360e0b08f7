/* A trained model that is asked for outputs: its weights on a device, without a job. */
#ifndef PS_LOADED_MODEL_H
#define PS_LOADED_MODEL_H

#include "batch_rows.h"
#include "cli.h"
#include "dataset.h"
#include "device.h"
#include "loader.h"
#include "mem.h"
#include "model_spec.h"
#include "preprocessing.h"

typedef struct ps_loaded_model {
    const ps_config *config; // borrowed
    ps_model_spec spec;
    ps_preprocessing *state; // of tables; NULL: none
    ps_sample_type samples;  // on which it was trained
    ps_class_names names;    // of the classes, beside the configuration of a run
    ps_shared_mem params;
    void *buffers;
    ps_device *device;
    ps_program *program;
    ps_row_values tables;     // of rows
    ps_batch_rows batch_rows; // from there
    float *rows;              // (data.eval_batch, outputs)
} ps_loaded_model;

/* The model of config with the weights of train.init. ARG: there are none; errors as of
 * ps_model_file_load and ps_program_create. m is safe for fini in every case. */
ps_err ps_loaded_model_open(ps_loaded_model *m, const ps_cli *cli,
                            const ps_config *config, int threads);
void ps_loaded_model_fini(ps_loaded_model *m);

/* The input as model.input gives it: a sequence is (channels, length). */
ps_dims ps_loaded_model_shape(const ps_loaded_model *m);
/* What its samples are: "a table with the columns size, place". Returns out. */
enum { PS_TAKES_TEXT = 320 };
const char *ps_loaded_model_takes(const ps_loaded_model *m, char out[PS_TAKES_TEXT]);

/* Takes n samples of a set, from `first` on. */
typedef struct ps_predicting {
    const ps_dataset *set;
    int64_t first, n;
    bool answered;    // the set has what they are compared with
    const char *what; // names the set in messages
    const char *mend; // of samples that do not fit the input (transform.h)
    /* rows: (n, outputs), which may be changed. */
    ps_err (*take)(void *ctx, float *rows, int64_t n);
    void *ctx;
    double loss, weight; // of samples with answers: sums
} ps_predicting;

/* INTERRUPTED after a signal; errors as of the loader and of take. */
ps_err ps_loaded_model_predict(ps_loaded_model *m, ps_predicting *p);

#endif
