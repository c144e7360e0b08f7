"""Servers beside the workers of Ray Train.

    import pstrain.ray
    from ray.train import ScalingConfig
    from ray.train.torch import TorchTrainer

    def train():
        pstrain.init()
        ...

    TorchTrainer(train, torch_config=pstrain.ray.PstrainConfig(servers=2),
                 scaling_config=ScalingConfig(num_workers=4)).fit()

Each server is an actor of Ray's, spread over the nodes. A worker or a server that dies fails the attempt:
RunConfig(failure_config=FailureConfig(max_failures=...)) starts another one, with servers of its own.
"""
from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
import tempfile
import types
import typing

import ray  # type: ignore[import, unused-ignore]
import ray.train.backend  # type: ignore[import, unused-ignore]

from . import _programs, _store, job as jobs
from .errors import InputError, TimeoutError

log = logging.getLogger("pstrain")
ANSWERS_WITHIN_S = 5  # a server's actor
# Without types where mypy has no Ray.
_Config: typing.Any = ray.train.backend.BackendConfig
_Backend: typing.Any = ray.train.backend.Backend


@dataclasses.dataclass
class PstrainConfig(_Config):  # type: ignore[misc]
    """torch_config of TorchTrainer. The training function itself joins the job: by pstrain.init(), or by
    dist.init_process_group("pstrain").

    servers: how many. settings: of the job, as in `pstrain.init`. server_resources: what Ray reserves for each
    server. placed_within_s: for so long the servers may wait for these; then a TimeoutError says so.
    """

    servers: int = 1
    settings: jobs.Settings = None
    server_resources: "typing.Mapping[str, float]" = dataclasses.field(default_factory=lambda: {"CPU": 1})
    placed_within_s: float = 120

    backend: "typing.ClassVar[str]" = "pstrain"  # TorchTrainer asks

    def __post_init__(self) -> None:
        self.plan(1)  # names a mistake where the trainer is made

    def plan(self, workers: int) -> typing.Any:
        """psrun's job."""
        if self.servers == 0:
            raise InputError("PstrainConfig: servers: 0: the workers find each other by server 0's address: take one")
        with _programs.job_errors("PstrainConfig"):
            return _programs.plan(["train"], self.servers, workers, jobs.as_words(self.settings))

    @property
    def backend_cls(self) -> "type[Servers]":
        return Servers

    @property
    def train_func_context(self) -> "type[_Leaves]":
        return _Leaves


class _Leaves:
    """Around the training function: a process of Ray's goes on after it."""

    def __enter__(self) -> "_Leaves":
        return self

    def __exit__(self, kind: "type[BaseException] | None", error: "BaseException | None",
                 where: "types.TracebackType | None") -> None:
        if jobs.is_initialized():
            jobs.current().__exit__(kind, error, where)


class Servers(_Backend):  # type: ignore[misc]
    """Starts them for each attempt, and ends them."""

    _actors: "list[typing.Any]" = []

    def on_training_start(self, worker_group: typing.Any, backend_config: PstrainConfig) -> None:
        self._end()
        job = backend_config.plan(len(worker_group))
        job.master_addr, job.master_port = self._place(backend_config)
        server_key, worker_key = _make_keys()
        servers, workers = job.parts()[:job.servers], job.parts()[job.servers:]
        ray.get([actor.start.remote(part.argv[1:], {**part.env, "PS_CURVE_KEY": server_key})
                 for actor, part in zip(self._actors, servers)])
        address, port = worker_group.execute_single(0, _own_address)  # of PyTorch's store
        store = {"MASTER_ADDR": address, "MASTER_PORT": str(port), "PS_CURVE_KEY": worker_key}
        ray.get([worker_group.execute_single_async(rank, _set_environment, {**part.env, **store})
                 for rank, part in enumerate(workers)])

    def on_shutdown(self, worker_group: typing.Any, backend_config: PstrainConfig) -> None:
        self._end()

    def _place(self, config: PstrainConfig) -> "tuple[str, int]":
        """Returns where server 0's coordinator listens."""
        needs = dict(config.server_resources)
        remote = ray.remote(num_cpus=needs.pop("CPU", 0), num_gpus=needs.pop("GPU", 0), resources=needs,
                            scheduling_strategy="SPREAD", max_restarts=0)(_Server)
        self._actors = [remote.remote() for _ in range(config.servers)]
        try:
            found: "list[tuple[str, int]]" = ray.get([actor.address.remote() for actor in self._actors],
                                                     timeout=config.placed_within_s)
        except ray.exceptions.GetTimeoutError:
            self._kill()
            raise TimeoutError(
                f"Ray has found no place for {config.servers} servers with {dict(config.server_resources)} each within "
                f"{config.placed_within_s:g} s (`ray status` shows what is free): start fewer, or give them less by "
                "server_resources") from None
        return found[0]

    def _end(self) -> None:
        asked = [actor.last_words.remote(rank) for rank, actor in enumerate(self._actors)]
        said = ray.wait(asked, num_returns=len(asked), timeout=ANSWERS_WITHIN_S)[0] if asked else []
        told = set()
        for answer in said:
            with contextlib.suppress(ray.exceptions.RayError):  # the actor is gone, too
                told.add(ray.get(answer))
        for words in sorted(told - {""}):
            log.error("%s", words)  # workers say which server is dead, but do not know why
        self._kill()

    def _kill(self) -> None:
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []


class _Server:
    """An actor: one ps-server, which ends with it."""

    _process: "subprocess.Popen[bytes] | None" = None
    _killed_before = 0  # by the kernel, on this node

    def address(self) -> "tuple[str, int]":
        return _own_address()

    def start(self, argv: "list[str]", env: "dict[str, str]") -> None:
        path = _programs.find("ps-server")
        if path is None:
            raise InputError("there is no ps-server on this node: install pstrain there")
        self._killed_before = _programs.killed_for_memory()
        self._process = subprocess.Popen([path, *argv], env={**os.environ, **env}, stdin=subprocess.DEVNULL,
                                         preexec_fn=_programs.psrunlib("local").die_with_parent)

    def last_words(self, rank: int) -> str:
        """Why it, or a worker on this node, has died; "": nothing is known."""
        return _programs.last_words(f"server {rank}", self._process.poll(), self._killed_before) if self._process else ""


def _own_address() -> "tuple[str, int]":
    """(this node's, a free port)"""
    address = ray.util.get_node_ip_address()
    return address, _store.free_port(address)


def _make_keys() -> "tuple[str, str]":
    """Of a job: the servers' key and the workers'."""
    keys, path = _programs.psrunlib("keys"), _programs.find("ps-server")
    with tempfile.TemporaryDirectory(prefix="pstrain-keys-") as folder:
        keys.make(folder, path)
        return keys.line(folder, "server"), keys.line(folder, "worker")


def _set_environment(env: "dict[str, str]") -> None:
    """In a worker. How many are on its node, and which of them it is, Ray knows."""
    here = ray.train.get_context()
    os.environ.update(env, LOCAL_RANK=str(here.get_local_rank()), LOCAL_WORLD_SIZE=str(here.get_local_world_size()),
                      NODE_RANK=str(here.get_node_rank()))
    os.environ.pop("PS_CURVE_DIR", None)
