/* A shard's rows of embedding tables: the messages of rows (wire.h), their steps, and
 * the tables. */
#ifndef PS_SHARD_ROWS_H
#define PS_SHARD_ROWS_H

#include "shard_twin_feed.h"

/* Makes the tables of this shard. specs: of the job, borrowed during the call; none: the
 * shard has no rows. NOMEM, IO. */
ps_err ps_shard_rows_open(ps_shard *s, const ps_row_spec *specs, int n);
void ps_shard_rows_close(ps_shard *s); // safe after a failed open

/* Takes a piece of a message of rows, and does all that follows once it is whole. The
 * frame was checked. PROTOCOL; NUMERIC and NOMEM as ps_row_table_apply. */
ps_err ps_shard_rows_take(ps_shard *s, const ps_wire_header *h, ps_wire_frames *f);

/* The worker has a new connection: what was sent over the one before may be lost. */
void ps_shard_rows_connect(ps_shard *s, uint32_t rank);

/* What tells the shard's twin; NULL: rows.buddy is off. */
ps_twin_feed *ps_shard_rows_feed(const ps_shard *s);
/* Takes what the twin has answered, and does what follows. */
ps_err ps_shard_rows_hear_twin(ps_shard *s);
/* Takes a message of shard `from`, whose twin this one is. PROTOCOL, NOMEM. */
ps_err ps_shard_rows_take_of_twin(ps_shard *s, const ps_frame_view *v,
                                  const ps_wire_frames *f, uint32_t from);

/* For readers. Whether the job's steps have begun: before, rows may still come from a
 * file or a point. */
bool ps_shard_rows_have_begun(const ps_shard *s);
/* A TABLES. The bytes are w's. NOMEM. */
ps_err ps_shard_rows_tell_tables(const ps_shard *s, ps_mp_writer *w);
/* The rows that a READ_ROWS asks for, as they are between two steps; changes nothing.
 * *out (*bytes) is valid until the next message; *step: steps that they have made.
 * PROTOCOL, NOMEM. */
ps_err ps_shard_rows_look(ps_shard *s, const void *body, uint64_t bytes, const void **out,
                          uint64_t *out_bytes, uint64_t *step);

/* Some workers have left: ARG if another one waits for what they will never send. */
ps_err ps_shard_rows_check_left(const ps_shard *s);

#endif
