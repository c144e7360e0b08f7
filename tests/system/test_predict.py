"""--predict: a trained model's answers for samples of one's own, and for the test set."""
import csv
import gzip
import json
import math
import os
import re
import resource
import signal
import struct
import subprocess
import unittest
from array import array
from pathlib import Path
from xml.etree import ElementTree

from jobs import BIN, DIGITS, PSRUN, ROOT, Faults, JobTest, first, npy, on_terminal, run_well, wait_until
from test_bench import TORCH, needs_torch

PYTORCH = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy, torch
from benchlib import safetensors
from benchlib.job_config import JobConfig
from benchlib.torch_model import Model
config = JobConfig.load(sys.argv[2], sys.argv[3])
model = Model(config).eval()
model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in safetensors.load(sys.argv[4]).items()})
x = torch.from_numpy(numpy.load(sys.argv[5]).astype("float32") * config["data.scale"])
ours = torch.from_numpy(numpy.load(sys.argv[6]))
with torch.no_grad():
    print((model(x).exp() - ours).abs().max().item())
"""

# The exported model takes the weights of the model in the comparisons, and agrees with it.
EXPORTED = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from benchlib.job_config import JobConfig
from benchlib.torch_model import Model
torch.manual_seed(1)
config = JobConfig.load(sys.argv[2], sys.argv[3], ["model.dropout=false"])
reference, names = Model(config).eval(), {}
exec(open(sys.argv[4]).read(), names)
model = names["Model"]().eval()
model.load_state_dict(reference.state_dict())
x = torch.randn(3, *config["model.input"])
with torch.no_grad():
    print((model(x) - reference(x)).abs().max().item())
"""

# Names that Python or PyTorch have already, and others that end a text in Python.
NAMES = """
import sys, numpy, torch
from torch import nn
names = [n for n in dir(nn.Module()) if not n.startswith("__")] + [
    "class", "_add", "_at", "self", "inputs", "x", "torch", "nn", "a.b.forward", "c.forward", "a.d",
    'q"), __import__("os")._exit(7), ("', "back\\\\", "it's", "\\u00e9", "{x}", "%s"]
out = open(sys.argv[1], "w", encoding="utf-8")
print("job: {name: '\\"\\"\\"; import os; os._exit(8) #\\\\'}\\nmodel:\\n  input: [3]\\n  layers:", file=out)
for name in names:
    print("    - linear: {out: 3, name: '%s'}" % name.replace("'", "''"), file=out)
print("    - dropout: 0.5\\ndata: {kind: synthetic, samples: 4, test_samples: 0}", file=out)
out.close()
numpy.save(sys.argv[2], numpy.eye(3, dtype="float32"))
"""

LOADED = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy, torch
from benchlib import safetensors
names = {}
exec(open(sys.argv[2], encoding="utf-8").read(), names)
model = names["Model"]()
assert model.train().training and not model.eval().training
model.load_state_dict({k: torch.from_numpy(v.copy()) for k, v in safetensors.load(sys.argv[3]).items()})
x, ours = (torch.from_numpy(numpy.load(path)) for path in sys.argv[4:])
with torch.no_grad():
    print((model(x).softmax(1) - ours).abs().max().item())
"""

# train.epochs=0 leaves PyTorch's initial weights of the same seed.
INITIAL = """
import sys
sys.path.insert(0, sys.argv[1])
import torch
from benchlib import safetensors
from benchlib.job_config import JobConfig
from benchlib.torch_model import Model
config = JobConfig.load(sys.argv[2], sys.argv[3], ["model.dropout=false"])
torch.manual_seed(config["train.seed"])
theirs, ours = Model(config).state_dict(), safetensors.load(sys.argv[4])
assert set(theirs) == set(ours), set(theirs) ^ set(ours)
print([name for name in ours if not torch.equal(torch.from_numpy(ours[name].copy()), theirs[name])])
"""


# The layers that none of our configurations has.
EVERY_LAYER = """
model:
  input: [3, 12, 12]
  loss: cross_entropy
  layers:
    - conv2d: {name: a, out: 8, kernel: 3, padding: 1}
    - silu
    - conv2d: {name: b, out: 8, kernel: 3, padding: 2, dilation: 2, groups: 4, bias: false}
    - gelu
    - conv2d: {name: c, out: 8, kernel: 1, groups: 8}
    - gelu_tanh
    - group_norm: {name: g, groups: 4}
    - leaky_relu: 0.1
    - upsample: 2
    - adaptive_avg_pool2d: [7, 9]
    - upsample: {scale: [2, 1], mode: bilinear}
    - concat:
        name: h
        branches:
          - [conv2d: {name: b, out: 4, kernel: 1}, adaptive_max_pool2d: [4, 5], adaptive_max_pool2d: [7, 3]]
          - [adaptive_avg_pool2d: [7, 3]]
          - [conv2d: {name: c, out: 2, kernel: 1}, upsample: {size: [7, 3]}]
    - batch_norm2d: {name: i}
    - flatten
    - layer_norm: {name: n, eps: 0.001}
    - linear: {name: d, out: 20}
    - elu: 0.7
    - leaky_relu
    - elu
    - linear: {name: e, out: 5}
"""

OF_SEQUENCES = """
model:
  input: [3, 40]
  loss: cross_entropy
  layers:
    - conv1d: {name: a, out: 8, kernel: 5, padding: 2}
    - batch_norm1d: {name: n}
    - relu
    - max_pool1d: 2
    - conv1d: {name: b, out: 8, kernel: 3, stride: 2, dilation: 2, padding: 2, groups: 2, bias: false}
    - concat: [[avg_pool1d: {kernel: 3, stride: 1, padding: 1}], []]
    - adaptive_avg_pool1d: 4
    - avg_pool1d: global
    - flatten
    - linear: {name: c, out: 5}
    - batch_norm1d: {name: m}
"""


def write_npy(path, shape, values):
    """values: bytes, one per number."""
    header = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {tuple(shape)}, }}".encode()
    Path(path).write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) + 1) + header + b"\n"
                           + values)


def read_npy(path):
    """Rows of float32."""
    raw = Path(path).read_bytes()
    size = struct.unpack("<H", raw[8:10])[0]
    header = eval(raw[10:10 + size])  # NumPy writes a dict of literals
    assert (10 + size) % 64 == 0 and header["descr"] == "<f4" and not header["fortran_order"]
    rows, columns = header["shape"]
    values = array("f", raw[10 + size:])
    assert len(values) == rows * columns
    return [values[i * columns:(i + 1) * columns].tolist() for i in range(rows)]


class Predict(JobTest):
    @classmethod
    def setUpClass(cls):
        with gzip.open(ROOT / "configs/digits/test-images-idx3-ubyte.gz") as f:
            raw = f.read()
        n, height, width = struct.unpack(">III", raw[4:16])
        cls.images, cls.shape = raw[16:], (n, 1, height, width)

    def setUp(self):
        super().setUp()
        self.psrun("-m", "single", DIGITS, "train.epochs=1", "train.threads=1")
        self.model = self.path("out", "model.safetensors")

    def predict(self, what, *args, code=0, init=True):
        weights = ["--init", self.model] if init else []
        return self.psrun("--predict", what, *weights, *args, out="said", code=code)

    def said(self):
        lines = list(csv.DictReader(self.text_of("said", "predictions.csv").splitlines()))
        return read_npy(self.path("said", "predictions.npy")), lines

    def samples(self, n):
        path = self.path("x.npy")
        one = math.prod(self.shape[1:])
        write_npy(path, (n, *self.shape[1:]), self.images[:n * one])
        return path

    def test_the_test_set(self):
        text = self.predict("test", DIGITS)
        rows, lines = self.said()
        self.assertIn(f"accuracy {self.summary()['test_accuracy']:.4f}", text)
        self.assertEqual(len(rows), self.shape[0])
        for i, (row, line) in enumerate(zip(rows, lines, strict=True)):
            self.assertAlmostEqual(sum(row), 1, 5)
            self.assertEqual((int(line["index"]), int(line["class"])), (i, row.index(max(row))))
            self.assertAlmostEqual(float(line["probability"]), max(row), 7)

    def test_which_classes_are_taken_for_which(self):
        self.predict("test", DIGITS)
        found = json.loads(self.text_of("said", "confusion.json"))
        with gzip.open(ROOT / "configs/digits/test-labels-idx1-ubyte.gz") as f:
            labels = list(f.read()[8:])
        rows, lines = self.said()
        matrix = [[0] * 10 for _ in range(10)]
        for label, line in zip(labels, lines, strict=True):
            matrix[label][int(line["class"])] += 1
        self.assertEqual(found["matrix"], matrix)
        top5 = sum(sum(v > row[label] for v in row) < 5 for label, row in zip(labels, rows))
        self.assertAlmostEqual(found["top5_accuracy"], top5 / len(labels), 5)
        for i, of_class in enumerate(found["classes"]):
            taken = sum(row[i] for row in matrix)
            self.assertAlmostEqual(of_class["recall"], matrix[i][i] / labels.count(i), 5)
            self.assertEqual(of_class["precision"] is None, taken == 0)
        picture = ElementTree.parse(self.path("said", "confusion.svg")).getroot()
        self.assertEqual(len(picture.findall("*[@class='right']")), sum(matrix[i][i] > 0 for i in range(10)))

    def test_samples_of_a_file_in_batches_of_another_size(self):
        self.predict("test", DIGITS)
        of_the_set, _ = self.said()
        self.predict(self.samples(21), DIGITS, "data.eval_batch=8", "--overwrite")
        rows, _ = self.said()
        self.same(rows, of_the_set[:21])

    def same(self, rows, others):
        self.assertEqual(len(rows), len(others))
        for row, other in zip(rows, others):
            for a, b in zip(row, other, strict=True):
                self.assertAlmostEqual(a, b, 6)

    def test_over_several_workers(self):
        text = self.predict("test", DIGITS)
        rows, lines = self.said()
        confusion = [Path(self.path("said", "confusion" + kind)).read_bytes() for kind in (".json", ".svg")]
        for workers in (2, 3):
            again = self.predict("test", DIGITS, "-w", workers, "--overwrite")
            others, other_lines = self.said()
            self.same(rows, others)
            self.assertEqual([(line["index"], line["class"]) for line in lines],
                             [(line["index"], line["class"]) for line in other_lines])
            self.assertEqual(confusion, [Path(self.path("said", "confusion" + kind)).read_bytes()
                                         for kind in (".json", ".svg")])
            figures = re.search("figures +accuracy [0-9.]+, top-5 [0-9.]+, F1 [0-9.]+, loss [0-9.]+\n", text)[0]
            self.assertIn(figures, again)
            self.assertEqual(sorted(os.listdir(self.path("said"))),
                             ["confusion.json", "confusion.svg", "predictions.csv", "predictions.npy"])
        for n in (1, 5):  # more workers than samples
            self.predict(self.samples(n), DIGITS, "-w", 3, "--overwrite")
            self.same(rows[:n], self.said()[0])

    def test_a_worker_that_fails_leaves_nothing(self):
        self.assertIn("no.npy: No such file", self.predict("no.npy", DIGITS, "-w", 2, code=1))
        self.assertFalse(os.path.exists(self.path("said")))
        self.predict("test", DIGITS, "-w", 2)
        self.assertIn("is there already", self.predict("test", DIGITS, "-w", 2, code=1))

    def test_a_folder_of_the_users_stays(self):
        os.makedirs(self.path("said/predict/mine"))
        Path(self.path("said/predict/mine.txt")).touch()
        self.predict("test", DIGITS, "-w", 2)
        self.assertEqual(sorted(os.listdir(self.path("said/predict"))), ["mine", "mine.txt"])

    def worker(self, *args):
        done = subprocess.run([BIN / "ps-worker", "--config", DIGITS, *map(str, args), "--out", self.path("said")],
                              stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        return done.returncode, done.stderr

    def test_shares_by_hand(self):
        for share in ("2", "2/2", "-1/2", "a/b", "1/", "/", "0/5000000000"):
            self.assertIn(f"--share: '{share}' is not R/N", self.worker("--predict", "test", "--share", share)[1])
        self.assertIn("--share 0/2: it needs --predict", self.worker("--share", "0/2")[1])
        for share in ("0/2", "1/2"):
            code, text = self.worker("--predict", "test", "--init", self.model, "--share", share)
            self.assertIn(f"share={share} samples=", text)
            self.assertEqual(code, 0)
        self.assertIn("predict/0-of-3.counts", self.worker("--join-shares", 3)[1])
        counts = Path(self.path("said", "predict", "1-of-2.counts"))
        npy = Path(self.path("said", "predict", "0-of-2.npy"))
        for path in (counts, npy):
            whole = path.read_bytes()
            for size in (0, 4, 60, len(whole) - 1):
                path.write_bytes(whole[:size])
                code, text = self.worker("--join-shares", 2)
                self.assertRegex(text, f"{path}: it (is torn|holds no figures of a share)")
                self.assertEqual(os.listdir(self.path("said")), ["predict"])
            path.write_bytes(whole)
        other = bytearray(counts.read_bytes())
        other[8] += 1
        counts.write_bytes(other)
        self.assertIn("it is of another model", self.worker("--join-shares", 2)[1])
        other[8] -= 1
        counts.write_bytes(other)
        self.assertEqual(self.worker("--join-shares", 2)[0], 0)
        self.assertFalse(os.path.exists(self.path("said", "predict")))
        rows, _ = self.said()
        self.predict("test", DIGITS, "--overwrite")
        self.same(rows, self.said()[0])

    def test_ctrl_c_leaves_nothing(self):
        x = self.path("many.npy")
        write_npy(x, (200000, *self.shape[1:]), bytes(200000 * math.prod(self.shape[1:])))
        for workers, begun, number in ((("-w", 2), "predict/0-of-2.npy.tmp", signal.SIGINT), ((), "predictions.npy.tmp", signal.SIGINT),
                                       ((), "predictions.npy.tmp", signal.SIGTERM)):
            run = self.start_psrun("--predict", x, "--init", self.model, *workers, DIGITS, out="said")
            wait_until(lambda: os.path.exists(self.path("said", begun)))
            run.send_signal(number)
            text, _ = run.communicate(timeout=60)
            self.assertEqual(run.returncode, 128 + number, text)
            self.assertEqual("ending in order; nothing is kept" in text, bool(workers))
            self.assertFalse(os.path.exists(self.path("said", begun)))

    def test_who_has_killed_it(self):
        for workers, code, words in (((), 137, r"ps-worker was ended by SIGKILL: \S+/ps-worker .*--predict test "),
                                     (("-w", 2), 1, "the job failed: worker [01] was ended by SIGKILL ")):
            faults = Faults(self.path(f"faults-{code}"), "prediction.batch:1:kill")
            run = self.start_psrun("--predict", "test", "--init", self.model, *workers, DIGITS, out="said",
                                   env={**os.environ, **faults.env})
            text, _ = run.communicate(timeout=60)
            self.assertEqual(run.returncode, code, text)
            self.assertRegex(" ".join(text.split()),
                             f"psrun: {words}.*psrun: give the same command again; if nobody killed it, memory was short")

    @needs_torch
    def test_as_pytorch_says(self):
        x = self.samples(50)
        self.predict(x, DIGITS)
        said = run_well([TORCH, "-c", PYTORCH, ROOT / "bench", BIN.parent, DIGITS, self.model, x,
                         self.path("said", "predictions.npy")])
        self.assertLess(float(said), 1e-6)

    def test_mistakes_are_named(self):
        wrong = self.path("wrong.npy")
        write_npy(wrong, (2, 3, 5, 5), bytes(150))
        none = self.path("none.npy")
        write_npy(none, (0, *self.shape[1:]), b"")
        cut = self.path("cut.npy")
        write_npy(cut, (9, *self.shape[1:]), b"x")
        for what, says in (("nowhere.npy", "nowhere.npy"), (wrong, "(3, 5, 5)"), (none, "no sample"),
                           (cut, "holds at most"), (self.model, "no picture: " + self.model + ": is not a text file")):
            self.assertIn(says, self.predict(what, DIGITS, code=1))
        self.assertRegex(self.predict("test", DIGITS, code=1, init=False),
                         r"\Aps-worker: --predict needs weights: --init FILE")
        self.assertIn("taken as a table, as it is no npy file and no picture: " + DIGITS,
                      self.predict(DIGITS, DIGITS, code=1))
        for dims in ((9,), (1, 4, 4)):
            write_npy(wrong, (2, *dims), bytes(2 * math.prod(dims)))
            self.assertIn(f"{wrong}: data is", self.predict(wrong, DIGITS, code=1))
        write_npy(wrong, (4, 16), bytes(64))
        self.assertIn("is (16), the model's input is (1, 8, 8): this is one sample: save x[None]",
                      self.predict(wrong, DIGITS, code=1))
        Path(wrong).write_bytes(npy("<f4", f"(1, {self.shape[2] * self.shape[3]})",
                                    struct.pack("<f", math.nan) * math.prod(self.shape[2:])))
        self.assertIn(f"{wrong}: sample 0: value 0 is not a finite number", self.predict(wrong, DIGITS, code=1))
        Path(self.path("x.csv")).write_text("a,b,class\n1,2,0\n", encoding="ascii")
        job = self.path("table.yaml")
        Path(job).write_text("model: {input: [2], layers: [{linear: {name: fc, out: 3}}]}\n", encoding="ascii")
        self.psrun("-m", "single", job, "data.kind=synthetic", "train.epochs=0", out="table")
        argv = ["--predict", self.path("x.csv"), "--init", self.path("table", "model.safetensors"), job]
        text = self.psrun(*argv, out="said", code=1)
        self.assertIn("data is (3), the model's input is (2): leave out the class column", text)
        self.assertIn(f"data of {self.path('x.csv')}: ", text)
        text = on_terminal([PSRUN, "--build-dir", BIN.parent, "--out", self.path("said"), *argv, "model.loss=mse"], 60, 1)
        self.assertRegex(text, r"\Aps-worker: data of ")
        self.assertIn("leave out the last column", " ".join(text.split()))
        Path(self.path("x.csv")).write_text("1\n", encoding="ascii")
        self.assertIn("give the samples the shape of those in training", self.psrun(*argv, out="said", code=1))
        argv[3] = self.path("table")
        self.assertIn(f"table: is a folder; give its file: {self.path('table')}/model.safetensors",
                      self.psrun(*argv, out="said", code=1))
        for option in ("--predict", "--init", "--out", "--resume"):  # as from a variable that is not set
            self.assertIn(f"argument {option}: the name is empty", self.psrun(option, "", DIGITS, out="none", code=2))
        self.assertFalse(os.path.exists(self.path("none")))
        shown = self.predict("test", DIGITS, "--dry-run")
        self.assertIn(" --predict test ", shown)
        self.assertFalse(os.path.exists(self.path("said", "predictions.npy")))
        self.predict("test", DIGITS)
        self.assertIn("is there already", self.predict("test", DIGITS, code=1))
        self.assertEqual(sorted(os.listdir(self.path("said"))), 
                         ["confusion.json", "confusion.svg", "predictions.csv", "predictions.npy"])

    def test_servers_predict_nothing(self):
        done = subprocess.run([BIN / "ps-server", "--config", DIGITS, "--predict", "test"],
                              stderr=subprocess.PIPE, text=True)
        self.assertIn("--predict: only ps-worker has this flag", done.stderr)
        self.assertEqual(done.returncode, 1)

    def test_a_program_of_ones_own_predicts_by_itself(self):
        done = subprocess.run([PSRUN, "--build-dir", BIN.parent, "--predict", "x.npy", "--", "true"],
                              stderr=subprocess.PIPE, text=True)
        self.assertIn("--predict is not for a program of your own", done.stderr)


class CheckData(JobTest):
    """What is wrong with the data is found before the job is started."""

    def test_what_there_is(self):
        printed = self.psrun("--check-data", "-w", 2, DIGITS)
        with gzip.open(ROOT / "configs/digits/train-labels-idx1-ubyte.gz") as f:
            labels = list(f.read()[8:])
        with gzip.open(ROOT / "configs/digits/train-images-idx3-ubyte.gz") as f:
            pixels = f.read()[16:]
        n = len(labels)
        self.assertIn(f"data.train  {n:,} samples, uint8, 1 x 8 x 8\n  read      all {n:,} in ", printed)
        self.assertIn(f"from 0 to 1, mean {sum(pixels) / len(pixels) / 16:.4g}, ", printed)
        for k in range(10):
            self.assertRegex(printed, rf"(?m)^ +{labels.count(k)} +[0-9]+  {k}$")
        steps = math.ceil(math.ceil(n / 2) / 32)
        self.assertIn(f"an epoch    {steps} steps of 64 samples; 2 workers\nthe job     {30 * steps} steps", printed)
        self.assertLessEqual(max(map(len, printed.splitlines())), 80)
        self.assertFalse(os.path.exists(self.path("out")))
        self.assertIn("--doctor does so", self.psrun("--check-data", "-H", "none", DIGITS, code=1))

    def test_columns_of_unlike_size(self):
        config = self.path("model.yaml")
        Path(config).write_text("model: {input: [14], layers: [{linear: {name: fc, out: 3}}]}\n"
                                f"data: {{kind: csv, path: {self.folder}}}\n", encoding="ascii")
        lines = [",".join(f"v{i}" for i in range(1, 15)) + ",class", "30,-0.5," + "0," * 12 + "0",
                 "90000,0.25," + "0," * 12 + "1"]
        Path(self.path("train.csv")).write_text("\n".join(lines), encoding="ascii")
        text = self.psrun("--check-data", config)
        self.assertRegex(text, r"\n +column 1 v1 +30 to 90000\n +column 2 v2 +-0.5 to 0.25\n")
        self.assertIn("column 14 v14", text)
        self.assertIn("column 1 v1 are 1.8e+05 times as large as those of column 2 v2: bring all to a like size, for "
                      "instance (x - mean) / std, or begin the layers with batch_norm1d", " ".join(text.split()))
        norm = "model.layers=[{batch_norm1d: {name: n}}, {linear: {name: fc, out: 3}}]"
        self.assertNotIn("like size", self.psrun("--check-data", config, norm))
        lines[2] = lines[2].replace("90000", "45")
        Path(self.path("train.csv")).write_text("\n".join(lines), encoding="ascii")
        self.assertNotIn("like size", self.psrun("--check-data", config))

    def test_what_may_not_be_meant(self):
        """What is left out of each part, what is in both, and keys without an effect."""
        config = self.file("model.yaml", "data: {kind: csv, batch: 4}\nmodel: {input: [1], layers: [linear: {out: 3}]}\n")
        self.file("train.csv", "".join(f"{i},{-100 if i < 5 else i % 3}\n" for i in range(20)))
        self.file("test.csv", "".join(f"{i},{i % 3}\n" for i in range(9)))
        said = " ".join(self.psrun("--check-data", config).split())
        self.assertIn("left out 5 samples of data.train with the label -100 (train.ignore_index)", said)
        self.assertNotIn("of data.test with the label", said)
        self.assertNotIn("in data.train, too", said)
        # Six batches of three make a step and a half.
        short = ("data.batch=3", "data.drop_last_batch=true", "train.accumulate=4")
        for order, words in ((), "others"), (("data.shuffle=false",), "the same"):
            said = " ".join(self.psrun("--check-data", config, *short, *order).split())
            self.assertIn(f"2 steps of 12 samples; 1 worker left out 2 samples of each epoch, {words} each time", said)
        said = " ".join(self.psrun("--check-data", config, "data.train=train.csv@0-14", "data.test=train.csv@10-19").split())
        self.assertIn("5 samples of ", said)
        self.assertIn("train.csv are in data.train, too", said)
        said = self.psrun("-m", "single", config, "data.scale=2", "schedule.warmup=5")
        self.assertIn("data.scale: needs data.kind ", said)
        self.assertIn("schedule.warmup: 5 steps, and the job has 5: the learning rate does not come to optimizer.lr", said)
        os.remove(self.path("test.csv"))
        said = self.psrun("-m", "single", "--overwrite", config, "checkpoint.best=loss", code=1)
        self.assertIn("checkpoint.best: there is no test set to judge by: set data.test", said)
        Path(self.path("train_x.npy")).write_bytes(npy("<f4", "(4, 1)", bytes(16)))
        Path(self.path("train_y.npy")).write_bytes(npy("|u1", "(4,)", bytes(4)))
        said = " ".join(self.psrun("--check-data", config, "data.kind=npy", "data.scale=2").split())
        self.assertIn("data.scale has no effect on values that are float32", said)

    def test_what_the_job_would_end_with(self):
        config = self.path("model.yaml")
        Path(config).write_text("model: {input: [3, 8, 8], layers: [flatten, {linear: {name: fc, out: 3}}]}\n"
                                f"data: {{kind: npy, path: {self.folder}, train: 'x.npy,y.npy'}}\n", encoding="ascii")
        Path(self.path("x.npy")).write_bytes(npy("|u1", "(4, 8, 8, 3)", bytes(768)))
        Path(self.path("y.npy")).write_bytes(npy("|u1", "(4,)", bytes(4)))
        Path(self.path("train.csv")).write_text("a,b,c,class\n1,2,3,0\n", encoding="ascii")
        for what in ("--check-data", "--doctor"):
            text = self.psrun(what, config, code=1)
            self.assertIn("data.train: data is (8, 8, 3), the model's input is (3, 8, 8): the channels stand last", text)
        text = self.psrun("--check-data", config, "data.kind=csv", "data.train=", "model.input=[2]", code=1)
        self.assertIn("data.train: data is (3), the model's input is (2): set model.input", text)
        text = self.psrun("--check-data", config, "data.kind=csv", "data.train=", "model.input=[3]")
        self.assertIn("train.csv:1: names of columns: a, b, c, class", " ".join(text.split()))
        text = self.psrun("--check-data", config, "data.kind=csv", "data.train=", "model.input=[3]",
                          "schedule.name=plateau", code=1)
        self.assertIn("plateau follows the evaluations", text)


class FullDisk(JobTest):
    def test_a_text_that_is_cut_off_is_an_error(self):
        for what in ("--describe", "--export-torch", "--check-data", "--input", "--keys"):
            with open("/dev/full", "w", encoding="ascii") as full:
                done = subprocess.run([BIN / "ps-worker", "--config", DIGITS, what, "--world-size", "1"], stdout=full,
                                      stderr=subprocess.PIPE, text=True)
            self.assertEqual(done.returncode, 1, what)
            self.assertIn("standard output: not all of the text could be written", done.stderr)

    def test_samples_that_are_cut_off_are_an_error(self):
        """Those of the standard input go through a temporary file, which may be larger than what is left of the disk."""
        job = self.file("job.yaml", "data: {kind: csv, train: t.csv, target: y, columns: [x]}\nmodel: {layers: [linear: {out: 2}]}\n")
        self.file("t.csv", "x,y\n" + "".join(f"{i},{i % 2}\n" for i in range(8)))
        self.psrun("-m", "single", job)
        lines = "".join(f"{i:015},{'m' * 239}\n" for i in range(1024))  # whole lines fit into the limit

        def limit():
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
        done = subprocess.run([BIN / "ps-worker", "--config", self.path("out", "config.json"), "--predict", "-", "--out",
                               self.path("said"), "--set", f"train.init={self.path('out', 'model.safetensors')}"],
                              input=f"{'x':>15},{'m' * 239}\n" + lines, stderr=subprocess.PIPE, text=True, preexec_fn=limit)
        self.assertEqual(done.returncode, 1)
        self.assertIn("a temporary file in /tmp: File too large", done.stderr)


class Describe(JobTest):
    def test_the_model_as_a_table(self):
        printed = self.psrun("--describe", ROOT / "configs/mnist-basicnet.yaml", "data.batch=10")
        lines = {line.split()[0]: line.split() for line in printed.splitlines() if line.strip()}
        # 32 outputs of 26 x 26, each with 9 weights and a bias; 9216 x 128 weights.
        self.assertEqual(lines["conv1"][1:], ["conv2d", *"32 x 26 x 26".split(), "320", "84.5", "KiB", "195", "k"])
        self.assertEqual(lines["fc1"][1:], ["linear", "128", "1,179,776", "512", "B", "1.2", "M"])
        self.assertEqual(lines["(all)"][1], "1,199,882")
        self.assertIn("a batch of 10", printed)

    def test_a_narrow_terminal(self):
        argv = self.psrun_argv("--describe", ROOT / "configs/resnet18-cifar10.yaml", "train.precision=bf16",
                               "train.device=cpu")
        narrow, wide = on_terminal(argv, 60), on_terminal(argv, 100)
        self.assertRegex(narrow, r"\nlayer1.0.conv1 +conv2d\n  64 x 32 x 32 +36,864  256.0 KiB +37.7 M\n")
        self.assertRegex(wide, r"\nlayer1.0.conv1 +conv2d +64 x 32 x 32 +36,864  256.0 KiB +37.7 M\n")
        self.assertEqual(narrow.split(), wide.split())

    def test_the_precision(self):
        printed = self.psrun("--describe", DIGITS, "train.precision=bf16", "train.device=cpu")
        self.assertIn("In bf16: the factors of products (conv2d, linear).", printed)
        self.assertRegex(printed, "products in bf16: (amx_bf16|avx512_bf16|emulated)")
        printed = self.psrun("--describe", DIGITS, "train.precision=fp16", "train.device=cpu")
        self.assertRegex(printed, r"products in fp16: (amx_fp16|avx512_fp16)|"
                                  r"Not on this machine: .*take train.precision=(bf16|float32)")

    def test_a_mistake_in_the_model_is_named(self):
        printed = self.psrun("--describe", DIGITS, "model.input=[1,2,2]", code=1)
        self.assertRegex(printed, r"digits.yaml:\d+")

    @needs_torch
    def test_the_model_in_pytorch(self):
        source = self.path("model.py")
        every, sequence = self.path("every.yaml"), self.path("sequence.yaml")
        Path(every).write_text(EVERY_LAYER, encoding="ascii")
        Path(sequence).write_text(OF_SEQUENCES, encoding="ascii")
        for config in first(2, [every, sequence, *sorted((ROOT / "configs").glob("*.yaml"))]):
            with open(source, "w", encoding="utf-8") as f:
                subprocess.run([PSRUN, "--build-dir", BIN.parent, "--export-torch", config], stdout=f, check=True)
            said = run_well([TORCH, "-c", EXPORTED, ROOT / "bench", BIN.parent, config, source])
            self.assertLess(float(said.split()[-1]), 1e-6, config)

    def test_the_source_says_what_samples_become(self):
        said = self.psrun("--export-torch", ROOT / "configs/mnist-basicnet.yaml")
        self.assertIn(f"Samples of uint8 are multiplied by {1 / 255:.9g} (data.scale).\n", said)
        self.assertIn("Then x becomes (x - mean) / deviation, of data.normalize:\n[0.1307, 0.3081].\n", said)
        table = self.file("table.yaml", "data: {kind: csv, train: t.csv, target: y}\nmodel: {input: [2], layers: [linear: {out: 2}]}\n")
        said = self.psrun("--export-torch", table)
        self.assertIn("Inputs are not the table's cells", said)
        self.assertLess(max(map(len, said.splitlines())), 90)
        self.assertNotIn("uint8", said + self.psrun("--export-torch", ROOT / "configs/synthetic-vgg11.yaml"))

    @needs_torch
    def test_any_name_in_pytorch(self):
        config, x, source = self.path("names.yaml"), self.path("x.npy"), self.path("model.py")
        subprocess.run([TORCH, "-c", NAMES, config, x], check=True)
        self.psrun("-m", "single", config, "train.epochs=0")
        model = self.path("out", "model.safetensors")
        self.psrun("--predict", x, "--init", model, config, out="said")
        with open(source, "w", encoding="utf-8") as f:
            subprocess.run([PSRUN, "--build-dir", BIN.parent, "--export-torch", config], stdout=f, check=True)
        said = run_well([TORCH, "-c", LOADED, ROOT / "bench", source, model, x, self.path("said", "predictions.npy")])
        self.assertLess(float(said.split()[-1]), 1e-6)

    @needs_torch
    def test_initial_weights(self):
        for i, model in enumerate((EVERY_LAYER, OF_SEQUENCES)):
            config, out = self.path(f"{i}.yaml"), f"initial{i}"
            Path(config).write_text(model + "data: {kind: synthetic}\n", encoding="ascii")
            self.psrun("-s", 1, "-w", 2, config, "train.epochs=0", out=out)
            done = subprocess.run([TORCH, "-c", INITIAL, ROOT / "bench", BIN.parent, config,
                                   self.path(out, "model.safetensors")],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertEqual(done.stdout.strip(), "[]")


if __name__ == "__main__":
    unittest.main()
