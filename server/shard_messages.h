/* What workers tell a shard: hello, first weights, gradients, requests, goodbye. */
#ifndef PS_SHARD_MESSAGES_H
#define PS_SHARD_MESSAGES_H

#include "shard_state.h"

/* Handles one message and everything that follows from it. Takes the payload of a push
 * out of f. A message from outside the job is counted and dropped, without an error.
 * PROTOCOL names the worker. */
ps_err ps_shard_take_message(ps_shard *s, ps_wire_frames *f);

#endif
