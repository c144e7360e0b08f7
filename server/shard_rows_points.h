/* A shard's points (row_store.h), as the messages KEEP_ROWS and RETURN_ROWS want it. */
#ifndef PS_SHARD_ROWS_POINTS_H
#define PS_SHARD_ROWS_POINTS_H

#include <limits.h>

#include "row_manifest.h"
#include "row_store.h"
#include "rows_body.h"

/* KEEP_ROWS of step `step`: sets the point, and writes files. *answer (*answer_bytes) is
 * owned by the caller (free()). A file that cannot be written is no failure here: the
 * answer says it. PROTOCOL, NOMEM. */
ps_err ps_shard_rows_keep(ps_row_store *store, uint32_t shard, uint64_t step,
                          const void *body, uint64_t bytes, void **answer,
                          uint64_t *answer_bytes);

/* What RETURN_ROWS says. */
typedef struct ps_shard_return {
    uint64_t point;
    ps_row_manifest manifest; // without files: the point is in memory alone
    char folder[PATH_MAX];    // of the files
} ps_shard_return;

/* *out is safe for fini in every case. PROTOCOL. */
ps_err ps_shard_return_read(const void *body, uint64_t bytes, ps_shard_return *out);
void ps_shard_return_fini(ps_shard_return *back);

/* *now becomes the tables at the point, *step their step. *now and *before (which may be
 * NULL) are the tables of the job and of the one before it in this process; *before
 * becomes NULL. *found false: nothing else is changed, since neither has the point.
 * PROTOCOL, NOMEM. */
ps_err ps_shard_rows_return(ps_row_store **now, ps_row_store **before, uint64_t point,
                            uint64_t *step, bool *found);
/* The same with the files that the message names; *found false: it names none. FORMAT,
 * IO, SHAPE: the files. NOMEM. */
ps_err ps_shard_rows_return_from_files(ps_row_store **now, uint32_t shard,
                                       uint32_t n_shards, const ps_shard_return *back,
                                       uint64_t *step, bool *found);

/* *by takes the place of *now, which is destroyed; *by becomes NULL. */
void ps_shard_rows_replace(ps_row_store **now, ps_row_store **by);

#endif
