/* The leader of a host (two_levels.h): a thread that sums the host's gradients chunk by
 * chunk and pushes the sums; and what the leader tells the others of new weights. */
#ifndef PS_LEVELS_LEADER_H
#define PS_LEVELS_LEADER_H

#include "ps_comm.h"
#include "two_levels.h"

typedef struct ps_levels_leader ps_levels_leader;

/* Starts the thread. Borrows both until destroy; nobody has given comm a command yet. */
ps_err ps_levels_leader_create(ps_levels *levels, ps_comm *comm, ps_levels_leader **out);

/* The leader's own gradients of these chunks are final. In each step each chunk comes
 * once, and in the next step only when the version that answered it is here. */
void ps_levels_leader_give(ps_levels_leader *l, const uint32_t *chunks, uint32_t n);

/* Called with the outcome of a wait for a version. Returns it, or instead of a TIMEOUT
 * one that names the worker of this host whose gradients are missing. */
ps_err ps_levels_leader_blame(const ps_levels_leader *l, ps_err err);

/* The arena has the exact weights: the others copy them. */
void ps_levels_leader_exact(ps_levels_leader *l);

/* Ends the thread. Before comm is destroyed. */
void ps_levels_leader_stop(ps_levels_leader *l);
/* After comm was destroyed. */
void ps_levels_leader_destroy(ps_levels_leader **l);

#endif
