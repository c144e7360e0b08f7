/* ZeroMQ makes a lost connection to a shard again. Then everything that the shard has not
 * answered is sent again here. The shard counts it once. */
#ifndef PS_COMM_MEND_H
#define PS_COMM_MEND_H

#include "ps_comm_state.h"

/* Handles news of the link's connection: sends HELLO over a new one. Nothing is sent to
 * the shard until it has answered. */
ps_err ps_comm_mend_news(ps_comm *c, ps_comm_link *l);

/* Handles the READY of a HELLO. After that of the last HELLO the connection is open, and
 * everything unanswered waits to be sent over it. */
ps_err ps_comm_mend_ready(ps_comm *c, ps_comm_link *l, uint64_t number);

#endif
