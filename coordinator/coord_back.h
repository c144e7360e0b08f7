/* A worker's death that the others do not wait for (recovery.rejoins, where the policy
 * allows it: sync_policy.h). The job runs on without it; a process of its rank may take
 * its place until net.dead_after_ms have passed. Then the job ends as after any other
 * death, and all join again. */
#ifndef PS_COORD_BACK_H
#define PS_COORD_BACK_H

#include "coord_state.h"

/* Takes note of the death, if the others can go on. Returns whether they do. */
bool ps_coord_lose(ps_coordinator *c, ps_coord_peer *p, const char *why);

/* A process takes the place of a worker that is away. It gets the dead one's secret, so
 * the servers need not be told. */
void ps_coord_take_back(ps_coord_peer *p, const ps_control_id *door_id,
                        uint64_t incarnation);

/* Whether the job is to end in order: then nobody is waited for long. */
bool ps_coord_ends(const ps_coordinator *c);

/* Answers a process that was taken for dead and is not: it may join again. */
void ps_coord_send_away(ps_coordinator *c, const ps_coord_sender *to);

#endif
