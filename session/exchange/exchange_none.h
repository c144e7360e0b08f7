/* No exchange: every worker steps its own weights with its own gradients. For one worker,
 * and as the measure of what an exchange costs. */
#ifndef PS_EXCHANGE_NONE_H
#define PS_EXCHANGE_NONE_H

#include "exchange.h"

extern const ps_exchange_ops ps_exchange_none_ops;

#endif
