/* In an elastic job: the processes that come while it runs. They are refused for now, and
 * ask again. Worker 0 learns how many they are; when the workers have regrouped, they
 * are let in. */
#ifndef PS_COORD_NEWCOMERS_H
#define PS_COORD_NEWCOMERS_H

#include "coord_state.h"

/* Notes that the process at the door has asked to join. Logs the first time. host: its
 * name. */
void ps_coord_note_newcomer(ps_coordinator *c, const ps_control_id *door_id,
                            const char *host);
/* Tells p how many wait, if it is worker 0 of an elastic job. Those that have not asked
 * for a while have given up. */
void ps_coord_tell_newcomers(ps_coordinator *c, ps_coord_peer *p);

#endif
