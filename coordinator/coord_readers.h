/* Lets processes in that read rows of embedding tables, and are no members (wire.h): they
 * get the readers' secret, which the servers know from their roster.
 *
 * A process that has this secret can read the rows, and could end a server by a fault of
 * libzmq (door.h). So only a process that proves a key of the job gets it or, in a job
 * without keys, a process of the job's host. */
#ifndef PS_COORD_READERS_H
#define PS_COORD_READERS_H

#include "coord_state.h"

/* Answers a READER message at the door, which has proven a key where the job has some. */
void ps_coord_on_reader(ps_coordinator *c, const void *id, size_t id_bytes,
                        const ps_control *m);

#endif
