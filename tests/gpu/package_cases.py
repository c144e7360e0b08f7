"""The Python package on a GPU, for tests/gpu/run: a program of psrun's.

  psrun -s 1 -w 2 -- python3 package_cases.py CASE [cpu]
  psrun -s 1 -w 1 -- python3 package_cases.py speed [cpu] [compiled] SECONDS (NAME=JOB.json | gpt2)

Ranks share a GPU. cpu: the CPU's tensors; with "stand-in" the package takes them for a GPU's, with a
stand-in for the driver. Prints "rank R: ..." with a digest of the weights, "fine", or figures.
"""
import copy
import hashlib
import json
import os
import sys

sys.dont_write_bytecode = True
HERE = os.path.dirname(os.path.realpath(__file__))
WORDS = sys.argv[2:]
DEVICE = "cpu" if "cpu" in WORDS else "cuda"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from torch import nn  # noqa: E402

import pstrain  # noqa: E402

Optimizer = pstrain.Optimizer
if "stand-in" in WORDS:
    sys.path.insert(0, os.path.join(os.path.dirname(HERE), "system", "python"))
    from device_cases import OnGpu as Optimizer  # noqa: E402


def say(*words):
    print(" ".join(map(str, (f"rank {pstrain.rank()}:", *words))), flush=True)


def digest(model):
    h = hashlib.sha256()
    for value in model.parameters():
        h.update(value.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return h.hexdigest()[:16]


class Given(nn.Module):
    """Its gradients are what forward gets, so CPU and GPU have the same."""

    def __init__(self, dtype=torch.float32):
        super().__init__()
        g = torch.Generator().manual_seed(3)
        self.all = nn.ParameterList(torch.randn(shape, generator=g).to(dtype) for shape in ((700, 900), (16,), (3, 5, 7)))

    def forward(self, gradients):
        return sum((p * g).sum() for p, g in zip(self.all, gradients))


def weights(dtype=torch.float32, steps=20, **options):
    with pstrain.init():
        model = Given(dtype).to(DEVICE)
        optimizer = Optimizer(model.named_parameters(), "adamw", lr=0.01, **options)
        for step in range(steps):
            g = torch.Generator().manual_seed(100 * step + pstrain.rank())
            gradients = [torch.randn(p.shape, generator=g).to(p.device, dtype) for p in model.all]
            optimizer.zero_grad()
            model(gradients).backward()
            optimizer.step()
        optimizer.synchronize()
        say("weights", digest(model))


def compiled():
    """It learns what the same model learns without torch.compile."""
    with pstrain.init():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)
        called = torch.compile(model) if DEVICE == "cuda" else model
        optimizer = Optimizer(model.named_parameters(), "adamw", lr=1e-3)
        x, y = torch.randn(32, 64, device=DEVICE), torch.randint(0, 10, (32,), device=DEVICE)
        first = last = None
        for _ in range(30):
            optimizer.zero_grad()
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                loss = nn.functional.cross_entropy(called(x), y)
            loss.backward()
            optimizer.step()
            first, last = first or loss.item(), loss.item()
        assert last < first / 2, (first, last)
        say("fine")


def graphs():
    """A captured forward pass has the weights after each step, as PyTorch alone makes them; a captured step is refused."""
    with pstrain.init():
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64)).to(DEVICE)
        plain, x = copy.deepcopy(model), torch.randn(8, 64, device=DEVICE)  # all ranks have the same
        theirs = torch.optim.SGD(plain.parameters(), lr=1)
        optimizer = Optimizer(model.named_parameters(), "sgd", lr=1, overlap_forward=True)
        optimizer.start()
        graphed = torch.cuda.make_graphed_callables(model, (x,))
        for _ in range(5):
            out, expected = graphed(x), plain(x)
            assert torch.allclose(out, expected, rtol=1e-4, atol=1e-5), (out - expected).abs().max()
            for each, one in ((optimizer, out), (theirs, expected)):
                each.zero_grad()
                one.square().mean().backward()
                each.step()
        optimizer.synchronize()
        del out  # and what accumulates its gradients, in the stream of the steps
        try:
            with torch.cuda.graph(torch.cuda.CUDAGraph()):
                nn.functional.linear(x, model[0].weight, model[0].bias).sum().backward()
        except RuntimeError as error:  # the package's, or PyTorch's, which may not get as far
            print(f"refused: {error}", flush=True)
        else:
            raise AssertionError("a captured backward pass was taken")
        say("fine")


def hook():
    """comm_hook and the process group against Gloo, bit for bit."""
    pstrain.init()
    dist.init_process_group("pstrain")
    gloo = dist.new_group(backend="gloo")
    found = []
    for group, own in ((gloo, None), (gloo, pstrain.comm_hook), (None, None)):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)).to(DEVICE)
        ddp = nn.parallel.DistributedDataParallel(model, process_group=group, bucket_cap_mb=0.05)
        if own is not None:
            ddp.register_comm_hook(None, own)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for step in range(20):
            torch.manual_seed(10 * step + pstrain.rank())
            x, y = torch.randn(16, 64, device=DEVICE), torch.randint(0, 10, (16,), device=DEVICE)
            optimizer.zero_grad()
            nn.functional.cross_entropy(ddp(x), y).backward()
            optimizer.step()
        found.append(digest(model))
    assert len(set(found)) == 1, found
    x = torch.full((3, 1000), pstrain.rank() + 1.0, device=DEVICE, dtype=torch.bfloat16)
    dist.all_reduce(x)
    assert (x == 3).all()
    say("fine")
    pstrain.shutdown()


def speed():
    """A step with a server against the fused AdamW alone."""
    seconds, what = float(WORDS[-2]), WORDS[-1]
    sys.path.insert(0, HERE)
    import peers

    peer = peers.Gpt2() if what == "gpt2" else peers.Pictures(what.split("=", 1)[1])
    figures = {}
    with pstrain.init():
        for name in ("fused AdamW alone", "pstrain, 1 + 1"):
            model, loss_of = peer.make()
            called = torch.compile(model) if "compiled" in WORDS and DEVICE == "cuda" else model
            own = name.startswith("pstrain")
            optimizer = (Optimizer(model.named_parameters(), "adamw", lr=1e-4) if own
                         else peers.fused_adamw(model))

            def step():
                optimizer.zero_grad()
                with torch.autocast(DEVICE, dtype=torch.bfloat16):
                    loss = loss_of(called)
                loss.backward()
                optimizer.step()

            figures[name] = peer.n / peers.seconds_of(step, seconds)
        figures["ratio"] = figures["pstrain, 1 + 1"] / figures["fused AdamW alone"]
        say(json.dumps(figures))


CASES = {"float32": weights, "bf16": lambda: weights(torch.bfloat16), "views": lambda: weights(gradient_as_arena_view=True),
         "overlap": lambda: weights(overlap_forward=True), "compiled": compiled, "graphs": graphs, "hook": hook,
         "speed": speed}
CASES[sys.argv[1]]()
