/* The sending side of the communication: what is ordered goes out as the credits allow,
 * the most urgent chunk of each link first. */
#ifndef PS_COMM_SEND_H
#define PS_COMM_SEND_H

#include "ps_comm_state.h"

ps_err ps_comm_send_hello(ps_comm *c, ps_comm_link *l);

/* Takes the order of a chunk. */
void ps_comm_send_later(ps_comm *c, const ps_order *what);
/* Sends everything that may go now. */
ps_err ps_comm_send_allowed(ps_comm *c);

ps_err ps_comm_send_bye(ps_comm *c); // to all

#endif
