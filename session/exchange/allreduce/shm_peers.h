/* Shared memory among the workers of a job that are on one host: each maps the arenas of
 * all others there, so that gradients are summed, and weights copied, from where they
 * are. Each also has a board, which the others may read and write. */
#ifndef PS_SHM_PEERS_H
#define PS_SHM_PEERS_H

#include "exchange.h"

typedef struct ps_shm_peers ps_shm_peers;

/* *out stays NULL unless every worker has mapped the arenas of every other. exchange.shm
 * decides. off: never. auto: when all are on one host and network namespace; a failure is
 * a warning. on: a failure is an error that says why. All workers of the job call it at
 * the same time, with the same board_bytes. PROTOCOL names one that has handed in
 * nothing. */
ps_err ps_shm_peers_open(const ps_exchange_options *options, uint64_t board_bytes,
                         ps_shm_peers **out);
/* The same among the workers of each host: *out stays NULL where there is only one. An
 * obstacle is an error. All workers of the job call it at the same time, with the same
 * board_bytes. PROTOCOL as above. */
ps_err ps_shm_peers_open_host(const ps_exchange_options *options, uint64_t board_bytes,
                              ps_shm_peers **out);
/* Another worker's arenas; borrowed until the close. The callers agree on who may use
 * which range when. */
float *ps_shm_peers_grads(const ps_shm_peers *p, int rank);
float *ps_shm_peers_params(const ps_shm_peers *p, int rank);
/* From now on the addresses of mem, an arena of this process, show the worker's params.
 * IO. */
ps_err ps_shm_peers_show_params(const ps_shm_peers *p, int rank,
                                const ps_shared_mem *mem);
/* The board of a worker, or the own one: zeroed at the start. Borrowed until the close.
 */
void *ps_shm_peers_board(const ps_shm_peers *p, int rank);
void ps_shm_peers_close(ps_shm_peers **p);

#endif
