/* The receiving side of the communication: shards' messages are checked against the plan,
 * credit is taken back, weights go to the arena. */
#ifndef PS_COMM_RECEIVE_H
#define PS_COMM_RECEIVE_H

#include "ps_comm_state.h"

/* Takes some of the messages that are here. PROTOCOL names the shard that sent what it
 * must not; PEER has the text of a shard's ERROR. */
ps_err ps_comm_receive(ps_comm *c, ps_comm_link *l, ps_wire_frames *f);

/* From the main thread, with rings: takes the weights that are in the link's ring. */
ps_err ps_comm_receive_ring(ps_comm *c, ps_comm_link *l);

#endif
