/* What a shard is told. By workers: hello, first weights, gradients, requests, goodbye.
 */
#ifndef PS_SHARD_MESSAGES_H
#define PS_SHARD_MESSAGES_H

#include "shard_state.h"

/* Handles one message and everything that follows from it. Takes the payload of a push
 * out of f. A message from outside the job is counted and dropped, without an error.
 * PROTOCOL names the worker. */
ps_err ps_shard_take_message(ps_shard *s, ps_wire_frames *f);

/* Takes what the coordinator has written: a norm, or orders. */
ps_err ps_shard_hear(ps_shard *s);

#endif
