/* The rows of a model's embedding tables in a file beside its weights: model.safetensors
 * has model.rows.safetensors. As pstrain.Embeddings.export writes them, of each table:
 *
 *   NAME.ids      I64 (n), in rising order: those that a gradient has reached
 *   NAME.weight   F32 (n, dim)
 */
#ifndef PS_ROW_VALUES_H
#define PS_ROW_VALUES_H

#include <limits.h>

#include "model_spec.h"
#include "row_client.h"

typedef struct ps_row_value_table {
    uint64_t n;
    int64_t *ids; // (n); owned, as weights
    float *weights;
} ps_row_value_table;

typedef struct ps_row_values {
    const ps_row_spec *specs;   // (n) borrowed
    ps_row_value_table *tables; // (n) owned
    int n;
} ps_row_values;

/* The file beside a file of weights. */
void ps_row_values_path(const char *weights, char path[PATH_MAX]);

/* Takes all rows from the servers, between two steps; in memory once. */
ps_err ps_row_values_save(const char *path, ps_row_client *client,
                          const ps_model_spec *spec);

/* FORMAT, IO: the file has not the rows of such tables. v is safe for fini. */
ps_err ps_row_values_load(ps_row_values *v, const char *path, const ps_model_spec *spec);
void ps_row_values_fini(ps_row_values *v); // safe on a zeroed one

/* Gives them to the servers, before the first step. */
ps_err ps_row_values_put(const ps_row_values *v, ps_row_client *client);
/* out (n, dim): those that are in no file have their first values. */
void ps_row_values_read(const ps_row_values *v, int table, uint64_t n, const int64_t *ids,
                        float *out);

#endif
