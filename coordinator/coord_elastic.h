/* Elastic jobs, whose workers may change: the job begins when enough of them are here.
 * The processes that come while it runs are refused for now, and ask again. Worker 0
 * learns how many they are; when the workers have regrouped, they are let in. In other
 * jobs each function says what is so there. */
#ifndef PS_COORD_ELASTIC_H
#define PS_COORD_ELASTIC_H

#include "coord_state.h"

/* How many workers the job waits for at first. */
int ps_coord_first_workers(const ps_coordinator *c);
/* Whether a process of the role keeps the rank that it was started with as its name: its
 * rank in the job is another each time. */
bool ps_coord_is_named(const ps_coordinator *c, ps_role role);
/* Whether a place that is taken may soon be free. */
bool ps_coord_frees_places(const ps_coordinator *c);
/* Whether the last place is not for a worker that asks for that rank: the job cannot go
 * on without worker 0, which is not here. */
bool ps_coord_keeps_place(const ps_coordinator *c, int asked_rank);
/* Whether the job may begin. servers: all are here; here: workers that are, admitted:
 * with those on their way. Is asked whenever one comes, and while c->waiting_ns is set.
 */
bool ps_coord_members_suffice(ps_coordinator *c, bool servers, int here, int admitted);

/* Notes that the process at the door has asked to join. Logs the first time. host: its
 * name. */
void ps_coord_note_newcomer(ps_coordinator *c, const ps_control_id *door_id,
                            const char *host);
/* Tells p how many wait, if it is worker 0 of an elastic job. Those that have not asked
 * for a while have given up. */
void ps_coord_tell_newcomers(ps_coordinator *c, ps_coord_peer *p);

#endif
