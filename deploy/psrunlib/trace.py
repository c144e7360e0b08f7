"""The traces of a run's processes, merged into one trace.json on one clock (common/base/trace.h
describes the files). Opens in Perfetto (ui.perfetto.dev) and chrome://tracing."""
import bisect
import glob
import json
import os
import struct
from dataclasses import dataclass, field
from typing import NamedTuple

from .errors import JobError
from .out import TRACE
from .regular_file import new_text

RECORD = struct.Struct("<QQIIIBBH")
NONE = 0xFFFFFFFF
COORDINATOR = "coordinator"  # the name of its thread
ANCHOR_NS = 10_000_000_000  # of the clocks measured in this time, the best one counts


class Span(NamedTuple):
    begin: int  # ns of the process's clock, and after merging of the coordinator's
    duration: int
    step: int
    chunk: int  # NONE: none
    peer: int  # likewise
    kind: str
    lane: str

    @property
    def end(self):
        return self.begin + self.duration


@dataclass
class Process:
    role: str
    rank: int
    boot: str
    own_pace: bool = False  # workers count their pushes, and shards count versions
    spans: list = field(default_factory=list)
    clocks: list = field(default_factory=list)  # (at, how far the coordinator's is ahead, error)
    jobs: list = field(default_factory=list)  # nonces
    full: bool = False
    error_ns: int = 0  # of its clock, once it is merged
    left_out: bool = False  # merged without its spans: it ended before it knew the coordinator's clock

    @property
    def name(self):
        return f"{self.role} {self.rank}"


def read(path):
    """A process's file. What a killed process has not written whole is left out; None: it has written nothing."""
    with open(path, "rb") as f:
        data = f.read()
    if not data:
        return None
    head, _, body = data.partition(b"\n")
    try:
        about = json.loads(head)
        if about["format"] != "pstrain-trace" or about["version"] != 1:
            raise ValueError("another format")
        process, kinds = Process(about["role"], about["rank"], about["boot"]), about["kinds"]
        process.own_pace = about.get("own_pace", False)
    except (ValueError, KeyError, TypeError) as error:
        raise JobError(f"{path} is not a trace of this version: {error}") from error
    lanes = {}
    for record in RECORD.iter_unpack(body[:len(body) // RECORD.size * RECORD.size]):
        begin, duration, step, chunk, peer, kind, lane, _ = record
        kind = kinds[kind] if kind < len(kinds) else "?"
        if kind == "#lane":
            name = struct.pack("<QQ", begin, duration)
            lanes[lane] = name.partition(b"\0")[0].decode(errors="replace")
        elif kind == "#clock":
            ahead, = struct.unpack("<q", struct.pack("<II", step, chunk))
            process.clocks.append((begin, ahead, duration))
        elif kind == "#job":
            process.jobs.append(begin)
        elif kind == "#full":
            process.full = True
        else:
            process.spans.append(Span(begin, duration, step, chunk, peer, kind,
                                      lanes.get(lane, str(lane))))
    return process


def load(run):
    """The processes of a run, each with the spans of all of its starts, on their own clocks."""
    paths = sorted(glob.glob(os.path.join(glob.escape(os.path.join(run, TRACE)), "*.trace")))
    found = list(filter(None, map(read, paths)))
    if not found:
        raise JobError(f"{run} has no trace: run the job with train.trace=true")
    jobs = set().union(*(p.jobs for p in found if p.name == "worker 0"))
    return [p for p in found if not jobs or jobs.intersection(p.jobs)]  # others: of an earlier run


def merge(processes):
    """Moves all spans to the coordinator's clock, which processes on its host have already."""
    names = {p.name for p in processes}
    home = [p.boot for p in processes if p.name == ("server 0" if "server 0" in names else "worker 0")]
    for p in processes:
        if home and p.boot not in home:
            _move(p)
    return processes


def _move(p):
    anchors = _anchors(p.clocks)
    if not anchors:
        p.spans, p.left_out = [], True
        return
    p.error_ns = max(error for _, _, error in anchors)
    times = [at for at, _, _ in anchors]

    def there(t):
        i = min(max(bisect.bisect(times, t), 1), len(anchors) - 1)
        (at, ahead, _), (to, then, _) = (anchors[i - 1], anchors[i]) if i else (anchors[0],) * 2
        if to == at or not at <= t <= to:
            return t + (ahead if t < to or to == at else then)
        return t + ahead + (then - ahead) * (t - at) // (to - at)

    p.spans = [s._replace(begin=there(s.begin), duration=there(s.end) - there(s.begin))
               for s in p.spans]


def _anchors(clocks):
    best = {}
    for clock in clocks:
        at = clock[0] // ANCHOR_NS
        if at not in best or clock[2] < best[at][2]:
            best[at] = clock
    return [best[at] for at in sorted(best)]


def events(processes):
    """The events of trace.json, one after the other."""
    start = min((s.begin for p in processes for s in p.spans), default=0)
    tracks = _Tracks()
    rows = sorted((s.begin, -s.duration, i, s) for i, p in enumerate(processes) for s in p.spans)
    ways = _ways(processes)
    for _, _, i, s in rows:
        place = tracks.place(processes[i], s.lane)
        at = (s.begin - start) / 1000
        yield dict(place, name=s.kind, ph="X", ts=at, dur=s.duration / 1000, args=_arguments(s))
        for number, phase in ways.get((i, s), ()):
            arrow = dict(place, name="gradient", cat="gradient", ph=phase, id=number, ts=at)
            yield dict(arrow, bp="e") if phase == "f" else arrow
    yield from tracks.names


def _arguments(s):
    return {key: value for key, value in (("step", s.step), ("chunk", s.chunk), ("peer", s.peer))
            if value != NONE}


class _Tracks:
    """Processes and threads of the trace. The coordinator is shown as a process of its own."""

    def __init__(self):
        self.names, self.pids, self.tids = [], {}, {}

    def place(self, process, lane):
        name = COORDINATOR if lane == COORDINATOR else process.name
        if name not in self.pids:
            self.pids[name] = pid = len(self.pids) + 1
            label = name if process.error_ns == 0 else f"{name} (+- {process.error_ns / 1000:.0f} us)"
            self.names.append({"name": "process_name", "ph": "M", "pid": pid, "tid": 0,
                               "args": {"name": label}})
        pid = self.pids[name]
        if (pid, lane) not in self.tids:
            self.tids[pid, lane] = tid = sum(p == pid for p, _ in self.tids) + 1
            self.names.append({"name": "thread_name", "ph": "M", "pid": pid, "tid": tid,
                               "args": {"name": lane}})
        return {"pid": pid, "tid": self.tids[pid, lane]}


def pushes(processes):
    """By (step, rank, chunk): the spans of a gradient, from its worker and back to it. Only
    gradients whose whole way was recorded; of repeated messages the first ones. None where workers go on
    at their own pace: there a gradient has another number at each end."""
    if any(p.own_pace for p in processes):
        return
    parts = {kind: {} for kind in ("send", "receive", "apply", "reply", "decode")}
    for i, p in enumerate(processes):
        for s in p.spans:
            if s.kind not in parts or s.chunk == NONE:
                continue
            rank = p.rank if p.role == "worker" else s.peer
            key = (s.step, s.chunk) if s.kind == "apply" else (s.step, rank, s.chunk)
            parts[s.kind].setdefault(key, (i, s))
    for key, sent in parts["send"].items():
        rest = [parts["receive"].get(key), parts["apply"].get((key[0], key[2])),
                parts["reply"].get(key), parts["decode"].get(key)]
        if all(rest):
            yield key, [sent, *rest]


def _ways(processes):
    """By (process, span): the arrows that touch it, as (number, phase)."""
    ways = {}
    for number, (_, spans) in enumerate(pushes(processes), 1):
        for place, phase in zip(spans, "stttf"):
            ways.setdefault(place, []).append((number, phase))
    return ways


def write(processes, path):
    with new_text(path) as f:
        f.write('{"displayTimeUnit": "ms",\n"clock_error_us": ')
        json.dump({p.name: p.error_ns / 1000 for p in processes if not p.left_out}, f)
        f.write(',\n"traceEvents": [')
        for i, event in enumerate(events(processes)):
            f.write(",\n" if i else "\n")
            json.dump(event, f, separators=(",", ":"))
        f.write("\n]}\n")
