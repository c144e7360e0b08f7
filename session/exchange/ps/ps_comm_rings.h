/* The main thread's way to shards of its host: rings in shared memory instead of sockets
 * (wire_rings.h), for gradients and the weights that answer them. */
#ifndef PS_COMM_RINGS_H
#define PS_COMM_RINGS_H

#include "ps_comm_state.h"

/* Makes the rings when every shard is on this host and may share memory; else there are
 * none. For all links; before they are offered. */
ps_err ps_comm_rings_open(ps_comm *c);
/* The rings are in use when every server has taken them. */
void ps_comm_rings_agree(ps_comm *c);

/* Puts the gradients of chunks into the rings, and wakes shards that sleep. more: others
 * of the step follow; a shard may sleep until they are here. */
ps_err ps_comm_rings_push(ps_comm *c, uint64_t step, const uint32_t *chunks, uint32_t n,
                          bool more);
/* Before a wait for all chunks, all of which have been pushed: whether one wake-up is
 * enough, when all weights are here (PS_WIRE_WANTED_ALL). False: none is on the way. */
bool ps_comm_rings_want_all(ps_comm *c);
/* Takes all weights that are in the rings. */
ps_err ps_comm_rings_take(ps_comm *c);

#endif
