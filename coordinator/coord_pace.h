/* What the coordinator knows of the pace of the members' steps (pace.h), and which member
 * it names as a straggler (straggler.h): in the log, and to worker 0. */
#ifndef PS_COORD_PACE_H
#define PS_COORD_PACE_H

#include "coord_state.h"
#include "straggler.h"

/* Takes a PACE of a member of a running job. Figures that make no sense are ignored: they
 * may cost the straggler's name, and nothing else. */
void ps_coord_pace_take(ps_coordinator *c, const ps_coord_peer *from,
                        const ps_control *m);
/* Names a member that is silent while no step is made. */
void ps_coord_pace_check_silence(ps_coordinator *c);
/* The member that is named now; cause NONE: there is none. */
ps_straggler ps_coord_pace_named(const ps_coordinator *c);
/* The same; who: "worker 1 (host a)", or "". */
ps_straggler ps_coord_pace_describe(ps_coordinator *c, char *who, size_t cap);
void ps_coord_pace_destroy(ps_coord_pace **pace);

#endif
