"""Cases of worker.py: misuse, and ranks that end."""
import copy
import math
import os
import pickle
import signal
import sys
import threading
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pstrain
from pstrain import job as jobs
from cases import RANK, SIZE, Given, batch, case, gradients, net, optimizer_of, refused, say


# ---- refusals ----

@case
def refusals():
    wrong = pstrain.InputError
    layer = nn.Linear(8, 8)

    def optimizer(*args, **kwargs):
        return lambda: pstrain.Optimizer(*args, **kwargs)

    refused(wrong, ["pstrain.init()"], pstrain.rank)
    refused(wrong, ["pstrain.init()"], optimizer(layer.named_parameters()))
    refused(wrong, ["no.such"], lambda: pstrain.init(settings={"no.such": 1}))
    # Of jobs of layers: a program's optimizer overrides them.
    for settings, words in (({"optimizer": {"lr": 0.1}}, ["optimizer.lr", "give lr="]), (["optimizer={lr: 1}"], ["optimizer.lr"]),
                            ({"schedule.name": "cosine"}, ["schedule.name", "torch.optim.lr_scheduler"]),
                            ({"loss_scale.use": True}, ["loss_scale.use", "loss_scale=True"])):
        refused(wrong, words, lambda s=settings: pstrain.init(settings=s))
    assert jobs.value_of(["exchange={chunk: 1, codec: int8}", "net.port=1"], "exchange.codec") == "int8"
    pstrain.init()
    refused(wrong, ["twice"], pstrain.init)
    refused(wrong, ["loss_scale.use"], optimizer(layer.named_parameters(), "sgd", settings={"loss_scale": {"use": "on"}}))
    turned = nn.Module()
    turned.weight = nn.Parameter(torch.rand(3, 4).t())
    odd = nn.Module()
    for kind, value in {"complex": torch.rand(2, dtype=torch.complex64), "meta": torch.rand(2, device="meta"),
                        "sparse": torch.eye(2).to_sparse()}.items():
        odd.weight = nn.Parameter(value)
        refused(wrong, ["'weight'", kind], optimizer(odd.named_parameters()))
    refused(wrong, ["'weight'", "not contiguous"], optimizer(turned.named_parameters()))
    refused(wrong, ["'bias'", "lazy", "torch.no_grad()"], optimizer(reversed([*nn.LazyLinear(2).named_parameters()])))
    refused(wrong, ["adamax1", "torch.optim"], optimizer(layer.named_parameters(), "adamax1"))
    refused(wrong, ["amsgrad"], optimizer([{"params": layer.parameters(), "amsgrad": True}]))
    refused(wrong, ["no parameters"], optimizer([]))
    refused(wrong, ["requires a gradient"], optimizer([p.detach() for p in layer.parameters()]))
    for key, name in (("lr", "sgd"), ("weight_decay", "adam"), ("lr_decay", "adagrad"), ("initial_accumulator_value", "adagrad")):
        refused(wrong, [f"{name}'s {key}=-1.0"], optimizer(layer.named_parameters(), name, **{key: -1.0}))
    refused(wrong, ["'weight'", "twice"], optimizer([*layer.named_parameters(), ("weight", layer.weight)]))
    for tensor, word in ((torch.ones(3, 2).t(), "contiguous"), (torch.ones(2, dtype=torch.complex64), "complex"),
                         (torch._neg_view(torch.ones(2)), "resolve_neg"), (3.5, "float: give a torch.Tensor")):
        refused(wrong, ["all_reduce", word], lambda t=tensor: pstrain.all_reduce(t))
    refused(wrong, ["root 7"], lambda: pstrain.broadcast(torch.ones(2), 7))
    for what in (3.5, [3.5], {"lr": 3.5}):
        refused(wrong, ["float: give a torch.Tensor"], lambda w=what: pstrain.broadcast(w))
    one, two = ("a", torch.ones(2)), ("b", torch.full((2,), 2.0))
    for words, what in ((["b: (2,) float32", "rank 1"], dict([two, one] if RANK else [one, two])),
                        (["(2, 1)", "(1, 2)"], torch.ones(2 - RANK, 1 + RANK)), (["nothing more on rank 1"], [one, two][:2 - RANK]),
                        (["float32", "int32"], torch.ones(2, dtype=torch.int32 if RANK else torch.float32))):
        refused(wrong, ["broadcast of", *words], lambda w=what: pstrain.broadcast(w))
    assert pstrain.all_reduce(torch.tensor([RANK + 1])).item() == SIZE * (SIZE + 1) // 2
    shared = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    shared[1].weight.data = shared[0].weight.data[2:]
    refused(wrong, ["'0.weight' and '1.weight'", "one Parameter"], optimizer(shared.named_parameters(), "sgd"))
    mine = pstrain.Optimizer(nn.ModuleList([layer, nn.Embedding(4, 4, sparse=True)]).named_parameters(), "sgd")
    refused(wrong, ["'weight'", "another pstrain.Optimizer"], optimizer(layer.named_parameters()))
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        refused(wrong, ["not copied or pickled", "state_dict()"], lambda c=copied: c(mine))
    refused(wrong, ["'0.weight'", "start()"], lambda: layer.weight.sum().backward())
    layer(torch.ones(1, 8)).sum().backward()
    check_changed_gradients(layer, mine)
    nn.utils.clip_grad_norm_(layer.parameters(), 0.1)
    refused(wrong, ["'0.weight'", "clip_norm="], mine.step)
    layer.zero_grad(set_to_none=True)
    refused(wrong, ["'0.weight'", "dropped", "zero_grad()"], mine.step)
    pstrain.barrier()
    pstrain.abort("done")
    refused(wrong, ["pstrain.init()"], pstrain.barrier)
    refused(wrong, ["shut down"], mine.step)
    say("fine")


def check_changed_gradients(layer, optimizer):
    """What the program does to a gradient that has left would be lost; each change is taken back."""
    grad, other = layer.weight.grad, layer.weight.grad * 2
    for change, back in ((lambda: grad.data.mul_(2), lambda: grad.data.mul_(0.5)),
                         (lambda: grad.numpy().__imul__(2), lambda: grad.numpy().__imul__(0.5)),
                         (lambda: setattr(layer.weight, "grad", other), lambda: setattr(layer.weight, "grad", grad))):
        change()
        refused(pstrain.InputError, ["'0.weight'", "push='step'"], optimizer.step)
        back()


@case
def misuse():
    """What an Optimizer refuses while it works. sys.argv[2] names the misuse; each has its own job."""
    what = sys.argv[2]
    wrong = pstrain.InputError
    model = nn.Sequential(nn.Embedding(4, 4), nn.Linear(4, 4))
    pstrain.init()
    optimizer = pstrain.Optimizer(model.named_parameters(), torch.optim.SGD if what == "double" else "sgd", lr=0.1,
                                  total_steps=int(what == "total"), overlap_forward=what == "unread")

    def forward():
        return model(torch.tensor([1, 2])).sum()

    def whole():
        optimizer.zero_grad()
        forward().backward()
        optimizer.step()

    if what == "unread":
        for _ in range(20):
            whole()
            saved = {name: value.clone() for name, value in model.state_dict().items()}
            assert all(slot.fresh for slot in optimizer._slots.values())
        optimizer.synchronize()
        assert all(torch.equal(value, saved[name]) for name, value in model.state_dict().items())
        copied = pickle.loads(pickle.dumps(copy.deepcopy(model)))
        assert copied.state_dict().keys() == saved.keys()
    elif what == "sparse":
        model[0].sparse = True  # later than the Optimizer looks
        refused(wrong, ["'0.weight'", "sparse"], lambda: forward().backward())
    elif what == "scaler":
        forward().backward()
        optimizer.grad_scale = torch.tensor(2.0)
        refused(wrong, ["GradScaler", "loss_scale"], optimizer.step)
    elif what == "replaced":
        whole()
        model[1].weight.data = torch.zeros(4, 4)
        refused(wrong, ["'1.weight'", "replaced"], lambda: forward().backward())
    elif what == "clipped":
        whole()
        forward().backward()
        squares = [x * x for p in model.parameters() for x in p.grad.flatten().tolist()]
        norm = nn.utils.clip_grad_norm_(model.parameters(), math.inf).item()  # it only reads this rank's
        assert abs(norm - math.sqrt(math.fsum(squares))) < 1e-6 * norm, norm
        optimizer.step()
        optimizer.zero_grad()
        (forward() * (1e30 if RANK else 1)).backward()
        nn.utils.clip_grad_norm_(model.parameters(), math.inf)  # by an infinite norm it makes all of them NaN
        if RANK == 0:
            nn.utils.clip_grad_norm_(model.parameters(), 1e9)  # which may change them in another step
        refused(wrong, ["weight'", "clip_grad_norm_", "push='step'"], optimizer.step)
    elif what == "changed":
        whole()
        own = {name: value.clone() for name, value in model.state_dict().items()}
        for each in model.parameters():  # an average is looked at, and taken back
            each.data.zero_()
        model.load_state_dict(own)
        whole()
        refused_when_written(model[1].weight, optimizer.state_dict)
        forward().backward()
        refused_when_written(model[1].weight, optimizer.step)
        optimizer.step()
        model[1].weight.data.clamp_(-0.01, 0.01)
        refused(wrong, ["'1.weight'", ".data", "comm_hook"], lambda: forward().backward())
    elif what == "double":
        whole()
        model.double()
        refused(wrong, ["gradient", "float64"], lambda: (forward().backward(), optimizer.step()))
    elif what == "wrapped":
        refused(wrong, ["DistributedDataParallel", "comm_hook"], lambda: over_gloo(model)(torch.tensor([1, 2])))
    elif what == "late":
        forward().backward()
        optimizer.param_groups[0]["lr"] = 1.0
        refused(wrong, ["scheduler.step()"], optimizer.step)
        optimizer.param_groups[0]["lr"] = 0.1
        optimizer.step()
        optimizer.param_groups[0]["params"].pop()
        refused(wrong, ["'1.bias'", "param_groups", "requires_grad_"], lambda: forward().backward())
    elif what == "total":
        whole()
        refused(wrong, ["the job has 1 step"], lambda: forward().backward())
    elif what == "old":
        whole()
        loss = forward()
        loss.backward(retain_graph=True)
        optimizer.step()
        try:
            loss.backward()
            raise AssertionError("old weights were used")
        except RuntimeError as error:
            assert "modified by an inplace operation" in str(error) or "rank" in str(error), error
    elif what == "alias":
        whole()
        kept = model.state_dict()
        pstrain.shutdown()
        assert torch.equal(kept["1.weight"], model[1].weight)
        forward()
        refused(wrong, ["shut down"], optimizer.step)
        for call in (pstrain.rank, pstrain.barrier, pstrain.shutdown, optimizer_of_ours(model)):
            refused(wrong, ["pstrain.init()"], call)
        refused(wrong, ["left its job", "psrun"], pstrain.init)  # at once: psrun's servers have ended
        say("fine")
        return
    pstrain.barrier()
    pstrain.abort("done")
    say("fine")


def refused_when_written(weight, call):
    """The call would lose the program's numbers, which are taken back."""
    own = weight.detach().clone()
    weight.data.mul_(2)
    refused(pstrain.InputError, ["'1.weight'", "was changed"], call)
    weight.data.copy_(own)


def over_gloo(model):
    dist.init_process_group("gloo")
    return DDP(model)


def optimizer_of_ours(model):
    return lambda: pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)


@case
def other_model():
    """Rank 1 has another model or, with "more", one layer more. Each rank gets one exception with
    the parameter's name."""
    pstrain.init()
    more = "more" in sys.argv
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 5 if RANK == 1 and not more else 6))
    if RANK == 1 and more:
        model.append(nn.Linear(6, 6))
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    try:
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    except pstrain.PeerError as error:
        say("PeerError", error)
        return
    raise AssertionError("it was taken")


@case
def once_more():
    """Fails in torchrun's first attempt."""
    with pstrain.init() as job:
        assert job.session.servers == 2
        pstrain.Optimizer(nn.Linear(4, 4).named_parameters(), "sgd").start()
        if RANK == 1 and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
            raise ValueError("a mistake of the program")
        pstrain.barrier()
    say("fine")


@case
def endless_join():
    pstrain.init()


# ---- what goes wrong ----

def endless(how):
    """Trains, or calls collectives, until something happens."""
    once = collectives() if how == "collectives" else training(how)
    for step, _ in enumerate(once):
        yield step
        if step == 5:
            say("training")


def collectives():
    dist.init_process_group("pstrain")
    while True:
        yield
        x = torch.full((2000,), RANK + 1.0)
        dist.all_reduce(x)
        assert (x == SIZE * (SIZE + 1) / 2).all(), x[0]
        dist.barrier()


def training(how):
    if how == "optimizer":
        pstrain.init()
        model = net()
        optimizer = pstrain.Optimizer(model.named_parameters(), "adamw", lr=1e-3)
    else:
        if how == "backend":
            dist.init_process_group("pstrain")
        else:
            pstrain.init()
            dist.init_process_group("gloo")
        model = DDP(net())
        if how == "hook":
            model.register_comm_hook(None, pstrain.comm_hook)
        optimizer = optimizer_of("sgd", model.parameters())
    step = 0
    while True:
        images, labels = batch(step)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        yield
        loss.backward()
        optimizer.step()
        step += 1


def interrupt_while_waiting(*functions):
    """Sends Ctrl-C when the main thread has stood still for a while within one of these functions."""
    def place():
        top = frame = sys._current_frames()[threading.main_thread().ident]
        while frame and frame.f_code.co_name not in functions:
            frame = frame.f_back
        return frame and (top.f_code, top.f_lasti)

    def look():
        seen, looks = None, 0
        while looks < 20:
            time.sleep(0.01)
            now = place()
            looks = looks + 1 if now and now == seen else 0
            seen = now
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=look, daemon=True).start()


@case
def interrupted():
    """Ctrl-C reaches rank 0 while it waits for a step, or a collective, that rank 1 does not make."""
    of_group = sys.argv[2] == "collectives"
    if of_group:
        dist.init_process_group("pstrain")
        dist.barrier()
    else:
        pstrain.init()
        model = Given()
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
        optimizer.start()
    try:
        if RANK == 1:
            time.sleep(600)
        interrupt_while_waiting("barrier", "step", "synchronize")
        if of_group:
            dist.barrier()
        else:
            model(gradients(0, RANK)).backward()
            optimizer.step()
            optimizer.synchronize()
    except KeyboardInterrupt:
        say("interrupted while it waited")
        raise


@case
def uneven():
    """Rank sys.argv[3] makes one step less than the other and ends in order. sys.argv[2] says how the job trains, or
    when the rank ends; "at once" is without a step."""
    how, short = sys.argv[2], int(sys.argv[3])
    if how == "backend":
        dist.init_process_group("pstrain")
        model = DDP(nn.Linear(4, 4))
        optimizer = optimizer_of("sgd", model.parameters())
    else:
        pstrain.init()
        model = nn.Linear(4, 4)
        optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    say("training")
    try:
        for step in range((1 if how == "at once" else 4) - (RANK == short)):
            optimizer.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            optimizer.step()
        if RANK == short and how == "later":
            time.sleep(0.5)  # the other rank waits already
        if RANK == short:
            sys.exit(0)
        if how != "backend":
            optimizer.synchronize()
    except RuntimeError as error:  # also PyTorch's own, from a callback
        said = str(error).split("\n")[0]
        say("failed", f"{type(error).__name__}: {said}")
        raise


@case
def without_optimizer():
    """Rank 1 makes no Optimizer, and ends when rank 0 has made one."""
    pstrain.init()
    if RANK == 0:
        optimizer = pstrain.Optimizer(nn.Linear(4, 4).named_parameters(), "sgd", lr=0.1)
    pstrain.barrier()
    say("training")
    try:
        if RANK == 0:
            optimizer.start()
    except pstrain.Error as error:
        say("failed", f"{type(error).__name__}: {error}")
        raise


@case
def ends_well():
    """Both ranks make the same steps, and end at different times, in different ways."""
    how = int(sys.argv[2])
    pstrain.init()
    model = nn.Linear(4, 4)
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    for step in range(how % 4):
        optimizer.zero_grad()
        model(torch.ones(1, 4)).sum().backward()
        optimizer.step()
    if RANK == how % 2:
        time.sleep(0.1 * (how % 5))
        with torch.no_grad():
            model(torch.ones(1, 4))
        model.state_dict()
    if (how + RANK) % 3 == 0:
        pstrain.shutdown()
    say("fine")


@case
def dies():
    """Rank 1 ends in the way sys.argv[2] says; sys.argv[3]: how the job trains."""
    for step in endless(sys.argv[3]):
        if step == 10 and RANK == 1:
            if sys.argv[2] == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            elif sys.argv[2] == "raise":
                raise ValueError("a mistake of the program")
            elif sys.argv[2] == "stop":
                sys.exit(3)
            elif sys.argv[2] == "abort":
                pstrain.abort("no data is left")
                sys.exit(1)
            elif sys.argv[2] == "hang":
                signal.pause()
        if sys.argv[2] == "wait":
            time.sleep(0.01)
