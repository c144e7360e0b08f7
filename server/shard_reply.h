/* What a shard tells its workers: new weights, credit, errors. A worker that is gone is
 * no failure here: the coordinator notices and decides. */
#ifndef PS_SHARD_REPLY_H
#define PS_SHARD_REPLY_H

#include "shard_state.h"

/* A READY, CREDIT, STALE or LEFT; as every message it returns what credit is owed.
 * number: of the HELLO in a READY, the member epoch in a STALE, else 0. */
ps_err ps_shard_reply_short(ps_shard *s, ps_msg_kind kind, uint32_t rank,
                            uint64_t number);

/* Returns what is owed to the worker, if that is too much to wait for another message. */
ps_err ps_shard_reply_credit(ps_shard *s, uint32_t rank);

/* The weights of a chunk that a step has just made, to all workers. Those in shared
 * memory are told with the next flush. */
ps_err ps_shard_reply_weights(ps_shard *s, ps_shard_chunk *c);
ps_err ps_shard_reply_flush(ps_shard *s);

/* The weights of a chunk as they are, to one that asks, or repeats itself, as WEIGHTS or
 * SETTLED. */
ps_err ps_shard_reply_out_of_turn(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                  ps_msg_kind kind);

/* STATE: an array of the chunk, or its shard's rule. */
ps_err ps_shard_reply_state(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                            uint64_t array, const void *payload, size_t bytes,
                            ps_wire_pass pass);
/* The array is taken over. */
ps_err ps_shard_reply_restored(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                               uint64_t array);

void ps_shard_reply_error(ps_shard *s, uint32_t rank, const char *text);

#endif
