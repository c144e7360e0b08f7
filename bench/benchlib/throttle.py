"""Processes that run a share of the time only: machines of unequal speed on one. By SIGSTOP and
SIGCONT in turns, so the share does not depend on what else runs, as long as cores are free."""
import os
import signal
import threading
import time

TICK_S = 0.002


class Throttle:
    """processes: {process id: share of the time}. with Throttle(...): they are throttled."""

    def __init__(self, processes, period_s=0.04):
        self.processes, self.period_s = processes, period_s
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._take_turns, daemon=True)

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.ended.set()
        self.thread.join()
        for pid in self.processes:
            self._send(pid, signal.SIGCONT)

    @staticmethod
    def _send(pid, number):
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass

    def _take_turns(self):
        runs = dict.fromkeys(self.processes, True)
        begin = time.monotonic()
        while not self.ended.wait(TICK_S):
            now = time.monotonic() - begin
            for i, (pid, share) in enumerate(self.processes.items()):
                # Each begins its turn at another time.
                turn = (now / self.period_s + i / len(self.processes)) % 1
                wanted = turn < share
                if wanted != runs[pid]:
                    self._send(pid, signal.SIGCONT if wanted else signal.SIGSTOP)
                    runs[pid] = wanted
