/* The leader of a host (two_levels.h): it pushes the host's sums, and tells the others of
 * new weights. */
#ifndef PS_LEVELS_LEADER_H
#define PS_LEVELS_LEADER_H

#include "levels_sums.h"
#include "ps_comm.h"

typedef struct ps_levels_leader ps_levels_leader;

/* Starts the thread of sums. Borrows both until destroy; nobody has given comm a command
 * yet. */
ps_err ps_levels_leader_create(ps_levels *levels, ps_comm *comm, ps_levels_leader **out);

/* As ps_levels_sums_give. */
void ps_levels_leader_give(ps_levels_leader *l, const uint32_t *chunks, uint32_t n);

/* These three: of the leader's own GPU, as ps_levels_sums_... say. */
ps_err ps_levels_leader_await_here(ps_levels_leader *l, uint32_t first, uint32_t last,
                                   int64_t version);
bool ps_levels_leader_here(const ps_levels_leader *l, uint32_t first, uint32_t last,
                           int64_t version);
ps_err ps_levels_leader_bring_exact(ps_levels_leader *l);

/* Called with the outcome of a wait for a version. Returns it, or instead of a TIMEOUT
 * one that names the worker of this host whose gradients, or sums, are missing. */
ps_err ps_levels_leader_blame(const ps_levels_leader *l, ps_err err);

/* The arena has the exact weights: the others copy them. */
void ps_levels_leader_exact(ps_levels_leader *l);

/* Ends the thread. Before comm is destroyed. */
void ps_levels_leader_stop(ps_levels_leader *l);
/* After comm was destroyed. */
void ps_levels_leader_destroy(ps_levels_leader **l);

#endif
