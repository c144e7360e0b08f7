"""data.kind image_folder: PNG and JPEG pictures, as Pillow decodes and resizes them."""
import csv
import io
import json
import os
import random
import re
import struct
import subprocess
import unittest
import zlib
from pathlib import Path
from xml.etree import ElementTree

from jobs import BIN, JobTest, Psrun, read_safetensors

try:
    import numpy
    from PIL import Image, ImageEnhance
except ImportError:
    numpy = Image = None

HAS_BOTH = subprocess.run([BIN / "show_picture"], stderr=subprocess.DEVNULL).returncode == 0
CHANCE = random.Random(1)
ADAM7 = ((0, 0, 8, 8), (4, 0, 8, 8), (0, 4, 4, 8), (2, 0, 4, 4), (0, 2, 2, 4), (1, 0, 2, 2), (0, 1, 1, 2))


def chunk(kind, content):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def png(width, height, depth, color, rows, extra=b"", interlaced=0):
    """rows: the bytes of each row, of every pass."""
    header = struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, interlaced)
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + extra
            + chunk(b"IDAT", zlib.compress(b"".join(b"\0" + row for row in rows))) + chunk(b"IEND", b""))


def random_png(width, height, depth, color, extra=b""):
    samples = {0: 1, 2: 3, 3: 1, 4: 2, 6: 4}[color]
    size = (width * samples * depth + 7) // 8
    return png(width, height, depth, color, [CHANCE.randbytes(size) for _ in range(height)], extra)


def interlaced_png(width, height):
    """RGB of random pixels in Adam7's seven passes."""
    pixels = numpy.random.default_rng(1).integers(0, 256, (height, width, 3), dtype=numpy.uint8)
    rows = [row.tobytes() for x, y, dx, dy in ADAM7 for row in pixels[y::dy, x::dx] if row.size]
    return png(width, height, 8, 2, rows, interlaced=1)


def picture(width, height, seed=0):
    """Smooth, with noise and edges."""
    rng = numpy.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 256, (6, 6, 3), dtype=numpy.uint8))
    smooth = numpy.asarray(coarse.resize((width, height), Image.BICUBIC)).astype(int)
    smooth[height // 3:height // 2] = 255 - smooth[height // 3:height // 2]
    return Image.fromarray((smooth + rng.integers(-9, 10, smooth.shape)).clip(0, 255).astype(numpy.uint8))


def rows_first(image, width, height):
    """Image.resize, rows first. Pillow 13 resizes columns first where that is less work, and a last bit differs."""
    return image.resize((width, image.height), Image.BILINEAR).resize((width, height), Image.BILINEAR)


def resized(image, size):
    """torchvision's Resize(size) of a picture."""
    if isinstance(size, tuple):
        return rows_first(image, size[1], size[0])
    w, h = image.size
    return rows_first(image, *((size, int(size * h / w)) if w <= h else (int(size * w / h), size)))


def cropped(image, height, width):
    """torchvision's CenterCrop((height, width)) of a picture that is large enough."""
    left, top = round((image.width - width) / 2), round((image.height - height) / 2)
    return image.crop((left, top, left + width, top + height))


@unittest.skipUnless(HAS_BOTH, "built without libpng or libjpeg-turbo")
@unittest.skipIf(Image is None, "needs Pillow and NumPy for python3 (python3-pil, python3-numpy)")
class Pictures(JobTest):
    def show(self, path, height, width, resize="0", channels=3):
        run = subprocess.run([BIN / "show_picture", str(channels), str(height), str(width), resize, path],
                             capture_output=True)
        self.assertEqual(run.returncode, 0, run.stderr.decode())
        planes = numpy.frombuffer(run.stdout, numpy.uint8).reshape(channels, height, width)
        return planes.transpose(1, 2, 0).astype(int)

    def write(self, name, content):
        path = self.path(name)
        Path(path).write_bytes(content)
        return path

    def saved(self, image, name, **options):
        file = io.BytesIO()
        image.save(file, name.rpartition(".")[2], **options)
        return self.write(name, file.getvalue())

    def same_as_pillow(self, path):
        want = numpy.asarray(Image.open(path).convert("RGB")).astype(int)
        self.assertTrue((self.show(path, *want.shape[:2]) == want).all(), path)

    def test_png_of_every_kind(self):
        palette = chunk(b"PLTE", CHANCE.randbytes(3 * 256))
        for color, depths in ((0, (1, 2, 4, 8, 16)), (2, (8, 16)), (3, (8,)), (4, (8, 16)), (6, (8, 16))):
            for depth in depths:
                for width in (1, 13, 32):
                    extra = palette if color == 3 else b""
                    name = f"{color}-{depth}-{width}.png"
                    self.same_as_pillow(self.write(name, random_png(width, 9, depth, color, extra)))
        for bits in (1, 2, 4):
            small = chunk(b"PLTE", CHANCE.randbytes(3 << bits))
            self.same_as_pillow(self.write(f"p{bits}.png", random_png(11, 5, bits, 3, small)))

    def test_png_transparency_is_left_out(self):
        extra = chunk(b"PLTE", CHANCE.randbytes(3 * 256)) + chunk(b"tRNS", bytes(range(256)))
        self.same_as_pillow(self.write("p.png", random_png(20, 20, 8, 3, extra)))
        self.same_as_pillow(self.write("g.png", random_png(20, 20, 8, 0, chunk(b"tRNS", b"\0\7"))))

    def test_webp_and_bmp(self):
        picture = Image.fromarray(numpy.frombuffer(CHANCE.randbytes(13 * 9 * 4), numpy.uint8).reshape(9, 13, 4), "RGBA")
        for mode in ("1", "L", "P", "RGB", "RGBA"):
            self.same_as_pillow(self.saved(picture.convert("RGB").convert(mode) if mode != "RGBA" else picture, f"{mode}.bmp"))
        for name, options in (("a.webp", {"lossless": True}), ("b.webp", {"quality": 60})):
            self.same_as_pillow(self.saved(picture, name, **options))
            self.same_as_pillow(self.saved(picture.convert("RGB"), name, **options))
        whole = Path(self.path("RGB.bmp")).read_bytes()
        self.refused(self.write("cut.bmp", whole[:-1]), "not a whole BMP")
        self.refused(self.write("cut.webp", Path(self.path("a.webp")).read_bytes()[:-9]), "not a whole WebP")

    def test_png_gamma_is_left_out(self):
        extra = chunk(b"gAMA", struct.pack(">I", 100000))
        self.same_as_pillow(self.write("g.png", random_png(20, 20, 8, 2, extra)))

    def test_png_interlaced(self):
        for size in ((1, 1), (5, 3), (20, 17)):
            self.same_as_pillow(self.write("i.png", interlaced_png(*size)))

    def close(self, path, want, *arguments, **options):
        off = abs(self.show(path, want.height, want.width, *arguments, **options)
                  - numpy.asarray(want).astype(int).reshape(want.height, want.width, -1))
        self.assertGreaterEqual((off <= 1).mean(), 0.999, path)
        return off

    def test_jpeg_of_every_kind(self):
        image = picture(83, 61)
        for i, options in enumerate((dict(quality=95), dict(quality=60, subsampling=2), dict(progressive=True),
                                     dict(subsampling=0), dict(optimize=True, subsampling=1))):
            path = self.saved(image, f"{i}.jpeg", **options)
            self.close(path, Image.open(path).convert("RGB"))
        for mode in ("L", "CMYK"):
            path = self.saved(image.convert(mode), f"{mode}.jpeg")
            self.close(path, Image.open(path).convert("RGB"))

    def test_resize_and_crop(self):
        for width, height in ((200, 150), (150, 200), (64, 64), (40, 90), (500, 75)):
            image = picture(width, height)
            path = self.saved(image, "r.png")
            for size in (64, 65, 100, (64, 64), (70, 81), (200, 64)):
                text = f"{size[0]}x{size[1]}" if isinstance(size, tuple) else str(size)
                want = cropped(resized(image, size), 64, 64)
                with self.subTest(picture=image.size, size=size):
                    self.assertEqual(self.close(path, want, text).max(), 0)

    def test_random_resized_crop(self):
        image = picture(120, 90)
        path = self.saved(image, "c.png")
        boxes = set()
        for position in range(20):
            run = subprocess.run([BIN / "show_picture", "3", "32", "40", "0", path, str(position)],
                                 capture_output=True, check=True)
            left, top, width, height = map(int, run.stderr.split())
            boxes.add((left, top, width, height))
            want = numpy.asarray(rows_first(image.crop((left, top, left + width, top + height)), 40, 32))
            ours = numpy.frombuffer(run.stdout, numpy.uint8).reshape(3, 32, 40).transpose(1, 2, 0)
            self.assertTrue((ours == want).all(), boxes)
        self.assertEqual(len(boxes), 20)

    def test_color_jitter(self):
        image = picture(40, 30)
        path = self.saved(image, "j.png")
        changes = (ImageEnhance.Brightness, ImageEnhance.Contrast, ImageEnhance.Color)
        for order, factors in (("012", (0.5, 1.3, 0.2)), ("120", (1.7, 0.6, 1.9)), ("201", (1, 0, 2.5)),
                               ("210", (0.93, 1.01, 1)), ("102", (0, 1, 1)), ("021", (1.4, 2.2, 0))):
            for channels, want in ((3, image), (1, image.convert("L"))):
                run = subprocess.run([BIN / "show_picture", str(channels), "30", "40", "0", path, "-",
                                      *map(str, factors), "0", order], stdout=subprocess.PIPE, check=True,
                                     stderr=subprocess.DEVNULL)
                for i in map(int, order):
                    want = changes[i](want).enhance(factors[i])
                ours = numpy.frombuffer(run.stdout, numpy.uint8).reshape(channels, 30, 40).transpose(1, 2, 0)
                self.assertTrue((ours == numpy.asarray(want).reshape(ours.shape)).all(), (order, channels))

    def test_jpeg_resized(self):
        path = self.saved(picture(333, 217), "r.jpeg", quality=85)
        want = cropped(resized(Image.open(path).convert("RGB"), 72), 64, 64)
        self.close(path, want, "72")

    def test_gray(self):
        image = picture(50, 40)
        path = self.saved(image, "g.png")
        self.assertEqual(self.close(path, image.convert("L"), channels=1).max(), 0)
        self.assertEqual(self.close(path, cropped(resized(image.convert("L"), 30), 28, 28), "30", channels=1).max(), 0)

    # --- what cannot be read ---

    def refused(self, path, says, *arguments):
        run = subprocess.run([BIN / "show_picture", *(arguments or ("3", "8", "8", "0")), path], text=True,
                             capture_output=True)
        self.assertEqual(run.returncode, 1, path)
        self.assertIn(str(path), run.stderr)
        self.assertIn(says, run.stderr)
        self.assertEqual(run.stderr.count("\n"), 1, run.stderr)

    def test_bad_files_are_named(self):
        whole = random_png(8, 8, 8, 2)
        for cut in (9, 20, 40, len(whole) - 20, len(whole) - 1):
            self.refused(self.write("cut.png", whole[:cut]), "truncated")
        self.refused(self.write("crc.png", whole[:60] + bytes([whole[60] ^ 1]) + whole[61:]), "not a whole PNG")
        jpeg = Path(self.saved(picture(80, 80), "w.jpeg")).read_bytes()
        for cut in (4, 100, 700, len(jpeg) // 2):
            self.refused(self.write("cut.jpeg", jpeg[:cut]), "not a whole JPEG")
        self.refused(self.write("none.png", b""), "is empty")
        self.refused(self.write("text.jpg", b"a letter"), "is no PNG, JPEG, WebP or BMP")
        self.refused(self.path("missing.png"), "No such file")
        os.mkdir(self.path("folder.png"))
        self.refused(self.path("folder.png"), "is not a regular file")
        os.mkfifo(self.path("fifo.png"))
        self.refused(self.path("fifo.png"), "is not a regular file")

    def test_huge_sizes_take_no_memory(self):
        for width, height, says in ((60000, 60000, "cannot hold them"), (2**31 - 1, 1, "cannot hold them"),
                                    (2**31 - 1, 2**31 - 1, "cannot hold them"), (0, 5, "not a whole PNG")):
            self.refused(self.write("h.png", png(width, height, 8, 2, [b"\0"])), says)
        self.refused(self.write("w.png", random_png(66000, 1, 8, 2)), "a picture of 66000 x 1 pixels; at most")
        jpeg = bytearray(Path(self.saved(picture(16, 16), "h.jpeg")).read_bytes())
        at = jpeg.index(b"\xff\xc0") + 5
        jpeg[at:at + 4] = struct.pack(">HH", 65000, 65000)
        self.refused(self.write("huge.jpeg", bytes(jpeg)), "65000 x 65000")
        jpeg[at:at + 4] = struct.pack(">HH", 9000, 9000)
        self.refused(self.write("large.jpeg", bytes(jpeg)), "claims 9000 x 9000 pixels; a file of")

    def test_other_sizes_are_named(self):
        path = self.saved(picture(20, 10), "s.png")
        self.refused(path, "10 x 20 (height x width), but 8 x 8 are expected: set data.resize")
        self.refused(path, "12 x 24 (height x width) after data.resize, smaller than the 16 x 16",
                     "3", "16", "16", "12")


MODEL = """
model:
  input: [3, 16, 16]
  loss: cross_entropy
  layers: [flatten, {linear: {name: fc, out: 3}}]
train: {epochs: 2, seed: 1, threads: 1}
data: {kind: image_folder, path: FOLDER, batch: 8, flip: true, crop_padding: 2}
optimizer: {name: sgd, lr: 0.1}
job: {servers: 1, workers: 1}
"""


@unittest.skipUnless(HAS_BOTH, "built without libpng or libjpeg-turbo")
@unittest.skipIf(Image is None, "needs Pillow and NumPy for python3 (python3-pil, python3-numpy)")
class Jobs(JobTest):
    """Three classes. Their names are ordered by bytes: capitals come first."""

    def setUp(self):
        super().setUp()
        self.config = self.path("model.yaml")
        Path(self.config).write_text(MODEL.replace("FOLDER", self.path("set")), encoding="utf-8")
        for split, n in (("train", 10), ("test", 4)):
            for label, name in enumerate(("Zebra", "ant", "b/er")):
                self.fill(split, label, name, n)

    def fill(self, split, label, name, n):
        folder = Path(self.path("set"), split, name)
        folder.mkdir(parents=True)
        for i in range(n):
            picture(16, 16, seed=100 * label + i + 1000 * (split == "test")).save(folder / f"{i}.PNG")

    def arrays(self):
        """The same samples in ImageFolder's order, as npy."""
        os.mkdir(self.path("npy"))
        for split in ("train", "test"):
            root = Path(self.path("set"), split)
            pairs = [(path, label) for label, name in enumerate(sorted(os.listdir(root)))
                     for path in sorted((root / name).rglob("*.PNG"))]
            x = numpy.stack([numpy.asarray(Image.open(path)).transpose(2, 0, 1) for path, _ in pairs])
            numpy.save(self.path("npy", f"{split}_x.npy"), numpy.ascontiguousarray(x))
            numpy.save(self.path("npy", f"{split}_y.npy"), numpy.array([label for _, label in pairs]))

    def out(self):
        self.runs = getattr(self, "runs", 0) + 1
        return f"out{self.runs}"

    def weights(self, *arguments):
        out = self.out()
        self.psrun("-m", "single", self.config, *arguments, out=out)
        return {name: values for name, (_, _, values) in
                read_safetensors(self.path(out, "model.safetensors"))[0].items()}

    def test_trains_as_on_the_same_arrays(self):
        self.arrays()
        values = self.weights("data.kind=npy", "data.path=" + self.path("npy"))
        self.assertEqual(self.weights(), values)
        for threads in (2, 5):
            self.assertEqual(self.weights(f"data.threads={threads}"), values)

    def test_predict_a_folder(self):
        out = self.out()
        self.psrun("-m", "single", self.config, out=out)
        weights = ("--init", self.path(out, "model.safetensors"))
        said = {}
        os.rename(self.path("set", "test", "b", "er"), self.path("set", "test", "b", 'e"r, x'))
        for what in ("test", self.path("set", "test")):
            self.psrun("--predict", what, *weights, self.config, "data.eval_batch=5", out=self.out())
            said[what] = list(csv.DictReader(self.text_of(f"out{self.runs}", "predictions.csv").splitlines()))
        found = said.pop("test")
        self.assertEqual(list(said.values()), [found])
        self.assertEqual([line["file"] for line in found], sorted(line["file"] for line in found))
        self.assertEqual({line["file"] for line in found}, set(map(str, Path(self.path("set", "test")).rglob("*.PNG"))))

    def rename(self, names):
        for split in ("train", "test"):
            root = os.fsencode(self.path("set", split))
            for old, new in names.items():
                os.rename(os.path.join(root, old), os.path.join(root, new))

    def named(self, file):
        return [line.get("name") for line in json.loads(self.text_of(f"out{self.runs}", file))["classes"]]

    def shown(self, file):
        root = ElementTree.parse(self.path(f"out{self.runs}", file)).getroot()
        texts = [e.text for e in root.iter("{http://www.w3.org/2000/svg}text")]
        return texts, [e.text for e in root.iter("{http://www.w3.org/2000/svg}title")]

    def test_classes_are_shown_by_their_names(self):
        # In order of bytes: a name with a tag and a control character, one of 200 letters, one that is not UTF-8.
        odd, long = "<&a>\"'\x01\n", "n" * 200
        self.rename({b"Zebra": odd.encode(), b"ant": long.encode(), b"b": b"z\xff\xc3\xa9"})
        names = [odd, long, "z\\xff\u00e9"]
        out = self.out()
        self.psrun("-w", 2, self.config, out=out)
        self.assertEqual(self.named("evaluation.json"), names)
        weights = ("--init", self.path(out, "model.safetensors"))
        files = []
        for what, workers in (("test", 1), ("test", 3), (self.path("set", "test"), 1)):
            text = self.psrun("--predict", what, *weights, self.config, "-w", workers, out=self.out())
            self.assertNotIn("top5", text)  # of three classes
            with open(self.path(f"out{self.runs}", "predictions.csv"), encoding="utf-8", newline="",
                      errors="surrogateescape") as f:
                for line in csv.DictReader(f):
                    self.assertEqual(line["class_name"], [odd, long, "z\udcff\u00e9"][int(line["class"])])
            if what == "test":
                self.assertEqual(self.named("confusion.json"), names)
                files.append(Path(self.path(f"out{self.runs}", "confusion.svg")).read_bytes())
                texts, titles = self.shown("confusion.svg")
        self.assertEqual(files[0], files[1])
        short = ["<&a>\"'\\x01\\n", "n" * 39 + "\u2026", names[2]]
        for name in (short[0], "n" * 19 + "\u2026", short[2]):
            self.assertEqual(texts.count(name), 2)
        for title in titles:
            label, found = map(int, re.findall(r"(?:label|for) (\d) ", title))
            self.assertRegex(title, re.escape(f"label {label} ({short[label]}), taken for {found} ({short[found]}): ")
                             + r"\d+$")

    def test_names_of_classes_in_a_file(self):
        os.mkdir(self.path("cifar"))
        for name, n in (("data_batch_1.bin", 20), ("test_batch.bin", 10)):
            Path(self.path("cifar", name)).write_bytes(b"".join(bytes([i % 3]) + bytes([9 * i]) * 3072
                                                                for i in range(n)))
        Path(self.path("cifar", "batches.meta.txt")).write_text("plane\ncar\n\n", encoding="ascii")
        settings = ("model.input=[3,32,32]", "data.kind=cifar10", "data.path=" + self.path("cifar"),
                    "data.train=data_batch_1.bin")
        self.psrun("-m", "single", self.config, *settings, out=self.out())
        self.assertEqual(self.named("evaluation.json"), ["plane", "car", None])

    def test_predict_names_a_bad_picture_and_leaves_nothing(self):
        out = self.out()
        self.psrun("-m", "single", self.config, out=out)
        bad = Path(self.path("set"), "test", "ant", "2.PNG")
        bad.write_bytes(b"no picture")
        said = self.psrun("--predict", self.path("set", "test"), "--init", self.path(out, "model.safetensors"),
                          self.config, out="said", code=1)
        folder, n = self.path("set", "test"), sum(p.is_file() for p in Path(self.path("set", "test")).rglob("*"))
        self.assertIn(f"{folder}: 1 of {n} pictures cannot be read: {bad}; remove them, save them again, or set "
                      "data.unreadable=skip", said)
        self.assertFalse(os.path.exists(self.path("said", "predictions.csv")))
        self.psrun("--predict", folder, "--init", self.path(out, "model.safetensors"), self.config,
                   "data.unreadable=skip", out="said")
        with open(self.path("said", "predictions.csv"), encoding="utf-8") as f:
            rows = list(csv.DictReader(f))
        files = [str(p) for p in sorted(Path(folder).rglob("*"), key=lambda p: (str(p.parent), p.name)) if p.is_file()]
        self.assertEqual([files[int(row["index"])] for row in rows], [row["file"] for row in rows])
        self.assertEqual(len(rows), n - 1)

    def fails(self, says, *arguments):
        run = Psrun.run(self.psrun_argv("-m", "single", self.config, *arguments, out=self.out()))
        self.assertNotEqual(run.returncode, 0)
        self.assertIn(says, run.stdout)

    def test_augmentations_do_not_depend_on_threads(self):
        crops, colors = "data.crop_scale=[0.2,1]", "data.color_jitter=[0.4,0.4]"
        values = [self.weights(), self.weights(crops), self.weights(crops, colors)]
        self.assertNotEqual(values[0], values[1])
        self.assertNotEqual(values[1], values[2])
        self.assertEqual(self.weights(crops, colors, "data.threads=4"), values[2])

    def test_a_bad_picture_ends_the_job(self):
        path = Path(self.path("set"), "train", "ant", "3.PNG")
        path.write_bytes(path.read_bytes()[:200])
        truncated = f"{path}: not a whole PNG: the file is truncated"
        self.fails(truncated + ": remove the file, or save it again; --check-data lists all")
        self.fails(truncated + "\n", "--check-data")
        for i in range(10):
            path.with_name(f"{i}.PNG").write_bytes(b"no picture")
        path.parent.with_name("Zebra").joinpath("0.PNG").write_bytes(b"")
        tested = Path(self.path("set"), "test", "ant", "1.PNG")
        tested.write_bytes(b"")
        run = Psrun.run(self.psrun_argv("--check-data", self.config, out=self.out()))
        self.assertEqual(run.stdout.count("is no PNG, JPEG, WebP or BMP picture\n"), 9)
        self.assertIn("and 1 more\n", run.stdout)
        self.assertIn(f"data.train: 11 of 30 pictures cannot be read: {path.parent.with_name('Zebra')}/0.PNG, ", run.stdout)
        self.assertRegex(run.stdout, rf"data\.test: 1 of \d+ pictures cannot be read: {tested}; remove them, save them again, "
                                     "or set data.unreadable=skip")
        run = Psrun.run(self.psrun_argv("--check-data", self.config, "data.unreadable=skip", out=self.out()))
        self.assertEqual(run.returncode, 0, run.stdout)
        self.assertIn("left out: 11 of 30: ", " ".join(run.stdout.split()))
        self.assertIn("data.train  19 samples", run.stdout)

    def test_folders(self):
        root = Path(self.path("set"))
        for name in ("cat", "dog"):
            (root / "test" / name).mkdir()
        self.fails(f"{root}/test has classes that {root}/train does not have: cat, dog; give both the same folders")
        for name in ("cat", "dog"):
            (root / "test" / name).rmdir()
        (root / "train" / "empty").mkdir()
        self.fails("has no pictures (.png, .jpg, .jpeg, .webp, .bmp)")
        (root / "train" / "empty").rmdir()
        flat = f"data.path={root / 'train'}"
        self.fails("has no folder train; if its folders are classes, move them into train/ and test/, or give "
                   "data.train=.", flat)
        text = " ".join(self.psrun("--check-data", self.config, flat, "data.train=.@0-9").split())
        self.assertIn("classes without a sample: 2 of 3, the first is 1 ant: the range takes samples as", text)
        os.rename(root / "test", root / "val")
        for name in ("train/ant/1.gif", "train/ant/2.tif", "train/loose.png", "train/ant/.hidden"):
            (root / name).touch()
        text = self.psrun("-m", "single", self.config, out=self.out())
        left_out = f"files that are left out: 3, such as {root}/train/loose.png; pictures end in .png"
        self.assertIn(left_out, text)
        text = " ".join(self.psrun("--check-data", self.config).split())
        self.assertIn(left_out, text)
        self.assertIn("all 30 in ", text)
        self.assertRegex(text, "classes 3 classes data.train data.test class 10 [0-9]+ 0 Zebra 10 [0-9]+ 1 ant 10 [0-9]+ 2 b")


if __name__ == "__main__":
    unittest.main()
