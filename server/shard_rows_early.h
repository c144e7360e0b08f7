/* A PULL_ROWS of the next step, before the present one is applied: rows that this step
 * does not change are read, and travel, at once, the others when it is applied. */
#ifndef PS_SHARD_ROWS_EARLY_H
#define PS_SHARD_ROWS_EARLY_H

#include "row_table.h"
#include "rows_body.h"

typedef struct ps_rows_early {
    ps_rows_pull pull; // of a body that outlives this
    void *arena;       // rows of a shared pull go there
    uint8_t *out;      // else here: the answer; owned
    uint64_t n_out;    // bytes
    uint64_t n_ready;  // of them that are read
    uint64_t n_sent;   // of them that are sent: the caller's
    uint8_t *late;     // (pull.n) read when the step is applied; owned
} ps_rows_early;

/* NOMEM. Safe for fini in every case. All rows are late at first. */
ps_err ps_rows_early_init(ps_rows_early *e, const ps_rows_pull *pull, void *arena,
                          const ps_row_table *tables, uint32_t n_tables);
void ps_rows_early_fini(ps_rows_early *e);

/* Reads what step s does not change. touched (n_tables): all that the ranks have pulled
 * in it. clocks: of the tables. Once. NOMEM. */
ps_err ps_rows_early_read(ps_rows_early *e, ps_row_table *tables, uint32_t n_tables,
                          const ps_row_step *touched, const ps_row_clock *clocks,
                          uint64_t s);
/* Adds by table (n_tables) its rows, and those that have been read. */
void ps_rows_early_count(const ps_rows_early *e, uint32_t n_tables, uint64_t *rows,
                         uint64_t *read);
/* Reads the rest: then all is ready. NOMEM. */
ps_err ps_rows_early_rest(ps_rows_early *e, ps_row_table *tables, uint32_t n_tables);

#endif
