/* A shard's rows of embedding tables: the messages of rows (wire.h), their steps, and
 * the tables. */
#ifndef PS_SHARD_ROWS_H
#define PS_SHARD_ROWS_H

#include "shard_state.h"

/* Makes the tables of this shard. specs: of the job, borrowed during the call; none: the
 * shard has no rows. NOMEM, IO. */
ps_err ps_shard_rows_open(ps_shard *s, const ps_row_spec *specs, int n);
void ps_shard_rows_close(ps_shard *s); // safe after a failed open

/* Takes a piece of a message of rows, and does all that follows once it is whole. The
 * frame was checked. PROTOCOL; NUMERIC and NOMEM as ps_row_table_apply. */
ps_err ps_shard_rows_take(ps_shard *s, const ps_wire_header *h, ps_wire_frames *f);

/* Some workers have left: ARG if another one waits for what they will never send. */
ps_err ps_shard_rows_check_left(const ps_shard *s);

#endif
