/* A worker's lookups in embedding tables, whose rows live on the servers: distinct ids,
 * one message to each shard for all tables of a call, pooling, gradients of rows.
 *
 *   each step of the rows, on every rank, beside the session's own steps:
 *     ps_row_client_pull       any number of times; blocks
 *     ps_row_client_gradient   of what was looked up
 *     ps_row_client_prefetch   of the next step; optional
 *     ps_row_client_push       ends the step
 *
 * The thread that calls the session's functions calls these. The messages: rows_body.h.
 */
#ifndef PS_ROW_CLIENT_H
#define PS_ROW_CLIENT_H

#include "row_lookup.h"
#include "session.h"

typedef struct ps_row_client ps_row_client;

/* specs (n): the tables of the job, the same on all ranks and servers. Both are borrowed
 * until destroy, which comes after the session's: its thread may be writing here. *out is
 * owned by the caller. NOMEM. */
ps_err ps_row_client_create(ps_session *session, const ps_row_spec *specs, int n,
                            ps_row_client **out);
void ps_row_client_destroy(ps_row_client **client);

/* n lookups of different tables. trains: gradients may follow in this step, under
 * *ticket. ARG names the table and what is wrong. */
ps_err ps_row_client_pull(ps_row_client *r, const ps_row_lookup *lookups, int n,
                          bool trains, uint64_t *ticket);
/* Asks for the rows of lookups of the next step: their tables, ids and padding count. The
 * pull of just these will find them on the way, or here. They are what they would be
 * without it: shards send what the present step does not change at once, the rest when it
 * is applied. After all pulls of the step that train: ARG there otherwise. */
ps_err ps_row_client_prefetch(ps_row_client *r, const ps_row_lookup *lookups, int n);
/* No pull finds what was asked for ahead: it asks anew. Each rank calls it when one of
 * them has loaded or restored rows: what has come ahead is of those before. */
void ps_row_client_forget_ahead(ps_row_client *r);
/* Adds the gradient of `out` of lookup `index` of that call. weights_grad (n_ids) becomes
 * that of its weights; NULL: not wanted. */
ps_err ps_row_client_gradient(ps_row_client *r, uint64_t ticket, int index,
                              const float *grad, float *weights_grad);
/* No gradients of the ticket follow. */
void ps_row_client_forget(ps_row_client *r, uint64_t ticket);
/* The step has no gradients of the table's rows so far; table -1: of no table's. Tickets
 * stay: their gradients may come again. ARG: there is no such table. */
ps_err ps_row_client_drop_gradients(ps_row_client *r, int table);
/* Every rank. Gradients are multiplied by share. lr: of each table; rank 0's count. */
ps_err ps_row_client_push(ps_row_client *r, float share, const double *lr);
uint64_t ps_row_client_steps(const ps_row_client *r); // pushed so far
/* The rows went back to that step, or on to it (rows_points.h). Waits for answers that
 * are on their way; lookups are forgotten. */
ps_err ps_row_client_set_step(ps_row_client *r, uint64_t step);

/* float32 of a row with its optimizer's state. */
uint32_t ps_row_client_width(const ps_row_client *r, int table);
/* Rows for the servers, between two steps: values (n, dim), or with state (n, width).
 * steps: of the table. */
ps_err ps_row_client_load(ps_row_client *r, int table, const int64_t *ids, uint64_t n,
                          const float *values, bool with_state, uint64_t steps);

typedef struct ps_row_page {
    uint64_t next; // 0: the first page; then as it was left; 0 again: there is none
    uint64_t n;    // rows
    uint64_t n_candidates;          // ids that are not admitted yet
    const int64_t *ids;             // (n + n_candidates); these are borrowed until the
    const struct ps_rows_age *ages; // (n + n_candidates) next page
    const float *values;            // (n, width)
    uint64_t steps;                 // of the table
    uint64_t clock;                 // its version: above no row's
} ps_row_page;

/* Rows that a table has, a page at a time. */
ps_err ps_row_client_save(ps_row_client *r, int table, ps_row_page *page);

/* Gives a table what pages of it had, of this job or another one; the first of them
 * removes all that the table has. Between two steps. Rows then have the ages, and the
 * table the clock, that the pages say; clock 0: as ps_row_client_load. ARG: ages that are
 * none. */
ps_err ps_row_client_restore(ps_row_client *r, int table, const ps_row_page *page,
                             bool first);

#endif
