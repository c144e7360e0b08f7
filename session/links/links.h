/* Links between the workers of a job, and transfers on them. Jobs that need none have
 * none.
 *
 * Somebody has to turn the links: to send and take pieces. Between hosts the links' own
 * thread does. On one host the threads of the program do it themselves, one at a time, so
 * that none has to wake another: ps_transfer_begin once, ps_transfer_wait until it
 * returns. The own thread goes on with what nobody waits for.
 *
 * Transfers go on beside each other. A wait has the job's step deadline: a transfer of
 * which nothing moves for net.step_timeout_ms fails with the names of the members that it
 * waits for. After a failure other than ARG, and when the job ends, all fail. */
#ifndef PS_LINKS_H
#define PS_LINKS_H

#include "member.h"
#include "transfer.h"

typedef struct ps_links ps_links;
typedef struct ps_transfer ps_transfer;

typedef struct ps_links_options {
    ps_member *member; // borrowed for the life of the links
    int rank, world_size;
    ps_switch shm; // off: TCP on one host, too
    int64_t io_threads;
    uint64_t join_timeout_ms, step_timeout_ms;
} ps_links_options;

/* Collective: every worker of the job calls it. TIMEOUT names the workers that have not.
 */
ps_err ps_links_open(const ps_links_options *o, ps_links **out);
/* Whether all workers share memory. */
bool ps_links_one_host(const ps_links *l);
/* Tells the others that this worker begins no transfer any more, once none of its goes
 * on: those of theirs that wait for it fail with PEER, two seconds later. Does not
 * block. */
void ps_links_bye(ps_links *l);
/* All transfers end with the failure of the job, or as not waited for. */
void ps_links_close(ps_links **l);

/* Begins a transfer. ARG where the options are not possible. *out is owned by the
 * caller: ps_transfer_end. Any thread; the order of calls counts. links NULL: a
 * communicator of this worker alone. */
ps_err ps_transfer_begin(ps_links *l, ps_comm_members *comm, const ps_transfer_options *o,
                         ps_transfer **out);
/* Blocks until it is done or the deadline has passed: *done. Its failure. Any thread. */
ps_err ps_transfer_wait(ps_transfer *t, ps_deadline deadline, bool *done);
/* Of a RECV that is done: the member that has sent it. */
int ps_transfer_from(const ps_transfer *t);
/* Frees it. ARG while it goes on. */
ps_err ps_transfer_end(ps_transfer **t);

#endif
