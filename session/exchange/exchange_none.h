/* The exchange `none`, for an exchange that has the weights stepped by it
 * (exchange_local.h). */
#ifndef PS_EXCHANGE_NONE_H
#define PS_EXCHANGE_NONE_H

#include "device_stream.h"
#include "exchange.h"

/* Where it makes its steps: the options' stream, or its own in host memory. Borrowed. */
ps_device_stream *ps_exchange_none_stream(ps_exchange *x);

/* Blocks until it is known that all steps so far were made. NUMERIC: one was not, since
 * its gradient is not finite. */
ps_err ps_exchange_none_settle(ps_exchange *x);

#endif
