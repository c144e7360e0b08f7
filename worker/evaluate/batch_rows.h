/* The rows of a batch's ids: from the embedding tables on the servers, or from a file,
 * into ps_batch; and their gradients back. */
#ifndef PS_BATCH_ROWS_H
#define PS_BATCH_ROWS_H

#include "device.h"
#include "loader.h"
#include "row_values.h"

typedef struct ps_batch_rows {
    ps_row_client *client;     // borrowed; NULL: of a file
    const ps_row_values *file; // borrowed
    const ps_model_spec *spec; // borrowed
    bool trains;
    uint64_t ticket;
    ps_row_lookup *lookups; // (2, tables) of the batch, of the next one
    float *rows, *grads;    // (max_batch, dim) of each table; grads: NULL without trains
} ps_batch_rows;

/* client, or file where it is NULL. For a model without tables the calls do nothing.
 * NOMEM; b is safe for fini. */
ps_err ps_batch_rows_init(ps_batch_rows *b, ps_row_client *client,
                          const ps_row_values *file, const ps_model_spec *spec,
                          int64_t max_batch, bool trains);
void ps_batch_rows_fini(ps_batch_rows *b);

/* What the device gets of a batch, without rows. */
static inline ps_batch ps_batch_of(const ps_loaded *loaded)
{
    return (ps_batch){.n = (int)loaded->n,
                      .x = loaded->x,
                      .bytes = loaded->bytes,
                      .labels = loaded->labels,
                      .targets = loaded->targets,
                      .positions = loaded->positions};
}
/* ids (columns, n): of the batch, whose rows and row_grads are set. Blocks. */
ps_err ps_batch_rows_pull(ps_batch_rows *b, const int64_t *ids, ps_batch *batch);
/* Asks for the rows of the next step's first batch, of n samples, whose pull finds them
 * on the way. After the last pull of this step. ids: borrowed during the call. */
ps_err ps_batch_rows_prefetch(ps_batch_rows *b, const int64_t *ids, int64_t n);
/* After the batch's backward pass. */
ps_err ps_batch_rows_add_gradients(ps_batch_rows *b);
/* Ends an optimizer step: gradients are those of the mean loss over all ranks' samples,
 * as those of the layers. factor: of the tables' rates. All ranks. */
ps_err ps_batch_rows_push(ps_batch_rows *b, double factor);

#endif
