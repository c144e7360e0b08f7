/* A process's membership in a job: joining, roster, heartbeats, barriers, small
 * reductions, a key-value store and the news that the job is over.
 *
 * One control thread per process owns the connection to the coordinator. The functions
 * below may be called from any thread of the process; each blocks until its deadline at
 * most, and returns at once when the job is aborted.
 */
#ifndef PS_MEMBER_H
#define PS_MEMBER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "joining.h"
#include "straggler.h"

typedef struct ps_member ps_member;

/* Joins and waits (net.join_timeout_ms) until all members have joined. The coordinator
 * runs in this process when it is server 0, or worker 0 in a job without servers. It is
 * then started first, bound to the address of the init method. TIMEOUT names the members
 * that are missing; PEER when the coordinator refuses (version, job, hashes or a taken
 * rank; the message quotes its reason); NET when the address cannot be bound or reached.
 */
ps_err ps_member_join(const ps_member_options *options, ps_member **out);

int ps_member_rank(const ps_member *m);
/* Of a worker: whether it takes the place of a dead one while the others go on, and where
 * it begins (push above 0). */
ps_coord_orders_reentry ps_member_reentry(const ps_member *m);
/* The snapshot of this member's epoch; borrowed, and constant as long as the member
 * lives. */
const ps_roster *ps_member_roster(const ps_member *m);
/* This process's address on the network chosen by net.interface ("10.0.0.7"). */
const char *ps_member_address(const ps_member *m);
/* The endpoint of the coordinator's ROUTER for members ("tcp://10.0.0.1:40123"), for
 * further links. */
const char *ps_member_coordinator(const ps_member *m);
/* The secret that proves this member's connections to other members; borrowed. */
const ps_secret *ps_member_secret(const ps_member *m);
/* The keys with which this member's connections are made; borrowed. */
const ps_curve *ps_member_curve(const ps_member *m);

/* Of its connections (ps_zsock_silence_ms). */
uint64_t ps_member_silence_ms(const ps_member *m);

/* PS_OK, or the reason why the job is over (PEER: "worker 2 (host b) ..."). Never blocks.
 */
ps_err ps_member_check(ps_member *m);
/* Readable once the job has been aborted: for poll sets. */
int ps_member_abort_fd(const ps_member *m);
/* Readable once all workers have left: for poll sets. */
int ps_member_end_fd(const ps_member *m);
/* Ends the job for everybody with a reason; returns at once. Every waiting call of this
 * member returns (ps_member_wait_end too), now and later, with PEER and the reason.
 * cause: the failure's code; after a passing one (ps_err_is_passing) processes may join
 * again. */
void ps_member_abort(ps_member *m, ps_err cause, const char *reason);
/* The code of the failure that has ended the job: this member's own or another's. Waits
 * for the news until the deadline; PS_OK when there is none. */
ps_err ps_member_cause(const ps_member *m, ps_deadline deadline);

/* Worker 0 of an elastic job: ends it so that all join again, as that many workers. */
void ps_member_regroup(ps_member *m, int n_workers);
/* Once the job is over: how many workers are expected to join it again. */
int ps_member_next_workers(const ps_member *m);
/* Worker 0 of an elastic job: how many processes wait to join it. Never blocks. */
int ps_member_newcomers(const ps_member *m);
/* Where workers go on at their own pace: how many stretches have all their versions, as
 * far as it is known here (coord_orders.h). Never blocks. */
uint64_t ps_member_closed(const ps_member *m);

/* Asks all workers to end in order, as a Ctrl-C of their own does; returns at once. */
void ps_member_interrupt(ps_member *m);
/* Workers: whether a member has asked for that; false for NULL. Never blocks. */
bool ps_member_interrupted(const ps_member *m);

/* Tells the coordinator's page what this process says of itself: the address of its
 * /metrics, and n values (ps_job_view_take). The newest ones replace those that are not
 * sent yet. Never blocks. */
void ps_member_tell(ps_member *m, const char *address, const double *values, int n);

/* Waits until all workers have called it with this name, which may be used again
 * afterwards. TIMEOUT names the workers that are missing. */
ps_err ps_member_barrier(ps_member *m, const char *name, ps_deadline deadline);

/* values (n, at most PS_CONTROL_GATHER_MAX) become the sum over all workers, added in
 * rank order; every worker calls it with the same name and n. */
ps_err ps_member_reduce(ps_member *m, const char *name, double *values, size_t n,
                        ps_deadline deadline);

/* Tells the coordinator of a step (pace.h): n values, copied. Never blocks; when too much
 * waits already, the step is left out. */
void ps_member_pace(ps_member *m, uint64_t step, unsigned part, const double *values,
                    size_t n);
/* Whether steps are to be told: trace.straggler, once the coordinator's clock is known.
 */
bool ps_member_tells_pace(const ps_member *m);
/* The coordinator's clock at ps_clock_ns() now_ns. */
double ps_member_time_ns(const ps_member *m, uint64_t now_ns);
/* Worker 0: the member that all wait for, if there is one. Never blocks. NULL: nobody. */
ps_straggler ps_member_straggler(ps_member *m);

/* A key-value store kept by the coordinator; a value is at most 64 MiB. get waits until
 * the key is set; *value is owned by the caller (free()). */
ps_err ps_member_put(ps_member *m, const char *key, const void *value, size_t bytes,
                     ps_deadline deadline);
/* The value is what w has written; w is freed. NOMEM: it could not write all. */
ps_err ps_member_put_written(ps_member *m, const char *key, ps_mp_writer *w,
                             ps_deadline deadline);
ps_err ps_member_get(ps_member *m, const char *key, void **value, size_t *bytes,
                     ps_deadline deadline);
/* Forgets a key that this member may set: the coordinator has room for a million. For
 * keys with a number, once nobody wants them any more. */
ps_err ps_member_drop(ps_member *m, const char *key, ps_deadline deadline);

/* The job goes on with another table of tensors. From now on put and get mean keys of
 * this table, so that nothing of the one before is found. All members call it at the same
 * point, while no other call of theirs runs. */
void ps_member_next_table(ps_member *m);
/* By which a member tells messages about one table from those about another, and about a
 * membership from those about another. */
uint32_t ps_member_epoch(const ps_member *m);

/* Leaves the job in order. Must be the last call before destroy. Says goodbye and waits
 * until every worker has done so (servers and the process that hosts the coordinator stay
 * until the last has left), so that no early end breaks the others. A coordinator that is
 * gone by then, or does not answer, causes only a warning: this member's work is done. */
ps_err ps_member_leave(ps_member *m, ps_deadline deadline);

/* Servers: blocks until all workers have left (PS_OK) or the job is aborted (its reason).
 */
ps_err ps_member_wait_end(ps_member *m);

/* Stops the control thread (and the coordinator). Without ps_member_leave before, the
 * coordinator learns that this member is gone and aborts the job. Takes up to a second
 * when a peer does not read the news of an abort. */
void ps_member_destroy(ps_member **m);

#endif
