/* The worker's side of shared memory: hands its arenas to a server of the same host. */
#ifndef PS_SHM_OFFER_H
#define PS_SHM_OFFER_H

#include "exchange.h"

/* Offers both arenas to a server; *shared: it has mapped them. exchange.shm decides: off,
 * never; auto, when host and network namespace are the same, a failure being a warning;
 * on, a failure being an error that says why. With a codec: never. The server must have
 * joined. */
ps_err ps_shm_offer_arenas(const ps_exchange_options *options, int server, bool *shared);

#endif
