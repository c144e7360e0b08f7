/* The exchange through parameter servers: chunks are pushed while the backward pass runs,
 * and the new weights of a chunk are the reply. See ps_comm.h and server/shard.h. */
#ifndef PS_EXCHANGE_PS_H
#define PS_EXCHANGE_PS_H

#include "exchange.h"

extern const ps_exchange_ops ps_exchange_ps_ops;
/* With exchange.levels 2 (two_levels.h): only whole steps, of all workers. */
extern const ps_exchange_ops ps_exchange_levels_ops;

#endif
