/* What a shard tells its workers: new weights, credit, errors. A worker that is gone is
 * no failure here: the coordinator notices and decides. */
#ifndef PS_SHARD_REPLY_H
#define PS_SHARD_REPLY_H

#include "shard_state.h"

/* Sends a READY, CREDIT, STALE or LEFT. Like every message, it returns the credit that is
 * owed. number: of the HELLO in a READY, the member epoch in a STALE, else 0. */
ps_err ps_shard_reply_short(ps_shard *s, ps_msg_kind kind, uint32_t rank,
                            uint64_t number);

/* Returns the worker's credit now if too much is owed to wait for another message. */
ps_err ps_shard_reply_credit(ps_shard *s, uint32_t rank);

/* Sends a chunk's new weights to all workers. Workers in shared memory are told with the
 * next flush. */
ps_err ps_shard_reply_weights(ps_shard *s, ps_shard_chunk *c);
ps_err ps_shard_reply_flush(ps_shard *s);

/* Sends a chunk's present weights to one worker that asks, or asks again. kind: WEIGHTS
 * or EXACT_WEIGHTS. */
ps_err ps_shard_reply_out_of_turn(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                                  ps_msg_kind kind);

/* Sends a chunk's present weights, or what a codec makes of them, as they are: to a
 * worker in shared memory only the message. BORROW: in turn (shard_reply.c says why it is
 * safe). */
ps_err ps_shard_reply_send(ps_shard *s, ps_shard_chunk *c, uint32_t rank,
                           ps_msg_kind kind, ps_wire_pass pass);

/* Sends a STATE: an array of the chunk, or the shard's step rule. */
ps_err ps_shard_reply_state(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                            uint64_t array, const void *payload, size_t bytes,
                            ps_wire_pass pass);
/* Sends a RESTORED: the shard has taken over the array. */
ps_err ps_shard_reply_restored(ps_shard *s, const ps_shard_chunk *c, uint32_t rank,
                               uint64_t array);

/* Sends a piece of a ROWS (wire.h): the answer to a message of rows. Copied. */
ps_err ps_shard_reply_rows(ps_shard *s, uint32_t rank, uint64_t step, uint64_t number,
                           uint64_t all_bytes, uint64_t at, const void *piece,
                           size_t bytes);

void ps_shard_reply_error(ps_shard *s, uint32_t rank, const char *text);

#endif
