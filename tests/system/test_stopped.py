"""Parts that stand still. A server stands still for a while: what is on its way to it stays within
the credits, workers do not grow, and the job ends with the weights that it would have had. Parts
stand still for good: psrun ends the job and names them, also if no other part is left to miss them.
Ctrl-Z stops psrun and all parts until fg."""
import os
import signal
import time
import unittest
from unittest import mock

from jobs import (DIGITS, LONG, PATIENCE_S, Faults, JobTest, children, listening_ports, nightly, resident_bytes, sizes,
                  stands_still, wait_until)
from psrunlib import job, local, watched

CREDIT = 256 << 10
SETTINGS = ["train.steps=10", "train.log_every=1", "exchange.chunk=64KiB",
            f"exchange.credit={CREDIT >> 10}KiB", "net.dead_after_ms=120000",
            "net.step_timeout_ms=120000"]
ACKNOWLEDGED_S = 0.5  # by then all received bytes are acknowledged, so no byte counts twice
HEADERS = 64 << 10  # limit for all messages that are on the way, with room to spare
GROWTH = 2 << 20    # heaps vary a little
# AddressSanitizer keeps up to 256 MB of freed memory to find uses of it. A part would grow with
# every message, whatever it holds itself.
NO_QUARANTINE = ("quarantine_size_mb=0", "thread_local_quarantine_size_kb=0")


def queued_bytes(ports):
    """Returns, for each connection to one of these TCP ports of this host, the bytes that are sent
    and not yet received: in the sender's queue and in the receiver's."""
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
    PREFIX = ["env", "ASAN_OPTIONS=" + ":".join([os.environ.get("ASAN_OPTIONS", ""),
                                                 *NO_QUARANTINE])]

    def stop_and_watch(self, parts, victim, held):
        """Stops a part while the workers are held. Returns the largest number of bytes queued on one connection, and by
        how much each other part has grown."""
        pid = parts[victim].popen.pid
        ports = listening_ports(pid)
        others = {n: p.popen.pid for n, p in parts.items() if n != victim}
        before = {name: resident_bytes(other) for name, other in others.items()}
        most, grown = 0, dict.fromkeys(others, 0)
        os.kill(pid, signal.SIGSTOP)
        for fault in held:
            fault.let_go("step.begun")
        begin = time.monotonic()
        while time.monotonic() < begin + self.SECONDS:
            if time.monotonic() > begin + ACKNOWLEDGED_S:
                most = max([most, *queued_bytes(ports).values()])
            for name, other in others.items():
                grown[name] = max(grown[name], resident_bytes(other) - before[name])
            time.sleep(0.05)
        os.kill(pid, signal.SIGCONT)
        return most, grown

    def run_job(self, out, shm, victim=None):
        held = [Faults(self.path(f"{out}-{rank}"), "step.begun:7:hold") for rank in range(2)]  # all memory has been used
        parts = self.start_job(2, 2, *SETTINGS, f"exchange.shm={shm}", config=self.wide_model(),
                               prefix=lambda role, rank: self.PREFIX + (
                                   held[rank].prefix if victim and role == "worker" else []))
        seen = None
        if victim:
            for rank in range(2):
                held[rank].wait_for("step.begun", parts[f"worker {rank}"].popen)
            seen = self.stop_and_watch(parts, victim, held)
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

    @nightly
    def test_over_sockets(self):
        most = self.check("off", "server 1")
        self.assertGreater(most, 0)
        self.assertLessEqual(most, CREDIT + HEADERS)
        # The worker's own account, of payloads alone.
        self.assertLessEqual(self.summary("stopped")["most_bytes_in_flight"], CREDIT)
        self.assertGreater(self.summary("stopped")["most_bytes_in_flight"], 0)

    def test_through_shared_memory(self):
        # Server 0's process hosts the coordinator, too.
        most = self.check("on", "server 0")
        self.assertLessEqual(most, HEADERS)
        self.assertEqual(self.summary("stopped")["most_bytes_in_flight"], 0)


class UnderPsrun(JobTest):
    def start(self, mode, *settings, workers=1):
        """Starts psrun as a shell starts a job. Returns it and its parts' process ids."""
        out = f"{mode}-{len(os.listdir(self.folder))}"
        psrun = self.start_psrun(*sizes(mode, 1, workers), DIGITS, *LONG, *settings, out=out, before=os.setpgrp)
        psrun.out = out
        self.wait_for_steps(out)
        return psrun, dict(children(psrun.pid))

    def goes_on_and_ends(self, psrun):
        records = len(self.records(psrun.out))
        wait_until(lambda: len(self.records(psrun.out)) >= records + 2, "the job does not go on")
        psrun.send_signal(signal.SIGINT)
        text, _ = psrun.communicate(timeout=PATIENCE_S)
        self.assertEqual(psrun.returncode, 130, text)


class StoppedForGood(UnderPsrun):
    def test_is_named_by_psrun(self):
        stopped = []  # all at once: they only wait
        for mode, victims in (("ps", ["server"]), ("ps", ["worker"]), ("ps", ["server", "worker"]),
                              ("allreduce", ["worker"]), ("single", ["worker"])):
            psrun, pids = self.start(mode, "net.dead_after_ms=4000")
            for victim in victims:
                os.kill(pids[f"ps-{victim}"], signal.SIGSTOP)
            stopped.append((mode, victims, psrun))
        for mode, victims, psrun in stopped:
            with self.subTest(mode=mode, victims=victims):
                text, _ = psrun.communicate(timeout=PATIENCE_S)
                self.assertEqual(psrun.returncode, 1, text)
                self.assertRegex(text.splitlines()[-3],
                                 rf"the job failed: ({'|'.join(victims)}) 0 was stopped by "
                                 r"SIGSTOP and not continued for \d\.\d s")

    def test_not_who_is_often_stopped(self):
        """As cpulimit does it: whenever psrun looks, the part may be stopped. It was continued meanwhile."""
        part = local.LocalProcess(job.Part("worker", 0, ["sleep", "60"], {}), {})
        seen = watched.Watched(part, None)
        self.addCleanup(part.output.close)
        self.addCleanup(part.events.close)
        self.addCleanup(part.popen.wait)
        self.addCleanup(part.signal, signal.SIGKILL)
        for now in (0, 5, 10):
            for number in (signal.SIGCONT, signal.SIGSTOP):
                part.signal(number)
            wait_until(lambda: stands_still(part.popen.pid))
            for later in (now, now + 1, now + 2):
                seen.look(later)
                self.assertEqual(seen.stopped_at, now)

    def test_not_who_has_just_ended(self):
        part = local.LocalProcess(job.Part("worker", 0, ["true"], {}), {})
        self.addCleanup(part.output.close)
        self.addCleanup(part.events.close)
        os.waitid(os.P_PID, part.popen.pid, os.WEXITED | os.WNOWAIT)
        self.assertIsNone(part.stopped_by())
        with mock.patch("os.killpg") as kill:
            part.signal(signal.SIGINT)
        kill.assert_not_called()  # its number may be another's
        self.assertEqual(part.poll(), 0)

    def test_after_a_ctrl_c(self):
        psrun, pids = self.start("ps", "net.dead_after_ms=3000")
        os.kill(pids["ps-worker"], signal.SIGSTOP)
        psrun.send_signal(signal.SIGINT)
        text, _ = psrun.communicate(timeout=PATIENCE_S)
        self.assertEqual(psrun.returncode, 1, text)
        self.assertRegex(text, "the job failed: worker 0 was stopped by SIGSTOP")


class CtrlZ(UnderPsrun):
    def test_stops_all_until_fg(self):
        jobs = [self.start(mode, "net.dead_after_ms=2000", "net.step_timeout_ms=2000",
                           workers=1 if mode == "single" else 2)[0]
                for mode in ("ps", "allreduce", "single")]
        parts = [pid for psrun in jobs for _, pid in children(psrun.pid)]
        for _ in range(2):
            for psrun in jobs:
                psrun.send_signal(signal.SIGTSTP)
            wait_until(lambda: all(map(stands_still, [*(psrun.pid for psrun in jobs), *parts])),
                          "a process does not stop")
            time.sleep(2.5)  # both deadlines pass, and no part is dead or late
            for psrun in jobs:
                psrun.send_signal(signal.SIGCONT)
            wait_until(lambda: not any(map(stands_still, parts)), "a process stays stopped")
        for psrun in jobs:
            with self.subTest(job=psrun.out):
                self.goes_on_and_ends(psrun)

    def test_where_it_is_ignored(self):
        before = signal.signal(signal.SIGTSTP, signal.SIG_IGN)
        self.addCleanup(signal.signal, signal.SIGTSTP, before)
        psrun, _ = self.start("single")
        psrun.send_signal(signal.SIGTSTP)
        self.goes_on_and_ends(psrun)


if __name__ == "__main__":
    unittest.main(verbosity=2)
