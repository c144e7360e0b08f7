/* The exchange of a worker whose host another one leads (two_levels.h): it gives its
 * gradients to the leader and copies the new weights from there. It talks with no server.
 */
#ifndef PS_EXCHANGE_FOLLOWER_H
#define PS_EXCHANGE_FOLLOWER_H

#include "two_levels.h"

/* Owns levels from now on, in case of an error too. *out is owned by the caller. */
ps_err ps_exchange_follower_create(ps_levels *levels, ps_exchange **out);

#endif
