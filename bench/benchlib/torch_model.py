"""The model of model.layers, built in PyTorch with the names that pstrain gives."""
import fnmatch

import torch
from torch import nn
from torch.nn import functional as F

from .job_config import BenchError


def _pair(value):
    if isinstance(value, list):
        return tuple(int(v) for v in value)
    return (int(value), int(value))


def _settings(item):
    """("conv2d", {settings}). A value alone is the main setting of the kind."""
    if isinstance(item, str):
        return item, {}
    (kind, value), = item.items()
    if isinstance(value, dict):
        return kind, value
    alone = {"linear": "out", "max_pool2d": "kernel", "avg_pool2d": "kernel", "dropout": "p",
             "leaky_relu": "negative_slope", "elu": "alpha", "group_norm": "groups",
             "upsample": "scale", "concat": "branches", "max_pool1d": "kernel", "avg_pool1d": "kernel",
             "adaptive_avg_pool2d": "size", "adaptive_max_pool2d": "size", "adaptive_avg_pool1d": "size"}
    return kind, {} if value is None else {alone[kind]: value}


class Residual(nn.Module):
    """out = body(x) + shortcut(x); the parts are held by the model under their own names."""

    def __init__(self, body, shortcut):
        super().__init__()
        self.parts = (body, shortcut)  # a tuple: not registered a second time

    def forward(self, x):
        body, shortcut = self.parts
        return run(body, x) + (run(shortcut, x) if shortcut else x)


class Concat(nn.Module):
    """The outputs of the branches behind each other, along the channels."""

    def __init__(self, branches):
        super().__init__()
        self.parts = branches  # as Residual's

    def forward(self, x):
        return torch.cat([run(branch, x) for branch in self.parts], dim=1)


def run(layers, x):
    for layer in layers:
        x = layer(x)
    return x


def _conv(kind, sizes):
    """sizes: of the numbers of a setting, int or _pair."""
    def make(s, shape, **_):
        return kind(shape[0], int(s["out"]), sizes(s["kernel"]), sizes(s.get("stride", 1)),
                    sizes(s.get("padding", 0)), sizes(s.get("dilation", 1)), int(s.get("groups", 1)),
                    bias=s.get("bias", "true") == "true")
    return make


def _batch_norm(kind):
    return lambda s, shape, **_: kind(shape[0], eps=float(s.get("eps", 1e-5)), momentum=float(s.get("momentum", 0.1)))


def _pool(kind, sizes, whole=None):
    """whole: the layer for "global"."""
    def make(s, shape, **_):
        if s["kernel"] == "global":
            return whole(1)
        kernel = sizes(s["kernel"])
        stride = sizes(s["stride"]) if "stride" in s else kernel
        return kind(kernel, stride, sizes(s.get("padding", 0)))
    return make


def _upsample(s, shape, **_):
    where = {"size": _pair(s["size"])} if "size" in s else {"scale_factor": _pair(s["scale"])}
    return nn.Upsample(**where, mode=s.get("mode", "nearest"))


LAYERS = {
    "conv2d": _conv(nn.Conv2d, _pair), "conv1d": _conv(nn.Conv1d, int),
    "linear": lambda s, shape, **_: nn.Linear(shape[0], int(s["out"]), bias=s.get("bias", "true") == "true"),
    "batch_norm2d": _batch_norm(nn.BatchNorm2d), "batch_norm1d": _batch_norm(nn.BatchNorm1d),
    "group_norm": lambda s, shape, **_: nn.GroupNorm(int(s["groups"]), shape[0], eps=float(s.get("eps", 1e-5))),
    "layer_norm": lambda s, shape, **_: nn.LayerNorm(shape[0], eps=float(s.get("eps", 1e-5))),
    "dropout": lambda s, shape, dropout, **_: nn.Dropout(float(s["p"]) if dropout else 0.0),
    "max_pool2d": _pool(nn.MaxPool2d, _pair), "max_pool1d": _pool(nn.MaxPool1d, int),
    "avg_pool2d": _pool(nn.AvgPool2d, _pair, nn.AdaptiveAvgPool2d),
    "avg_pool1d": _pool(nn.AvgPool1d, int, nn.AdaptiveAvgPool1d), "upsample": _upsample,
    "adaptive_avg_pool2d": lambda s, shape, **_: nn.AdaptiveAvgPool2d(_pair(s["size"])),
    "adaptive_max_pool2d": lambda s, shape, **_: nn.AdaptiveMaxPool2d(_pair(s["size"])),
    "adaptive_avg_pool1d": lambda s, shape, **_: nn.AdaptiveAvgPool1d(int(s["size"])),
    "leaky_relu": lambda s, shape, **_: nn.LeakyReLU(float(s.get("negative_slope", 0.01))),
    "elu": lambda s, shape, **_: nn.ELU(float(s.get("alpha", 1.0))),
    "gelu_tanh": lambda s, shape, **_: nn.GELU(approximate="tanh"),
    "log_softmax": lambda s, shape, **_: nn.LogSoftmax(dim=1),
    **{kind.__name__.lower(): lambda s, shape, kind=kind, **_: kind()
       for kind in (nn.ReLU, nn.ReLU6, nn.Tanh, nn.SiLU, nn.GELU, nn.Sigmoid, nn.Flatten)},
}


class Model(nn.Module):
    """forward runs the layers of the configuration in order, with train.precision=bf16 under
    torch.autocast; the outputs are float32."""

    def __init__(self, config):
        super().__init__()
        self.narrow = config["train.precision"] == "bf16"
        self.dropout = config["model.dropout"]
        if config["model.categories"]:
            raise BenchError("model.categories: the PyTorch side has no embeddings")
        # Shapes are found by running a sample of zeros through what has been built so far.
        with torch.no_grad():
            probe = torch.zeros(2, *config["model.input"])
            self.program = tuple(self._list(config.layers, "", probe)[0])
        for module in self.modules():
            if isinstance(module, (nn.BatchNorm1d, nn.BatchNorm2d)):
                module.reset_running_stats()
        for name, param in self.named_parameters():
            param.requires_grad_(not matches(config["train.freeze"], name))

    def _list(self, items, prefix, probe):
        layers = []
        for index, item in enumerate(items):
            kind, settings = _settings(item)
            path = ".".join(filter(None, (prefix, settings.get("name", str(index)))))
            if kind == "residual":
                layer = self._residual(settings, path, probe)
            elif kind == "concat":
                layer = Concat(tuple(tuple(self._list(branch, path, probe)[0]) for branch in settings["branches"]))
            elif kind in LAYERS:
                layer = LAYERS[kind](settings, tuple(probe.shape[1:]), dropout=self.dropout)
            else:
                raise BenchError(f"layer {kind}: the PyTorch side does not have it")
            if kind not in ("residual", "concat"):
                # Those without weights too: train() and eval() have to reach dropout.
                named = any(True for _ in layer.parameters())
                self._register(path if named else f"{kind}_{len(self._modules)}_{path}", layer)
            layers.append(layer)
            probe = layer(probe)
        return layers, probe

    def _residual(self, settings, path, probe):
        body, _ = self._list(settings["body"], path, probe)
        shortcut, _ = self._list(settings.get("shortcut") or [], path, probe)
        return Residual(tuple(body), tuple(shortcut))

    def _register(self, path, layer):
        *folders, name = path.split(".")
        at = self
        for folder in folders:
            if folder not in at._modules:
                at.add_module(folder, nn.Module())
            at = at._modules[folder]
        if name in at._modules:
            raise BenchError(f"{path}: the PyTorch side needs names for layers at the same place of two lists")
        at.add_module(name, layer)

    def forward(self, x):
        if not self.narrow:
            return run(self.program, x)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return run(self.program, x).float()


def loss_of(config):
    """loss(outputs, labels): the mean over the batch."""
    kind = config["model.loss"]
    weight = torch.tensor(config["train.class_weights"]) if config["train.class_weights"] else None
    ignore, smoothing = config["train.ignore_index"], config["train.label_smoothing"]

    def of_type(out):
        return weight if weight is None else weight.to(out.dtype)

    if kind == "cross_entropy" or kind == "nll" and smoothing:  # log_softmax twice is once
        return lambda out, labels: F.cross_entropy(out, labels, of_type(out), ignore_index=ignore,
                                                   label_smoothing=smoothing)
    if kind == "nll":
        return lambda out, labels: F.nll_loss(out, labels, of_type(out), ignore_index=ignore)
    of_numbers = {"mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss,
                  "bce_with_logits": F.binary_cross_entropy_with_logits}[kind]
    return lambda out, labels: of_numbers(out, F.one_hot(labels, out.shape[1]).to(out.dtype))


def matches(patterns, name):
    return any(fnmatch.fnmatchcase(name, p) for p in patterns)


def _groups(config, model):
    """Parameter groups with the learning rates and weight decays of optimizer.groups, and weight
    decay on the other tensors that pstrain decays."""
    roles = {t["name"]: t["role"] for t in config.tensors}
    spared = {n for n, role in roles.items() if role in ("bias", "norm") and not config["optimizer.decay_bias_norm"]}
    groups = {}
    for name, param in model.named_parameters():
        if not param.requires_grad:
            continue
        own = next((g for g in config["optimizer.groups"] if matches(g["match"], name)), {})
        lr, decay = own.get("lr"), own.get("weight_decay")
        if lr is None:
            lr = config["optimizer.lr"]
        if decay is None:
            decay = 0.0 if name in spared else config["optimizer.weight_decay"]
        group = groups.setdefault((lr, decay), {"params": [], "lr": lr, "weight_decay": decay})
        group["params"].append(param)
    return list(groups.values())


OPTIONS = {
    "sgd": ("momentum", "dampening", "nesterov"),
    "adam": ("betas", "eps"),
    "adamw": ("betas", "eps"),
    "rmsprop": ("momentum", "alpha", "centered", "eps"),
    "adagrad": ("lr_decay", "initial_accumulator_value", "eps"),
    "lion": ("betas",),
}


def _options(config):
    """Of the optimizer, by PyTorch's names."""
    values = {name: config[f"optimizer.{name}"] for name in ("lr", *OPTIONS[config["optimizer.name"]])}
    if "betas" in values:
        values["betas"] = tuple(values["betas"])
    return values


def optimizer_of(config, model, **extra):
    """PyTorch's; extra: of its class."""
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
            "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad}
    if config["optimizer.name"] not in kind:
        raise BenchError(f"PyTorch has no optimizer {config['optimizer.name']}")
    return kind[config["optimizer.name"]](_groups(config, model), **_options(config), **extra)


def package_optimizer(config, model, codec, total_steps):
    """The Python package's, in the job of PS_INIT_METHOD. codec: "int8+overlap" is int8 with overlap_forward."""
    import pstrain

    codec, _, how = codec.partition("+")
    pstrain.init()
    settings = {f"exchange.{key}": config[f"exchange.{key}"]
                for key in ("codec_min", "codec_warmup", "codec_cooldown")}
    return pstrain.Optimizer(_groups(config, model), config["optimizer.name"], codec=codec,
                             clip_norm=config["optimizer.clip_norm"], total_steps=total_steps,
                             overlap_forward=how == "overlap", settings=settings, **_options(config))


def scaler_of(config):
    use = config["loss_scale.use"]
    if use == "off" or (use == "auto" and config["train.precision"] != "fp16"):
        return torch.amp.GradScaler("cpu", enabled=False) if hasattr(torch.amp, "GradScaler") else \
            torch.cuda.amp.GradScaler(enabled=False)
    if not hasattr(torch.amp, "GradScaler"):
        raise BenchError("loss scaling on the CPU needs PyTorch 2.3 or newer, this is " + torch.__version__)
    return torch.amp.GradScaler("cpu", config["loss_scale.init"], config["loss_scale.growth"], config["loss_scale.backoff"],
                                config["loss_scale.interval"])
