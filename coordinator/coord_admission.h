/* Decides who may join the job and at which role and rank, and tells members
 * which others have not joined yet. */
#ifndef PS_COORD_ADMISSION_H
#define PS_COORD_ADMISSION_H

#include "coord_state.h"

/* Handles a JOIN message at the door. A newcomer is admitted, or refused with the reason.
 * A process that was admitted and did not get the answer is answered again. proven: the
 * role whose key the sender has; NULL: none, and then a job with keys refuses it. */
void ps_coord_on_join(ps_coordinator *c, const ps_control_id *from, const ps_role *proven,
                      const ps_control *m);
/* Handles a HERE message: an admitted process has come, or asks for the state. The job
 * runs once all have come. */
void ps_coord_on_here(ps_coordinator *c, ps_coord_peer *p);
/* Elastic jobs: runs the job with fewer workers than expected once the rest has been
 * waited for. */
void ps_coord_start_if_ready(ps_coordinator *c);
/* Tells the member which other members have not joined. NULL: tells all that are here. */
void ps_coord_send_wait(ps_coordinator *c, ps_coord_peer *only);
/* Forgets a member that is gone before the job runs. Its place is free again. */
void ps_coord_drop_peer(ps_coordinator *c, ps_coord_peer *p, const char *why);

#endif
