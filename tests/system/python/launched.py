"""What test_launch.py starts: python3 launched.py CASE. Prints what the test reads."""
import contextlib
import os
import pathlib
import shutil
import signal
import sys

import torch
import torch.distributed as dist
import pstrain


def step(lr, failing=None):
    """A step of SGD whose gradients are the ranks' numbers, from 1. Then rank 1 fails."""
    pstrain.init()
    weight, bias = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimizer = pstrain.Optimizer([("weight", weight), ("bias", bias)], "sgd", lr=lr)
    optimizer.start()
    (weight * (pstrain.rank() + 1) + bias).sum().backward()
    optimizer.step()
    optimizer.synchronize()
    print(f"rank {pstrain.rank()} of {pstrain.size()} has stepped \u2713")
    if failing and (pstrain.rank() == 1 or failing is waits):
        failing()
    pstrain.barrier()
    return pstrain.rank(), weight.item()


def raises():
    raise ValueError("no such weight")


def raises_lines():
    raise RuntimeError("\n the first\nthe last \udcff")


class Wordless(Exception):
    def __str__(self):
        raise TypeError("no words")


def raises_wordless():
    raise Wordless


def kills():
    os.kill(os.getpid(), signal.SIGKILL)


def kills_server():
    port = os.environ["PS_INIT_METHOD"].rpartition(":")[2]
    for there in pathlib.Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            words = there.read_bytes().split(b"\0")
            if f"PS_PORT={port}".encode() in words and b"PS_SERVER_RANK=0" in words:
                os.kill(int(there.parent.name), signal.SIGKILL)


def leaves():
    sys.exit(0)


def returns_early(_):
    """Rank 0 makes a step more."""
    pstrain.init()
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = pstrain.Optimizer([("weight", weight)], "sgd", lr=1.0)
    optimizer.start()
    for _ in range(2 - pstrain.rank()):
        weight.sum().backward()
        optimizer.step()


def vanishes():
    os._exit(0)


def result_that_stays(_):
    step(1.0)
    return lambda: 0


def raises_early(_):
    if os.environ["RANK"] == "1":
        raise KeyError("early")
    step(1.0)


def launches(_):
    """Rank 1 returns meanwhile."""
    if os.environ["RANK"] == "0":
        pstrain.launch(aborts, workers=1, servers=0)


def aborts():
    raise pstrain.PeerError("another job's")


def never_joins(_):
    return 0


def half_a_step(_):
    pstrain.init()
    weight = torch.nn.Parameter(torch.zeros(1))
    pstrain.Optimizer([("weight", weight)], "sgd", lr=1.0).start()
    weight.sum().backward()


def waits():
    print("waits", flush=True)
    if pstrain.rank() == 0:
        signal.pause()
    pstrain.barrier()


def dies(times):
    """Five steps, each of which takes 1 from the weight. The last rank dies before the fourth, in the first `times` attempts."""
    pstrain.init()
    weight, attempt = torch.nn.Parameter(torch.zeros(1)), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    optimizer = pstrain.Optimizer([("weight", weight)], "sgd", lr=1.0)
    state = pstrain.State(None, optimizer, weight=weight.detach(), step=0)
    state.sync()
    with torch.no_grad():
        weight.copy_(state.weight)
    optimizer.start()
    first = state.step
    for state.step in range(first, 5):
        if state.step == 3 and attempt < times and pstrain.rank() == pstrain.size() - 1:
            kills()
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()
        state.weight = weight.detach().clone()
        state.step += 1
        state.commit()
    return first, weight.item()


def restarts():
    print(pstrain.launch(dies, (1,), workers=1, restarts=1))


def too_few_restarts():
    try:
        pstrain.launch(dies, (2,), restarts=1)
    except pstrain.PeerError as error:
        print("gives", error)


class Odd:
    """Comes back as the caller's own class."""


def odd(_):
    step(1.0)
    return Odd()


def results():
    print(pstrain.launch(step, (0.5,)))
    print(pstrain.launch(step, [0.5], workers=3, servers=2, settings={"exchange.codec_min": 0}, verbose=True))
    logs = os.path.join(os.environ["TMPDIR"], "logs")
    print([type(one) is Odd for one in pstrain.launch(odd, (0,), workers=1, logs=logs)], *sorted(os.listdir(logs)))
    shutil.rmtree(logs)


def sums(_):
    dist.init_process_group("pstrain")
    x = torch.tensor([dist.get_rank() + 1.0])
    dist.all_reduce(x)
    dist.destroy_process_group()
    return x.item()


def nested(_):
    return pstrain.launch(sums, (1,), workers=1, servers=0)


def without_servers():
    had = len(os.listdir("/proc/self/fd"))
    print(pstrain.launch(sums, (0,), servers=0), len(os.listdir("/proc/self/fd")) - had)
    print(pstrain.launch(nested, (0,), workers=1, servers=0))


def failures():
    for fn, args in ((step, (1.0, raises)), (step, (1.0, raises_lines)), (step, (1.0, raises_wordless)), (step, (1.0, kills)), (step, (1.0, kills_server)), (step, (1.0, leaves)),
                     (step, (1.0, vanishes)), (result_that_stays, (0,)), (raises_early, (0,)), (never_joins, (0,)),
                     (half_a_step, (0,)), (returns_early, (0,)), (launches, (0,))):
        name = (args[1:] or (fn,))[0].__name__
        try:
            print(name, pstrain.launch(fn, args))
        except pstrain.PeerError as error:
            print(name, "gives", str(error).split("\n")[0])
            if name == "raises":
                print(error)


def mistakes():
    for call in (lambda: pstrain.launch("train"), lambda: pstrain.launch(step, 0.5),
                 lambda: pstrain.launch(step, workers=0), lambda: pstrain.launch(step, restarts=-1), lambda: pstrain.launch(step, servers=True),
                 lambda: pstrain.launch(step, settings=["net.no_such=1"]),
                 lambda: pstrain.launch(step, settings=["job.workers=3"]),
                 lambda: pstrain.launch(lambda: 0), lambda: pstrain.launch(step, (open(__file__),))):
        try:
            print(call())
        except pstrain.InputError as error:
            print("InputError", error)


def interrupted():
    pstrain.launch(step, (1.0, waits), verbose=True)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
