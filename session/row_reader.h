/* Reads rows of embedding tables of a job that runs, from a process that is no member of
 * it: for serving. It changes nothing.
 *
 * Which rows it sees: each shard answers a message between two steps, with all updates of
 * the steps before and of none after. The ids of one call go to the shards at once, and
 * are one message to each where they fit (PS_WIRE_ASKED_BYTES, PS_WIRE_READ_BYTES). So
 * the rows of one shard are those after one step, and shards are a step apart at most
 * while the job goes on; a call that needs several messages to a shard may see later
 * steps in the later ones. ps_row_steps says which.
 *
 * Where a connection is lost, a shard does not answer, or the job is started again, it
 * asks the coordinator anew, and reads all rows of the call again: for as long as
 * timeout_ms lets it. One thread at a time. */
#ifndef PS_ROW_READER_H
#define PS_ROW_READER_H

#include "row_spec.h"

typedef struct ps_row_reader ps_row_reader;

typedef struct ps_row_reader_options {
    const char *address; // of the job: tcp://host:port or file:///path
    const char *job;     // its name (job.name); "": any
    const char *keys;    // a folder, or the text of worker.key; "": none
    uint64_t timeout_ms; // of each call
} ps_row_reader_options;

/* Steps that the rows of a call have made: of the shard that had made the fewest, and the
 * most. */
typedef struct ps_row_steps {
    uint64_t first, last;
} ps_row_steps;

/* Connects. The options are borrowed during the call; *out is owned by the caller. ARG;
 * PEER: the job lets no readers in, or none with this key, or has no embedding tables;
 * TIMEOUT says what it has waited for. NET, IO, FORMAT, NOMEM, PROTOCOL, INTERRUPTED. */
ps_err ps_row_reader_create(const ps_row_reader_options *options, ps_row_reader **out);
void ps_row_reader_destroy(ps_row_reader **reader);

/* The tables of the job, (*n) in their order; the reader's. */
const ps_row_spec *ps_row_reader_tables(const ps_row_reader *r, uint32_t *n);

/* By table: ids (counts[t]), each from 0 on, distinct or not; outs[t] becomes (counts[t],
 * dim): an id that no gradient has reached has its first row. ids and outs of tables
 * without ids may be NULL. ARG: a negative id; SHAPE: the job was started again with
 * other tables; the others as ps_row_reader_create. After an error it may be called
 * again. */
ps_err ps_row_reader_read(ps_row_reader *r, const uint64_t *counts,
                          const int64_t *const *ids, float *const *outs,
                          ps_row_steps *steps);

#endif
