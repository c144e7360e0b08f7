/* What a checkpoint takes from a shard, and gives back to it when a job goes on: FETCH
 * and RESTORE (wire.h). A worker asks between two steps: it has not pushed the next one's
 * gradients, so that no array of the chunk changes until it has the answer. */
#ifndef PS_SHARD_SNAPSHOT_H
#define PS_SHARD_SNAPSHOT_H

#include "shard_state.h"

/* PROTOCOL when the chunk has no such array or version. */
ps_err ps_shard_snapshot_fetch(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h);
/* A repetition after the first weights is answered, and changes nothing. PROTOCOL as
 * above. */
ps_err ps_shard_snapshot_restore(ps_shard *s, ps_shard_chunk *c, const ps_wire_header *h,
                                 ps_wire_frames *f);

#endif
