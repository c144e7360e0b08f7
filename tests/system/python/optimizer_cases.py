"""A rank of the jobs of test_optimizers.py: python3 optimizer_cases.py CASE. Prints what the test reads."""
import collections
import contextlib
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel as DDP

import pstrain
from cases import CASES, RANK, batch, case, digest, nearest_roots, net, refused, say

# ---- several optimizers: a GAN ----

MAKERS = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW, "rmsprop": torch.optim.RMSprop}
FIRST = ("sgd", {"lr": 0.05, "momentum": 0.9})
SECOND = ("adamw", {"lr": 1e-2, "betas": (0.5, 0.9)})


def generator():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 96), nn.ReLU(), nn.Linear(96, 8))


def critic():
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(8, 96), nn.ReLU(), nn.Linear(96, 1))


def noise(step, columns):
    return torch.randn(6, columns, generator=torch.Generator().manual_seed(100 * step + 10 * columns + RANK))


def loss_of(scores, wanted):
    return nn.functional.binary_cross_entropy_with_logits(scores, torch.full_like(scores, wanted))


def train_gan(makes, judges, of_makes, of_judges, steps, scale=lambda loss: loss):
    """Two steps of the critic for each of the generator, whose loss gives the critic gradients, too."""
    for step in range(*steps):
        for turn in range(2):
            of_judges.zero_grad()
            fake = makes(noise(2 * step + turn, 4)).detach()
            scale(loss_of(judges(noise(2 * step + turn, 8)), 1.0) + loss_of(judges(fake), 0.0)).backward()
            of_judges.step()
        of_makes.zero_grad()
        scale(loss_of(judges(makes(noise(2 * step, 4))), 1.0)).backward()
        of_makes.step()
        for group in of_makes.param_groups:
            group["lr"] *= 0.9


def train_reusing(makes, judges, of_makes, of_judges, steps):
    """PyTorch's DCGAN: one batch of the generator's for both steps."""
    for step in range(*steps):
        fake = makes(noise(step, 4))
        of_judges.zero_grad()
        loss_of(judges(torch.cat([noise(step, 8), fake.detach()])), 0.5).backward()
        of_judges.step()
        of_makes.zero_grad()
        loss_of(judges(fake), 1.0).backward()
        of_makes.step()


def digests(*models, buffers=True):
    return " ".join(digest(model, buffers) for model in models)


def by_ddp(steps, clip=None, nearest=True, train=train_gan, make=lambda: (generator(), critic())):
    """The weights after DDP over Gloo with PyTorch's optimizers."""
    dist.init_process_group("gloo")
    makes, judges = make()
    optimizers = [MAKERS[name](model.parameters(), **options)
                  for model, (name, options) in ((makes, FIRST), (judges, SECOND))]
    if clip is not None:
        for optimizer in optimizers:
            step, params = optimizer.step, [p for g in optimizer.param_groups for p in g["params"]]
            optimizer.step = lambda step=step, params=params: (nn.utils.clip_grad_norm_(params, clip), step())
    with nearest_roots() if nearest else contextlib.nullcontext():
        train(DDP(makes), DDP(judges), *optimizers, (steps,))
    dist.destroy_process_group()
    return makes, judges


def ours(makes, judges, **options):
    return [pstrain.Optimizer(model.named_parameters(), name, **how, **options)
            for model, (name, how) in ((makes, FIRST), (judges, SECOND))]


@case
def gan():
    """Both networks' weights: DDP's over Gloo, ours at once and with overlap."""
    theirs = by_ddp(6)
    makes, judges = generator(), critic()
    with pstrain.init():
        optimizers = ours(makes, judges, overlap_forward=sys.argv[2] == "overlap",
                          gradient_as_arena_view=sys.argv[2] == "view")
        train_gan(makes, judges, *optimizers, (6,))
        optimizers[0].synchronize()
        say("weights", digests(*theirs), digests(makes, judges))


def with_norms():
    norms = nn.BatchNorm1d(4, affine=False), nn.BatchNorm1d(8)
    return nn.Sequential(norms[0], *generator(), norms[1]), critic()


@case
def gan_of_norms():
    """The critic's step leaves the generator's buffers alone, which its backward pass needs; its own makes them rank 0's."""
    theirs, found = by_ddp(3, train=train_reusing, make=with_norms), with_norms()
    with pstrain.init():
        train_reusing(*found, *ours(*found), (3,))
        say("weights", digests(*theirs, buffers=False), digests(*found, buffers=False))
        say("buffers", digest(theirs[0]), digest(found[0]))


@case
def gan_whole():
    """The norm is that of the stepped optimizer's gradients; a codec leaves all ranks with the same bits."""
    makes, judges = generator(), critic()
    options = {"clip": {"clip_norm": 0.05}, "scale": {"loss_scale": 1024.0}, "codec": {"codec": "int8"},
               "topk": {"codec": "topk", "settings": ["exchange.codec_min=0"]}}[sys.argv[2]]
    theirs = by_ddp(6, options.get("clip_norm"))
    with pstrain.init():
        optimizers = ours(makes, judges, **options)
        train_gan(makes, judges, *optimizers, (6,), optimizers[0].scale)
        [o.state_dict() for o in optimizers]  # with a codec: the exact weights
        far = max(float((a - b).detach().abs().max()) for x, y in zip((makes, judges), theirs)
                  for a, b in zip(x.parameters(), y.parameters()))
        say("weights", digests(makes, judges), far)


@case
def gan_saved():
    """Six steps in one job, or three and, loaded, three."""
    folder, how = sys.argv[2:]
    makes, judges = generator(), critic()
    name = f"{folder}/gan{RANK}.pt"
    with pstrain.init():
        optimizers = ours(makes, judges)
        things = makes, judges, *optimizers
        if how == "load":
            for thing, state in zip(things, torch.load(f"{folder}/gan0.pt")):
                thing.load_state_dict(state)
        train_gan(makes, judges, *optimizers, {"save": (3,), "load": (3, 6), "whole": (6,)}[how])
        saved = [o.state_dict() for o in optimizers]
        torch.save([makes.state_dict(), judges.state_dict(), *saved], name)
        if RANK == 0:  # of 6 or 18 steps those of each
            assert all(s["step"] == {"save": 6, "load": 12, "whole": 12}[how] for s in saved[1]["state"].values())
            assert all(s.keys() == {"momentum_buffer"} for s in saved[0]["state"].values())
            torch.optim.AdamW(critic().parameters()).load_state_dict(saved[1])
        say("weights", digests(makes, judges))


@case
def saved_before_its_first_step():
    """The generator alone is trained and saved; in the next job the critic's first step is AdamW's first."""
    name, how = f"{sys.argv[2]}/first.pt", sys.argv[3]
    makes, judges, other = generator(), critic(), critic()
    with pstrain.init():
        optimizers = ours(makes, judges)
        if how == "load":
            for optimizer, state in zip(optimizers, torch.load(name)):
                optimizer.load_state_dict(state)
            for model, optimizer in ((judges, optimizers[1]), (other, MAKERS[SECOND[0]](other.parameters(), **SECOND[1]))):
                model(torch.ones(6, 8)).sum().backward()
                optimizer.step()
            torch.testing.assert_close(list(judges.parameters()), list(other.parameters()), rtol=1e-6, atol=1e-6)
            return say("fine")
        for step in range(5):
            optimizers[0].zero_grad()
            makes(noise(step, 4)).sum().backward()
            optimizers[0].step()
        saved = [optimizer.state_dict() for optimizer in optimizers]
        if RANK == 0:
            torch.save(saved, name)


@case
def gan_bytes():
    """A step of one sends nothing of the other's."""
    makes, judges = nn.Linear(300, 300), nn.Linear(500, 500)
    with pstrain.init():
        optimizers = ours(makes, judges)
        for model, optimizer, width in zip((makes, judges), optimizers, (300, 500)):
            optimizer.start()
            for step in range(3):
                before = pstrain.job.current().session.stats()
                model(torch.ones(2, width)).sum().backward()
                optimizer.step()
                optimizer.zero_grad()
                after = pstrain.job.current().session.stats()
                there, back = (getattr(after, f"shm_{way}") + getattr(after, f"bytes_{way}") -
                               getattr(before, f"shm_{way}") - getattr(before, f"bytes_{way}")
                               for way in ("sent", "received"))
                own = 4 * (width * width + width)
                assert own <= there < own + 4000 and own <= back < own + 4000, (there, back, own)
    say("fine")


@case
def other_order():
    """Ranks that step different optimizers."""
    makes, judges = generator(), critic()
    pstrain.init()
    optimizers = ours(makes, judges)
    train_gan(makes, judges, *optimizers, (1,))
    loss_of(judges(makes(noise(0, 4))), 1.0).backward()
    words = ["in step 4 ", "worker 0", "worker 1", "optimizer of 0.weight", "optimizer of 0.weight of optimizer 2"]
    refused(pstrain.PeerError, words, optimizers[RANK].step)
    say("refused")


@case
def refusals():
    """Optimizers that do not go together."""
    makes, judges = generator(), critic()
    with pstrain.init():
        wrong = pstrain.InputError
        first = pstrain.Optimizer(makes.named_parameters(), "sgd", lr=0.1)
        refused(wrong, ["'2.weight'", "another"],
                lambda: pstrain.Optimizer([("2.weight", makes[2].weight)], "sgd", lr=0.1))
        refused(wrong, ["clip_norm"], lambda: pstrain.Optimizer(judges.named_parameters(), "sgd", clip_norm=1.0))
        refused(wrong, ["overlap_forward"],
                lambda: pstrain.Optimizer(judges.named_parameters(), "sgd", overlap_forward=True))
        refused(wrong, ["float64 parameter", "class"],
                lambda: pstrain.Optimizer(critic().double().named_parameters(), "sgd", lr=0.1))
        second = pstrain.Optimizer(judges.named_parameters(), "rmsprop", lr=0.1, centered=True)
        # losses that were made before the steps, as PyTorch allows for independent models
        one, other = makes(noise(0, 4)).sum(), judges(noise(0, 8)).sum()
        one.backward()
        first.step()
        other.backward()
        second.step()
        say("fine")


# ---- uneven inputs ----

def train_unevenly(model, optimizer, most, context):
    with context:
        for step in range(most if RANK == 0 else 8 - most):
            images, labels = batch(step)
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images.to(next(model.parameters()).dtype)), labels).backward()
            optimizer.step()


def apart(model):
    """Its frozen weights and its buffers are another rank's own at first."""
    weight = next(model.parameters()).requires_grad_(False)
    with torch.no_grad():
        for tensor in (weight, *model.buffers()):
            tensor.add_(RANK)
    return model


@case
def uneven():
    """DDP's join and ours: rank 0 has 3 or 5 of 8 batches."""
    most, by_all, rule = int(sys.argv[2]), sys.argv[3] == "all", sys.argv[4]
    make = {"doubles": lambda: net().double(), "apart": lambda: apart(net())}.get(rule, net)
    dist.init_process_group("gloo")
    other = make()
    ddp = DDP(other)
    train_unevenly(ddp, torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9), most,
                   ddp.join(divide_by_initial_world_size=by_all))
    dist.destroy_process_group()
    model = make()
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), torch.optim.SGD if rule == "own" else "sgd", lr=0.1,
                                      momentum=0.9)
        train_unevenly(model, optimizer, most, optimizer.join(divide_by_initial_world_size=by_all))
        say("weights", digest(other, False), digest(model, False))
        # the buffers of the rank that went on the longest, as DDP's
        say("buffers", digest(model))
        train_unevenly(model, optimizer, 4, contextlib.nullcontext())  # even ones again


@case
def uneven_gan():
    """Rank 1 has fewer batches; both optimizers' steps are shadowed."""
    makes, judges = generator(), critic()
    with pstrain.init():
        optimizers = ours(makes, judges)
        with optimizers[1].join():
            train_gan(makes, judges, *optimizers, (4 - RANK,))
        say("weights", digests(makes, judges))


@case
def uneven_refused():
    """throw_on_early_termination, and an exception in the block."""
    pstrain.init()
    model = net()
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)
    refused(pstrain.InputError, ["rank 0 has no batch left"],
            lambda: train_unevenly(model, optimizer, 3, optimizer.join(throw_on_early_termination=True)))
    say("fine")
    pstrain.abort("done")


@case
def uneven_from_the_start():
    """Rank 1 has no batch at all, and has not met the model, whose buffers would be rank 0's."""
    pstrain.init()
    model = net()
    optimizer = pstrain.Optimizer(model.named_parameters(), "sgd", lr=0.1)

    def train():
        with optimizer.join():
            for step in range(2 * (1 - RANK)):
                images, labels = batch(step)
                nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()

    refused(pstrain.InputError, ["rank 1 has made no forward pass", "before join()"], train)
    say("fine")
    pstrain.abort("done")


# ---- a rule of the program's own ----

class Signs(torch.optim.Optimizer):
    """Somebody's own."""

    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.add_(torch.sign(p.grad), alpha=-group["lr"])
                    self.state[p]["steps"] = self.state[p].get("steps", 0) + 1


class Free(Signs):
    """Exchanges the weights, as schedule-free optimizers do."""

    def __init__(self, params, lr):
        super().__init__(params, lr)
        self.trains = False

    @torch.no_grad()
    def train(self, mode=True):
        if mode != self.trains:
            for p in (p for group in self.param_groups for p in group["params"]):
                p.add_(p.sign(), alpha=0.01 if mode else -0.01)
        self.trains = mode

    def eval(self):
        self.train(False)

    def update_curvature(self):
        pass


RULES = {  # ours, and PyTorch's
    "class": ((torch.optim.NAdam, {"lr": 0.01}), torch.optim.NAdam),
    "name": (("adamax", {"lr": 0.01}), torch.optim.Adamax),
    "amsgrad": (("adam", {"lr": 0.01, "amsgrad": True}), torch.optim.Adam),
    "own": ((Signs, {"lr": 0.01}), Signs),
    "free": ((Free, {"lr": 0.01}), Free),
    "maker": ((lambda params, lr: torch.optim.Adadelta(params, lr, rho=0.8), {"lr": 0.5}),
              lambda params, lr: torch.optim.Adadelta(params, lr, rho=0.8)),
    "doubles": (("adamw", {"lr": 0.01}), torch.optim.AdamW),
    "mixed": (("sgd", {"lr": 0.01, "momentum": 0.9}), torch.optim.SGD),
}


class Branches(nn.Module):
    """One of its branches is used in every second step."""

    def __init__(self):
        super().__init__()
        self.always, self.seldom = generator(), generator()
        if sys.argv[2:] == ["doubles"]:
            self.double()
        elif sys.argv[2:] == ["mixed"]:
            self.seldom[:1].double()
            self.always[2:].double()

    def forward(self, x, both):
        return _by_dtype(self.always, x) + (_by_dtype(self.seldom, x) if both else 0)


def _by_dtype(layers, x):
    """Each layer computes in its own dtype."""
    for layer in layers:
        x = layer(x.to(next(layer.parameters(), x).dtype))
    return x


def train_branches(model, optimizer, steps, clip=lambda: None):
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
    for step in range(*steps):
        if step == 2:  # moments begin anew
            optimizer.state = collections.defaultdict(dict)
        if hasattr(optimizer, "train"):
            optimizer.train()
        optimizer.zero_grad(set_to_none=True)
        (model(noise(step, 4), step % 2 == 1) ** 2).sum().backward()
        clip()
        optimizer.step()
        scheduler.step()
        if hasattr(optimizer, "eval") and step % 2 == 1:
            optimizer.eval()


@contextlib.contextmanager
def steps_told():
    """The optimizers of whose steps PyTorch tells the hooks of all; None: PyTorch 1 has no such hooks."""
    add = getattr(sys.modules["torch.optim.optimizer"], "register_optimizer_step_post_hook", None)
    told = [] if add else None
    hook = add(lambda optimizer, *_: told.append(optimizer)) if add else contextlib.nullcontext()
    with hook:
        yield told


@case
def own_rule():
    """DDP over Gloo and ours with the same optimizer: the weights, and the state."""
    (rule, options), theirs = RULES[sys.argv[2]]
    clip = 1.0 if sys.argv[2] == "class" else 0.0
    dist.init_process_group("gloo")
    other = Branches()
    ddp = DDP(other, find_unused_parameters=True)
    of_others = theirs(ddp.parameters(), **options)
    train_branches(ddp, of_others, (5,), lambda: clip and nn.utils.clip_grad_norm_(ddp.parameters(), clip))
    dist.destroy_process_group()
    model = Branches()
    if RANK > 0:
        [p.data.zero_() for p in model.parameters()]  # rank 0's count
    with pstrain.init():
        optimizer = pstrain.Optimizer(model.named_parameters(), rule, clip_norm=clip, **options)
        with steps_told() as told:
            train_branches(model, optimizer, (5,))
        assert told in ([optimizer] * 5, None), told
        ours_, theirs_ = optimizer.state_dict(), of_others.state_dict()
        assert ours_["param_groups"] == theirs_["param_groups"]
        assert ours_["state"].keys() == theirs_["state"].keys()
        for mine, his in zip(ours_["state"].values(), theirs_["state"].values()):
            assert all(torch.equal(torch.as_tensor(mine[k]), torch.as_tensor(his[k])) for k in his), (mine, his)
        say("weights", digest(other), digest(model))
        if rule is Free:
            refused(AttributeError, ["Free.update_curvature()", "process group"], lambda: optimizer.update_curvature())
        assert hasattr(optimizer, "eval") == (rule is Free)
        optimizer.load_state_dict(theirs_)  # at any time
        with torch.no_grad():
            model.always[0].weight.clamp_(-1, 1)  # the weights are the program's
        train_branches(model, optimizer, (5, 6))
        for p in model.parameters():
            p.grad = torch.autograd.grad(p.sum(), p)[0]  # one number in memory
        optimizer.step()
        assert all(float(p.grad.min()) == float(p.grad.max()) > 0 for p in model.parameters())


@case
def own_rules_of_a_gan():
    makes, judges = generator(), critic()
    with pstrain.init():
        optimizers = [pstrain.Optimizer(model.named_parameters(), MAKERS[name], **how)
                      for model, (name, how) in ((makes, FIRST), (judges, SECOND))]
        train_gan(makes, judges, *optimizers, (6,))
    theirs = by_ddp(6, nearest=False)
    say("weights", digests(*theirs), digests(makes, judges))


class Doubles(nn.Sequential):
    def forward(self, x):
        return super().forward(x.double())


class Floats(nn.Sequential):
    def forward(self, x):
        return super().forward(x.float())


@case
def doubles_of_a_gan():
    """Both networks, or one of them, are float64."""
    forms = {"both": (Doubles, Doubles), "first": (Doubles, Floats), "second": (Floats, Doubles)}[sys.argv[2]]
    make = lambda: [form(*layers).to(torch.float64 if form is Doubles else torch.float32)
                    for form, layers in zip(forms, (generator(), critic()))]
    dist.init_process_group("gloo")
    theirs = make()
    with nearest_roots():
        train_gan(*map(DDP, theirs), *(MAKERS[name](model.parameters(), **how)
                                       for model, (name, how) in zip(theirs, (FIRST, SECOND))), (6,))
    dist.destroy_process_group()
    makes, judges = make()
    with pstrain.init():
        named = [(model.named_parameters(), name if form is Doubles else MAKERS[name], how)
                 for model, form, (name, how) in zip((makes, judges), forms, (FIRST, SECOND))]
        with nearest_roots():
            train_gan(makes, judges, *(pstrain.Optimizer(params, rule, **how) for params, rule, how in named), (6,))
        say("weights", digests(*theirs), digests(makes, judges))


@case
def own_refusals():
    layer, other = nn.Linear(2, 2), nn.Linear(2, 2)
    wrong = pstrain.InputError
    pstrain.init()
    make = lambda *a, **o: lambda: pstrain.Optimizer(layer.named_parameters(), *a, **o)
    refused(wrong, ["LBFGS", "closure"], make(torch.optim.LBFGS))
    refused(wrong, ["overlap_forward"], make(torch.optim.NAdam, overlap_forward=True))
    refused(wrong, ["list", "not a torch.optim.Optimizer"], make(lambda params: list(params)))
    refused(wrong, ["7"], make(7))
    layer.double()
    refused(wrong, ["'weight' is float64", "class"], make("lion"))
    refused(wrong, ["loss_scale", "float64"], make("sgd", lr=0.1, loss_scale=True))
    refused(wrong, ["'weight' is float64", "codec"], make("sgd", lr=0.1, codec="int8"))
    if RANK == 1:
        layer.float()
    optimizer = make(torch.optim.NAdam)()
    refused(wrong, ["servers", "PyTorch"], lambda: pstrain.Optimizer(other.named_parameters(), "sgd"))
    refused(pstrain.PeerError, ["worker 1", "weight (2, 2)", "weight of float64 (2, 2)"], optimizer.start)
    say("refused")


if __name__ == "__main__":
    torch.set_num_threads(1)
    CASES[sys.argv[1]]()
