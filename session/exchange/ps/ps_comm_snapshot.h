/* A worker and the state that lies in the shards: fetched for a checkpoint between two
 * steps, and restored by worker 0 before the first weights. */
#ifndef PS_COMM_SNAPSHOT_H
#define PS_COMM_SNAPSHOT_H

#include "ps_comm_state.h"

/* From the main thread, when no push is unanswered; array as in wire.h. Block until all
 * shards have answered; TIMEOUT as ps_comm_wait. Fills an arena. over_gradients: the
 * gradients are needed no more, and shards of this host may write over them. */
ps_err ps_comm_snapshot_fetch(ps_comm *c, uint64_t array, bool over_gradients,
                              float *arena);
ps_err ps_comm_snapshot_fetch_rule(ps_comm *c, uint8_t rule[PS_STEP_RULE_STATE_BYTES],
                                   size_t *bytes);
/* Before the first weights. */
ps_err ps_comm_snapshot_restore(ps_comm *c, uint64_t array, const float *arena);

/* From the main thread between two steps: what the codec has not sent yet, an arena; NULL
 * where it keeps nothing. */
float *ps_comm_snapshot_feedback(ps_comm *c);

/* From the thread: a STATE or RESTORED. PROTOCOL when it does not fit. */
ps_err ps_comm_snapshot_take(ps_comm *c, const ps_comm_link *l, const ps_wire_header *h,
                             ps_wire_frames *f);

#endif
