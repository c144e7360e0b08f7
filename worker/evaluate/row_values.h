/* The rows of a model's embedding tables in a file beside its weights: model.safetensors
 * has model.rows.safetensors, in which they are as row_export.h says, with metadata by
 * which pstrain.rows() reads it, too. Both files' metadata have the step: a process that
 * is killed after the first of them leaves those of two steps. */
#ifndef PS_ROW_VALUES_H
#define PS_ROW_VALUES_H

#include <limits.h>

#include "model_spec.h"
#include "row_client.h"
#include "safetensors.h"

typedef struct ps_row_value_table {
    uint64_t n;
    const void *ids, *weights; // in the file; not aligned
} ps_row_value_table;

/* A file that is mapped: it takes no memory that the system could not have back. */
typedef struct ps_row_values {
    const ps_row_spec *specs;   // (n) borrowed
    ps_row_value_table *tables; // (n) owned
    int n;
    ps_st_file file;
} ps_row_values;

/* The file beside a file of weights. */
void ps_row_values_path(const char *weights, char path[PATH_MAX]);

/* Takes all rows from the servers, between two steps, into the file beside the weights.
 * They lie beside it until they are in it, as row_spool.h says. step: as the weights'
 * metadata have it. */
ps_err ps_row_values_save(const char *weights, const char *step, ps_row_client *client,
                          const ps_model_spec *spec);

/* Those beside a file of weights. FORMAT, IO: the file has not the rows of such tables,
 * or is of another step than the weights. v is safe for fini. */
ps_err ps_row_values_open(ps_row_values *v, const char *weights,
                          const ps_model_spec *spec);
void ps_row_values_fini(ps_row_values *v); // safe on a zeroed one

/* Gives them to the servers, before the first step. */
ps_err ps_row_values_put(const ps_row_values *v, ps_row_client *client);
/* out (n, dim): those that are in no file have their first values. */
void ps_row_values_read(const ps_row_values *v, int table, uint64_t n, const int64_t *ids,
                        float *out);

#endif
