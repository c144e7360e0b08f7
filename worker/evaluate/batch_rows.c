#include "batch_rows.h"

#include <stdlib.h>

#include "mem.h"

ps_err ps_batch_rows_init(ps_batch_rows *b, ps_row_client *client,
                          const ps_row_values *file, const ps_model_spec *spec,
                          int64_t max_batch, bool trains)
{
    size_t n = 0;
    *b = (ps_batch_rows){.client = client, .file = file, .spec = spec, .trains = trains};
    if (spec->n_rows == 0) return PS_OK;
    for (int t = 0; t < spec->n_rows; t++)
        n += (size_t)max_batch * spec->rows[t].dim;
    PS_TRY(PS_NEW(&b->lookups, 2 * (size_t)spec->n_rows, "embedding tables"));
    PS_TRY(ps_mem_zalloc_large(&b->rows, n * sizeof *b->rows, "rows of a batch"));
    if (!trains) return PS_OK;
    return ps_mem_zalloc_large(&b->grads, n * sizeof *b->grads, "rows of a batch");
}

void ps_batch_rows_fini(ps_batch_rows *b)
{
    free(b->lookups);
    free(b->rows);
    free(b->grads);
    *b = (ps_batch_rows){0};
}

/* Lookups of n samples, one of each table. */
static void batch_rows_list(const ps_batch_rows *b, const int64_t *ids, int64_t n,
                            ps_row_lookup *lookups)
{
    float *out = b->rows;
    for (int t = 0; t < b->spec->n_rows; t++) {
        lookups[t] = (ps_row_lookup){.table = t,
                                     .ids = ids + b->spec->columns[t] * n,
                                     .n_ids = (uint64_t)n,
                                     .out = out};
        out += (size_t)n * b->spec->rows[t].dim;
    }
}

ps_err ps_batch_rows_pull(ps_batch_rows *b, const int64_t *ids, ps_batch *batch)
{
    if (b->spec->n_rows == 0) return PS_OK;
    batch_rows_list(b, ids, batch->n, b->lookups);
    for (int t = 0; t < b->spec->n_rows && !b->client; t++) {
        const ps_row_lookup *l = &b->lookups[t];
        ps_row_values_read(b->file, t, l->n_ids, l->ids, l->out);
    }
    batch->rows = b->rows;
    batch->row_grads = b->grads;
    if (!b->client) return PS_OK;
    return ps_row_client_pull(b->client, b->lookups, b->spec->n_rows, b->trains,
                              &b->ticket);
}

ps_err ps_batch_rows_prefetch(ps_batch_rows *b, const int64_t *ids, int64_t n)
{
    ps_row_lookup *lookups = b->lookups + b->spec->n_rows;
    batch_rows_list(b, ids, n, lookups);
    return ps_row_client_prefetch(b->client, lookups, b->spec->n_rows);
}

ps_err ps_batch_rows_add_gradients(ps_batch_rows *b)
{
    const float *grads = b->grads;
    for (int t = 0; b->client && t < b->spec->n_rows; t++) {
        PS_TRY(ps_row_client_gradient(b->client, b->ticket, t, grads, NULL));
        grads += b->lookups[t].n_ids * b->spec->rows[t].dim;
    }
    return PS_OK;
}

ps_err ps_batch_rows_push(ps_batch_rows *b, double factor)
{
    double rates[PS_ROW_TABLES_MAX];
    if (!b->client) return PS_OK;
    for (int t = 0; t < b->spec->n_rows; t++)
        rates[t] = b->spec->rows[t].lr * factor;
    return ps_row_client_push(b->client, 1, rates);
}
