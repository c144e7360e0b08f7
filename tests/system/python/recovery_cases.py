"""Cases of worker.py: what goes on after deaths, by pstrain.State and pstrain.DistributedSampler."""
import contextlib
import errno
import itertools
import os
import pickle
import random
import shutil
import signal
import sys
from unittest import mock

import torch
import torch.utils.data
from torch import nn

import pstrain
from cases import RANK, SIZE, case, digest, refused, say

ATTEMPT = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))


class Net(nn.Module):
    """It draws random numbers, and has buffers."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4)

    def forward(self, x):
        x = self.first(x.to(self.first.weight.dtype))
        x = torch.dropout(torch.relu(self.norm(x)), 0.3, self.training)
        return self.last(x.to(self.last.weight.dtype))


def samples(n):
    return torch.utils.data.TensorDataset(torch.randn(n, 8, generator=torch.Generator().manual_seed(3)),
                                          torch.arange(n) % 4)


TWO = ("two", "two_doubles", "two_mixed")  # ways with two Optimizers


def made(way):
    """(model, optimizers) of one of the three ways."""
    if way == "group":
        torch.distributed.init_process_group("pstrain")
    else:
        coded = {"exchange.codec_min": 0, "exchange.codec_warmup": 0}
        pstrain.init(settings=coded if way in ("topk", "scaled") else None)
    model = Net().to(torch.float64 if way in ("doubles", "two_doubles") else torch.float32)
    if way in ("mixed", "two_mixed"):
        model.last.double()
    if way in TWO:
        sgd, adamw = ("sgd", "adamw") if way == "two" else (torch.optim.SGD, torch.optim.AdamW)
        front = [*model.first.parameters(), *model.norm.parameters()]
        return model, [pstrain.Optimizer(front, sgd, lr=1e-2, momentum=0.9),
                       pstrain.Optimizer(model.last.parameters(), adamw, lr=1e-2)]
    if way in ("optimizer", "topk", "lamb", "scaled", "doubles", "mixed"):
        more = {"topk": {"codec": "topk"}, "scaled": {"codec": "int8", "loss_scale": True}}.get(way, {})
        rule = "lamb" if way == "lamb" else "adamw"
        return model, [pstrain.Optimizer(model.named_parameters(), rule, lr=1e-2, **more)]
    if way == "hook":
        torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
    if way == "hook":
        model.register_comm_hook(None, pstrain.comm_hook)
    return model, [torch.optim.AdamW(model.parameters(), lr=1e-2)]


def die(what):
    if what == "raises":
        raise ValueError("it does so in this attempt")
    elif what == "stops":
        os.kill(os.getpid(), signal.SIGINT)
    elif what == "server":
        [server] = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and is_server(pid)]
        os.kill(server, signal.SIGKILL)
    else:
        if what == "host":
            lose_host()
        os.kill(os.getpid(), signal.SIGKILL)


def lose_host():
    """Its memory, and its processes; for a while nobody reaches it."""
    mine = {f"{name}={os.environ[name]}" for name in ("PS_TEST_HOST", "PS_TEST_DOWN")}
    with open(os.environ["PS_TEST_DOWN"], "w", encoding="ascii") as f:
        print(os.environ["PS_TEST_HOST"], file=f)
    for place in os.environ["PS_COMMITS"].split(":"):
        shutil.rmtree(place)
    # By a process of its own: whoever saw the end of another one would end this one, and the rest would stay.
    caller = os.getpid()
    if os.fork():
        while True:
            signal.pause()
    pids = [int(pid) for pid in os.listdir("/proc") if pid.isdigit() and int(pid) not in (os.getpid(), caller)]
    for how in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            with contextlib.suppress(OSError):
                with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as f:
                    if mine <= {*f.read().split("\0")}:
                        os.kill(pid, how)
    with contextlib.suppress(OSError):
        os.kill(caller, signal.SIGKILL)
    os._exit(0)


def is_server(pid):
    """Of this job: its command line names the coordinator's port, or its environment does."""
    with contextlib.suppress(OSError):
        with open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as f:
            env = dict(word.partition("=")[::2] for word in f.read().split("\0"))
        port = os.environ["PS_INIT_METHOD"].rpartition(":")[2]
        return "PS_SERVER_RANK" in env and env.get("MASTER_PORT") == port
    return False


@contextlib.contextmanager
def killed_while_writing(planned):
    """This rank dies when half of its part of the commit is there."""
    if not planned:
        yield
        return
    from pstrain._commits import Folder

    def half(self, head, blobs):
        write(self, head, blobs)
        os.truncate(self._new, os.path.getsize(self._new) // 2)
        os.kill(os.getpid(), signal.SIGKILL)

    write = Folder.write
    with mock.patch.object(Folder, "write", half):
        yield


@case
def recovers():
    """worker.py recovers WAY FOLDER ATTEMPT=WHAT:RANK:BATCH ...; three epochs of 9 batches, a commit every 4."""
    way, folder, *plans = sys.argv[2:]
    what, rank, at = next((p[2:].split(":") for p in plans if p.startswith(f"{ATTEMPT}=")), ("", -1, -1))
    due = {int(at): what} if int(rank) == RANK else {}
    torch.manual_seed(1 + RANK)
    random.seed(RANK)
    model, optimizers = made(way)
    optimizer = optimizers[0]
    if way == "hook":
        schedule = torch.optim.lr_scheduler.CyclicLR(optimizer, 0.01, 0.02, 3, cycle_momentum=False)
    else:
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.02, total_steps=60)  # changes betas, too
    sampler = pstrain.DistributedSampler(samples(70), seed=5)
    loader = torch.utils.data.DataLoader(sampler.dataset, 4, sampler=sampler)
    state = pstrain.State(model, optimizer, schedule=schedule, sampler=sampler, epoch=0, batch=0,
                          folder=None if folder == "-" else folder,
                          **{f"optimizer_{n}": more for n, more in enumerate(optimizers[1:], 2)})
    state.sync()
    say("places", os.environ.get("PS_COMMITS", ""))
    say("from", state.batch)
    for state.epoch in range(state.epoch, 3):
        sampler.set_epoch(state.epoch)
        for images, labels in sampler.batches(loader):
            for each in optimizers:
                each.zero_grad()
            loss = nn.functional.cross_entropy(model(images + random.random()), labels)
            (optimizer.scale(loss) if way == "scaled" else loss).backward()
            for each in optimizers:
                each.step()
            schedule.step()
            state.batch += 1
            if state.batch % 4 == 0:
                with killed_while_writing(due.get(state.batch) == "writes"):
                    state.commit()
            if due.get(state.batch):
                die(due[state.batch])
            if any("=stops:" in plan for plan in plans) and state.should_stop():
                state.commit(disk=True)
                say("stopped", state.batch)
                return
    if way in ("topk", "scaled"):
        optimizer.state_dict()  # brings the exact weights
    say("whole", digest(model))


# ---- the sampler, without a job ----

def epoch_of(sampler, loader=None):
    return [int(x) for x in (sampler if loader is None else itertools.chain(*sampler.batches(loader)))]


@case
def samplers():
    """Whatever the size, PyTorch's order; and from a place in it, what was not seen, exactly."""
    theirs = torch.utils.data.DistributedSampler
    for n, ranks, drop_last, shuffle in itertools.product((0, 1, 5, 23, 24), (1, 3, 4), (False, True), (False, True)):
        for rank, epoch in itertools.product(range(ranks), (0, 1, 7)):
            how = {"num_replicas": ranks, "rank": rank, "shuffle": shuffle, "seed": 3, "drop_last": drop_last}
            if n == 0 and drop_last:
                continue
            ours, wanted = pstrain.DistributedSampler(range(n), **how), theirs(range(n), **how)
            ours.set_epoch(epoch), wanted.set_epoch(epoch)
            sent = pickle.loads(pickle.dumps(ours))  # into a process of a loader's
            assert list(ours) == list(sent) == list(wanted) and len(ours) == len(wanted), (n, how, epoch)
    for n, batch, workers, drop_last in ((23, 4, 0, False), (40, 4, 0, True), (23, 3, 2, False)):
        resumed_anywhere(n, batch, workers, drop_last)
    other_sizes()


def loader_of(sampler, batch, workers, drop_last):
    return torch.utils.data.DataLoader(sampler.dataset, batch, sampler=sampler, drop_last=drop_last,
                                       **({"num_workers": workers, "prefetch_factor": 3} if workers else {}))


def resumed_anywhere(n, batch, workers, drop_last):
    """Two epochs; at any batch of them a process goes on. With workers that have fetched far ahead."""
    def new():
        sampler = pstrain.DistributedSampler(range(n), 2, 1, seed=1)
        return sampler, loader_of(sampler, batch, workers, drop_last)

    def run(sampler, loader, saved, end=None):
        epochs = [[]]
        for epoch in range(sampler.epoch, 2):
            sampler.set_epoch(epoch)
            for images in sampler.batches(loader):
                epochs[-1].append(images.tolist())
                saved.append(dict(sampler.state_dict()))
                if len(saved) == end:
                    return epochs[-1]
            epochs.append([])
        return sum(epochs, [])

    saved = []
    whole = run(*new(), saved)
    for at, state in list(enumerate(saved))[1::6 if workers else 1]:
        sampler, loader = new()
        sampler.load_state_dict(state)
        assert run(sampler, loader, []) == whole[at + 1:], (n, batch, workers, drop_last, at)


def other_sizes():
    """Three ranks begin an epoch, two go on with it: each sample was seen once, apart from those that fill up."""
    seen, states = [], []
    for rank in range(3):
        sampler = pstrain.DistributedSampler(range(29), 3, rank)
        sampler.set_epoch(4)
        seen += list(itertools.islice(sampler, 4))
        sampler.advance(4)
        states.append(sampler.state_dict())
    assert states[0] == states[1] == states[2]
    rest = []
    for rank in range(2):
        sampler = pstrain.DistributedSampler(range(29), 2, rank)
        sampler.load_state_dict(states[0])
        sampler.set_epoch(4)
        rest.append(list(sampler))
    assert len(rest[0]) == len(rest[1]) == 9 and len(set(rest[0] + rest[1])) == 17
    assert sorted({*seen, *rest[0], *rest[1]}) == list(range(29))

    sampler = pstrain.DistributedSampler(range(30), 2, 0)
    refused(pstrain.InputError, ["samples 29", "30 now"], lambda: sampler.load_state_dict(states[0]))
    sampler.load_state_dict({**states[0], "over": True})  # the next epoch may have other samples
    assert epoch_of(sampler) == [] and len(epoch_of(sampler)) == 15
    refused(pstrain.InputError, ["no state"], lambda: sampler.load_state_dict({"epoch": 1}))
    refused(pstrain.InputError, ["15 samples left", "not of all ranks"], lambda: sampler.advance(16))
    for n in (-1, 1.0, torch.ones(3), True):
        refused(pstrain.InputError, ["number of this rank's samples"], lambda n=n: sampler.advance(n))
    another = loader_of(pstrain.DistributedSampler(range(30), 2, 0), 4, 0, False)
    for loader in (torch.utils.data.DataLoader(range(30), 4), another, [1, 2]):
        refused(pstrain.InputError, ["sampler=sampler"], lambda loader=loader: sampler.batches(loader))
    refused(pstrain.InputError, ["in a job"], lambda: pstrain.DistributedSampler(range(3), num_replicas=2))


@case
def spares():
    """Whatever host is lost, the next one has all that its ranks had, and nothing travels that is there already."""
    from pstrain import _spares

    for hosts in ("a", "ab", "aabb", "abab", "aaab", "abbb", "aabbcc", "abc"):
        said = [(host, {"model": ("same", 100), "optimizer": ("0" if rank == 0 else "", 7),
                        "loader": ("of " + host, 5), "own": (str(rank), 1)}) for rank, host in enumerate(hosts)]
        plan = _spares.plan(said)
        assert len(plan) == (len(hosts) if len(set(hosts)) > 1 else 0)
        assert sorted(spare.rank for spare in plan) == list(range(len(plan)))
        for spare in plan:
            there = [rank for rank, host in enumerate(hosts) if host == hosts[spare.keeper]]
            assert hosts[spare.keeper] != hosts[spare.rank]
            for name, owner in spare.owners.items():
                wanted = said[spare.rank][1][name]
                found = [rank for rank in there if said[rank][1][name] == wanted]
                assert owner == (found[0] if found else spare.rank), (hosts, spare, name)
            assert "own" in spare.sent() and "model" not in spare.sent(), spare
    say("fine")


# ---- misuse, and what a State takes ----

@case
def states():
    """worker.py states FOLDER"""
    folder = sys.argv[2]
    wrong = pstrain.InputError
    refused(wrong, ["pstrain.init()"], lambda: pstrain.State(epoch=0))
    pstrain.init()
    with mock.patch.dict(os.environ, PS_COMMITS=""):  # in this process alone
        what_it_takes(wrong)
    what_it_takes(wrong)
    same_place(wrong, folder)
    files(wrong, folder)
    memory(wrong)
    with_servers(wrong)


def plain_model(width=4):
    torch.manual_seed(5)
    model = nn.Linear(width, 2)
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def step(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(3, model.in_features)).sum().backward()
    optimizer.step()


def what_it_takes(wrong):
    model, optimizer = plain_model()
    refused(wrong, ["logger", "object", "state_dict"], lambda: pstrain.State(logger=object()))
    refused(wrong, ["model is or holds a type", "state_dict"], lambda: pstrain.State(model=Net))
    refused(wrong, ["models is or holds a Linear", "a name of its own"], lambda: pstrain.State(models={"a": [model]}))
    refused(wrong, ["weights is or holds a Parameter", "module"], lambda: pstrain.State(weights=[model.weight]))
    refused(wrong, ["commit cannot be the name"], lambda: pstrain.State(commit=1))
    refused(wrong, ["disk_every=0"], lambda: pstrain.State(disk_every=0))
    generator, drawn, circle = torch.Generator().manual_seed(2), random.Random(3), [4]
    circle.append(circle)  # a list may hold itself
    state = pstrain.State(model, optimizer, generator=generator, drawn=drawn, epoch=3, best=[1.0], circle=circle)
    refused(wrong, ["restore() without a commit"], state.restore)
    refused(wrong, ["name a folder"], lambda: state.commit(disk=True))
    refused(AttributeError, ["bach", "best, circle, epoch"], lambda: setattr(state, "bach", 1))
    refused(AttributeError, ["bach"], lambda: state.bach)
    refused(wrong, ["epoch", "object"], lambda: setattr(state, "epoch", object()))
    assert not state.sync() and state.model is model
    step(model, optimizer)
    state.commit()
    kept = [digest(model), torch.rand(1, generator=generator), drawn.random(), torch.rand(3), random.random()]
    state.epoch += 1
    state.best.append(2.0)
    for _ in range(2):
        step(model, optimizer)
    state.restore()
    assert (state.epoch, state.best, state.circle[0]) == (3, [1.0], 4) and state.circle[1] is state.circle
    now = [digest(model), torch.rand(1, generator=generator), drawn.random(), torch.rand(3), random.random()]
    assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(kept, now)), (kept, now)
    state.best.append(lambda: 0)
    refused(wrong, ["best", "function"], state.commit)


def same_place(wrong, folder):
    """Ranks that commit at different places; and a commit in the middle of a step."""
    model, optimizer = plain_model()
    sampler = pstrain.DistributedSampler(range(20))
    loader = loader_of(sampler, 2, 0, False)
    state = pstrain.State(model, optimizer, sampler=sampler)
    refused(wrong, ["commit() before sync()"], state.commit)
    state.sync()
    list(itertools.islice(sampler.batches(loader), 1 + RANK))
    refused(pstrain.PeerError, ["rank 0 at its commit 1, epoch 0 and 2 samples", "rank 1", "4 samples"], state.commit)
    assert not state.should_stop()
    sampler.set_epoch(1)
    for _ in loader:
        refused(wrong, ["none was counted", "sampler.batches(loader)"], state.commit)
        break
    sampler.advance(2)
    state.commit()
    loop = sampler.batches(loader)
    next(loop)
    state.restore()
    refused(wrong, ["leave the loop"], lambda: next(loop))


def files(wrong, folder):
    """On the disk: two commits, of which a torn one is not taken; another model; another job."""
    def state(width=4, **more):
        model, optimizer = plain_model(width)
        return pstrain.State(model, optimizer, epoch=0, folder=folder, **more)

    one = state()
    one.sync()
    for epoch in range(1, 4):
        one.epoch = epoch
        step(one.model, one.optimizer)
        kept = digest(one.model)
        one.commit()
    pstrain.barrier()
    names = sorted(name for name in os.listdir(folder) if name != "lock")
    assert names == [f"commit-{n}.rank-{r}" for n in (2, 3) for r in range(SIZE)], names
    pstrain.barrier()
    two = state()
    assert two.sync() and two.epoch == 3 and digest(two.model) == kept
    refused(wrong, ["made later", folder], one.commit)
    pstrain.barrier()
    if RANK == 1:
        with open(f"{folder}/commit-3.rank-1", "r+b") as f:
            f.seek(-3, os.SEEK_END)
            f.write(b"x")
    pstrain.barrier()
    two = state()
    assert two.sync() and two.epoch == 2
    refused(wrong, ["model", "commit 2", folder, "weight", "another folder"], lambda: state(5).sync())
    refused(wrong, ["has model, optimizer", "this State extra, model, optimizer"],
            lambda: state(extra=nn.Linear(1, 1)).sync())
    refused(wrong, ["cannot be used", "Not a directory"], lambda: pstrain.State(folder=f"{folder}/lock/x"))
    if RANK == 0:
        os.makedirs(f"{folder}/fifo"), os.mkfifo(f"{folder}/fifo/lock")
        refused(wrong, [f"cannot write {folder}/fifo/lock"], lambda: pstrain.State(folder=f"{folder}/fifo"))
    two = state()
    two.sync()
    two.commit()  # number 3 again
    pstrain.barrier()
    if RANK == 1:
        shutil.copy(f"{folder}/commit-3.rank-1", f"{folder}/commit-2.rank-1")  # another one's name
        os.truncate(f"{folder}/commit-3.rank-1", 40)
    pstrain.barrier()
    for _ in range(2):
        refused(wrong, ["not whole", "rank 0 has 3, 2; rank 1 has 3, 2", "empty the folder"], lambda: state().sync())
        pstrain.barrier()
        if RANK == 1:
            os.remove(f"{folder}/commit-3.rank-1"), os.mkfifo(f"{folder}/commit-3.rank-1")
        pstrain.barrier()
    if RANK == 1:  # its host is gone
        os.remove(f"{folder}/commit-3.rank-1"), os.remove(f"{folder}/commit-2.rank-1")
    pstrain.barrier()
    two = state()
    torch.manual_seed(100)
    drawn = torch.get_rng_state()
    assert two.sync() and two.epoch == 2 and torch.equal(torch.get_rng_state(), drawn) == (RANK == 1)
    two.commit()


def memory(wrong):
    """No room: one error, and the commit before stays."""
    model, optimizer = plain_model()
    places = os.environ["PS_COMMITS"].split(":")
    assert len(places) == 2 and all(os.stat(place).st_mode & 0o777 == 0o700 for place in places)
    state = pstrain.State(model, optimizer, epoch=1)
    state.sync()
    state.commit()
    full = os.statvfs_result((4096, 4096, 10, 0, 0, 10, 10, 10, 0, 255))
    with mock.patch("pstrain._commits.os.statvfs", lambda _: full):
        refused(pstrain.Error, ["could not be written by rank 0", "MB are needed", places[0], "--shm-size",
                                "commit 1 stays"], state.commit)
    failing = mock.patch("pstrain._commits.os.replace", side_effect=OSError(errno.EIO, "Input/output error"))
    with failing if RANK == 1 else contextlib.nullcontext():
        refused(pstrain.Error, ["by rank 1", "Input/output error"], state.commit)
    pstrain.barrier()
    left = sorted(name for place in state._memory.places for name in os.listdir(place))
    assert left and all(name.startswith("commit-1.rank-") and not name.endswith(".new") for name in left), left
    state.epoch = 5
    state.restore()
    assert state.epoch == 1


def with_servers(wrong):
    """A pstrain.Optimizer: a commit before its first step, none within a step, and no way back."""
    model = nn.Linear(4, 2)
    optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=0.1)
    sampler = pstrain.DistributedSampler(range(20))
    state = pstrain.State(model, optimizer, sampler=sampler)
    state.sync()
    state.commit()
    loop = sampler.batches(loader_of(sampler, 2, 0, False))
    next(loop)
    for call in (state.commit, state.should_stop):
        refused(wrong, ["between a batch and its step", "after optimizer.step()"], call)
    list(loop)
    model(torch.ones(3, 4)).sum().backward()
    refused(wrong, ["between backward() and step()"], state.commit)
    optimizer.step()
    state.commit()
    refused(wrong, ["do not go back", "psrun --restarts", "commit 2"], state.restore)
    refused(wrong, ["before the first forward pass"], state.sync)
    next(sampler.batches(loader_of(sampler, 2, 0, False)))  # a loop that is left
    state.commit()
    if os.fork() == 0:
        try:
            refused(wrong, ["forked"], state.commit)
        except BaseException as error:
            say("a child:", error)
        os._exit(0)
    os.wait()
