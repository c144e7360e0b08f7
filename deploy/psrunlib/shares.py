"""Which part of the parameters each server holds, so that no host's link is busy longer than others.

In a step, a host with w of the n workers and a part x of the parameters carries, in each direction
and counted in gradients, w (1 - x) for its workers and x (n - w) for its servers. Equal times on
links of the rates r give x = (T r - w) / (n - 2 w); T, the time of a step, follows from all the
parts together being 1. With one worker per host, k further hosts for servers alone and equal links
these are the parts of BytePS (Jiang et al., OSDI 2020, section 4.1), and T is 2n (n - 1) / (n² + kn - 2k).
"""
from .errors import JobError

LEAST = 1e-3  # of the whole: a server that would get less, or nothing
EVEN = 0.02  # parts that differ by less are given as equal ones
MOST_SERVERS = 64  # that server.share can list


def parts(hosts, n):
    """hosts: (workers, rate) of each host with servers; n: all workers. None: it makes no
    difference, as with two workers, where a worker's host carries as much either way."""
    if any(n <= 2 * w for w, _ in hosts):
        return None

    def at(time):
        return [max(0.0, (time * rate - w) / (n - 2 * w)) for w, rate in hosts]

    low, high = 0.0, 2.0 * n / min(rate for _, rate in hosts)
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(at(middle)) < 1 else (low, middle)
    return at(high)


def of_servers(server_hosts, worker_hosts):
    """By rank, the numbers of server.share; None: equal parts. A hostfile's share= counts; without
    any, the placement and the links decide."""
    hosts = list({h.address: h for h in server_hosts}.values())
    given = [h.name for h in server_hosts if h.share]
    if given and len(given) < len(server_hosts):
        missing = next(h.name for h in server_hosts if not h.share)
        raise JobError(f"the hostfile has share= for {given[0]}, but not for {missing}: give it to "
                       "every host with servers, or to none")
    if given:
        return [h.share for h in server_hosts]
    workers = {h.address: sum(w.address == h.address for w in worker_hosts) for h in hosts}
    found = parts([(workers[h.address], h.link or 1.0) for h in hosts], len(worker_hosts))
    if not found:
        return None
    per_server = {h.address: max(LEAST, part) / sum(s.address == h.address for s in server_hosts)
                  for h, part in zip(hosts, found)}
    shares = [round(per_server[h.address], 4) for h in server_hosts]
    return None if max(shares) - min(shares) < EVEN * max(shares) else shares


def add_to(job):
    """Adds server.share to the job's settings unless the user has."""
    if job.mode != "ps" or job.facts["server.share"] or not 0 < len(job.server_hosts) <= MOST_SERVERS:
        return
    shares = of_servers(job.server_hosts, job.worker_hosts)
    if shares:
        job.overrides = job.overrides + ["server.share=" + str(shares).replace(" ", "")]
