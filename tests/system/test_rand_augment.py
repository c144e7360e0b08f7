"""data.rand_augment and the hue: they give torchvision's pixels of PIL pictures, byte by byte."""
import json
import os
import subprocess
import unittest
from pathlib import Path

from jobs import BIN, JobTest, torch_python

PYTHON = torch_python() or "python3"
HAS_BOTH = subprocess.run([BIN / "show_picture"], stderr=subprocess.DEVNULL).returncode == 0

# Arguments: show_picture, a folder. Prints what differs, and how many pictures were compared.
COMPARE = r"""
import itertools, json, subprocess, sys
import numpy, torch
from PIL import Image
from torchvision.transforms import InterpolationMode, RandAugment
from torchvision.transforms import functional as F
from torchvision.transforms.autoaugment import _apply_op
show, folder = sys.argv[1:3]
space = RandAugment()._augmentation_space
names = list(space(31, (9, 9)))
rng = numpy.random.default_rng(4)

def picture(height, width, kind):
    if kind == "flat":
        return Image.fromarray(numpy.full((height, width, 3), 77, numpy.uint8))
    if kind == "dark":  # few values
        return Image.fromarray(rng.integers(20, 25, (height, width, 3), dtype=numpy.uint8))
    if kind == "noise":
        return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=numpy.uint8))
    coarse = Image.fromarray(rng.integers(0, 256, (5, 4, 3), dtype=numpy.uint8))
    return coarse.resize((width, height), Image.BICUBIC)

def ours(image, channels, *arguments):
    image.save(folder + "/a.png")
    run = subprocess.run([show, str(channels), str(image.height), str(image.width), "0", folder + "/a.png",
                          *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, check=True)
    planes = numpy.frombuffer(run.stdout, numpy.uint8).reshape(channels, image.height, image.width)
    return planes.transpose(1, 2, 0), run.stderr.decode().split()

def differs(want, found):
    return int((numpy.asarray(want).reshape(found.shape) != found).sum())

def applied(image, op, magnitude):
    return _apply_op(image, names[op], magnitude, InterpolationMode.NEAREST, None)

wrong, count = [], 0

def check(what, want, found):
    global count
    count += 1
    off = differs(want, found)
    if off:
        wrong.append([*map(str, what), off])

def operations():
    sizes = [(33, 41), (64, 64), (1, 1), (2, 9), (3, 3)]
    for height, width in sizes:
        table = list(space(31, (height, width)).values())
        for kind, op in itertools.product(("smooth", "noise", "dark", "flat"), range(14)):
            image = picture(height, width, kind)
            values, signed = table[op]
            bins = [0.0] if values.ndim == 0 else [float(values[i]) for i in (0, 9, 20, 30)]
            for magnitude in bins[:: 1 if kind in ("smooth", "noise") else 3]:
                for m in ([magnitude, -magnitude] if signed else [magnitude]):
                    found, _ = ours(image, 3, op, repr(m))
                    check((names[op], m, height, width, kind), applied(image, op, m), found)
        for op in range(14):
            image = picture(height, width, "smooth")
            values, _ = table[op]
            m = 0.0 if values.ndim == 0 else float(values[9])
            found, _ = ours(image, 1, op, repr(m))
            check((names[op], m, height, width, "L"), applied(image.convert("L"), op, m), found)

def draws():
    seen = set()
    for position in range(150):
        height, width = [(48, 48), (31, 75), (331, 40)][position % 3]
        image, bin = picture(height, width, "smooth"), position % 31
        found, said = ours(image, 3, 3, bin, position)
        table = list(space(31, (height, width)).values())
        want = image
        for i in range(3):
            op, m = int(said[2 * i]), float(said[2 * i + 1])
            values, signed = table[op]
            of_bin = 0.0 if values.ndim == 0 else float(values[bin])
            if abs(m) > 0 and not signed and m < 0 or abs(abs(m) - of_bin) > 2e-7 * of_bin:
                wrong.append([names[op], bin, m, of_bin])
            seen.add((op, m < 0))
            want = applied(want, op, m)
        check(("draw", position, *said), want, found)
    if len(seen) < 14 + 8:
        wrong.append(["drawn", sorted(seen)])

def hues():
    cube = numpy.stack(numpy.meshgrid(*[numpy.r_[0:256:15, 1, 127, 128, 254]] * 3), -1).reshape(-1, 3)
    cube = Image.fromarray(cube[: len(cube) // 21 * 21].reshape(-1, 21, 3).astype(numpy.uint8))
    for image in (cube, picture(70, 70, "noise"), picture(30, 50, "smooth"), picture(5, 5, "flat")):
        for turn in (0.0, 0.5, -0.5, 0.1, -0.1, 0.25, -0.3, 0.004, 0.49):
            turn = float(numpy.float32(turn))
            want = F.adjust_hue(image, turn)
            check(("hue", turn), want, ours(image, 3, "-", 1, 1, 1, repr(turn), "0123")[0])
            mixed = F.adjust_hue(F.adjust_contrast(image, 0.7), turn)
            mixed = F.adjust_saturation(F.adjust_brightness(mixed, 1.2), 1.5)
            check(("order", turn), mixed, ours(image, 3, "-", 1.2, 0.7, 1.5, repr(turn), "1302")[0])
            gray = image.convert("L")
            check(("gray", turn), F.adjust_hue(gray, turn), ours(image, 1, "-", 1, 1, 1, repr(turn), "3012")[0])

dict(operations=operations, draws=draws, hues=hues)[sys.argv[3]]()
json.dump({"wrong": wrong, "count": count}, sys.stdout)
"""


def has_torchvision():
    return subprocess.run([PYTHON, "-c", "import torchvision, PIL"], stdout=subprocess.DEVNULL,
                          stderr=subprocess.DEVNULL).returncode == 0


@unittest.skipUnless(HAS_BOTH, "built without libpng or libjpeg-turbo")
@unittest.skipUnless(has_torchvision(), "no torchvision (PS_TORCH_PYTHON names a Python that has it)")
class AsTorchvision(JobTest):
    def compare(self, what, least):
        done = subprocess.run([PYTHON, "-c", COMPARE, BIN / "show_picture", self.folder, what], text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 0, done.stderr)
        found = json.loads(done.stdout)
        self.assertEqual(found["wrong"][:20], [])
        self.assertGreaterEqual(found["count"], least)

    def test_every_operation(self):
        self.compare("operations", 800)

    def test_drawn_operations(self):
        self.compare("draws", 150)

    def test_hue(self):
        self.compare("hues", 100)


MODEL = """
model: {input: [3, 12, 12], loss: cross_entropy, layers: [flatten, {linear: 3}]}
train: {epochs: 2, seed: 1}
data: {kind: image_folder, path: FOLDER, batch: 8, flip: true, resize: [16, 16], rand_augment: [2, 9]}
"""


@unittest.skipUnless(HAS_BOTH, "built without libpng or libjpeg-turbo")
class Jobs(JobTest):
    def setUp(self):
        super().setUp()
        for split in ("train", "test"):
            for name in "abc":
                folder = Path(self.path("set", split, name))
                folder.mkdir(parents=True)
                for i in range(9):
                    self.png(folder / f"{i}.png")
        Path(self.path("job.yaml")).write_text(MODEL.replace("FOLDER", self.path("set")), encoding="ascii")

    @staticmethod
    def png(path):
        """20 x 18 random pixels."""
        from test_pictures import random_png
        path.write_bytes(random_png(20, 18, 8, 2))

    def train(self, *settings, mode=("-m", "single"), out=None):
        out = out or f"out{len(os.listdir(self.folder))}"
        self.psrun(*mode, self.path("job.yaml"), *settings, out=out)
        return self.weights(out)

    def test_neither_threads_nor_a_resume_change_it(self):
        weights = self.train()
        self.assertEqual(self.train("data.threads=4"), weights)
        self.assertNotEqual(self.train("data.rand_augment=[]"), weights)
        self.assertNotEqual(self.train("data.rand_augment=[2,20]"), weights)
        self.assertEqual(self.train("data.rand_augment=[0,9]"), self.train("data.rand_augment=[]"))
        two = ("-m", "allreduce", "-w", "2")
        whole = self.train("data.color_jitter=[0.4,0.4,0.4,0.1]", mode=two)
        self.psrun(*two, self.path("job.yaml"), "data.color_jitter=[0.4,0.4,0.4,0.1]", "checkpoint.every=1",
                   "train.stop_after=3", out="part", code=75)
        self.psrun("--resume", self.path("part"), out="part")
        self.assertEqual(self.weights("part"), whole)

    def test_what_is_wrong_is_refused(self):
        for setting, says in (("data.rand_augment=[2]", "data.rand_augment: has to be [operations, magnitude]"),
                              ("data.rand_augment=[17,9]", "with up to 16 operations"),
                              ("data.rand_augment=[2,31]", "data.rand_augment"),
                              ("data.color_jitter=[0,0,0,0.6]", "data.color_jitter: hue is at most 0.5"),
                              ("data.color_jitter=[0,0,0,0,0]", "[brightness, contrast, saturation, hue]"),
                              ("data.kind=npy", "data.rand_augment: needs data.kind image_folder")):
            self.assertIn(says, self.psrun("-m", "single", self.path("job.yaml"), setting, out="bad", code=1))


if __name__ == "__main__":
    unittest.main()
