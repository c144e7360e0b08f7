/* Finds a member by its routing id in a time that does not grow with the job. The
 * coordinator does it for every message, and all members together send as many as there
 * are of them: with a search each, its work would grow with the square. */
#ifndef PS_COORD_INDEX_H
#define PS_COORD_INDEX_H

#include "coord_state.h"

/* Makes room for that many members. NOMEM. ps_coord_index_fini is safe after it failed.
 */
ps_err ps_coord_index_init(ps_coord_index *index, int n_members);
void ps_coord_index_fini(ps_coord_index *index);

/* Must be called after a member was added to c->peers, removed or moved. */
void ps_coord_index_renew(ps_coordinator *c);

/* The member whose secret the routing id has, or NULL. The time tells a stranger nothing:
 * the socket takes messages only from connections that have shown a secret (gate.h). */
ps_coord_peer *ps_coord_index_find(ps_coordinator *c, const ps_control_id *id);

#endif
