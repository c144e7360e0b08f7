#include "core_check.h"

#include <string.h>

#include "log.h"
#include "procstat.h"
#include "roster.h"

/* How many workers share this process's cores; 0 when another of them gives the
 * warning. */
static int workers_here(const ps_member *member, int rank, const ps_host *host)
{
    // Bound to some of the cores: other workers may be bound to others.
    if (!member || host->cores < ps_machine_cores()) return 1;
    const ps_roster *roster = ps_member_roster(member);
    int n = 0;
    for (int r = 0; r < roster->n_workers; r++) {
        if (strcmp(roster->workers[r].boot_id, host->boot_id) != 0) continue;
        if (n++ == 0 && r != rank) return 0;
    }
    return n;
}

void ps_core_check(const ps_member *member, int rank, int threads)
{
    ps_host host;
    ps_host_find(&host);
    int n = workers_here(member, rank, &host);
    if (n * threads <= host.cores) return;
    PS_WARN("cores",
            "%d worker%s of %d thread%s on %d core%s: they wait for each other; fewer "
            "workers, or train.threads, would be faster",
            n, n > 1 ? "s" : "", threads, threads > 1 ? "s" : "", host.cores,
            host.cores > 1 ? "s" : "");
}
