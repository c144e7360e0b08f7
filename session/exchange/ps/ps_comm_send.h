/* The sending side of the communication: what the commands say goes out as the credits
 * allow, the most urgent chunk of each link first. */
#ifndef PS_COMM_SEND_H
#define PS_COMM_SEND_H

#include "ps_comm_state.h"

/* Sends HELLO over a new connection, with the next number. */
ps_err ps_comm_send_hello(ps_comm *c, ps_comm_link *l);

/* Before the gradients of a step: sends its numbers of the parameter groups, if they are
 * new, and those of the steps before that the shard may not have. */
ps_err ps_comm_send_groups(ps_comm *c, ps_comm_link *l);
/* 1 + the step of the newest numbers that were sent before a gradient; 0: none. */
uint64_t ps_comm_groups_sent(const ps_comm *c, const ps_comm_link *l);

/* Takes a chunk's command. */
void ps_comm_send_later(ps_comm *c, const ps_command *what);
/* soon: the chunk has something to send, perhaps again. no_more: it has not, since
 * everything is answered. */
void ps_comm_send_soon(ps_comm *c, uint32_t chunk);
void ps_comm_send_no_more(ps_comm *c, uint32_t chunk);
/* Sends everything that the credits allow now; also BYE, once there was a command for it.
 */
ps_err ps_comm_send_allowed(ps_comm *c);

#endif
