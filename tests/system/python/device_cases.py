"""Cases of worker.py: parameters on a GPU. The driver is a stand-in, and the GPU's memory is the host's."""
import ctypes
import os
import sys
import types

import torch
from torch import nn

import pstrain
from cases import RANK, Net, batch, case, digest, refused, say
from ddp_cases import collectives, ddp
from pstrain import _cuda, _pinned

DRIVER = os.path.join(os.environ["PS_BIN"], "libstand_in_cuda.so")


class StandIn(_cuda.Gpu):
    """PyTorch's CPU computes at once; the library's copies come late, until the program waits for them."""

    driver = DRIVER.encode()
    capturing = False

    def __init__(self):
        super().__init__(torch.device("cpu"))
        self.library = ctypes.CDLL(DRIVER)
        self.library.stand_in_cuda_stream.restype = ctypes.c_void_p
        self.library.stand_in_cuda_seed(ctypes.c_uint64(RANK + 1))
        self.stream = self.library.stand_in_cuda_stream()

    def _ordinal(self):
        return RANK

    def _stream(self):
        return self.stream

    def is_capturing(self):
        return self.capturing

    def wait(self, first, n):
        super().wait(first, n)
        self.library.stand_in_cuda_synchronize()


class OnGpu(pstrain.Optimizer):
    def device(self):
        return StandIn()


def model_of(form):
    torch.manual_seed(7)
    if form == "bf16":
        return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).bfloat16()
    model = Net()
    return model.double() if form == "doubles" else model.to(memory_format=torch.channels_last) if form == "channels_last" else model


FORMS = {
    "plain": ("adamw", {"clip_norm": 0.5}),
    "overlap": ("sgd", {"momentum": 0.9, "overlap_forward": True}),
    "views": ("adamw", {"gradient_as_arena_view": True}),
    "bf16": ("adamw", {"lr": 0.01}),
    "channels_last": ("lamb", {}),
    "local": (torch.optim.NAdam, {}),
    "doubles": ("adamw", {}),
    "codec": ("sgd", {"lr": 0.1, "codec": "int8"}),
    "scale": ("sgd", {"lr": 0.1, "loss_scale": 256.0}),
    "step": ("adamw", {"push": "step"}),
    "frozen": ("adamw", {}),
    "two": ("sgd", {"lr": 0.1}),
}


@case
def device():
    """The weights after some steps; "gpu": by the stand-in, else on the CPU."""
    where, form = sys.argv[2:]
    name, options = FORMS[form]
    with pstrain.init():
        model, unused = model_of(form), nn.Linear(3, 3)
        make = OnGpu if where == "gpu" else pstrain.Optimizer
        if form == "frozen":
            model.wide.requires_grad_(False)
        named = [*model.named_parameters(), *unused.named_parameters()]
        half = 4 if form == "two" else 0
        other = make(named[:half], "adamw", lr=0.01) if half else None
        optimizer = make(named[half:], name, **options)
        for step in range(6):
            if form == "frozen" and step == 3:
                model.wide.requires_grad_(True)
            if form == "bf16" and step == 4:
                late = nn.Linear(2, 2).bfloat16()
                optimizer.add_param_group({"params": list(late.parameters()), "lr": 0.1})
            images, labels = batch(step)
            images = images.to(next(model.parameters()).dtype)
            if form == "channels_last":
                images = images.contiguous(memory_format=torch.channels_last)
            optimizer.zero_grad()
            optimizer.scale(nn.functional.cross_entropy(model(images), labels)).backward()
            optimizer.step()
            if other is not None:
                if step % 2:
                    other.step()
                other.zero_grad()
            if step == 3 and other is None:
                optimizer.state_dict()
        optimizer.synchronize()
        if form == "bf16":
            model.float()
        say("digest", digest(model))
    after = digest(model)  # the weights stay when the job is over
    if where == "gpu":
        assert ctypes.CDLL(DRIVER).stand_in_cuda_open() == 0
    say("after", after)


@case
def graphs():
    """CUDA graphs that would be stale are refused."""
    with pstrain.init():
        model = nn.Linear(4, 2)
        optimizer = OnGpu(model.named_parameters(), "sgd", lr=0.5)
        x = torch.ones(1, 4)
        gpu = optimizer._table.device
        gpu.capturing = True
        refused(pstrain.InputError, ["call optimizer.start()"], lambda: model(x))
        gpu.capturing = False
        model.forward = types.FunctionType(model.forward.__code__, {"F": nn.functional, "__name__": "torch.cuda.graphs"}
                                           ).__get__(model)
        model.forward.__func__.__module__ = "torch.cuda.graphs"
        optimizer.start()
        refused(pstrain.InputError, ["before torch.cuda.make_graphed_callables"], lambda: model(x))
        del model.forward
        model(x).sum().backward()
        optimizer.step()
        for param in model.parameters():
            param.grad = torch.ones_like(param)
        refused(pstrain.InputError, ["the replay of a CUDA graph"], optimizer.step)
        optimizer.zero_grad()
        loss = model(x).sum()
        gpu.capturing = True
        try:
            refused(pstrain.InputError, ["is captured in a CUDA graph"], loss.backward)
        finally:
            gpu.capturing = False
        say("fine")
        pstrain.abort("it is over")


@case
def graphs_of_modules():
    """The replay of a captured module waits for the weights of the modules in it. Where parameters are added all of them
    move, and its graph is refused."""
    with pstrain.init():
        model, x = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2)), torch.ones(1, 4)
        optimizer = OnGpu(model.named_parameters(), "sgd", lr=0.5, overlap_forward=True)
        gpu = optimizer._table.device
        optimizer.start()
        gpu.capturing = True
        model(x)
        gpu.capturing = False

        def replay(given):
            first, second = model
            return nn.functional.linear(nn.functional.linear(given, first.weight, first.bias), second.weight, second.bias)
        replay.__module__ = "torch.cuda.graphs"
        model.forward = replay
        bias = model[1].bias.detach().clone()
        for _ in range(3):
            optimizer.zero_grad()
            out = model(x)
            assert torch.equal(model[1].bias, bias), (model[1].bias, bias)
            out.sum().backward()
            optimizer.step()
            bias -= 0.5  # its gradient is 1
        optimizer.add_param_group({"params": list(nn.Linear(2, 2).parameters())})
        refused(pstrain.InputError, ["capture again"], lambda: model(x))
        say("fine")


@case
def graphs_after_the_job():
    """A captured parameter stays at its place."""
    model, x = nn.Linear(4, 2), torch.ones(1, 4)
    with pstrain.init():
        optimizer = OnGpu([model.weight, model.bias], "sgd", lr=0.5)
        optimizer.start()
        optimizer._table.device.capturing = True
        model(x)
        optimizer._table.device.capturing = False
        places, bias = [p.data_ptr() for p in model.parameters()], model.bias.detach().clone()
        model(x).sum().backward()
        optimizer.step()
    assert [p.data_ptr() for p in model.parameters()] == places
    assert torch.equal(model.bias, bias - 0.5)
    say("fine")


class LateCopies(_pinned.Copies):
    """A GPU's copies, where all tensors that are not in pinned memory count as a GPU's. One to the host is made when it
    is awaited."""

    hosts = set()

    def __init__(self, device):
        self.device = device

    def memory(self, like):
        host = torch.full(like.shape, 3, dtype=like.dtype)
        self.hosts.add(memory_of(host))
        return host

    def leave(self, host, tensor, after):
        return types.SimpleNamespace(synchronize=lambda: host.copy_(tensor))

    def arrive(self, tensor, host, then):
        tensor.copy_(host)
        then()
        return types.SimpleNamespace(synchronize=lambda: None)

    def promise_devices(self):
        return []


def memory_of(tensor):
    return tensor.storage().data_ptr()


def pretend():
    _pinned.Copies = LateCopies
    _pinned.is_on_gpu = lambda what: (isinstance(what, torch.Tensor) and what.layout == torch.strided and what.is_contiguous()
                                       and what.device.type == "cpu"
                                       and memory_of(what) not in LateCopies.hosts)


@case
def ddp_on_gpu():
    pretend()
    ddp()


@case
def collectives_on_gpu():
    pretend()
    collectives()
