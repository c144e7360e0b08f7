/* The connections to all shards. */
#ifndef PS_COMM_LINKS_H
#define PS_COMM_LINKS_H

#include "ps_comm_state.h"

/* Offers the arenas to the servers, connects to every shard, and lists all
 * that the thread polls: the links, then the commands' event, the job's abort, and the
 * links' monitors. */
ps_err ps_comm_links_open(ps_comm *c);
/* When the thread has ended; also after a failed open. */
void ps_comm_links_close(ps_comm *c);

#endif
