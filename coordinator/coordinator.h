/* The coordinator: a thread of server 0 (of worker 0 where there are no servers) with a
 * door at the one address that everybody knows. It admits members, hands out the roster,
 * keeps heartbeats, and passes requests to the board (coord_board.h). control.h describes
 * the messages.
 *
 *   JOINING --everybody is in--> RUNNING --all workers have left--> ENDED
 *      |                            |
 *      +------- a failure ----------+---> ABORTED: every member has been told why
 */
#ifndef PS_COORDINATOR_H
#define PS_COORDINATOR_H

#include "curve.h"
#include "roster.h"

typedef struct ps_job_view ps_job_view; // job_view.h

typedef struct ps_coordinator_options {
    const char *where;        // "tcp://10.0.0.1:29500"; port 0: a free one
    const char *job;          // name
    int n_servers, n_workers; // n_workers: the most that it takes
    int min_workers;          // 0, or n_workers: it waits for all n_workers
    int expected_workers;     // fewer are waited for no longer than wait_ms; 0: not known
    bool goes_on;             // the job has begun before: an elastic one has a worker 0
    uint64_t wait_ms;
    uint64_t config_hash, plan_hash;
    ps_config_sections sections; // to name the one that differs
    uint64_t heartbeat_ms, dead_after_ms;
    bool recovers; // after a passing failure the members join again
    bool names_straggler;
    ps_job_view *view; // what members tell; borrowed for the coordinator's life; or NULL
    const ps_curve *curve; // borrowed for the coordinator's life; NULL: plain, loopback
} ps_coordinator_options;

/* How long a closed connection between a member and the coordinator may take to be made
 * again. Where the members can join again, a false alarm costs little. */
uint64_t ps_coordinator_grace_ms(uint64_t heartbeat_ms, bool recovers);

typedef struct ps_coordinator ps_coordinator;

/* Binds, draws the job's nonce and starts the thread. NET names the address. */
ps_err ps_coordinator_create(const ps_coordinator_options *options, ps_coordinator **out);

uint64_t ps_coordinator_nonce(const ps_coordinator *c);
/* The endpoint as bound: "tcp://10.0.0.1:29500". */
const char *ps_coordinator_endpoint(const ps_coordinator *c);

/* Stops the thread. Aborts a job that is not over and tells its members the reason (NULL:
 * none given). Takes up to a second when a member does not read it. */
void ps_coordinator_destroy(ps_coordinator **c, const char *reason);

#endif
