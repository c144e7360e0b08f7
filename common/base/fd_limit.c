#include "fd_limit.h"

#include <inttypes.h>
#include <sys/resource.h>

#include "log.h"

/* The numbers are counted in /proc/PID/fd. */
enum {
    BASE = 32, // standard streams, events, files that are open for a while, ZeroMQ's own
    OF_IO_THREAD = 2,
    OF_SHARD = 5, // its socket, its port, its end, and their monitors
    OF_LINK = 4,  // a socket of its own, the connection, and their monitors
    COORDINATOR = 15,
    DOOR = 2,
    ARENAS = 3 // of a worker: parameters, gradients, rings
};

void ps_fd_limit_raise(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = limit.rlim_max;
    (void)setrlimit(RLIMIT_NOFILE, &limit);
}

static uint64_t need_of_member(const ps_fd_job *j)
{
    uint64_t n = BASE + OF_IO_THREAD * j->io_threads;
    if (j->hosts) n += COORDINATOR + j->servers + j->workers;
    if (j->hosts && j->gradnorm_links) n += j->servers * j->shards;
    return n;
}

ps_fd_need ps_fd_need_of_server(const ps_fd_job *j)
{
    uint64_t least = need_of_member(j) + j->shards * (OF_SHARD + j->workers);
    if (j->gradnorm_links) least += OF_LINK * j->shards;
    if (j->twins) least += (OF_LINK + 1) * j->shards; // and the other side's connections
    const uint64_t shm = DOOR + ARENAS * j->workers + j->shards; // each has an event
    return (ps_fd_need){least, least + (j->shm ? shm : 0)};
}

ps_fd_need ps_fd_need_of_worker(const ps_fd_job *j)
{
    const uint64_t others = j->servers ? 0 : j->workers - 1;
    uint64_t least = need_of_member(j) + OF_LINK * j->servers * j->shards + others;
    const uint64_t peers = j->levels ? j->workers - 1 : others;
    const uint64_t shm = DOOR + ARENAS + ARENAS * peers + j->servers * j->shards;
    return (ps_fd_need){least, least + (j->shm ? shm : 0)};
}

ps_err ps_fd_limit_check(const ps_fd_need *need)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return PS_OK;
    PS_DEBUG("descriptors", "least=%" PRIu64 " most=%" PRIu64 " limit=%" PRIu64,
             need->least, need->most, (uint64_t)limit.rlim_cur);
    if (limit.rlim_cur >= need->most) return PS_OK;
    if (limit.rlim_cur >= need->least) {
        PS_WARN("descriptors",
                "limit=%" PRIu64 " need=%" PRIu64 " note=\"with every worker on this "
                "host; ulimit -n %" PRIu64 "\"",
                (uint64_t)limit.rlim_cur, need->most, need->most);
        return PS_OK;
    }
    return ps_err_set(PS_ERR_UNSUPPORTED,
                      "a job of this size needs up to %" PRIu64
                      " open files and connections here, and the limit is %" PRIu64
                      ": raise it (ulimit -n %" PRIu64
                      ", for a service LimitNOFILE=), or take fewer shards",
                      need->most, (uint64_t)limit.rlim_cur, need->most);
}
