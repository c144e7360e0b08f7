"""Cases of worker.py: state_dict and going on from one."""
import contextlib
import sys

import torch

import pstrain
from cases import OPTIMIZERS, RANK, Given, case, constant, digest, gradients, reference, refused, say, steps_of_ours, ulps


@case
def save():
    """10 steps, a state_dict, and its form; torch.optim can load it."""
    name, options = OPTIMIZERS[sys.argv[2]]
    folder = sys.argv[3]
    model = Given()
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), name, **options)
        steps_of_ours(model, optimizer, 10)
        state = optimizer.state_dict()
        torch.save({"model": model.state_dict(), "optimizer": state}, f"{folder}/half-{RANK}.pt")
        if RANK == 0:
            other = Given()
            last = None
            for step, (_, theirs) in zip(range(10), reference(name, options, other, constant)):
                last = theirs
            wanted = last.state_dict()["state"]
            assert wanted.keys() == state["state"].keys(), (wanted.keys(), state["state"].keys())
            for i, own in wanted.items():
                assert {k for k, v in own.items() if v is not None} == set(state["state"][i]), own.keys()
                for key, value in own.items():
                    assert key == "step" or value is None or ulps(value, state["state"][i][key]) <= 2, key
            last.load_state_dict(state)
        steps_of_ours(model, optimizer, 10, 10)
        optimizer.synchronize()
    say("whole", digest(model))


@case
def load():
    """10 more steps from the saved state."""
    name, options = OPTIMIZERS[sys.argv[2]]
    saved, of_rank_1 = (torch.load(f"{sys.argv[3]}/half-{rank}.pt") for rank in range(2))
    model = Given()
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), name, **options)
        if RANK == 0:
            refused(pstrain.InputError, ["of rank 1", "rank 0's"], lambda: optimizer.load_state_dict(of_rank_1["optimizer"]))
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        again = optimizer.state_dict()  # of a program that saves before its first step
        assert str(again) == str(saved["optimizer"]), (again, saved["optimizer"])
        optimizer.load_state_dict(again)
        steps_of_ours(model, optimizer, 10, 10)
        optimizer.synchronize()
    say("whole", digest(model))


@case
def load_from_others():
    """10 steps go on from those of a LAMB that counts them in its group; and a moment of Lion's, which counts none."""
    name = sys.argv[2]
    model, other = Given(), Given()
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), name, lr=1e-2)
        if name == "lion":
            moments = gradients(0, 0)
            optimizer.load_state_dict({"state": {i: {"exp_avg": m} for i, m in enumerate(moments)},
                                       "param_groups": optimizer.state_dict()["param_groups"]})
            optimizer.start()
            state = optimizer.state_dict()["state"]
            assert RANK or all(torch.equal(state[i]["exp_avg"], m) for i, m in enumerate(moments)), state
        else:
            theirs = reference(name, {"lr": 1e-2}, other, constant)
            for _ in range(10):
                _, last = next(theirs)
            model.load_state_dict(other.state_dict())
            optimizer.load_state_dict(last.state_dict())
            steps_of_ours(model, optimizer, 10, 10)
            for _ in range(10):
                next(theirs)
            far = max(ulps(a, b, 0.1) for a, b in zip(model.parameters(), other.parameters()))
            assert far <= 64, far
            state = optimizer.state_dict()
            assert "step" not in state["param_groups"][0] and (RANK or state["state"][0]["step"] == 20), state
    say("fine")


@contextlib.contextmanager
def made_by_default(dtype, device):
    """What PyTorch makes without further words."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device) if hasattr(torch.device, "__enter__") else contextlib.nullcontext():  # PyTorch 2
            yield
    finally:
        torch.set_default_dtype(before)


@case
def defaults():
    """The program has made another dtype and device PyTorch's default."""
    name, options = OPTIMIZERS["adamw"]
    model, other, first = Given(), Given(), 0
    with pstrain.init():
        order = list(pstrain.DistributedSampler(range(9)))
        optimizer = pstrain.Optimizer([*model.weights][:3], name, **options)
        theirs = reference(name, options, other, constant)
        for dtype, device in ((torch.float64, "cpu"), (torch.bfloat16, "cpu"), (torch.float32, "meta")):
            given = [gradients(step, RANK) for step in range(first, first + 4)]
            *_, (_, wanted) = [next(theirs) for _ in given]
            with made_by_default(dtype, device), optimizer.join():
                for each in given:
                    optimizer.zero_grad()
                    model(each).backward()
                    optimizer.step()
            with made_by_default(dtype, device):
                state = optimizer.state_dict()["state"]
                assert list(pstrain.DistributedSampler(range(9))) == order
                if dtype == torch.bfloat16:
                    optimizer.add_param_group({"params": [model.weights[3]]})
                    optimizer.start()  # the servers' state goes from table to table
            for i in range(3) if RANK == 0 else ():
                for key, value in wanted.state_dict()["state"][i].items():
                    assert ulps(torch.as_tensor(value), state[i][key]) <= 2, (dtype, device, i, key)
            first += 4
        assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(model.weights[:3], other.weights))
    say("fine")


@case
def resume_rounded():
    """Parameters of 16 bits go on with the float32 weights of the servers. sys.argv[3] is save or load."""
    half, model = f"{sys.argv[2]}/rounded.pt", Given().to(torch.bfloat16)
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=1e-2, codec=sys.argv[4])
        if sys.argv[3] == "save":
            steps_of_ours(model, optimizer, 6)
            state = optimizer.state_dict()
            if RANK == 0:
                torch.save({"model": model.state_dict(), "optimizer": state}, half)
        else:
            saved = torch.load(half)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        steps_of_ours(model, optimizer, 6, 6)
        state = optimizer.state_dict()
        exact = state["pstrain"]["weights"] if RANK == 0 else {}
        say("whole", digest(model.float()), *(float(each.double().sum()) for each in exact.values()))


@case
def resume_coded():
    """With topk every rank keeps what it has not sent. sys.argv[3] is save or load; late: a parameter that has come last
    in one job is the first one of the other."""
    half = f"{sys.argv[2]}/coded-{RANK}.pt"
    model = Given()
    late = model.weights[0].requires_grad_(sys.argv[3:] != ["save", "late"])
    with pstrain.init(settings={"exchange.codec_min": 0, "exchange.codec_warmup": 0}):
        optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-2, codec="topk")
        if sys.argv[3] == "save":
            steps_of_ours(model, optimizer, 1)
            late.requires_grad_(True)
            steps_of_ours(model, optimizer, 5, 1)
            state = optimizer.state_dict()
            torch.save({"model": model.state_dict(), "optimizer": state}, half)
        else:
            saved = torch.load(half)
            model.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
        steps_of_ours(model, optimizer, 6, 6)
        optimizer.state_dict()  # the exact weights
    say("whole", digest(model))
