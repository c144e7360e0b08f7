"""Starts the parts of a job, watches them and ends them together."""
import os
import re
import selectors
import signal
import time

from .errors import JobError

# After one part has failed the others learn it from the coordinator; those that have not
# ended by themselves GRACE_S later are told to (SIGTERM), and KILL_S later made to (SIGKILL).
GRACE_S = 5.0
KILL_S = 5.0
# Who is still there LEFT_S later waits for a disk or a device that does not answer (NFS): no
# signal reaches it.
LEFT_S = 10.0
# Servers stay until the last worker has left; none may stay for ever.
SERVERS_END_S = 30.0
# Exit codes of parts that were told to end, and have ended in order.
RESUMABLE = 75  # EX_TEMPFAIL: told to end, and there is a checkpoint: start me again
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM, RESUMABLE)
# Most of a round that counts as time: what exceeds it psrun has stood still itself, and
# nobody else is late for that.
ROUND_MOST_S = 1.0

# The level stands before all that a part, or a peer of it, may say.
ERROR_LINE = re.compile(r"^\s*[\d.]+ \S+ ERROR \S+ (?P<what>.*)$")
OTHERS_FAULT = re.compile(r"^PEER: ")
TIMED_OUT = re.compile(r"^TIMEOUT: ")
# The coordinator's, once the last member has come.
JOINED_LINE = re.compile(r"^\s*[\d.]+ \S+ INFO  joined .* members=(?P<n>\d+)/(?P=n)$")
TOLD_LINE = re.compile(r"^\s*[\d.]+ \S+ INFO  interrupted signal=(?P<signal>SIG[A-Z]+) ")


END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listens_to(number):
    """Not to a SIGHUP that nohup has asked to ignore."""
    return number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN


class Watched:
    """A running part, its output and its log file."""

    def __init__(self, process, log):
        self.process = process
        self.part = process.part
        self.log = log  # None: given up
        self.rest = ""
        self.open = True
        self.errors = []
        self.told = None  # the signal that it says it has got
        self.all_joined = False  # as it says
        self.last_line = ""
        self.code = None
        self.ended_at = 0.0
        self.stopped_at = None  # while it stands still
        self.fault = ""  # what it was ended for

    def take(self, text, screen):
        """Lines end with a line feed; a progress bar's states with a carriage return."""
        pieces = re.split(r"([\r\n])", self.rest + text)
        self.rest = pieces.pop()
        for line, end in zip(pieces[0::2], pieces[1::2]):
            if end == "\r":
                screen.progress(line)
            elif line:
                self._line(line, screen)

    def _line(self, line, screen):
        self._keep(line, screen)
        self.last_line = line
        found = ERROR_LINE.match(line)
        if found:
            self.errors.append(found.group("what"))
        self.all_joined = self.all_joined or bool(JOINED_LINE.match(line))
        told = TOLD_LINE.match(line)
        if told:
            self.told = signal.Signals[told.group("signal")]
        screen.line(self.part, line)

    def _keep(self, line, screen):
        """A full disk ends the log, not the job: that is the job's to decide."""
        if not self.log:
            return
        try:
            self.log.write(line + "\n")
            self.log.flush()
        except OSError as error:
            screen.say(f"psrun: cannot write {self.log.name}: {error.strerror}; it ends here")
            self._close_log()

    def _close_log(self):
        try:
            if self.log:
                self.log.close()
        except OSError:
            pass  # what was not written is lost, and has been said
        self.log = None

    def look(self, now):
        """Whether it has ended, or stands still."""
        self.code = self.process.poll()
        stopped_by = self.process.stopped_by() if self.code is None else None
        if self.code is not None:
            self.ended_at = now
        if stopped_by is None:
            self.stopped_at = None
        elif self.stopped_at is None:
            self.stopped_at, self.stopped_by = now, stopped_by

    def close(self, screen):
        if self.rest:
            self._line(self.rest, screen)
            self.rest = ""
        self.open = False
        self._close_log()


class Supervisor:
    def __init__(self, screen, launch, logs_dir, dead_after_s):
        self.screen = screen
        self.launch = launch  # part -> process: local, or on another host
        self.logs_dir = logs_dir
        self.dead_after_s = dead_after_s  # a part that stands still
        self.watched = []
        self.selector = selectors.DefaultSelector()
        self.now = 0.0  # seconds that psrun has watched
        self.looked_at = time.monotonic()
        self.interrupts = 0  # written by the signal handler alone, as is the next
        self.signal = None  # the first that told the job to end: psrun, or one part alone
        self.told_alone = None  # that part
        self.stop_asked = False
        self.passed_on = False
        self.told_at = None  # when all were told to end
        self.failed_at = None
        self.killed_at = None
        self.ended_by_us = set()

    def run(self, parts):
        """Runs the job to its end; returns psrun's exit code."""
        before = {n: signal.signal(n, self._on_signal) for n in END_SIGNALS if listens_to(n)}
        before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_stop)
        try:
            for part in parts:
                if self.interrupts:
                    break  # nobody would tell it
                self._start(part)
            while any(w.code is None or w.open for w in self.watched) and not self._left():
                self._read(0.1)
                self._tick()
                self._stand_still(before[signal.SIGTSTP])
                self._reap()
                self._end_stopped()
                self._find_told()
                self._follow()
                self._pass_on()
                self._end_in_order()
            self._name_left()
            self.screen.keep_bar()
            return self._verdict()
        finally:
            self._tell_all(signal.SIGKILL)
            for number, handler in before.items():
                signal.signal(number, handler)

    def _tick(self):
        now = time.monotonic()
        self.now += min(now - self.looked_at, ROUND_MOST_S)
        self.looked_at = now

    def _start(self, part):
        path = os.path.join(self.logs_dir, f"{part.role}-{part.rank}.log")
        try:
            log = open(path, "w", encoding="utf-8", errors="replace")
        except OSError as error:
            raise JobError(f"cannot write {path}: {error.strerror}") from error
        try:
            process = self.launch(part)
        except OSError as error:
            log.close()
            raise JobError(f"cannot start {part.name}: {error}") from error
        watched = Watched(process, log)
        self.watched.append(watched)
        os.set_blocking(process.output.fileno(), False)
        self.selector.register(process.output, selectors.EVENT_READ, watched)

    def _read(self, timeout):
        if not self.selector.get_map():
            time.sleep(timeout)
            return
        for key, _ in self.selector.select(timeout):
            watched = key.data
            try:
                chunk = os.read(key.fd, 65536)
            except BlockingIOError:
                continue
            if chunk:
                watched.take(chunk.decode("utf-8", "replace"), self.screen)
            else:
                self.selector.unregister(key.fileobj)
                watched.close(self.screen)

    def _reap(self):
        """Who was ended by a signal goes first: others end because of it, and may have been
        looked at later."""
        failed = self._look()
        if failed:
            failed += self._look()  # whatever they ended for has happened by now
        for watched in sorted(failed, key=lambda w: w.code >= 0):
            self._fail(watched)

    def _look(self):
        """Those that have just ended, and not in order."""
        running = [w for w in self.watched if w.code is None]
        for watched in running:
            watched.look(self.now)
        return [w for w in running if w.code not in (None, 0, *INTERRUPTED)]

    def _fail(self, watched):
        if self.failed_at is None and not self._ended_by_us(watched):
            self.failed_at = self.now
            self.screen.say(f"psrun: {self._how(watched)}; ending the job")

    def _end_stopped(self):
        """Who stands still is missed by others, if there are any that do not; and when the job
        is over it cannot end by itself."""
        for watched in self.watched:
            if watched.stopped_at is None or watched.fault or self._ended_by_us(watched):
                continue
            stood_s = self.now - watched.stopped_at
            if self.failed_at is None and stood_s < self.dead_after_s:
                continue
            key = " (net.dead_after_ms)" if stood_s >= self.dead_after_s else ""
            watched.fault = (f"was stopped by {watched.stopped_by.name} and not continued for "
                             f"{stood_s:.1f} s{key}")
            self._fail(watched)
            watched.process.signal(signal.SIGKILL)

    def _end_in_order(self):
        if self.told_at is None and self._must_end():
            self._end_all(signal.SIGTERM)
            self.told_at = self.now
        late = self.told_at is not None and self.now - self.told_at > KILL_S
        if (late or self.interrupts > 1) and self.killed_at is None:
            self._end_all(signal.SIGKILL)
            self.killed_at = self.now

    def _left(self):
        return self.killed_at is not None and self.now - self.killed_at > LEFT_S

    def _name_left(self):
        for watched in self.watched:
            if watched.code is None:
                watched.code = -signal.SIGKILL
                self.screen.say(f"psrun: {watched.part.name} does not end, not even by SIGKILL: it "
                                "waits for a disk or a device")

    def _must_end(self):
        if self.failed_at is not None:
            # Before all have joined there is no coordinator that tells the others.
            began = any(w.all_joined for w in self.watched)
            return self.now - self.failed_at > (GRACE_S if began else 0)
        workers = [w for w in self.watched if w.part.role == "worker"]
        if not workers:
            return self.signal is not None
        if all(w.code is not None for w in workers):
            # Servers that nobody had joined yet do not know that nobody will.
            limit = GRACE_S if self.signal else SERVERS_END_S
            return self.now - max(w.ended_at for w in workers) > limit
        return False

    def _on_signal(self, number, frame):
        """The first Ctrl-C, SIGTERM or SIGHUP asks the workers to end after a common step
        and to keep the weights; the second ends everything now. The handler only counts: it
        runs between any two instructions, also while a line is written."""
        self.interrupts += 1
        self.signal = self.signal or signal.Signals(number)

    def _on_stop(self, number, frame):
        self.stop_asked = True

    def _stand_still(self, action):
        """Ctrl-Z: all parts stop, then psrun as it would have without them (action). Alone it
        would hold them all the same, once nobody reads what they say."""
        if not self.stop_asked:
            return
        self.stop_asked = False
        self.screen.say("psrun: stopped, and all parts with it; fg continues the job")
        self._tell_all(signal.SIGSTOP)
        ours = signal.signal(signal.SIGTSTP, action)
        os.kill(os.getpid(), signal.SIGTSTP)  # returns when continued
        signal.signal(signal.SIGTSTP, ours)
        self._tell_all(signal.SIGCONT)

    def _find_told(self):
        """A part that got a signal alone ends the job in order."""
        told = [w for w in self.watched if w.told]
        if self.signal or not told or self.failed_at is not None:
            return
        self.told_alone, self.signal = told[0].part, told[0].told
        self.screen.say(f"psrun: {told[0].part.name} was told to end ({told[0].told.name}); the job "
                        "ends in order")

    def _follow(self):
        """Who does not end with a part that was told alone had not joined it yet, and would
        wait for it."""
        ended = [w.ended_at for w in self.watched if w.code in INTERRUPTED]
        alone = ended and not self.interrupts and self.failed_at is None
        if alone and not self.passed_on and self.now - max(ended) > GRACE_S:
            self._tell_workers()

    def _pass_on(self):
        if self.interrupts == 1 and not self.passed_on:
            self.screen.say("psrun: ending in order and keeping the weights (once more: at once)")
            self._tell_workers()

    def _tell_workers(self):
        self.passed_on = True
        for watched in self.watched:
            # Told twice, a part ends at once.
            if watched.part.role == "worker" and not watched.told:
                watched.process.signal(signal.SIGINT)

    def _tell_all(self, number):
        for watched in self.watched:
            if watched.code is None:
                watched.process.signal(number)

    def _end_all(self, number):
        self.ended_by_us |= {w.part.name for w in self.watched if w.code is None}
        self._tell_all(number)

    def _ended_by_us(self, watched):
        """SIGINT kills a worker that has only been started."""
        passed_on = self.passed_on and watched.code == -signal.SIGINT
        return passed_on or watched.part.name in self.ended_by_us

    def _verdict(self):
        failed = [w for w in self.watched if w.code not in (0, *INTERRUPTED)]
        if self.signal:
            failed = [w for w in failed if not self._follows_from_interrupt(w)]
        if failed:
            self._say_why(failed)
            return 1
        ended = [w.code for w in self.watched if w.code in INTERRUPTED]
        if not ended and not self.interrupts:
            return 0  # also where a part was told too late to end before its job
        if RESUMABLE in ended and self.signal != signal.SIGINT:
            return RESUMABLE
        return 128 + self.signal if self.signal else ended[0]

    def _follows_from_interrupt(self, watched):
        """Ended by our signals, or told by others that they had ended."""
        if watched.fault:
            return False
        return self._ended_by_us(watched) or bool(watched.errors and OTHERS_FAULT.match(watched.errors[-1]))

    def _say_why(self, failed):
        """The first cause last: nobody scrolls up."""
        cause = self._cause(failed)
        self.screen.say(self.screen.red(f"psrun: the job failed: {self._how(cause)}"))
        what = cause.errors[-1] if cause.errors else cause.last_line
        # What a part has said before a signal ended it is no reason for that.
        if what and not cause.fault and cause.code > 0:
            self.screen.say(self.screen.red(f"psrun:   {what}"))
        self.screen.say(f"psrun: logs are in {self.logs_dir}")

    def _cause(self, failed):
        """A death by a signal that was not ours; else the first error that is not about
        somebody else, where who stood still goes before who waited in vain; else the first
        end."""
        failed = sorted(failed, key=lambda w: w.ended_at)
        theirs = [w for w in failed if not self._ended_by_us(w)] or failed
        signalled = [w for w in theirs if w.code < 0 and not w.fault]
        stood = [w for w in theirs if w.fault]
        own = [w for w in theirs if w.errors and not OTHERS_FAULT.match(w.errors[-1])
               and not w.fault]
        at_once = [w for w in own if not TIMED_OUT.match(w.errors[-1])]
        return (signalled or at_once or stood or own or theirs)[0]

    @staticmethod
    def _how(watched):
        if watched.fault:
            return f"{watched.part.name} {watched.fault}"
        if watched.code < 0:
            name = signal.Signals(-watched.code).name
            return f"{watched.part.name} was ended by {name}"
        return f"{watched.part.name} ended with exit code {watched.code}"
