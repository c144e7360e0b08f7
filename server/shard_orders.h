/* The pace of a job whose workers go on at their own (sync_policy.h): the shard tells the
 * coordinator which pushes are in, and does what the coordinator orders. It decides
 * nothing. An order concerns all of its chunks of a fragment, so a push counts in the
 * same version everywhere. */
#ifndef PS_SHARD_ORDERS_H
#define PS_SHARD_ORDERS_H

#include "shard_state.h"

extern const ps_shard_pace_ops ps_shard_orders;

#endif
