"""The sweep of `bench/step --shapes`: models of one layer of interest, and configs/.

The other layers cost next to nothing: a convolution of 1 x 1 in front of it gives
it the channels that it reads, so that its input has a gradient; a global pool and a small
linear layer end the model.
"""
import glob
import os

from .job_config import ROOT

# in, out, kernel, stride, padding, side of the image, batch; after another layer.
INNER = [(4, 8, 3, 1, 1, 28, 32), (5, 10, 3, 1, 1, 28, 32), (6, 16, 5, 1, 0, 14, 64), (8, 8, 3, 1, 1, 32, 32),
         (8, 12, 3, 1, 1, 28, 32), (8, 16, 3, 1, 1, 32, 32), (10, 20, 5, 1, 0, 12, 64), (12, 12, 3, 1, 1, 28, 32),
         (12, 16, 3, 1, 1, 28, 32), (15, 31, 3, 1, 1, 20, 32), (16, 16, 3, 1, 1, 32, 32), (16, 32, 3, 2, 1, 32, 32),
         (16, 8, 1, 1, 0, 28, 32), (17, 33, 3, 1, 1, 16, 32), (20, 50, 5, 1, 0, 12, 64), (24, 24, 3, 1, 1, 28, 16),
         (24, 64, 5, 1, 2, 14, 16), (32, 32, 3, 1, 1, 16, 64), (32, 32, 7, 1, 3, 28, 8), (32, 64, 3, 1, 0, 26, 64),
         (32, 64, 3, 2, 1, 56, 8), (48, 96, 3, 1, 1, 14, 16), (64, 64, 1, 1, 0, 56, 8), (64, 64, 3, 1, 1, 56, 4),
         (64, 96, 11, 4, 2, 56, 8), (64, 128, 1, 2, 0, 28, 16), (96, 256, 5, 1, 2, 27, 2), (100, 100, 3, 1, 1, 14, 16),
         (128, 128, 3, 1, 1, 16, 16), (128, 256, 3, 2, 1, 14, 16), (256, 64, 1, 1, 0, 28, 8), (256, 256, 3, 1, 1, 8, 16),
         (512, 512, 1, 1, 0, 7, 16), (512, 512, 3, 1, 1, 1, 32), (512, 512, 3, 1, 1, 4, 16), (64, 64, 1, 1, 0, 1, 64)]
# The same, reading the model's input, which has no gradient.
FIRST = [(1, 6, 5, 1, 2, 28, 64), (1, 16, 20, 1, 0, 28, 32), (1, 32, 3, 1, 0, 28, 64), (2, 16, 3, 1, 1, 28, 32),
         (3, 16, 3, 1, 1, 32, 32), (3, 32, 3, 2, 1, 112, 8), (3, 64, 3, 1, 1, 224, 1), (3, 64, 7, 2, 3, 224, 2),
         (3, 96, 11, 4, 2, 224, 2), (3, 128, 16, 16, 0, 224, 4), (4, 16, 3, 1, 1, 32, 32), (5, 16, 3, 1, 1, 32, 32),
         (8, 16, 3, 1, 1, 32, 32), (10, 32, 5, 1, 2, 20, 32), (13, 7, 3, 1, 1, 20, 32), (64, 64, 3, 1, 1, 14, 16),
         (1, 8, 14, 1, 0, 28, 32), (1, 8, 15, 3, 0, 64, 32)]
# Channels in and out, kernel, stride, padding, dilation, groups, side, batch.
GROUPED = [(32, 32, 3, 1, 1, 1, 32, 56, 8), (96, 96, 3, 2, 1, 1, 96, 56, 8), (144, 144, 3, 1, 1, 1, 144, 28, 16),
           (576, 576, 3, 1, 1, 1, 576, 14, 16), (960, 960, 3, 1, 1, 1, 960, 7, 32), (20, 20, 5, 1, 2, 1, 20, 28, 16),
           (240, 240, 5, 1, 2, 1, 240, 28, 8), (96, 96, 5, 2, 2, 1, 96, 56, 8),
           (64, 64, 3, 1, 1, 1, 4, 28, 16), (128, 128, 3, 1, 1, 1, 32, 28, 8), (24, 48, 3, 1, 1, 1, 3, 28, 16),
           (64, 64, 3, 1, 2, 2, 1, 28, 16), (32, 64, 3, 2, 4, 4, 1, 28, 16)]
ACTIVATIONS = [(kind, c, side, n) for kind in ("relu6", "leaky_relu", "elu", "silu", "gelu", "gelu_tanh")
               for c, side, n in ((64, 28, 16), (20, 14, 32))]
LINEAR = [(64, 10, 64), (784, 128, 64), (1024, 1024, 32), (4096, 1000, 16), (300, 7, 1),
          (9216, 128, 64), (512, 512, 128), (33, 65, 17)]  # in, out, batch
NORM = [(6, 28, 64), (16, 32, 32), (20, 7, 32), (64, 32, 32), (512, 4, 32), (64, 112, 2)]
GROUP_NORM = [(32, 64, 32, 16), (32, 64, 56, 4), (1, 64, 28, 16), (5, 20, 14, 32)]  # groups, channels, side, batch
LAYER_NORM = [(512, 64), (2048, 32), (100, 16)]  # features, batch
POOL = [("max_pool2d", 6, 2, 2, 0, 28, 64), ("max_pool2d", 32, 2, 2, 0, 32, 32),
        ("max_pool2d", 64, 3, 2, 1, 112, 2), ("max_pool2d", 20, 3, 1, 1, 14, 32),
        ("avg_pool2d", 10, 2, 2, 0, 28, 32), ("avg_pool2d", 64, 3, 2, 1, 28, 16),
        ("max_pool2d", 3, 2, 2, 0, 64, 32)]  # kind, channels, kernel, stride, padding, ...
# layer, channels, side, batch
INTERPOLATE = [("upsample: 2", 64, 28, 8), ("upsample: {scale: 2, mode: bilinear}", 64, 28, 8),
               ("upsample: {scale: 2, mode: bilinear}", 20, 14, 16), ("upsample: 2", 3, 64, 16),
               ("upsample: {size: [40, 33], mode: bilinear}", 32, 25, 8),
               ("adaptive_avg_pool2d: 7", 64, 31, 16), ("adaptive_avg_pool2d: [5, 3]", 20, 28, 32),
               ("adaptive_max_pool2d: 7", 64, 28, 16), ("adaptive_max_pool2d: 7", 64, 31, 16)]
CONCAT = [((64, 64), 28, 16), ((16, 24, 40), 28, 16), ((20, 7), 28, 32)]  # channels of the branches, side, batch
# channels in, out, kernel, stride, padding, length, batch
SEQUENCES = [(16, 32, 3, 1, 1, 1000, 16), (64, 64, 5, 1, 2, 512, 16), (1, 32, 9, 2, 4, 2000, 16),
             (128, 128, 3, 1, 1, 128, 32), (20, 33, 7, 3, 0, 500, 16)]
RESIDUAL = [(8, 32, 16), (16, 32, 32), (20, 16, 32), (64, 16, 16), (64, 56, 2), (256, 8, 8)]
# Batch sizes of the sweep: those of published figures, or such that a step takes less than 1 s.
CONFIG_BATCH = {"resnet18-cifar10": 32, "resnet18-stl10": 4, "synthetic-mobilenetv2": 8,
                "synthetic-resnet50": 2, "synthetic-squeezenet": 8, "vgg11-cifar10": 32, "vgg11-stl10": 4}


class Case:
    """name, path of the configuration (None: text), overrides."""

    def __init__(self, name, text=None, path=None, overrides=()):
        self.name, self.text, self.path, self.overrides = name, text, path, list(overrides)

    def write(self, folder):
        """The configuration's path, written into the folder if it has none."""
        if self.path is None:
            self.path = os.path.join(folder, "".join(c if c.isalnum() else "_" for c in self.name) + ".yaml")
            with open(self.path, "w", encoding="utf-8") as f:
                f.write(self.text)
        return self.path


def _model(name, shape, batch, layers):
    text = "\n    - ".join(["", *layers])
    return Case(name, f"""model:
  input: {list(shape)}
  loss: cross_entropy
  layers:{text}
data: {{kind: synthetic, samples: 1024, test_samples: 16, batch: {batch}}}
optimizer: {{name: sgd, lr: 0.001, momentum: 0.9}}
""")


END = ["avg_pool2d: global", "flatten", "linear: {name: end, out: 10}"]


def _conv(name, out, kernel, stride=1, padding=0, more=""):
    return f"conv2d: {{name: {name}, out: {out}, kernel: {kernel}, stride: {stride}, padding: {padding}{more}}}"


def _layer(name, c, side, n, *layers):
    """The layers, reading c channels that have a gradient."""
    return _model(f"{name} {side}x{side} b{n}", (1, side, side), n, [_conv("before", c, 1), *layers, *END])


def _convolutions():
    for c, out, k, s, p, side, n in INNER:
        yield _layer(f"conv {c}->{out} k{k} s{s} p{p}", c, side, n, "relu", _conv("a", out, k, s, p), "relu")
    for c, out, k, s, p, side, n in FIRST:
        yield _model(f"conv {c}->{out} k{k} s{s} p{p} {side}x{side} b{n}, first", (c, side, side), n,
                     [_conv("a", out, k, s, p), "relu", *END])
    for c, out, k, s, p, d, g, side, n in GROUPED:
        yield _layer(f"conv {c}->{out} k{k} s{s} p{p} d{d} g{g}", c, side, n,
                     "relu", _conv("a", out, k, s, p, f", dilation: {d}, groups: {g}"), "relu")


def _others():
    for kind, c, side, n in ACTIVATIONS:
        yield _layer(f"{kind} {c}", c, side, n, kind)
    for features, out, n in LINEAR:
        yield _model(f"linear {features}->{out} b{n}", [features], n,
                     [f"linear: {{name: a, out: {features}}}", "relu",
                      f"linear: {{name: b, out: {out}}}"] if features <= 1024 else
                     [f"linear: {{name: a, out: {out}}}"])
    for c, side, n in NORM:
        yield _layer(f"norm {c}", c, side, n, "batch_norm2d: {name: bn}", "relu")
    for g, c, side, n in GROUP_NORM:
        yield _layer(f"group norm {c} g{g}", c, side, n, f"group_norm: {{name: gn, groups: {g}}}", "relu")
    for features, n in LAYER_NORM:
        yield _model(f"layer norm {features} b{n}", [features], n,
                     [f"linear: {{name: a, out: {features}}}", "layer_norm: {name: ln}", "gelu",
                      "linear: {name: b, out: 10}"])
    for kind, c, k, s, p, side, n in POOL:
        yield _layer(f"{kind[:3]} pool {c} k{k} s{s} p{p}", c, side, n, "tanh",
                     f"{kind}: {{kernel: {k}, stride: {s}, padding: {p}}}")
    for layer, c, side, n in INTERPOLATE:
        yield _layer("".join(char for char in layer if char not in "{}:") + f" {c}", c, side, n, "tanh", layer)
    for channels, side, n in CONCAT:
        branches = ", ".join("[{" + _conv(f"b{i}", c, 1) + "}, relu]" for i, c in enumerate(channels))
        yield _layer(f"concat {'+'.join(map(str, channels))}", 16, side, n, "relu",
                     f"concat: {{name: c, branches: [{branches}]}}")
    for c, out, k, s, p, length, n in SEQUENCES:
        yield _model(f"conv1d {c}->{out} k{k} s{s} p{p} {length} b{n}", (1, length), n,
                     [f"conv1d: {{name: before, out: {c}, kernel: 1}}", "relu",
                      f"conv1d: {{name: a, out: {out}, kernel: {k}, stride: {s}, padding: {p}}}",
                      "batch_norm1d: {name: n}", "relu", "max_pool1d: 2", "avg_pool1d: global", *END[1:]])
    for c, side, n in RESIDUAL:
        body = ", ".join(["{" + _conv("b", c, 3, 1, 1) + "}", "{batch_norm2d: {name: n1}}", "relu",
                          "{" + _conv("c", c, 3, 1, 1) + "}", "{batch_norm2d: {name: n2}}"])
        yield _layer(f"residual {c}", c, side, n, "relu", f"residual: {{name: r, body: [{body}]}}", "relu")


def _configurations():
    for path in sorted(glob.glob(os.path.join(ROOT, "configs", "*.yaml"))):
        name = os.path.splitext(os.path.basename(path))[0]
        batch = CONFIG_BATCH.get(name)
        yield Case(name if batch is None else f"{name} b{batch}", path=path,
                   overrides=[] if batch is None else [f"data.batch={batch}"])


def cases(only=None):
    """All cases of the sweep, or those whose names contain one of the texts in `only`."""
    every = [*_convolutions(), *_others(), *_configurations()]
    return [c for c in every if not only or any(text in c.name for text in only)]
