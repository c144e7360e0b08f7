/* Who may join the job, as what, and what members are told until all have. */
#ifndef PS_COORD_ADMISSION_H
#define PS_COORD_ADMISSION_H

#include "coord_state.h"

/* A JOIN message at the door: of a newcomer, which is admitted or refused with the
 * reason, or again of one that was admitted, whose answer was lost. */
void ps_coord_on_join(ps_coordinator *c, const ps_control_id *from, const ps_control *m);
/* A HERE message: one that was admitted has come, or asks how things stand. The last one
 * to come makes the job run. */
void ps_coord_on_here(ps_coordinator *c, ps_coord_peer *p);
/* Tells the member who is missing. */
void ps_coord_send_wait(ps_coordinator *c, ps_coord_peer *p);
/* Forgets one that is gone before the job runs: its place is free again. */
void ps_coord_drop_peer(ps_coordinator *c, ps_coord_peer *p, const char *why);

#endif
