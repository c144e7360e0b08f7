/* Heartbeats: which members are alive. */
#ifndef PS_COORD_ALIVE_H
#define PS_COORD_ALIVE_H

#include "coord_state.h"

/* Sends a heartbeat to all members when one is due. Returns whether it did, in a job that
 * runs. */
bool ps_coord_beat(ps_coordinator *c);
/* Notes that a connection has closed, perhaps a member's. */
void ps_coord_note_closed(ps_coordinator *c, int fd);
/* Declares members dead that have been silent, or without a connection, for too long. A
 * running job is then aborted. A job that has not begun waits for a replacement. */
void ps_coord_check_alive(ps_coordinator *c);

#endif
