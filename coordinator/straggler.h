/* Which member all others wait for, and why. Pure: figures of steps go in, a name comes
 * out.
 *
 * A step of a synchronous job is as long as its slowest way: a worker computes, its
 * gradients travel to the shards, these apply them, and the weights travel back. Every
 * part is compared with the same part of the other members, or, where there are none,
 * with what it was before. The part that is too long by the most is the suspect. Links
 * are known in pairs (worker, shard); a slow link of a worker slows its ways to all
 * shards, and a slow link of a server the ways of all workers to it. Both directions of a
 * way wait for each other; messages travel longer in the direction that is slow. A
 * process that does not get the processor is slow itself, whatever its links seem to be;
 * so is one that has no link, as all whom it exchanges with are on its host.
 *
 * One slow step is chance. A suspect is named after PS_STRAGGLER_ROUNDS steps in a row,
 * of those that are told (pace.h), and is forgotten after PS_STRAGGLER_CALM without it.
 */
#ifndef PS_STRAGGLER_H
#define PS_STRAGGLER_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"
#include "role.h"

enum { PS_STRAGGLER_ROUNDS = 4, PS_STRAGGLER_CALM = 5 };

typedef enum ps_straggler_cause {
    PS_STRAGGLER_NONE,
    PS_STRAGGLER_COMPUTE,
    PS_STRAGGLER_LINK_IN,
    PS_STRAGGLER_LINK_OUT,
    PS_STRAGGLER_SERVER,
    PS_STRAGGLER_STOPPED,
    PS_STRAGGLER_CAUSES
} ps_straggler_cause;

/* "slow compute", "slow link in", ..., "stopped"; "" for NONE. */
const char *ps_straggler_cause_name(ps_straggler_cause cause);

typedef struct ps_straggler {
    ps_straggler_cause cause; // NONE: nobody
    ps_role role;
    int rank;
    double ms, usual_ms; // its part of a step; of the others or before
} ps_straggler;

/* A step, in milliseconds. Shards of a server follow each other. */
typedef struct ps_straggler_step {
    int n_workers, n_servers, shards; // shards: of each server
    double step_ms;                   // since the step before
    const double *busy;               // (workers) computes
    /* (workers x all shards): how long the ways were beyond the computing, to the shard
     * and back; and how long a message travelled there, and back, in the mean. */
    const double *way, *out, *in;
    const double *apply; // (all shards) from the last gradient to its reply
    /* (workers), (servers): share of the time in which the process did not get the
     * processor. */
    const double *worker_stall, *server_stall;
    /* (workers), (servers): whether it exchanges with another host. NULL: all do. */
    const bool *worker_linked, *server_linked;
} ps_straggler_step;

typedef struct ps_straggler_watch {
    ps_straggler suspect, named;
    uint64_t rounds, calm; // steps in a row with the suspect; without the named one
    uint64_t by_cause[PS_STRAGGLER_CAUSES]; // of those rounds
    double *usual;                          // (n_usual) by part, of n_steps in which
    int n_usual;                            // nobody was suspected
    uint64_t n_steps;
} ps_straggler_watch;

/* NOMEM; w is safe for fini in every case. */
ps_err ps_straggler_init(ps_straggler_watch *w, int n_workers, int n_servers);
void ps_straggler_fini(ps_straggler_watch *w);

/* The suspect of one step. Figures that are not known are NAN. usual: of each part, or
 * NULL; scratch: twice that many. */
ps_straggler ps_straggler_judge(const ps_straggler_step *step, const double *usual,
                                double *scratch);

/* Takes a step; returns whether w->named has changed (its cause NONE: nobody any more).
 */
bool ps_straggler_take(ps_straggler_watch *w, const ps_straggler_step *step);
/* A member is silent and no step is made. As above. */
bool ps_straggler_stopped(ps_straggler_watch *w, ps_role role, int rank, double ms);

#endif
