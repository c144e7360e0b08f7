/* How a job ends at the coordinator: all workers leave, or somebody aborts it. */
#ifndef PS_COORD_END_H
#define PS_COORD_END_H

#include "coord_state.h"

/* Aborts the job and tells all members why. code: of the failure; a passing one
 * (ps_err_is_passing) lets them join again. Does nothing when the job is over already. */
void ps_coord_abort(ps_coordinator *c, ps_err code, const char *reason);
/* Tells a member of the abort. */
void ps_coord_tell_abort(ps_coordinator *c, const ps_coord_sender *to);

/* Handles an INTERRUPT message: passes it on to all workers. */
void ps_coord_on_interrupt(ps_coordinator *c, const ps_coord_peer *from);

/* Tells a member what it may have missed while its connection was lost: that all workers
 * have left, or are to end. Must be called at each of its heartbeats. */
void ps_coord_tell_state(ps_coordinator *c, ps_coord_peer *p);

/* Handles a LEAVE message. It is answered when its sender may go, or when its deadline
 * has passed. */
void ps_coord_on_leave(ps_coordinator *c, ps_coord_peer *p, const ps_control *m);
/* Answers the LEAVE messages whose deadline has passed, naming the members that they
 * waited for. */
void ps_coord_expire_leaves(ps_coordinator *c);
/* Notes that nothing more will come from the member. */
void ps_coord_set_gone(ps_coordinator *c, ps_coord_peer *p);

#endif
