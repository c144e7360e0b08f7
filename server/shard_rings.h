/* A shard and the rings of the workers on its host (wire_rings.h). */
#ifndef PS_SHARD_RINGS_H
#define PS_SHARD_RINGS_H

#include "shard_state.h"

/* Whether gradients may be taken from rings. Before all first weights are here they stay
 * there: worker 0 sends the weights through its socket and then a gradient through its
 * ring. */
bool ps_shard_rings_in_use(const ps_shard *s);

/* Takes one message from a worker's ring if there is one: *got. PROTOCOL names it. */
ps_err ps_shard_rings_next(ps_shard *s, uint32_t rank, ps_wire_frames *f, bool *got);

/* Before the shard sleeps: returns when a worker that it may have to wait for has sent
 * something, or after a moment, where the host has cores to spare. */
void ps_shard_rings_look(const ps_shard *s);
/* Then: asks workers to wake it, false when one of them has sent something already. */
bool ps_shard_rings_sleep(ps_shard *s);
/* Afterwards; woken: `wake` is set. */
void ps_shard_rings_awake(ps_shard *s, bool woken);

/* Puts a chunk's new weights into a worker's ring. PROTOCOL when it has no room. */
ps_err ps_shard_rings_put(ps_shard *s, uint32_t rank, const ps_wire_header *h);
/* Then wakes the workers that wait for one of them. */
void ps_shard_rings_wake(ps_shard *s);

#endif
