"""Starts the parts of a job, watches them and ends them together."""
import math
import os
import selectors
import signal
import threading
import time

from . import local
from .errors import JobError
from .events import Tally, named
from .faults import Faults
from .traceback import is_of_others
from .watched import Watched

# When a part has failed, the coordinator tells the others. Those that have not ended GRACE_S
# later get SIGTERM, and KILL_S after that SIGKILL.
GRACE_S = 5.0
KILL_S = 5.0
# A job that has failed and not ended so much later says so.
SAY_ENDING_S = 3.0
# A part that is still there LEFT_S later waits for a disk (NFS) or a device that does not
# answer: no signal reaches it.
LEFT_S = 10.0
# Servers stay until the last worker has left, and at most this long after it.
SERVERS_END_S = 30.0
# A part that has ended with an exit code is started again this much later: until then another may
# end whose failure nothing mends.
RESTART_GRACE_S = 0.5
# Exit codes of parts that were told to end, and have ended in order.
RESUMABLE = 75  # EX_TEMPFAIL: told to end, and there is a checkpoint: start me again
INTERRUPTED = (128 + signal.SIGINT, 128 + signal.SIGTERM, RESUMABLE)
# A part that closes its output ends within this time, or it goes on without.
ENDS_WITHIN_S = 1.0
# A round of the loop counts as at most this long: if it took longer, psrun itself was stopped,
# and no part is late because of that.
ROUND_MOST_S = 1.0

CHUNK_BYTES = 65536
NEVER_JOINED = "ended before it had joined the job (pstrain.init())"
MOST_OF_REASON = 2000  # characters of a part's last line
LAST_CHUNKS = 16  # a pipe holds 1 MiB at most

END_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listens_to(number):
    """False for a SIGHUP that nohup has set to be ignored, and in a thread: Python's main one alone may ask for signals."""
    if threading.current_thread() is not threading.main_thread():
        return False
    return number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN


class Supervisor:
    def __init__(self, screen, launch, logs_dir, dead_after_s, restarts=None, elastic=None, ends_s=math.inf,
                 keeps=False, adopted=()):
        self.screen = screen
        self.faults = Faults(screen)
        self.launch = launch  # part -> process: local, or on another host
        self.logs_dir = logs_dir
        self.dead_after_s = dead_after_s  # how long a part may be stopped
        self.restarts = restarts  # restarts.Restarts; None: a death ends the job
        self.tally = Tally()
        self.heard = lambda event: None  # is called with each event
        self.joined = set()  # parts that the coordinator has admitted, by name
        self.ending = "ending in order and keeping the weights"
        self.when_killed = ""  # what to do about a part that a signal has ended
        self.drops_logs = False  # whether the logs of a start that has failed may go
        self.needs_logs = True  # they hold more than psrun has said
        self.codes_tell = False  # whether a worker that ends with 0 has done its work, also where it was told to end
        self.another = lambda failed: False  # whether another attempt follows when these parts have failed (attempts.py)
        self.keeps = keeps  # whether servers stay for another attempt when a worker has failed (attempts.py)
        self.adopted = adopted  # of the attempt before: watched servers
        self.left_running = []  # servers for the next one
        self.rejoined = set()  # names of parts that have told that they join again
        self.buddies = False  # whether the servers have each other's rows
        self.elastic = elastic  # elastic.Elastic; None: the number of workers is fixed
        self.waiting = []  # (when, the watched part that has died[, the part to start instead])
        self.watched = []
        self.selector = selectors.DefaultSelector()
        self.now = 0.0  # seconds that psrun has watched the job
        self.looked_at = time.monotonic()
        self.ends_s, self.ends_by = ends_s, math.inf  # how soon workers end that were told to, and when, by self.now
        self.interrupts = 0  # only the signal handler writes it
        self.signal = None  # the first that told the job to end, sent to psrun or to one part
        self.told_alone = None  # that part
        self.stop_asked = False
        self.passed_on_at = None  # when the workers were told to end
        self.told_at = None  # when all were told to end
        self.failed_at = None
        self.failed = None  # the part that has failed; None: it has been said
        self.cause = None  # the part that has made the job fail, when it has
        self.aborts = None  # the name of the part that has ended the job, as the coordinator says
        self.lacked = None  # that of the worker for whose gradients a server waited
        self.all_done = False  # a worker has ended in order: then all of them have done their work
        self.killed_at = None
        self.ended_by_us = set()

    def run(self, parts):
        """Runs the job to its end; returns psrun's exit code."""
        before = {n: signal.signal(n, self._on_signal) for n in END_SIGNALS if listens_to(n)}
        if listens_to(signal.SIGTSTP):
            before[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, self._on_stop)
        self.screen.begin()
        local.allow_descriptors(len(parts))
        try:
            for part in parts:
                if self.interrupts:
                    break  # no part has to be told then
                self._adopt(part) or self._start(part)
            while self._goes_on() and not self._left():
                self._read(self._pause_s())
                self._tick()
                self._stand_still(before.get(signal.SIGTSTP))
                self._reap()
                self._close_kept()
                self._start_again()
                self._end_stopped()
                self._end_silent()
                self._end_without_job()
                self._find_told()
                self._follow()
                self._pass_on()
                self._end_in_order()
                self._say_ending()
                self.faults.tick(self.now)
            self.left_running = self._staying()
            self._name_left()
            self.screen.keep_bar()
            code = self._verdict()
            if self.signal:
                self.faults.named()  # those that have failed because others had ended
            self.faults.show()
            return code
        finally:
            self._tell_all(signal.SIGKILL, but=self.left_running)
            self.selector.close()  # which Python's collector alone would do
            for number, handler in before.items():
                signal.signal(number, handler)

    def _goes_on(self):
        staying = self._staying()
        return self.waiting or any(w.code is None or w.open for w in self.watched if w not in staying)

    def _staying(self):
        """The servers, where all of them wait for the workers of another attempt. Those that live, where they have the
        rows of the others, too."""
        servers = [w for w in self.watched if w.part.role == "server" and (w.code is None or not self.buddies)]
        stay = self.keeps and self.failed_at is not None and not self.signal
        return servers if stay and all(w.code is None and w.part.name in self.rejoined for w in servers) else []

    def _pause_s(self):
        """How long psrun may wait for output: hardly where a part is to be started now, or has just
        closed its output, which parts do when they end."""
        soon = (any(item[0] <= self.now for item in self.waiting)
                or any(w.code is None and not w.open and self.now - w.closed_at < ENDS_WITHIN_S for w in self.watched))
        return 0.01 if soon else 0.1

    def _tick(self):
        now = time.monotonic()
        self.now += min(now - self.looked_at, ROUND_MOST_S)
        self.looked_at = now

    def _adopt(self, part):
        """Watches a server that runs already. Returns whether there is one."""
        found = [w for w in self.adopted if w.part.name == part.name]
        for watched in found:
            watched.begin_again()
            self._watch(watched)
        return bool(found)

    def _watch(self, watched):
        self.watched.append(watched)
        for stream in (s for s in (watched.process.output, watched.process.events) if not s.closed):
            os.set_blocking(stream.fileno(), False)
            self.selector.register(stream, selectors.EVENT_READ, watched)

    def _open_log(self, part, again):
        """Behind what an earlier start said. again: it has died, and the job does not end for want of its log."""
        path = os.path.join(self.logs_dir, f"{part.role}-{part.rank}.log")
        try:
            return open(path, "a", encoding="utf-8", errors="replace")
        except OSError as error:
            if not again:
                raise JobError(f"cannot write {path}: {error.strerror}") from error
            self.screen.say(f"psrun: cannot write {path}: {error.strerror}; {part.name} has no log from here on")
            return None

    def _start(self, part, instead_of=None):
        log = self._open_log(part, again=bool(instead_of))
        try:
            process = self.launch(part)
        except OSError as error:
            if log:
                log.close()
            hint = ": is the virtual environment active?" if error.filename in ("python", "python3") else ""
            raise JobError(f"cannot start {part.name}: {error}{hint}") from error
        watched = Watched(process, log)
        if instead_of:
            watched.has_begun = instead_of.has_begun
            self.watched.remove(instead_of)
        self._watch(watched)

    def _read(self, timeout):
        if not self.selector.get_map():
            time.sleep(timeout)
            return
        for key, _ in self.selector.select(timeout):
            self._take(key.fileobj, key.data)

    def _take(self, stream, watched):
        """Returns whether there may be more."""
        try:
            chunk = os.read(stream.fileno(), CHUNK_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            watched.silent_at = None
        if not chunk:
            self.selector.unregister(stream)
        if stream is watched.process.events:
            watched.take_events(chunk, self.faults, self._hear)
        elif chunk:
            watched.take(chunk, self.faults)
        else:
            stream.close()
            watched.close(self.faults)
            watched.closed_at = self.now
        return len(chunk) == CHUNK_BYTES

    def _take_last_events(self, watched):
        """It has ended. A program that it has left running may have the descriptor as well: nobody waits
        for that one's events."""
        events = watched.process.events
        while events in self.selector.get_map() and self._take(events, watched):
            pass
        if events in self.selector.get_map():
            self.selector.unregister(events)
        events.close()
        watched.close_events(self.faults, self._hear)

    def _close_kept(self):
        """Nobody waits for the output of a program that a part has left running, either: soon after a part's end only such
        a one can have it."""
        for watched in self.watched:
            if watched.code is None or not watched.open or self.now - watched.ended_at < ENDS_WITHIN_S:
                continue
            output = watched.process.output
            for _ in range(LAST_CHUNKS):
                if not self._take(output, watched):
                    break
            if watched.open:
                self.selector.unregister(output)
                output.close()
                watched.close(self.faults)

    def _hear(self, watched, event):
        self.tally.hear(event)
        self.heard(event)
        if event["event"] == "rejoin":
            self.rejoined.add(watched.part.name)
        self.buddies |= event["event"] == "buddies"
        if event["event"] == "aborts":
            self.aborts = named(event)
        if event["event"] == "waits":
            self.lacked = self.lacked or named(event)
        self._note_members(event)
        if self.elastic:
            self.elastic.hear(event)
        if not self.restarts:
            return
        self._find_silent(watched, event)
        self.restarts.hear(watched.part, event)

    def _note_members(self, event):
        """Takes in which parts the coordinator says have joined."""
        if event["event"] == "opened":
            self.joined.clear()
        elif event["event"] == "joined":
            self.joined.add(named(event))
        elif event["event"] == "unjoined":
            self.joined.discard(named(event))

    def _find_silent(self, watched, event):
        """Notes which parts a member, or the coordinator, waits for in vain."""
        if event["event"] == "silent":
            self._mark_silent([named(event)], self.now)
        elif event["event"] == "missing":  # it has waited long enough already
            missing = [f"{event['role']} 0"] if event["role"] else self._missing(watched)
            self._mark_silent(missing, self.now - self.dead_after_s)

    def _missing(self, watched):
        """Whom it has waited for. Workers of an elastic job are not known by their ranks before it begins."""
        others = [w for w in self.watched if w is not watched and not w.missed_others]
        ranked = [w.part for w in others if not (self.elastic and w.part.role == "worker")]
        return [part.name for part in ranked if part.name not in self.joined]

    def _mark_silent(self, names, since):
        for watched in self.watched:
            if watched.part.name in names and watched.silent_at is None:
                watched.silent_at = since

    def _reap(self):
        """Handles parts that have failed. Those that a signal has ended go first: the others may
        have ended because of them."""
        failed = self._look()
        if failed:
            failed += self._look()  # finds the part whose end made them fail
        for watched in sorted(failed, key=lambda w: w.code >= 0):
            self._fail(watched)

    def _look(self):
        """The parts that have just ended, and not in order."""
        running = [w for w in self.watched if w.code is None]
        for watched in running:
            watched.look(self.now)
            if watched.code is not None:
                self._take_last_events(watched)
        return [w for w in running if w.code not in (None, 0, *INTERRUPTED)]

    def _fail(self, watched):
        if self._ended_by_us(watched) or any(item[1] is watched for item in self.waiting):
            return
        if self.signal and self.restarts and self.restarts.can_mend(watched):
            self.ended_by_us.add(watched.part.name)  # it would have been started again
        elif self._is_mendable(watched):
            # Of a part that ended with an exit code the cause may be another's, and still come.
            alone = watched.code is None or watched.code < 0
            self.waiting.append((self.now + (0 if alone else RESTART_GRACE_S), watched))
        elif self._goes_on_without(watched):
            watched.left = True
            self.tally.without += 1
            self.faults.named()
            self.screen.say(f"psrun: {watched.part.name} {watched.why}; the job goes on without it")
        elif self.failed_at is None:
            self.failed_at = self.now
            if not self.all_done and not (self.signal and self._follows_from_interrupt(watched)):
                self.failed = watched

    def _goes_on_without(self, watched):
        return (self.elastic and not self.signal and self.failed_at is None
                and self.elastic.goes_on_without(watched))

    def _is_done(self, watched):
        """Whether its end shows that all have done their work."""
        if watched.code != 0:
            return False
        if watched.part.role == "worker":
            return not (self.elastic and self.elastic.may_go(watched.part))
        # Servers end when all workers have gone; a program of the user's may have more to do then.
        return bool(self.restarts) and not self.restarts.job.program and not self.signal

    def _is_mendable(self, watched):
        if not self.restarts or self.signal or self.failed_at is not None:
            return False
        # Nobody may leave before all have done their work: nothing is lost.
        self.all_done = any(map(self._is_done, self.watched))
        if any(w.part.role == "server" and w.code == 0 for w in self.watched):
            return False  # nobody is there to join
        promised = sum(len(item) == 2 and not item[1].missed_others for item in self.waiting)
        return not self.all_done and self.restarts.can_mend(watched, promised)

    def _start_again(self):
        """Starts the parts that are due. A job that has failed, was told to end or has done its work
        starts none."""
        if self.waiting and any(map(self._is_done, self.watched)):
            self.all_done = True
        needed = self._needed_to_end()
        if self.signal or self.all_done:
            self.ended_by_us |= {item[1].part.name for item in self.waiting if item not in needed}
        if self.signal or self.failed_at is not None or self.all_done:
            self.waiting = needed
        for item in [i for i in self.waiting if i[0] <= self.now and i[1].code is not None]:
            self.waiting.remove(item)
            if len(item) == 3:
                self._start(item[2], instead_of=item[1])
                continue
            step, counts = max(w.step for w in self.watched), not item[1].missed_others
            part, delay_s = self.restarts.replace(item[1], step, counts)
            self.faults.named()
            self.waiting.append((self.now + delay_s, item[1], part))

    def _needed_to_end(self):
        """Of a job that was told to end: without workers that the others have gone on without it cannot end in
        order. They are due at once."""
        if not self.signal or self.interrupts > 1 or self.failed_at is not None or self.all_done:
            return []
        away = [i for i in self.waiting if i[1].part.name in self.restarts.away]
        needed = [(self.now, *i[1:]) for i in away]
        self.waiting = [i for i in self.waiting if i not in away] + needed
        return needed

    def _end_silent(self):
        """Kills parts that do not come back although the others have missed them. On another host
        they may be stopped, which psrun cannot see."""
        for watched in self.watched:
            silent_s = self.now - watched.silent_at if watched.silent_at is not None else 0
            if silent_s < self.dead_after_s or watched.code is not None or watched.fault:
                continue
            watched.fault = f"was missed, and silent for {silent_s:.1f} s more (net.dead_after_ms)"
            self._fail(watched)
            watched.process.signal(signal.SIGKILL)

    def _end_without_job(self):
        """Ends a job that cannot begin: a worker, a program of the user's, has ended and had not joined. Another waits for
        it, or the servers wait for anybody."""
        running = {w.part.role for w in self.watched if w.code is None}
        waits = any(w.has_workers for w in self.watched) or running == {"server"}
        waits = waits and not any(w.has_begun for w in self.watched)
        workers = [w for w in self.watched if w.part.role == "worker"]
        done = [w for w in workers if waits and self._is_done(w) and self.now - w.ended_at > RESTART_GRACE_S]
        if done and not self.signal and self.failed_at is None:
            done[0].fault, done[0].code = NEVER_JOINED, 1
            self._fail(done[0])

    def _end_stopped(self):
        """Kills parts that have been stopped for too long, or are stopped when the job has failed.
        The others may not notice them, and a stopped part cannot end by itself."""
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
        if self.told_at is None and (self._ends_late() or self._must_end()):
            self._end_all(signal.SIGTERM)
            self.told_at = self.now
        late = self.told_at is not None and self.now - self.told_at > KILL_S
        late = late or self.all_done and self.failed_at is not None
        if (late or self.interrupts > 1) and self.killed_at is None:
            self._end_all(signal.SIGKILL)
            self.killed_at = self.now

    def _say_ending(self):
        """Where the end takes a while: only then is it known who has made the job fail."""
        if self.failed and self.now - self.failed_at > SAY_ENDING_S:
            self.faults.named()
            self.screen.say(f"psrun: {self._how(self._told() or self.failed)}; ending the job")
            self.failed = None

    def _told(self):
        """A worker that has told an error of its own; it may not have ended yet. None: no one has."""
        own = [w for w in self.watched if w.part.role == "worker" and w.errors and w.last_error.kind != "PEER"]
        return min(own, key=lambda w: w.last_error.kind == "TIMEOUT") if own else None

    def _left(self):
        return self.killed_at is not None and self.now - self.killed_at > LEFT_S

    def _name_left(self):
        for watched in self.watched:
            if watched.code is None and watched not in self.left_running:
                watched.code = -signal.SIGKILL
                self.screen.say(f"psrun: {watched.part.name} does not end, not even by SIGKILL: it "
                                "waits for a disk or a device")

    def _ends_late(self):
        """Whether workers still run long after the job was told to end; servers stay until they have left."""
        late = [w.part.name for w in self.watched if w.code is None and w.part.role == "worker"]
        self.ends_by = min(self.ends_by, self.now + self.ends_s) if self.signal else math.inf
        if self.now < self.ends_by or not late:
            return False
        self.screen.say(f"psrun: {', '.join(late)} did not end within {self.ends_s:g} s; ending at once")
        return True

    def _must_end(self):
        if self.waiting:
            return False
        workers = [w for w in self.watched if w.part.role == "worker"]
        began = any(w.has_begun for w in self.watched)  # until then no coordinator tells the others
        if self.failed_at is not None:
            dead = [w.code is not None for w in self.watched if w.part.role == "server"]
            vain = all(dead) if self.buddies else any(dead)
            if self.keeps and all(w.code is not None for w in workers) and vain:
                return True  # the others would wait for another attempt
            told = began or self.passed_on_at is not None and any(w.code is None for w in workers)
            return self.now - self.failed_at > (GRACE_S if told else 0)
        done = [w.ended_at for w in self.watched if self._is_done(w)]
        if (self.restarts or self.elastic) and done and self.now - min(done) > self._time_to_end():
            self.all_done = True  # a part that stands still after its work has nothing to lose
            return True
        if not workers:
            return self.signal is not None
        if all(w.code is not None for w in workers):
            # Servers whose job no worker has joined do not know that none will.
            limit = (GRACE_S if began else 0) if self.signal else SERVERS_END_S
            return self.now - max(w.ended_at for w in workers) >= limit
        return False

    def _time_to_end(self):
        """Seconds for which the parts may go on after a worker has ended in order. A part that was started again after
        its work was done looks in vain for others to join, and so does one that an elastic job did without."""
        running = [w for w in self.watched if w.code is None]
        late = [w for w in running if self.elastic and w.part.role == "worker" and w.part.name not in self.joined]
        first_ones = [w for w in running if w not in late and not (self.restarts and self.restarts.started[w.part.name])]
        return SERVERS_END_S if first_ones else GRACE_S

    def _on_signal(self, number, frame):
        """The first Ctrl-C, SIGTERM or SIGHUP asks the workers to end after a common step
        and to keep the weights; the second ends everything at once. The handler only counts,
        since it may run at any moment, also while a line is written."""
        self.interrupts += 1
        self.signal = self.signal or signal.Signals(number)

    def _on_stop(self, number, frame):
        self.stop_asked = True

    def _stand_still(self, action):
        """After Ctrl-Z: stops all parts, then psrun itself, by the handler that was set before
        (action). If psrun stopped alone, the parts would soon block on their output."""
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
        told = [w for w in self.watched if w.told and not (self.elastic and self.elastic.leaves(w))]
        if self.signal or not told or self.failed_at is not None or self.all_done:
            return
        self.told_alone, self.signal = told[0].part, told[0].told
        self.screen.say(f"psrun: {told[0].part.name} was told to end ({told[0].told.name}); the job "
                        "ends in order")

    def _ended_in_order(self):
        """Those that ended because the job was told to."""
        return [w for w in self.watched if w.code in INTERRUPTED
                and (self.signal or not (self.elastic and self.elastic.leaves(w)))]

    def _follow(self):
        """Tells the workers to end if they do not end after a part that was told alone: they had
        not joined yet, and would wait for that part."""
        ended = [w.ended_at for w in self._ended_in_order()]
        alone = ended and not self.interrupts and self.failed_at is None
        if alone and self.passed_on_at is None and self.now - max(ended) > GRACE_S:
            self._tell_workers(f"{self.told_alone.name} was told to end ({self.signal.name})")

    def _pass_on(self):
        if self.interrupts == 1 and self.passed_on_at is None:
            got = f"got {self.signal.name}"
            self._tell_workers(got)  # whoever reads the next line knows that they are told
            self.screen.say(f"psrun: {got}; {self.ending} (once more: at once)")

    def _tell_workers(self, why):
        self.passed_on_at = self.now
        away = self.restarts.away if self.restarts else ()
        for watched in self.watched:
            # A part that is told twice ends at once. One that is on its way back to the job hears of it there.
            if watched.part.role == "worker" and not watched.told and watched.part.name not in away:
                watched.note(f"psrun: {why}; this worker gets SIGINT", self.screen)
                watched.process.signal(signal.SIGINT)

    def _tell_all(self, number, but=()):
        for watched in self.watched:
            if watched.code is None and watched not in but:
                watched.process.signal(number)

    def _end_all(self, number):
        staying = self._staying()
        self.ended_by_us |= {w.part.name for w in self.watched if w.code is None and w not in staying}
        self._tell_all(number, but=staying)

    def _ended_by_us(self, watched):
        """SIGINT kills a worker that has not set its handlers yet."""
        passed_on = self.passed_on_at is not None and watched.code == -signal.SIGINT
        return passed_on or watched.part.name in self.ended_by_us

    def _verdict(self):
        if self.all_done and not self.signal:
            return 0
        failed = [w for w in self.watched if w.code not in (0, None, *INTERRUPTED) and not w.left]
        if self.signal:
            failed = [w for w in failed if not self._follows_from_interrupt(w)]
        if failed:
            self._say_why(failed)
            return 1
        ended = [w.code for w in self._ended_in_order()]
        if not ended and (not self.interrupts or self._work_is_done()):
            return 0  # also if psrun or a part was told when the job was done
        if self.signal != signal.SIGINT and (RESUMABLE in ended or self._has_checkpoint()):
            return RESUMABLE
        return 128 + self.signal if self.signal else ended[0]

    def _work_is_done(self):
        """Whether all workers had done their work when psrun was told to end."""
        workers = [w for w in self.watched if w.part.role == "worker" and not w.left]
        told_at = math.inf if self.codes_tell or self.passed_on_at is None else self.passed_on_at
        return bool(workers) and all(w.code == 0 and w.ended_at < told_at for w in workers)

    def _has_checkpoint(self):
        """Whether the job can go on, though its worker 0 was not there to say so."""
        try:
            return bool(self.restarts) and self.restarts.has_checkpoint()
        except JobError:
            return False  # its host is gone

    def _follows_from_interrupt(self, watched):
        """True if our signals ended it, if its error says that others had ended, or if it is a
        program with Python's exit code of an exception that has printed none: a Python that is ending
        may not be able to any more."""
        if watched.fault:
            return False
        told = self.passed_on_at is not None and watched.ended_at >= self.passed_on_at
        without_reason = told and watched.code == 1 and not watched.errors
        return self._ended_by_us(watched) or watched.last_error.kind == "PEER" or without_reason

    def _say_why(self, failed):
        """Shows the first cause last, since nobody scrolls up."""
        cause = self.cause = self._cause(failed)
        what = "this attempt" if not self.signal and self.another(failed) else "the job"
        late = bool(cause.errors) and not cause.fault and self._ended_by_us(cause)
        early = self.early(cause)
        how = (f"{early.part.name} ended{' with exit code 0' * (early.code == 0)}, and others were not done" if early else
               f"{cause.part.name} failed, and did not end by itself" if late else self._how(cause))
        self.screen.say_in_red(f"psrun: {what} failed: {how}")
        why = cause.last_error.text or cause.last_line
        own = late or cause.has_last_words
        if why and own:
            follows = self._what_follows(cause, failed)
            for text in [*[why] * (not follows or not is_of_others(why)), *follows]:
                self.screen.say_in_red(f"psrun:   {text[:MOST_OF_REASON]}")
            if lacked := self.lacked_by(cause):
                self.screen.say_in_red(f"psrun:   {lacked}")
        if self.when_killed and not late and cause.fault != NEVER_JOINED and (cause.fault or cause.code < 0):
            by_kernel = "; if nobody killed it, memory was short (dmesg)" if cause.may_lack_memory else ""
            self.screen.say(f"psrun:   {self.when_killed}{by_kernel}")
        self.faults.named()
        self.needs_logs = not own or not cause.errors or any(w.step for w in self.watched)
        if self.needs_logs or not self.drops_logs:
            self.screen.say(f"psrun: logs are in {self.logs_dir}")

    @staticmethod
    def _what_follows(cause, failed):
        """A program that has ended by itself may not have said why: a server knows when that was. One text, or none."""
        servers = [w.last_error for w in failed if w.part.role == "server" and w.errors and cause.exits]
        return [e.text for e in servers if e.kind != "PEER"][:1]

    def early(self, cause):
        """The worker that has ended well, or was about to, and left the cause to wait for it; None: there is none."""
        kind, role = cause.last_error.kind, cause.part.role
        by_others = kind == "PEER" or kind == "ARG" and role == "server"
        done = [w for w in self.watched if w.part.role == "worker" and self._has_left(w, cause)]
        told = cause.errors and not cause.fault and not self.elastic and not self.codes_tell
        told = told and (cause.code > 0 or self._ended_by_us(cause))
        return min(done, key=lambda w: w.ended_at) if done and by_others and told else None

    def _has_left(self, watched, cause):
        """Of a worker that had left and did not end in time nobody knows the exit code."""
        ended = watched.code == 0 and (watched.exits or watched.ended_at <= cause.ended_at)
        return ended or watched.exits and self._ended_by_us(watched)

    def lacked_by(self, cause):
        """Whom a worker has waited for that timed out, in words; "": not known."""
        late = cause.errors and cause.last_error.kind == "TIMEOUT" and self.lacked not in (None, cause.part.name)
        return f"{self.lacked} had not sent its gradients of the step" if late else ""

    def _cause(self, failed):
        """The part that made the job fail. In this order: a part that a signal ended which was
        not ours; a program that has ended by itself, and not well; the first with an error of its own except
        a timeout; a stopped part; a part that timed out; where the others say that it is another, one with
        an error that took so long to end that we ended it, or the one that has ended the job; the first
        that ended."""
        failed = sorted(failed, key=lambda w: w.ended_at)
        theirs = [w for w in failed if not self._ended_by_us(w)] or failed
        signalled = [w for w in theirs if w.code < 0 and not w.fault]
        stood = [w for w in theirs if w.fault]
        exited = [w for w in theirs if w.exits and not w.fault]
        own = [w for w in theirs if w.errors and w.last_error.kind != "PEER" and not w.fault]
        at_once = [w for w in own if w.last_error.kind != "TIMEOUT"]
        others = all(w.errors and w.last_error.kind == "PEER" for w in theirs)
        late = [w for w in failed if others and w.errors and w.last_error.kind != "PEER"]
        ended = [w for w in failed if others and w.part.name == self.aborts]
        return (signalled or exited or at_once or stood or own or late or ended or theirs)[0]

    @staticmethod
    def _how(watched):
        return f"{watched.part.name} {watched.how if watched.code is not None or watched.fault else 'failed'}"
