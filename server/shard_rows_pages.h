/* A shard's tables, part by part, as the messages SAVE_ROWS and LOAD_ROWS have them. */
#ifndef PS_SHARD_ROWS_PAGES_H
#define PS_SHARD_ROWS_PAGES_H

#include "row_store.h"

/* The answer to a SAVE_ROWS in the job's step: *page (*page_bytes) is owned by the caller
 * (free()). PROTOCOL, NOMEM. */
ps_err ps_shard_rows_page(const ps_row_store *store, uint64_t step, const void *body,
                          uint64_t bytes, void **page, uint64_t *page_bytes);

/* Takes the rows of a LOAD_ROWS in the job's step. PROTOCOL, NOMEM. */
ps_err ps_shard_rows_load(ps_row_store *store, uint64_t step, const void *body,
                          uint64_t bytes);

#endif
