/* Heartbeats: which members are alive. */
#ifndef PS_COORD_ALIVE_H
#define PS_COORD_ALIVE_H

#include "coord_state.h"

/* Tells all that the coordinator is alive, when it is time. */
void ps_coord_beat(ps_coordinator *c);
/* A connection has closed, perhaps a member's. */
void ps_coord_note_closed(ps_coordinator *c, int fd);
/* A member that has been silent, or without a connection, for too long is dead: a job
 * that runs is aborted, one that waits for members waits for another. */
void ps_coord_check_alive(ps_coordinator *c);

#endif
