/* How many files and connections this process may have open, and how many it needs. */
#ifndef PS_FD_LIMIT_H
#define PS_FD_LIMIT_H

#include <stdbool.h>
#include <stdint.h>

#include "err.h"

/* Raises the soft limit to the hard one. On failure the limit is unchanged. The usual
 * 1,024 are for programs that call select(); a server of 4 shards has that many
 * connections with 256 workers, and libzmq aborts in some of the calls that find no free
 * descriptor. Called once by a main function. */
void ps_fd_limit_raise(void);

typedef struct ps_fd_job {
    uint64_t workers, servers, shards, io_threads; // shards: of a server
    bool gradnorm_links; // each shard asks the coordinator for gradient norms
    bool twins;          // each shard has one in another server (rows.buddy)
    bool hosts;          // the coordinator is in this process
    bool shm;            // arenas may be shared
    bool levels;         // also among workers where there are servers
} ps_fd_job;

/* Descriptors of one process. */
typedef struct ps_fd_need {
    uint64_t least; // a job without shared memory
    uint64_t most;  // all on one host
} ps_fd_need;

ps_fd_need ps_fd_need_of_server(const ps_fd_job *job);
/* servers is 0 in all-reduce mode. */
ps_fd_need ps_fd_need_of_worker(const ps_fd_job *job);

/* UNSUPPORTED when the limit is below need->least; the message names need, limit and
 * mend. Between least and most a warning is logged. Must be called after
 * ps_fd_limit_raise. */
ps_err ps_fd_limit_check(const ps_fd_need *need);

#endif
