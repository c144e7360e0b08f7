/* The worker's side of shared memory: hands its arenas to others of the same host. */
#ifndef PS_SHM_OFFER_H
#define PS_SHM_OFFER_H

#include "exchange.h"

/* Whether anybody on this host may map the arenas of the worker: one of the exchange's
 * servers (not with a codec) or peers. With exchange.shm on it is true, so that an
 * obstacle is reported. */
bool ps_shm_offer_possible(const ps_exchange_ops *ops, const ps_exchange_settings *x,
                           const ps_roster *roster, int rank);

/* What is offered with the arenas. */
typedef struct ps_shm_offer_more {
    const ps_shared_mem *rings; // NULL: none
    int *wakes; // with rings: n_wakes descriptors, which the caller owns when the offer
                // was taken
    int n_wakes;
    const ps_shared_mem *rows; // an arena for rows of embedding tables; NULL: none
} ps_shm_offer_more;

/* Offers both arenas to a server, and more; *shared: it has mapped them.
 * exchange.shm decides. off: never. auto: when host and network namespace are the same; a
 * failure is a warning. on: a failure is an error that says why. With a codec: never. The
 * server must have joined. */
ps_err ps_shm_offer_arenas(const ps_exchange_options *options, int server,
                           const ps_shm_offer_more *more, bool *shared);

/* Hands both arenas, and more, in at the door that the job's store names under the key,
 * and waits until they are mapped there. PEER when refused, TIMEOUT after
 * net.join_timeout_ms. */
ps_err ps_shm_offer_at(const ps_exchange_options *options, const char *key,
                       const ps_shm_offer_more *more);

#endif
