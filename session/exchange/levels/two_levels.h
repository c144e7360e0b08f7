/* Two levels of summation (exchange.levels 2): the workers of a host are summed there, in
 * shared memory, so that one gradient of each host crosses the network, and one copy of
 * the new weights comes back.
 *
 *   others of the host         leader, its lowest rank           servers
 *   gradients of a chunk ----> sums, in rank order
 *                              pushes the sum -----------------> sum of the leaders, in
 *   copy new weights <-------- new weights of the chunk <------- rank order; step
 *
 * So with hosts {0, 1} and {2, 3} a sum is (r0 + r1) + (r2 + r3): the same in every run,
 * with any servers, shards and chunks, but not ((r0 + r1) + r2) + r3.
 *
 * The workers of a host share the work of adding: chunk c is added up by the worker at
 * place c % n, straight into the leader's arena (levels_sums.h).
 *
 * On its board (shm_board.h) a worker counts, in `shared` (ps_levels_count):
 *
 *   WEIGHTS    of a chunk, leader: its versions since the first weights, these included
 *   GRADIENTS  its own of a chunk
 *   SUMS       of a chunk, who adds it up: those that are in the leader's arena
 *
 * where gradients and weights are on GPUs (levels_gpus.h)
 *
 *   HELD       of a chunk, who adds it up: its versions that are on the GPU there
 *   HERE       of a chunk: its versions that are on the own GPU
 *
 * and besides
 *
 *   rounds     leader: how often the exact weights have taken the arena's place
 *   offered    anything at all: while it rises, nobody's wait is too long
 *
 * A leader has the next version of a chunk only after everybody's gradient of it, and
 * that is given after the present version was copied. So nobody writes what another still
 * reads.
 */
#ifndef PS_TWO_LEVELS_H
#define PS_TWO_LEVELS_H

#include "exchange.h"
#include "shm_board.h"

typedef struct ps_shm_peers ps_shm_peers;
struct ps_device_sums; // device_sums.h

/* The workers of this host. Places are theirs in rank order; the leader's is 0. */
typedef struct ps_levels {
    ps_exchange_options o;
    int n, own; // workers of the host; this one's place
    int *ranks; // (n)
    ps_shm_peers *peers;
    ps_shm_board **boards; // (n)
    uint64_t spin_ns;
    struct ps_device_sums *sums; // borrowed: adds up on GPUs; NULL: in host memory
} ps_levels;

/* Meets the others of the host. *out stays NULL when there are none; the caller owns it.
 * All workers of the job call it at the same time. The log says that sums have an order
 * of their own. */
ps_err ps_levels_open(const ps_exchange_options *options, ps_levels **out);
void ps_levels_close(ps_levels **l);

static inline bool ps_levels_leads(const ps_levels *l)
{
    return l->own == 0;
}
/* The leader's arenas: of gradients, which sums are written to, and of parameters. */
float *ps_levels_sums_arena(const ps_levels *l);
float *ps_levels_weights_arena(const ps_levels *l);
/* The place of the worker that adds the chunk up. */
static inline int ps_levels_adder(const ps_levels *l, uint32_t chunk)
{
    return (int)(chunk % (uint32_t)l->n);
}

typedef enum ps_levels_kind {
    PS_LEVELS_WEIGHTS,
    PS_LEVELS_GRADIENTS,
    PS_LEVELS_SUMS,
    PS_LEVELS_HELD,
    PS_LEVELS_HERE,
    PS_LEVELS_KINDS
} ps_levels_kind;

/* The count of that kind and chunk on the board of the worker at a place. */
static inline _Atomic uint64_t *ps_levels_count(const ps_levels *l, int place,
                                                ps_levels_kind kind, uint32_t chunk)
{
    return &l->boards[place]->shared[(uint64_t)kind * l->o.plan->n_chunks + chunk];
}

/* Whose step it is for this worker. Before its gradients are counted. */
static inline void ps_levels_set_step_of(ps_levels *l, uint64_t step, uint32_t step_of)
{
    atomic_store(&l->boards[l->own]->steps_of[step % 2], step_of);
}
/* The same, of the worker at a place whose gradients of the step are counted. */
static inline uint32_t ps_levels_step_of(const ps_levels *l, int place, uint64_t step)
{
    return atomic_load(&l->boards[place]->steps_of[step % 2]);
}

/* Raises a count of the own board. */
void ps_levels_post(ps_levels *l, _Atomic uint64_t *count);
/* Wakes the own threads that wait for another one of their own. */
void ps_levels_wake_own(ps_levels *l);

/* A wait of one thread. */
typedef struct ps_levels_wait {
    ps_levels *levels;
    bool beside;                     // the thread that adds up waits, not the main one
    int place;                       // of whom is waited for
    uint64_t timeout_ms;             // without any progress of that worker; 0: none
    const char *what;                // "gradients"
    ps_err (*also)(const void *ctx); // asked too; NULL: nothing
    const void *ctx;
    ps_deadline deadline; // the wait's own, as progress
    uint64_t progress;
} ps_levels_wait;

/* TIMEOUT, naming the worker. */
ps_err ps_levels_late(const ps_levels_wait *w);

/* Blocks until the count has reached the target. TIMEOUT names the worker; PEER when the
 * job is over. */
ps_err ps_levels_await(ps_levels_wait *w, const _Atomic uint64_t *count, uint64_t target);

#endif
