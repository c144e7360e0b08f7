"""A server that stands still for a while: what is on its way to it stays under the credits,
workers do not grow, and the job ends with the weights that it would have had."""
import os
import signal
import time
import unittest

from jobs import JobTest, listening_ports, resident_bytes

CREDIT = 256 << 10
SETTINGS = ["train.steps=60", "train.log_every=1", "exchange.chunk=64KiB",
            f"exchange.credit={CREDIT >> 10}KiB", "net.dead_after_ms=120000",
            "net.step_timeout_ms=120000"]
SETTLED_S = 0.5  # then all that was received has been acknowledged, too: counted once
HEADERS = 64 << 10  # of all messages that are on the way, with room to spare
GROWTH = 2 << 20    # heaps breathe a little


def queued_bytes(ports):
    """By connection to one of the TCP ports of this host: bytes that are sent and not yet
    received, in the sender's queue and in the receiver's."""
    queued = {}
    with open("/proc/net/tcp", encoding="ascii") as f:
        rows = [line.split() for line in f.readlines()[1:]]
    for row in rows:
        local, remote = (int(row[i].split(":")[1], 16) for i in (1, 2))
        tx, rx = (int(n, 16) for n in row[4].split(":"))
        if remote in ports:
            queued[local] = queued.get(local, 0) + tx
        elif local in ports and row[3] != "0A":  # not the listening socket
            queued[remote] = queued.get(remote, 0) + rx
    return queued


class StoppedServer(JobTest):
    SECONDS = 2

    def stop_and_watch(self, parts, victim):
        """Most bytes queued on one connection, and by how much each other part has grown."""
        pid = parts[victim].popen.pid
        ports = listening_ports(pid)
        others = {n: p.popen.pid for n, p in parts.items() if n != victim}
        before = {name: resident_bytes(other) for name, other in others.items()}
        most, grown = 0, dict.fromkeys(others, 0)
        os.kill(pid, signal.SIGSTOP)
        begin = time.monotonic()
        while time.monotonic() < begin + self.SECONDS:
            if time.monotonic() > begin + SETTLED_S:
                most = max([most, *queued_bytes(ports).values()])
            for name, other in others.items():
                grown[name] = max(grown[name], resident_bytes(other) - before[name])
            time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        return most, grown

    def run_job(self, out, shm, victim=None):
        parts = self.start_job(2, 2, *SETTINGS, f"exchange.shm={shm}", config=self.wide_model())
        seen = None
        if victim:
            self.wait_for_steps("worker-0")
            seen = self.stop_and_watch(parts, victim)
        codes = self.wait_all(parts, 100)
        self.assertEqual(set(codes.values()), {0}, "\n".join(p.text() for p in parts.values()))
        os.rename(self.path("worker-0"), self.path(out))
        return seen

    def check(self, shm, victim):
        self.run_job("undisturbed", shm)
        most, grown = self.run_job("stopped", shm, victim)
        for name, size in grown.items():
            self.assertLessEqual(size, GROWTH, name)
        self.assertEqual(self.weights("stopped"), self.weights("undisturbed"))
        return most

    def test_over_sockets(self):
        most = self.check("off", "server 1")
        # None at all where the server had taken all pushes of the step and not answered yet.
        self.assertLessEqual(most, CREDIT + HEADERS)
        # The worker's own account, of payloads alone.
        self.assertLessEqual(self.summary("stopped")["most_bytes_in_flight"], CREDIT)
        self.assertGreater(self.summary("stopped")["most_bytes_in_flight"], 0)

    def test_through_shared_memory(self):
        # Server 0's process hosts the coordinator, too.
        most = self.check("on", "server 0")
        self.assertLessEqual(most, HEADERS)
        self.assertEqual(self.summary("stopped")["most_bytes_in_flight"], 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)
