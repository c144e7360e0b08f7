"""psrun --doctor: what stands in the way of a job, before it starts.

On every host it checks: can the host reach the coordinator's and the servers' hosts at the
coordinator's port, from which address, with what round trip and rate; do the programs run,
and do their versions agree; is the configuration there, and can its data be read; which GPU
and driver are there. It prints a table of hosts, one of links and, below them, what to mend. ps-server
and ps-worker run the probes themselves (--probe), over connections like the job's, so a host needs no other
program.
"""
import json
import os
import shlex
import subprocess
import threading
import time

from . import hosts as hostfile
from . import keys, remote
from .job import set_words
from .log_line import why
from .screen import tell

PROBE_S = 30
WITHIN_S = 25  # what is asked on a host ends within this time, where its kernel lets it
ENDS_S = 2  # so long after they were killed, programs may hold their output open
UNEQUAL = 1.25  # links whose rates differ by less are alike
LOOPBACK = "127.0.0.1"

FACTS = r"""
cd {dir} 2>/dev/null || {{ echo "dir=no folder "{dir}; exit 0; }}
echo "dir=ok"
soon="timeout --foreground -k 1 {within}"
$soon true 2>/dev/null || soon=
for p in {programs}; do
    v=$($soon $p --version 2>&1 | tail -n 1)
    echo "version=$v"
done
[ -r {config} ] && echo "config=ok" || echo "config=no file "{config}" in $PWD"
d=$($soon {data} 2>&1 >/dev/null)
case $? in
0) echo "data=ok" ;;
124 | 137) echo "data=the data were not read within {within} s (--check-data)" ;;
*) echo "data=$(printf %s "$d" | tail -n 1)" ;;
esac
g=$($soon nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null | head -n 1)
echo "gpu=${{g:-none}}"
echo "cores=$(nproc 2>/dev/null || echo '?')"
"""


class Node:
    """A host of the job, or this machine (host None)."""

    def __init__(self, host, programs, job):
        self.job = job
        self.host = host
        self.name = host.name if host else "here"
        self.address = host.address if host else LOOPBACK
        self.programs = sorted(programs)
        self.facts = {}
        self.versions = []
        self.probes = {}  # by target's name: what --probe measured
        self.faults = []

    @property
    def reached(self):
        return "ssh" not in self.facts

    def start(self, script, stdin=subprocess.DEVNULL, env=None):
        argv = ["sh", "-c", script]
        if self.host:
            argv = remote.ssh_argv(self.host, remote.in_sh(script))
        return subprocess.Popen(argv, stdin=stdin, stdout=subprocess.PIPE, env=env,
                                stderr=subprocess.PIPE, text=True, errors="replace")

    def probe(self, what):
        """Starts --probe, with the keys of the job. The end of its input ends one that serves."""
        program, job = self.programs[0], self.job
        insecure = " --insecure" if job.facts["net.insecure"] else ""
        script = f"exec {shlex.quote(program)}{insecure} --servers {job.servers} --probe {shlex.quote(what)}"
        if not job.curve:
            return self.start(script, subprocess.PIPE)
        if not self.host:
            return self.start(script, subprocess.PIPE, dict(os.environ, **keys.environment(job.curve)))
        probe = self.start(f"{keys.READ}; {script}", subprocess.PIPE)
        try:
            probe.stdin.write(keys.line(job.curve, os.path.basename(program).removeprefix("ps-")) + "\n")
            probe.stdin.flush()
        except OSError:
            pass  # its exit code tells
        return probe


def run(job):
    """Prints the tables and the advice. Returns psrun's exit code."""
    if job.hosts:
        remote.check_ssh()
    nodes = _nodes(job)
    _find_facts(job, nodes)
    targets = _targets(job, nodes)
    for target in targets:
        _probe(target, job.master_port, [n for n in nodes if n.reached])
    _judge(nodes)
    print(_hosts(nodes))
    if targets:
        print("", _links(nodes, targets), sep="\n")
    print()
    faults = [f"{n.name}: {fault}" for n in nodes for fault in n.faults]
    for fault in faults:
        tell(f"to mend: {fault}")
    if not faults:
        print("nothing to mend")
    if job.mode == "ps":
        for line in link_advice(job, nodes):
            tell(line)
    return 1 if faults else 0


def link_advice(job, nodes):
    """Lines that say which link= the hostfile should have; none where the links are alike, or the
    hostfile has rates already. A host's link is at least as fast as its fastest probe."""
    if len({h.name for h in job.server_hosts}) < 2 or any(h.link or h.share for h in job.hosts):
        return []
    rates = {}
    for node in nodes:
        for other, probe in node.probes.items():
            if other == node.name:
                continue
            for name in (node.name, other):
                rates[name] = max(rates.get(name, 0), probe["mbit_s"])
    if len(rates) < len(nodes) or max(rates.values()) < UNEQUAL * min(rates.values()):
        return []
    return ["links differ: with these words in the hostfile, servers hold parts that suit their links:",
            *(f"  {name}  link={max(rate, 1):.0f}" for name, rate in rates.items())]


def _nodes(job):
    if not job.hosts:
        return [Node(None, {p.argv[0] for p in job.parts()}, job)]
    programs = job.programs_by_host()
    return [Node(host, programs[host.name], job) for host in job.hosts]


def _targets(job, nodes):
    """The hosts that others connect to: every host with a server; in all-reduce mode every
    host, since workers connect to each other."""
    names = {h.name for h in job.server_hosts} or {n.name for n in nodes}
    return [n for n in nodes if n.name in names and n.reached]


def _find_facts(job, nodes):
    settings = shlex.join(set_words([*job.overrides, f"exchange.name={job.exchange()}"]))
    env = f"env WORLD_SIZE={job.workers} PS_SERVERS={job.servers}"
    started = []
    for node in nodes:
        # ps-worker reads the data; a host with servers alone does not need the data.
        worker = next((p for p in node.programs if p.endswith("ps-worker")), "")
        data = (f"{env} {shlex.quote(worker)} --check-data --config {shlex.quote(job.config)} {settings}"
                if worker else "true")
        script = FACTS.format(
            dir=shlex.quote(hostfile.folder(node.host) if node.host else "."),
            programs=" ".join(map(shlex.quote, node.programs)),
            config=shlex.quote(job.config), data=data, within=WITHIN_S)
        started.append((node, node.start(script)))
    deadline = time.monotonic() + PROBE_S
    for node, process in started:
        out, err = _finish(process, deadline)
        if node.host and process.returncode == remote.SSH_FAILED:
            node.facts["ssh"] = why(err, "no reason given")
            continue
        for line in out.splitlines():
            key, _, value = line.partition("=")
            if key == "version":
                node.versions.append(value)
            else:
                node.facts[key] = why(value, "")


def _finish(process, deadline):
    """What it has said. A program that it has started may wait for a disk or a device that hangs, and keep its output open:
    nobody waits for that one."""
    try:
        return process.communicate(timeout=max(0.1, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
    try:
        out, err = process.communicate(timeout=ENDS_S)
    except subprocess.TimeoutExpired as over:
        out, err = ((said or b"").decode("utf-8", "replace") for said in (over.stdout, over.stderr))
    return out, err + "\nno answer in time"


def _probe(target, port, nodes):
    """Probes one target at a time from one client at a time, so that no two share a link."""
    serving = target.probe(f"serve:{port}")
    patience = threading.Timer(PROBE_S, serving.kill)
    patience.start()
    try:
        first = serving.stdout.readline()
        patience.cancel()
        if "serving" not in first:
            reason = why(serving.stderr.read(), "the probe did not start")
            target.faults.append(f"{reason} (choose another port with --port)")
            return
        for node in nodes:
            _measure(node, target, port)
    finally:
        patience.cancel()
        serving.stdin.close()  # the end of its input ends it
        try:
            serving.wait(5)
        except subprocess.TimeoutExpired:
            serving.kill()
            serving.wait()


def _measure(node, target, port):
    where = f"{target.address}:{port}"
    client = node.probe(where)
    out, err = _finish(client, time.monotonic() + PROBE_S)
    try:
        node.probes[target.name] = json.loads(out)
    except ValueError:
        node.faults.append(f"cannot reach {target.name} at {where}: {why(err, 'no answer')} "
                           "(look for a firewall, or give another address with addr= in the hostfile)")


def _judge(nodes):
    versions = {v.split()[-1] for n in nodes for v in n.versions if v}
    for node in nodes:
        if not node.reached:
            node.faults.insert(0, f"not reached by ssh: {node.facts['ssh']}")
            continue
        for key in ("dir", "config", "data"):
            fact = node.facts.get(key, f"{key}: no answer within {PROBE_S} s")
            if fact != "ok":
                node.faults.append(fact)
                break  # those behind it depend on it
        broken = [v for v in node.versions if not v.startswith("ps-")]
        if broken:
            node.faults.append(f"a program is missing or does not run: {'; '.join(broken)}")
        elif len(versions) > 1:
            node.faults.append(f"versions differ between hosts: {', '.join(node.versions)}")


def _hosts(nodes):
    """The table of hosts."""
    rows = [["host", "version", "data", "cores", "gpu"]]
    for node in nodes:
        versions = (node.versions or ["-"])[0].split() or ["-"]
        data = node.facts.get("data", "-")
        rows.append([node.name, versions[-1], data if data in ("ok", "-") else "fault",
                     node.facts.get("cores", "-"), node.facts.get("gpu", "-")])
    return _aligned(rows)


def _links(nodes, targets):
    """The table of what the hosts have of each other."""
    rows = [["host", "to", "from address", "round trip", "rate"]]
    for node in nodes:
        for index, target in enumerate(targets):
            probe = node.probes.get(target.name)
            link = [probe["address"], f"{probe['rtt_us']:.0f} us", f"{probe['mbit_s']:.0f} Mbit/s"] if probe else "---"
            rows.append([node.name if index == 0 else "", target.name, *link])
    return _aligned(rows)


def _aligned(rows):
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths)).rstrip() for row in rows)
