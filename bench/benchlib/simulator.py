"""An event-driven simulation of one exchange among many members.

The parts are queues: a host's link out, its link in, its processor. A queue serves one message after
another; a message waits its turn, is served for overhead + bytes / rate, and then enters the next
queue. All hosts of one kind do the same at the same time, so one of each kind is simulated, and the
messages of the others enter its queues at the times at which its own leave. So 10,000 members take a
second, not an hour.

Arrangements: "ring" (reduce-scatter and all-gather of n parts), "tree" (a binary tree up and down, in
chunks, one after another), "ps" (k servers on hosts of their own), "two levels" (the workers of a host
are summed there; then ps among the hosts).
"""
import heapq
import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Costs:
    """rate: bytes per second and direction of a link, as TCP fills it. latency: seconds of a message
    on the way. message, byte: processor seconds of sending or taking a message, and for each of its
    bytes; taking includes the sum. local: seconds per byte of a gradient that goes through its host's
    memory. On 2 cores: message and byte are measured; latency and
    local are assumed."""

    rate: float
    latency: float = 100e-6
    message: float = 30e-6
    byte: float = 0.22e-9
    local: float = 0.15e-9


BLOCK = 16384  # bytes: chunks are whole blocks


def chunk_bytes(nbytes, servers):
    """As the plan chooses it for links (ps_plan_auto_chunk_bytes)."""
    wanted = max(48 << 10, min(9.8 * math.sqrt(nbytes), 1 << 20))
    return max(1, int(min(wanted, nbytes / (4 * servers)) // BLOCK)) * BLOCK


class Engine:
    """Events in the order of their times."""

    def __init__(self):
        self.now, self.events, self.n = 0.0, [], 0

    def at(self, time, call, *args):
        self.n += 1
        heapq.heappush(self.events, (time, self.n, call, args))

    def run(self):
        while self.events:
            self.now, _, call, args = heapq.heappop(self.events)
            call(*args)
        return self.now


class Queue:
    """Serves one message after another, each for overhead + bytes * per_byte seconds."""

    def __init__(self, engine, per_byte, overhead=0.0):
        self.engine, self.per_byte, self.overhead = engine, per_byte, overhead
        self.free_at = 0.0

    def put(self, nbytes, then, delay=0.0):
        """then() is called when the message has been served, and delay later."""
        self.free_at = max(self.free_at, self.engine.now) + self.overhead + nbytes * self.per_byte
        self.engine.at(self.free_at + delay, then)


class Host:
    def __init__(self, engine, costs):
        self.out = Queue(engine, 1 / costs.rate)
        self.into = Queue(engine, 1 / costs.rate)
        self.processor = Queue(engine, costs.byte, costs.message)


def _spread(n, i, k):
    """How many of n come as the i-th of k turns."""
    return n * (i + 1) // k - n * i // k


class Servers:
    """n workers and k servers. Chunk by chunk: in a round every server gets one chunk from every
    worker, and sends it back when it has all of them. The servers' order differs from worker to
    worker, so no link is idle while another one has a queue."""

    def __init__(self, n, k, nbytes, costs):
        k = min(k, max(1, int(nbytes // BLOCK)))  # more have nothing to do
        self.n, self.k, self.costs = n, k, costs
        self.engine = Engine()
        self.worker, self.server = Host(self.engine, costs), Host(self.engine, costs)
        self.rounds = max(1, round(nbytes / k / chunk_bytes(nbytes, k)))
        self.part = nbytes / k / self.rounds
        self.arrived = [0] * self.rounds

    def seconds(self):
        for r in range(self.rounds):
            for i in range(self.k):
                self.worker.processor.put(self.part, lambda r=r, i=i: self.worker.out.put(
                    self.part, lambda: self.leave(r, i), self.costs.latency))
        return self.engine.run()

    def leave(self, r, i):
        """The i-th turn of a round: this many workers send to the simulated server."""
        for _ in range(_spread(self.n, i, self.k)):
            self.server.into.put(self.part, lambda: self.server.processor.put(self.part, lambda: self.added(r)))

    def added(self, r):
        self.arrived[r] += 1
        if self.arrived[r] < self.n:
            return
        for j in range(self.n):
            self.server.processor.put(self.part, lambda j=j: self.server.out.put(
                self.part, lambda: self.reply(j), self.costs.latency))

    def reply(self, j):
        """The server's j-th reply leaves, and those of the others: this many are the worker's."""
        for _ in range(_spread(self.k, j, self.n)):
            self.worker.into.put(self.part, lambda: self.worker.processor.put(self.part, lambda: None))


class Ring:
    """2 (n - 1) turns: in each, every worker sends a part to the next one and adds what it got."""

    def __init__(self, n, nbytes, costs):
        self.turns, self.costs, self.part = 2 * (n - 1), costs, nbytes / n
        self.engine = Engine()
        self.host = Host(self.engine, costs)

    def seconds(self):
        if self.turns:
            self.turn(0)
        return self.engine.run()

    def turn(self, i):
        if i < self.turns:
            self.host.out.put(self.part, lambda: self.got(i), self.costs.latency)

    def got(self, i):
        self.host.processor.put(2 * self.part, lambda: self.turn(i + 1))  # taken, and sent on


class Tree:
    """A binary tree: chunks go up, are added, and go down again. The simulated path is from the
    deepest leaf to the root. A host has two children: for each chunk its link in takes two on the way up
    and one on the way down, and its link out as many."""

    def __init__(self, n, nbytes, costs):
        self.depth = n.bit_length() - 1  # of the deepest leaf
        self.costs, self.engine = costs, Engine()
        self.hosts = [Host(self.engine, costs) for _ in range(self.depth + 1)]
        self.chunks = max(1, round(nbytes / chunk_bytes(nbytes, 1)))
        self.part = nbytes / self.chunks

    def seconds(self):
        for _ in range(self.chunks if self.depth else 0):
            self.up(0)
        return self.engine.run()

    def up(self, level):
        if level == self.depth:
            self.down(level)
            return
        parent = self.hosts[level + 1]
        self.hosts[level].out.put(self.part, lambda: parent.into.put(2 * self.part, lambda: (
            parent.processor.put(2 * self.part, lambda: self.up(level + 1)))), self.costs.latency)

    def down(self, level):
        if level > 0:
            below = self.hosts[level - 1]
            self.hosts[level].out.put(2 * self.part, lambda: below.into.put(self.part, lambda: (
                below.processor.put(self.part, lambda: self.down(level - 1)))), self.costs.latency)


def two_levels(n, per_host, servers, nbytes, costs):
    """The workers of a host add in its memory, each its own part, before and copy after the exchange
    among the hosts."""
    hosts = -(-n // per_host)
    inside = 2 * (2 * costs.message + nbytes * costs.local)
    return inside + (Servers(hosts, max(1, servers), nbytes, costs).seconds() if hosts > 1 else 0)


def seconds(arrangement, n, nbytes, costs, servers=None, per_host=8):
    """The time of one exchange without computation. servers: of "ps" and "two levels"; not given:
    as many as workers, and as hosts."""
    if n <= 1:
        return 0.0
    if arrangement == "ring":
        return Ring(n, nbytes, costs).seconds()
    if arrangement == "tree":
        return Tree(n, nbytes, costs).seconds()
    if arrangement == "ps":
        return Servers(n, servers or n, nbytes, costs).seconds()
    if arrangement == "two levels":
        return two_levels(n, per_host, servers or -(-n // per_host), nbytes, costs)
    raise ValueError(f"no arrangement {arrangement}")
