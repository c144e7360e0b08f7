"""A job: the user's choices, and the processes of which it consists."""
import itertools
import json
import os
import re
import subprocess
import time
from dataclasses import dataclass, field

from . import hosts as hostfile
from . import cgroup, helpers, keys, places
from .errors import JobError

DEFAULT_PORT = 29500  # torchrun's; for other hosts, where psrun cannot look for a free port

NCCL_NETWORK = "NCCL_SOCKET_IFNAME"
LIBRARY = "lib/libpstrain.so.0"  # in the build folder
# The default of recovery.wait_ms; and how long the others wait where nobody is started again: until
# all members that are left have joined.
WAIT_MS, WAIT_FOR_NOBODY_MS = 10000, 2000

# The value of exchange.name for each mode.
MODES = {"ps": "ps", "allreduce": "allreduce", "single": "none"}


@dataclass
class Part:
    """One process of the job."""

    role: str  # "server" or "worker"
    rank: int
    argv: list
    env: dict  # what is added to the environment
    host: object = None  # hosts.Host; None: this machine
    key: str = field(default="", repr=False)  # for another host: keys.READ takes it

    @property
    def name(self):
        return f"{self.role} {self.rank}"


@dataclass
class Job:
    config: str  # "": the workers are a program of the user's
    overrides: list
    build_dir: str
    mode: str
    servers: int
    workers: int  # that the job begins with
    out: str
    out_is_ours: bool = False  # psrun chose the folder: it has to be a new one
    overwrite: bool = False  # replace the run that it holds
    resume: str = ""  # go on with this run; auto: with the one in out, or begin
    curve: str = ""  # folder of its keys
    fewest: int = 0  # workers that an elastic job needs; 0: their number is fixed
    restarts: int = 0  # how often parts may be started again after deaths
    results: tuple = ("summary.json",)  # that psrun itself reads, wherever worker 0 is
    has_stepped: bool = False  # once it is over: it has made a step, or all that there were
    shards: int = 0  # of each server; 0: as the configuration says
    mps: bool = False  # workers share GPUs by a daemon of the job's (mps.py)
    program: list = field(default_factory=list)  # the workers' command line; empty: ps-worker
    takers: dict = field(default_factory=dict)  # of overrides, with a program: those of the "program", of the "servers"
    commit_folders: dict = field(default_factory=dict)  # variables by the host's name; "": this machine (commits.py)
    facts: dict = field(default_factory=dict)
    master_addr: str = "127.0.0.1"
    master_port: int = 0
    port_is_given: bool = False  # and is the same after a restart: readers of rows find the job by it
    store_port: int = 0  # of the store that a program of the user's opens in worker 0
    server_hosts: list = field(default_factory=list)  # by rank; empty: all here
    worker_hosts: list = field(default_factory=list)
    spares: list = field(default_factory=list)  # hosts that run nothing yet

    @property
    def elastic(self):
        return self.fewest > 0

    @property
    def goes_on_in_place(self):
        """Whether the run that goes on is that in its folder."""
        return self.resume == "auto" or bool(self.resume) and os.path.realpath(self.resume) == os.path.realpath(self.out)

    @property
    def hosts(self):
        """Each host once, in the order of the hostfile's placement."""
        return list({h.name: h for h in self.server_hosts + self.worker_hosts}.values())

    def spread(self, server_hosts, worker_hosts):
        """Places the parts on hosts; the coordinator is on the first part's host."""
        self.server_hosts, self.worker_hosts = server_hosts, worker_hosts
        self.master_addr = self.coordinator_host.address

    @property
    def coordinator_host(self):
        return (self.server_hosts + self.worker_hosts)[0]

    def move(self, lost, spare):
        """Places all parts of a lost host on a spare one."""
        self.spares.remove(spare)
        self.server_hosts = [spare if h.name == lost.name else h for h in self.server_hosts]
        self.worker_hosts = [spare if h.name == lost.name else h for h in self.worker_hosts]

    def programs_by_host(self):
        """Those of ours, by the name of the host. A spare one may have to run any."""
        programs = {host.name: set() for host in self.hosts}
        for part in self.parts():
            if part.role == "server" or not self.program:
                programs[part.host.name].add(part.argv[0])
        for host in self.spares:
            roles = ["server"] * bool(self.servers) + ["worker"] * (not self.program)
            programs[host.name] = {self._program(role, host) for role in roles}
        return programs

    def parts(self):
        """Servers first: all others look for server 0."""
        return [self._part("server", i) for i in range(self.servers)] + [
            self._part("worker", i) for i in range(self.workers)
        ]

    def newcomer(self):
        """One more worker: without a rank, and without a folder."""
        part = self._part("worker", 1)
        argv = part.argv[:part.argv.index("--out")]
        for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
            part.env.pop(name, None)
        return Part("worker", -1, argv, dict(part.env, PS_NEWCOMER="1"))

    def predicting(self, what):
        """Workers that predict a share of the samples each."""
        return [self._predicting(rank, what) for rank in range(self.workers)]

    def _predicting(self, rank, what):
        host = self.worker_hosts[rank] if self.worker_hosts else None
        env = {k: v for k, v in self._env("worker", rank).items() if k in ("LOCAL_RANK", "OMP_NUM_THREADS")}
        if "OMP_NUM_THREADS" in env and not host:
            env["OMP_NUM_THREADS"] = str(max(1, cgroup.cores() // self.workers))
        argv = [self._program("worker", host), "--config", self.config, *set_words(self.overrides)]
        argv += ["--predict", what, "--share", f"{rank}/{self.workers}", "--out", self.out, "--overwrite"]
        return Part("worker", rank, argv, env, host)

    def settings(self):
        """Of our own parts."""
        own = self.takers["servers"] if self.program else self.overrides
        settings = own + [f"exchange.name={self.exchange()}"]
        if self.shards:
            settings.append(f"server.shards={self.shards}")
        # Servers of a program keep its embedding tables while its workers start again.
        if self.restarts and not self.facts["recovery.rejoins"]:
            settings.append(f"recovery.rejoins={self.restarts}")
        if self.elastic and not self.restarts and self.facts["recovery.wait_ms"] == WAIT_MS:
            settings.append(f"recovery.wait_ms={WAIT_FOR_NOBODY_MS}")
        return settings

    def _part(self, role, rank):
        placed = self.server_hosts if role == "server" else self.worker_hosts
        host = placed[rank] if placed else None
        if role == "worker" and self.program:
            return self._with_keys(Part(role, rank, self.program, self._env(role, rank), host))
        argv = [self._program(role, host)] + (["--config", self.config] if self.config else [])
        argv += set_words(self.settings())
        if role == "worker":
            argv += ["--out", self.out] + ["--overwrite"] * self.overwrite
            if self.resume:
                argv += ["--resume", self.resume]
        elif self.facts.get("train.trace"):
            argv += ["--out", self.out]
        return self._with_keys(Part(role, rank, argv, self._env(role, rank), host))

    def _with_keys(self, part):
        if self.curve and part.host:
            part.key = keys.line(self.curve, part.role)
        elif self.curve:
            part.env.update(keys.environment(self.curve))
        return part

    def _program(self, role, host):
        if host and (host.image or host.bin):
            return os.path.join(host.bin, f"ps-{role}")
        return places.program(self.build_dir, f"ps-{role}")

    def exchange(self):
        """The exchange's name. A configuration that names its all-reduce engine (gloo, nccl) keeps it."""
        named = self.facts.get("exchange.name", "")
        return named if mode_of(named) == self.mode else MODES[self.mode]

    def _env(self, role, rank):
        env = {
            "MASTER_ADDR": self.master_addr,
            "MASTER_PORT": str(self.master_port),
            "PS_PORT": str(self.master_port),  # overrides a PS_PORT of psrun's own environment
            "WORLD_SIZE": str(self.workers),
            "PS_SERVERS": str(self.servers),
        }
        if role == "server":
            env["PS_SERVER_RANK"] = str(rank)
            return env
        local_rank, local_size = rank, self.workers
        host = self.worker_hosts[rank] if self.worker_hosts else None
        if self.worker_hosts:
            ranks, sizes = hostfile.local_ranks(self.worker_hosts)
            local_rank, local_size = ranks[rank], sizes[rank]
        env.update(RANK=str(rank), LOCAL_RANK=str(local_rank), LOCAL_WORLD_SIZE=str(local_size))
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        if not host and visible_for(local_rank, visible) != visible:
            env["CUDA_VISIBLE_DEVICES"] = visible_for(local_rank, visible)
        if self.program:
            env.update(self._program_env())
            env.update(self.commit_folders.get(host.name if host else "", {}))
        # As torchrun does: several processes on one host share its cores.
        if local_size > 1 and "OMP_NUM_THREADS" not in os.environ:
            env["OMP_NUM_THREADS"] = "1"
        if self._keeps_nccl_here() and NCCL_NETWORK not in os.environ:
            env[NCCL_NETWORK] = "lo"
        return env

    def _keeps_nccl_here(self):
        """NCCL chooses its network by itself: not the loopback, to which a job of this machine alone is bound."""
        may_be_nccl = not self.program and self.mode == "allreduce" and self.exchange() != "gloo"
        goes_out = self.worker_hosts or self.curve or self.facts["net.insecure"] or self.facts["net.interface"]
        return may_be_nccl and not goes_out

    def _program_env(self):
        """A program may open PyTorch's store in worker 0, at MASTER_PORT: so that the
        coordinator has a port of its own."""
        host = f"[{self.master_addr}]" if ":" in self.master_addr else self.master_addr
        store_addr = self.worker_hosts[0].address if self.worker_hosts else self.master_addr
        env = {"MASTER_ADDR": store_addr, "MASTER_PORT": str(self.store_port),
               "PS_INIT_METHOD": f"tcp://{host}:{self.master_port}",
               "PS_SETTINGS": json.dumps(self.takers["program"]), "PYTHONUNBUFFERED": "1", "PS_COMMITS": ""}
        # PyTorch's store is made with libuv by default since 2.4. Debian 13's has none, and refuses to
        # make one; without it every PyTorch makes the same store.
        if "USE_LIBUV" not in os.environ:
            env["USE_LIBUV"] = "0"
        return env if self.worker_hosts else dict(env, **self._package_env())

    def _package_env(self):
        """Of a checkout: Python finds its package, which finds the library that was built."""
        package, library = os.path.join(places.ROOT, "python"), os.path.join(self.build_dir, LIBRARY)
        if not os.path.isdir(os.path.join(package, "pstrain")) or not os.path.exists(library):
            return {}
        paths = [os.environ.get("PYTHONPATH", ""), package]
        return {"PYTHONPATH": os.pathsep.join(filter(None, paths)),
                "PSTRAIN_LIBRARY": os.environ.get("PSTRAIN_LIBRARY", library)}


def mode_of(exchange):
    return {"ps": "ps", "none": "single"}.get(exchange, "allreduce" if exchange else "")


def count_workers(facts):
    """How many the job begins with; and of an elastic job the fewest that it needs, else 0."""
    workers = facts["job.workers"]
    if isinstance(workers, int):
        return workers, 0
    return facts["job.start_workers"] or workers[0], workers[0]


def find_build_dir(given, needs="ps-worker"):
    path = given or os.environ.get("PS_BUILD_DIR") or places.default_build_dir()
    if os.path.exists(os.path.join(path, "bin", needs)):
        return os.path.abspath(path)
    raise JobError(
        f"no {needs} in {os.path.join(path, 'bin')}: {how_to_get(needs)}, "
        "or name the build folder with --build-dir"
    )


def how_to_get(name):
    if places.is_wheel():
        return ("this psrun came with the Python package, for programs of your own (psrun -s 2 -w 2 -- PROGRAM); "
                "a job of layers needs deploy/psrun of a checkout")
    if places.prefix():
        return f"install it (in Debian's packages: p{name.replace('ps-', 'strain-')})"
    return "build it (cmake --preset release && cmake --build --preset release)"


def versions(build_dir, names):
    """The versions of the programs on this machine; those of the other hosts must be the same."""
    return {name: _version(places.program(build_dir, name)) for name in names}


def _version(path):
    done = helpers.run([path, "--version"], text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        raise JobError(f"{path} does not run: {done.stdout.strip() or f'exit code {done.returncode}'}")
    return done.stdout.strip()


def set_words(settings):
    """Of a command line of our programs."""
    return [word for setting in settings for word in ("--set", setting)]


def describe(build_dir, config, overrides):
    """The configuration's values by key, from the programs' own reader: a mistake is shown
    once, before anything is started."""
    return json.loads(_answer(build_dir, "ps-config-json", config, *overrides))["keys"]


def check(build_dir, config, overrides):
    """What would end the parts of the job as they start: it is shown once, before there are any. Returns the shards of
    each server beside workers on this machine's GPUs; 0: the servers choose."""
    return json.loads(_answer(build_dir, "ps-config-json", "--job", config, *overrides))["gpu_shards"]


def layers(build_dir, config, overrides):
    """The model's, as they are written."""
    return json.loads(_answer(build_dir, "ps-config-json", config, *overrides))["layers"]


def takers(build_dir, settings):
    """Which of them a program of the user's is given, and which its servers are, by the library's own table."""
    return json.loads(_answer(build_dir, "ps-config-json", "--program", *settings))


def _answer(build_dir, name, *words):
    """What one of our programs prints. Its error is psrun's."""
    done = helpers.run([places.program(build_dir, name), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"{name} ended with {done.returncode}"]
        raise JobError(lines[-1].removeprefix(f"{name}: "))
    return done.stdout


def input_of_data(build_dir, config, overrides, facts):
    """The setting for a model whose input is not given: all processes need it, and servers read no data."""
    if facts["model.input"] or not config:
        return []
    said = _answer(build_dir, "ps-worker", "--config", config, "--input", *set_words(overrides))
    return [f"{key}={line}" for key, line in zip(("model.input", "model.categories"), said.splitlines())]


def default_out(job_name):
    return os.path.join("runs", f"{job_name}-{time.strftime('%Y%m%d-%H%M%S')}")


def count_devices():
    """For -w auto: the number of visible GPUs or, without one, of cores that this process may use."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return count_visible(visible) or cgroup.cores()


def visible_for(local_rank, text):
    """CUDA_VISIBLE_DEVICES for a worker. A process of CUDA sees one part of a GPU (MIG) alone, the first
    that is named: each worker gets the name of its own. Else the text as it is."""
    entries = [entry.strip() for entry in text.split(",")]
    if not any(entry.startswith("MIG-") for entry in entries):
        return text
    return entries[local_rank % len(entries)]


def count_visible(text):
    """The number of GPUs that CUDA_VISIBLE_DEVICES makes visible. By the CUDA Programming Guide
    these are the entries before the first that is not an index, nor the name of a GPU or of a
    part of one (such as -1, NoDevFiles). As in PyTorch, none if an entry is there twice."""
    entries = [entry.strip() for entry in text.split(",")]
    named = list(itertools.takewhile(re.compile(r"\d+|(GPU|MIG)-\S+").fullmatch, entries))
    return len(named) if len(set(named)) == len(named) else 0
