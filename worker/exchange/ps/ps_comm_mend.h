/* A lost connection to a shard is made again by ZeroMQ; what was on the way with it, and
 * what else is not answered, is sent again here. The shard counts it once. */
#ifndef PS_COMM_MEND_H
#define PS_COMM_MEND_H

#include "ps_comm_state.h"

/* Takes the news of the link's connection: says HELLO over a new one. Nothing is sent to
 * the shard until it has answered. */
ps_err ps_comm_mend_news(ps_comm *c, ps_comm_link *l);

/* The READY of a HELLO. Of the last one: the connection is open, and all that is not
 * answered waits to be sent over it. */
ps_err ps_comm_mend_ready(ps_comm *c, ps_comm_link *l, uint64_t number);

#endif
