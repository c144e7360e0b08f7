/* A connection of one thread to the coordinator, beside the member's own: a shard uses it
 * for the global gradient norm and for orders (coord_orders.h), without blocking on it.
 * Not thread-safe. */
#ifndef PS_COORD_LINK_H
#define PS_COORD_LINK_H

#include "member.h"
#include "sync_policy.h"

typedef struct ps_coord_link ps_coord_link;

/* number: 1 for the first shard of the server, and so on. */
ps_err ps_coord_link_create(void *zmq_context, const ps_member *m, unsigned number,
                            ps_coord_link **out);
void ps_coord_link_destroy(ps_coord_link **link);

/* The ZeroMQ sockets for zmq_poll: one for answers, one for events of the connection. */
void *ps_coord_link_socket(ps_coord_link *link);
void *ps_coord_link_monitor(ps_coord_link *link);

/* Reads the events of the connection. Over a new connection, it sends again what is not
 * answered yet. */
ps_err ps_coord_link_mend(ps_coord_link *link);

/* Sends this shard's block sums of a step: n runs; run i covers blocks first[i] ..
 * first[i] + counts[i] of total_blocks, its sums one after another in sums. When the runs
 * of all n_shards shards are in, the coordinator adds them in order and answers all. */
ps_err ps_coord_link_gradnorm_send(ps_coord_link *link, uint64_t step, uint32_t n_shards,
                                   uint64_t total_blocks, uint32_t n,
                                   const uint64_t *first, const uint64_t *counts,
                                   const double *sums);
/* The same for blocks of any kind (lamb.h): the answer is the sums of all blocks, in
 * their order, for ps_coord_link_sums_recv. Per step, after the norm if both are asked
 * for. */
ps_err ps_coord_link_sums_send(ps_coord_link *link, uint64_t step, uint32_t n_shards,
                               uint64_t total_blocks, uint32_t n, const uint64_t *first,
                               const uint64_t *counts, const double *sums);
/* Takes the answer if it is here: *got, *step, *norm. Never blocks. Repeated answers
 * are skipped. */
ps_err ps_coord_link_gradnorm_recv(ps_coord_link *link, int *got, uint64_t *step,
                                   double *norm);

/* Likewise; sums (n_sums) is filled. PROTOCOL: the answer has another number of them. */
ps_err ps_coord_link_sums_recv(ps_coord_link *link, int *got, uint64_t *step,
                               double *sums, uint64_t n_sums);

typedef struct ps_coord_link_push {
    uint32_t rank, fragment;
    uint64_t number; // the worker's own
    uint32_t n_workers;
    uint32_t n_shards;  // 1 or more
    uint32_t n_holders; // of them, those that have chunks of the fragment
} ps_coord_link_push;

/* All of this shard's chunks of a worker's push are here. */
ps_err ps_coord_link_pushed(ps_coord_link *link, const ps_coord_link_push *push);
/* Takes the next order if there is one: *got. entries: (n_workers), where out's are then.
 * Never blocks. Orders come in sequence, each once. */
ps_err ps_coord_link_order(ps_coord_link *link, ps_sync_entry *entries,
                           uint32_t n_workers, ps_sync_order *out, bool *got);

#endif
