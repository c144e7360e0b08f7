/* What workers tell a shard: hello, first weights, gradients, wishes, goodbye. */
#ifndef PS_SHARD_MESSAGES_H
#define PS_SHARD_MESSAGES_H

#include "shard_state.h"

/* One message, with all that follows from it; takes the payload of a push out of f. What
 * is of no worker of the job is dropped and counted, no error; PROTOCOL names the worker.
 */
ps_err ps_shard_take_message(ps_shard *s, ps_wire_frames *f);

#endif
