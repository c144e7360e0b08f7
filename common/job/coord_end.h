/* How a job ends at the coordinator: all workers leave, or somebody aborts it. */
#ifndef PS_COORD_END_H
#define PS_COORD_END_H

#include "coord_state.h"

/* Tells all members why. Nothing where the job is over already. */
void ps_coord_abort(ps_coordinator *c, const char *reason);

/* An INTERRUPT message: passed on to all workers. */
void ps_coord_on_interrupt(ps_coordinator *c, const ps_coord_peer *from);

/* Tells a member what it may have missed while its connection was lost: that all workers
 * have left, or are to end. Again with each of its heartbeats. */
void ps_coord_tell_state(ps_coordinator *c, ps_coord_peer *p);

/* A LEAVE message: answered when its sender may go, or its deadline has passed. */
void ps_coord_on_leave(ps_coordinator *c, ps_coord_peer *p, const ps_control *m);
/* Answers those whose deadline has passed, naming whom they waited for. */
void ps_coord_expire_leaves(ps_coordinator *c);
/* Nothing more will come from the member. */
void ps_coord_set_gone(ps_coordinator *c, ps_coord_peer *p);

#endif
