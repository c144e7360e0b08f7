/* Buffers (batch norm's, and frozen parameters) through the coordinator's store, where
 * there are servers. */
#ifndef PS_BUFFER_SYNC_H
#define PS_BUFFER_SYNC_H

#include "exchange.h"

/* Rank 0's buffer arena becomes everybody's. All workers call it at the same time.
 * *n_pieces: what has travelled before; counted up. PROTOCOL, and the errors of the
 * store. */
ps_err ps_buffer_sync(const ps_exchange_options *options, uint64_t *n_pieces);

#endif
