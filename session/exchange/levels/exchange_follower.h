/* The exchange of a worker whose host another one leads (two_levels.h): its gradients are
 * added to the others', and the new weights are copied from the leader's arena. It talks
 * with no server. */
#ifndef PS_EXCHANGE_FOLLOWER_H
#define PS_EXCHANGE_FOLLOWER_H

#include "two_levels.h"

/* Owns levels from now on, in case of an error too. *out is owned by the caller. */
ps_err ps_exchange_follower_create(ps_levels *levels, ps_exchange **out);

#endif
