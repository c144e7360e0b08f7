"""Where a step's time goes, from the traces of a run: the critical path of each step, and the
processes on it. The path is followed backwards. It ends where the last worker has the last weights of the step,
and begins where the worker whose gradient these weights waited for had all weights before it."""
from bisect import bisect_right
from collections import Counter
from statistics import median

from . import trace

MS = 1e-6
PARTS = ("compute", "send", "link out", "server", "link in", "receive")
EVEN = 1.5  # a process that is on the path at most this much more often than by chance is not the cause


def _steps(processes):
    """By step, the pushes whose whole way is known; and by shard its server."""
    steps = {}
    shards = {}
    for (step, rank, chunk), spans in trace.pushes(processes):
        steps.setdefault(step, {})[rank, chunk] = [s for _, s in spans]
        shards[spans[0][1].peer] = processes[spans[1][0]].rank
    return steps, shards


def _path(ways, before):
    """The lengths of PARTS in ns, the worker that was waited for, the shard, and the worker that
    got its weights last. before: by rank, when it had all weights of the step before."""
    last = max(ways, key=lambda key: ways[key][4].end)
    chunk = last[1]
    slowest = max((key for key in ways if key[1] == chunk), key=lambda key: ways[key][1].begin)
    if slowest[0] not in before:
        return None
    send, receive = ways[slowest][:2]
    reply, decode = ways[last][3:]
    times = [before[slowest[0]], send.begin, send.end, receive.begin, reply.end, decode.begin,
             decode.end]
    return [b - a for a, b in zip(times, times[1:])], slowest[0], send.peer, last[0]


def _paths(steps):
    before = {}
    for step in sorted(steps):
        ways = steps[step]
        path = _path(ways, before)
        if path:
            yield path
        before = {}
        for (rank, _), spans in ways.items():
            before[rank] = max(before.get(rank, 0), spans[4].end)


def _made(process):
    """How many steps a worker at its own pace has made, or how many versions such a server."""
    return max(len({s.step for s in process.spans if s.kind == ("step" if process.role == "worker" else "apply")}), 1)


def _per_step(process, kinds, of):
    """The median over steps of the time that a process's spans of these kinds take. Where
    workers go on at their own pace, the mean: they count rounds beside steps, and servers versions."""
    if process.own_pace:
        return sum(s.duration for s in process.spans if s.kind in kinds) * MS / _made(process)
    sums = {}
    for s in process.spans:
        if s.kind in kinds and s.step in of:
            sums[s.step] = sums.get(s.step, 0) + s.duration
    return median(sums.values()) * MS if sums else 0.0


def _delays(steps, shards):
    """By (worker, server): medians over steps of the longest way of a chunk out, and in."""
    found = {}
    for ways in steps.values():
        step = {}
        for (rank, _), spans in ways.items():
            link = step.setdefault((rank, shards[spans[0].peer]), [0, 0])
            link[0] = max(link[0], spans[1].begin - spans[0].end)
            link[1] = max(link[1], spans[4].begin - spans[3].end)
        for key, (out, back) in step.items():
            found.setdefault(key, []).append((out, back))
    return {key: tuple(median(v) * MS for v in zip(*values)) for key, values in found.items()}


def _table(head, rows):
    rows = [head] + [[f"{v:.2f}" if isinstance(v, float) else str(v) for v in row] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    for row in rows:
        yield "  " + "  ".join(v.ljust(w) if i == 0 else v.rjust(w)
                               for i, (v, w) in enumerate(zip(row, widths))).rstrip()


def _most(names, everybody):
    """The name that is there most often, if it is there more often than by chance."""
    (name, n), = Counter(names).most_common(1)
    if everybody > 1 and n / len(names) < min(EVEN / everybody, 0.8):
        return None, 0.0
    return name, n / len(names)


def _culprit(part, paths, shards, workers):
    """Who makes the largest part of the path so long."""
    out_of, to = [p[1] for p in paths], [p[3] for p in paths]
    servers = [shards[p[2]] for p in paths]
    n_servers = max(len(set(shards.values())), 1)
    asked = {"compute": (out_of, workers, "worker"), "send": (out_of, workers, "worker"),
             "link out": (out_of, workers, "worker"), "server": (servers, n_servers, "server"),
             "link in": (to, workers, "worker"), "receive": (to, workers, "worker")}
    names, everybody, role = asked[part]
    rank, share = _most(names, everybody)
    if rank is None:
        return f"no {role} more than the others"
    others = "" if everybody == 1 else f", on the path in {share:.0%} of the steps"
    return f"{role} {rank}{others}"


def _path_lines(paths, shards, workers):
    medians = [median(p[0][i] for p in paths) * MS for i in range(len(PARTS))]
    whole = sum(medians) or 1.0
    yield f"critical path, medians over {len(paths)} steps: {whole:.2f} ms"
    rows = [(part, ms, f"{ms / whole:.0%}", _culprit(part, paths, shards, workers))
            for part, ms in zip(PARTS, medians)]
    yield from _table(("", "ms", "share", "who"), rows)
    part, ms, share, who = max(rows, key=lambda row: row[1])
    yield f"most of it: {part} ({share}), {who}"


def _waits(process, of):
    """Ms per step that a worker waits for weights. At their own pace, within steps alone: between them workers rest."""
    if not process.own_pace:
        return _per_step(process, ("wait",), of)
    steps, waits = (sorted((s for s in process.spans if s.kind == kind), key=lambda s: s.begin) for kind in ("step", "wait"))
    begins, within = [s.begin for s in steps], 0
    for wait in waits:
        at = max(bisect_right(begins, wait.begin) - 1, 0)
        while at < len(steps) and steps[at].begin < wait.end:
            within += max(min(wait.end, steps[at].end) - max(wait.begin, steps[at].begin), 0)
            at += 1
    return within * MS / _made(process)


def _process_lines(processes, steps):
    workers = [p for p in processes if p.role == "worker"]
    yield ""
    yield "workers, ms per step"
    rows = []
    for p in sorted(workers, key=lambda p: p.rank):
        step, wait = _per_step(p, ("step",), steps), _waits(p, steps)
        rows.append((p.name, step, step - wait, wait, _per_step(p, ("encode",), steps),
                     _per_step(p, ("send",), steps), _per_step(p, ("decode",), steps)))
    yield from _table(("", "step", "computes", "waits", "encode", "send", "decode"), rows)
    servers = sorted((p for p in processes if p.role == "server"), key=lambda p: p.rank)
    if not servers:
        return
    yield ""
    yield f"servers, ms per {'version' if servers[0].own_pace else 'step'}"
    rows = [(p.name, _per_step(p, ("receive",), steps), _per_step(p, ("sum", "apply"), steps),
             _per_step(p, ("norm",), steps), _per_step(p, ("reply",), steps)) for p in servers]
    yield from _table(("", "receive", "sum, apply", "norm", "reply"), rows)


def lines(processes):
    """The report, line by line."""
    steps, shards = _steps(processes)
    workers = len({p.rank for p in processes if p.role == "worker"})  # one that has started again has two traces
    seen = {s.step for p in processes for s in p.spans if s.kind == "step"}
    paths = list(_paths(steps))
    if paths:
        yield from _path_lines(paths, shards, workers)
    elif any(p.own_pace for p in processes):
        yield f"{len(seen)} steps; workers go on at their own pace: there is no path that all wait for"
    else:
        yield f"{len(seen)} steps; no way of a gradient through a server was recorded"
    yield from _process_lines(processes, seen)
    if steps:
        yield ""
        yield "links, the longest way of a chunk in a step, ms"
        rows = [(f"worker {w}, server {s}", *ms)
                for (w, s), ms in sorted(_delays(steps, shards).items())]
        yield from _table(("", "out", "in"), rows)
    yield ""
    error = max((p.error_ns for p in processes), default=0)
    yield ("clocks: one host, no error" if error == 0 else
           f"clocks: on the coordinator's, wrong by {error / 1000:.0f} us at most")
    for p in processes:
        if p.left_out:
            yield f"{p.name} ended before it knew the coordinator's clock: what it did in that start is left out"
        if p.full:
            yield f"{p.name} has reached trace.limit: its last steps are missing"
