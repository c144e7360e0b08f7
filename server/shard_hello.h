/* HELLO: how a worker and a shard agree on the way of payloads. */
#ifndef PS_SHARD_HELLO_H
#define PS_SHARD_HELLO_H

#include "shard_state.h"

/* Answers READY. A process that takes a dead worker's place may be faster than the order
 * which says so: then its HELLO is kept (hello_header), until that order comes. PROTOCOL.
 */
ps_err ps_shard_hello(ps_shard *s, const ps_wire_header *h);

#endif
