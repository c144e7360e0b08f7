/* The leader of a host (two_levels.h): it pushes the host's sums, and tells the others of
 * new weights. */
#ifndef PS_LEVELS_LEADER_H
#define PS_LEVELS_LEADER_H

#include "levels_sums.h"
#include "ps_comm.h"

typedef struct ps_levels_leader { // borrowed
    ps_levels *levels;
    ps_comm *comm;
} ps_levels_leader;

/* From now on comm tells it of new weights; nobody has given comm a command yet. It stays
 * where it is until comm is destroyed. */
void ps_levels_leader_init(ps_levels_leader *l, ps_levels *levels, ps_comm *comm);

/* What the leader's thread of sums tells: comm pushes each sum. */
ps_levels_sums_hooks ps_levels_leader_hooks(ps_levels_leader *l);

/* The arena has the exact weights: the others copy them. */
void ps_levels_leader_exact(ps_levels_leader *l);

#endif
