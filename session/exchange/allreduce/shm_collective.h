/* The collective of workers that are all on one host: they read each other's arenas
 * (shm_peers.h), and tell each other by counters in shared memory what may be read. */
#ifndef PS_SHM_COLLECTIVE_H
#define PS_SHM_COLLECTIVE_H

#include "collective.h"
#include "exchange.h"

/* *out stays NULL where memory is not shared: see ps_shm_peers_open, whose errors and
 * rules it has. All workers of the job call it at the same time. Owned by the caller. */
ps_err ps_shm_collective_open(const ps_exchange_options *options, ps_collective **out);

#endif
