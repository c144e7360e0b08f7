"""The folder of a run as a model: predictions from all kinds of input, the figures of an evaluation, --serve."""
import csv
import gzip
import json
import math
import os
import random
import shutil
import signal
import struct
import subprocess
import unittest
import urllib.error
import urllib.request
import zlib
from pathlib import Path
from xml.etree import ElementTree

from jobs import BIN, PSRUN, JobTest, free_port, npy, read_until, run_well
from test_bench import TORCH, needs_torch

HEAD = "model: {%s layers: [{linear: {name: a, out: 8}}, tanh, {linear: {name: b, out: %d}}]}\n" \
       "data: {kind: csv, train: all.csv@0-79, test: all.csv@80-119, drop: [id], batch: 8, target: %s, columns: [size, place]}\n" \
       "train: {epochs: 3, seed: 1, threads: 1}\noptimizer: {name: adamw, lr: 0.02}\n"

EXPORTED = str(Path(__file__).with_name("python") / "exported.py")


def png(shade):
    """A gray picture of 4 x 4."""
    def chunk(kind, body):
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
    rows = b"".join(b"\0" + bytes([shade + 9 * i + k for k in range(4)]) for i in range(4))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 4, 4, 8, 0, 0, 0, 0))
            + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Folder(JobTest):
    def write(self, name, text):
        Path(self.path(name)).write_text(text, encoding="utf-8")

    def make_table(self):
        draw = random.Random(1)
        lines = []
        for i in range(120):
            size, place = draw.uniform(20, 200), draw.choice(["town", "village, \"small\"", "city"])
            price = 1e5 + 2000 * size + 3e4 * len(place) + draw.gauss(0, 2e4)
            kind = "dear" if price + draw.gauss(0, 2e4) > 4e5 else "cheap"
            lines.append([f"h{i}", f"{size:.3f}", place, f"{price:.2f}", kind])
        self.save("all.csv", ["id", "size", "place", "price", "kind"], lines)
        self.save("new.csv", ["place", "id", "more", "size"], [[r[2], r[0], "?", r[1]] for r in lines[:7]])

    def save(self, name, head, lines):
        with open(self.path(name), "w", newline="", encoding="utf-8") as f:
            csv.writer(f).writerows([head, *lines])

    def train(self, target, outputs, loss=""):
        self.make_table()
        self.write("job.yaml", HEAD % (loss, outputs, target))
        return self.psrun("-m", "single", self.path("job.yaml"), out="run")

    def predict(self, what, run="run", stdin=None, code=0):
        argv = [PSRUN, "--build-dir", BIN.parent, "--predict", what, "--overwrite", "--out", self.path("said"), self.path(run)]
        done = subprocess.run(list(map(str, argv)), input=stdin, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        text = done.stdout.decode()
        self.assertEqual(done.returncode, code, text)
        return text

    def said(self):
        return list(csv.DictReader(self.text_of("said", "predictions.csv").splitlines()))

    def moved(self):
        """The run's folder elsewhere, without the job's data."""
        shutil.move(self.path("run"), self.path("elsewhere"))
        for name in ("all.csv", "job.yaml"):
            os.remove(self.path(name))

    def ask(self, url, body=None, kind="application/json"):
        request = urllib.request.Request(url, body, {"Content-Type": kind} if body is not None else {})
        try:
            with urllib.request.urlopen(request, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def serve(self, *words):
        """Of the run's folder elsewhere, or of these words. Returns the process and its address."""
        port = free_port()
        run = self.start_psrun("--serve", port, *(words or [self.path("elsewhere")]), out="served")
        self.assertTrue(read_until(run.stdout, f"at http://127.0.0.1:{port}/predict"))
        return run, f"http://127.0.0.1:{port}/"

    def as_pytorch_says(self):
        with open(self.path("model.py"), "w", encoding="utf-8") as f:
            subprocess.run([PSRUN, "--build-dir", BIN.parent, "--export-torch", self.path("elsewhere")], stdout=f, check=True)
        said = run_well([TORCH, EXPORTED, "predict", self.path("model.py"), self.path("elsewhere", "model.safetensors"),
                         self.path("new.csv"), self.path("said", "predictions.csv")])
        self.assertEqual(said.strip(), "the same")


class Numbers(Folder):
    @needs_torch
    def test_numbers(self):
        text = self.train("price", 1, "loss: mse,")
        self.assertRegex(text, r"epoch 3/3  test loss \S+ R2 0\.\d+  train \S+")
        self.predict("test")
        rows = [(float(r["truth"]), float(r["output_price"])) for r in self.said()]
        with open(self.path("all.csv"), newline="", encoding="utf-8") as f:
            for (truth, _), line in zip(rows, list(csv.DictReader(f))[80:], strict=True):
                self.assertLess(abs(truth - float(line["price"])), 0.2)
        mean = sum(t for t, _ in rows) / len(rows)
        squares = sum((t - p) ** 2 for t, p in rows)
        wanted = {"mae": sum(abs(t - p) for t, p in rows) / len(rows), "rmse": math.sqrt(squares / len(rows)),
                  "r2": 1 - squares / sum((t - mean) ** 2 for t, _ in rows)}
        figures = json.loads(self.text_of("said", "figures.json"))
        for name, value in wanted.items():
            for found in (figures[name], figures["numbers"][0][name], self.summary("run")[f"test_{name}"]):
                self.assertLess(abs(found / value - 1), 1e-5, name)
        self.predict(self.path("new.csv"))
        before = self.text_of("said", "predictions.csv")
        self.assertEqual(before.splitlines()[0], "index,id,output_price")
        self.assertEqual([r["id"] for r in self.said()], [f"h{i}" for i in range(7)])
        self.write("some.csv", "size,place,price\n51.5,town,9\n60,city,\n")
        self.assertIn('"price" is missing in 1 of 2 lines, so none is compared',
                      " ".join(self.predict(self.path("some.csv")).split()))
        self.assertNotIn("truth", self.said()[0])
        self.predict(self.path("new.csv"))
        self.moved()
        packed = gzip.compress(Path(self.path("new.csv")).read_bytes())
        text = self.predict("-", "elsewhere", packed)
        self.assertTrue(text.rstrip().endswith(self.path("said", "predictions.csv")), text)
        self.assertEqual(self.text_of("said", "predictions.csv"), before)
        said, (run, url) = self.said(), self.serve()
        answers = json.loads(self.ask(url + "predict", Path(self.path("new.csv")).read_bytes())[1])["predictions"]
        self.assertEqual([list(a) for a in answers], [["price"]] * 7)
        for answer, row in zip(answers, said, strict=True):
            self.assertAlmostEqual(answer["price"], float(row["output_price"]), 4)
        run.send_signal(signal.SIGINT)
        self.as_pytorch_says()
        self.assertIn("no such", self.predict("test", "elsewhere", code=1).lower())
        self.assertIn(" is a folder; this model takes a table with the columns size, place",
                      self.predict(self.folder, "elsewhere", code=1))


class Classes(Folder):
    def area(self, rows):
        """Of all pairs the share in the right order, one by one."""
        yes = [float(r["probability_dear"]) for r in rows if r["truth_name"] == "dear"]
        no = [float(r["probability_dear"]) for r in rows if r["truth_name"] == "cheap"]
        return sum((a > b) + (a == b) / 2 for a in yes for b in no) / (len(yes) * len(no))

    @needs_torch
    def test_classes(self):
        text = self.train("kind", 2)
        self.assertRegex(text, r"epoch 1/3  test loss \S+ \d+\.\d\d%  train \S+ \d+\.\d\d%  best\n")
        self.check_curves()
        self.predict(self.path("all.csv"))
        rows = self.said()
        found = json.loads(self.text_of("said", "confusion.json"))
        self.assertAlmostEqual(found["auc"], self.area(rows), 5)
        f1 = []
        for k, name in enumerate(("cheap", "dear")):
            right = sum(r["class_name"] == r["truth_name"] == name for r in rows)
            both = sum((r["class_name"] == name) + (r["truth_name"] == name) for r in rows)
            f1.append(2 * right / both)
            self.assertAlmostEqual(found["classes"][k]["f1"], f1[-1], 5)
            for r in rows:
                self.assertAlmostEqual(sum(float(r[f"probability_{c}"]) for c in ("cheap", "dear")), 1, 6)
        self.assertAlmostEqual(found["f1"], sum(f1) / 2, 5)
        self.predict("test")
        figures = json.loads(self.text_of("said", "confusion.json"))
        found = json.loads(self.text_of("run", "evaluation.json"))
        self.assertAlmostEqual(found.pop("loss"), figures.pop("loss"), 5)
        self.assertEqual(figures, found)
        self.assertAlmostEqual(self.summary("run")["test_auc"], figures["auc"], 5)
        self.predict(self.path("new.csv"))
        self.moved()
        self.as_pytorch_says()
        self.check_server(self.said())

    def check_curves(self):
        drawn = self.text_of("run", "curves.svg")
        self.assertEqual(ElementTree.fromstring(drawn).get("aria-label"), "loss and accuracy by step")
        self.assertRegex(drawn, r">[\d.]+ %</text>")
        self.assertEqual(drawn.count("<circle"), 6)  # of three evaluations: loss and accuracy

    def check_server(self, rows):
        run, url = self.serve()
        lines = list(csv.DictReader(self.text_of("new.csv").splitlines()))
        as_json = json.dumps({"samples": [{"size": float(r["size"]), "place": r["place"]} for r in lines]}).encode()
        for body, kind in ((as_json, "application/json"), (self.text_of("new.csv").encode(), "text/csv")):
            code, text = self.ask(url + "predict", body, kind)
            self.assertEqual(code, 200, text)
            for said, row in zip(json.loads(text)["predictions"], rows, strict=True):
                self.assertEqual((said["class"], said["class_name"]), (int(row["class"]), row["class_name"]))
                for p, name in zip(said["probabilities"], ("cheap", "dear"), strict=True):
                    self.assertAlmostEqual(p, float(row[f"probability_{name}"]), 6)
        self.check_slips(url)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(30), 0, run.stdout.read())


    def check_slips(self, url):
        """What people send by mistake, as curl does: without a type, files in one line."""
        def answer(body, kind=""):
            return self.ask(url + "predict", body if isinstance(body, bytes) else body.encode(), kind)
        one = '{"size": "51.5", "place": "town"}'
        wanted = answer('{"samples": [%s]}' % one)
        self.assertEqual(wanted[0], 200, wanted[1])
        for same in (one, f"[{one}]", '{"samples": %s}' % one, 'place,size\n"town",51.5\n'):
            self.assertEqual(answer(same, "application/x-www-form-urlencoded"), wanted)
        code, text = answer('[{"size": 51.5, "place": "moon"}]')
        self.assertIn('"moon"', json.loads(text)["warnings"][0])
        table = self.text_of("new.csv")
        for body, says in (("{", "JSON's line 1"), ("[]", "one sample"), ('[{"size": true, "place": ""}]', '"size" is not a number'),
                           ("{'size': 3}", "double quotes"), ('{"size": [3, 4], "place": ["a", "b"]}', "an object of its own"),
                           ("[[1, 2]]", "the body has numbers without names; this model takes a table with the columns size, place"),
                           ('[{"size": 1}]', 'sample 0: a column is missing: "place"'), (one.replace("size", "sise"), 'rename "sise"'),
                           ('[%s, {"size": null, "place": "town"}]' % one, 'sample 1: "size": "" is not a value of "size": fill it, train with'),
                           ('[{"size": "3 m", "place": "town"}]', 'sample 0: "size": "3 m" is not a number'),
                           ("", "the body is empty; this model takes"), (table.replace("\n", ""), "--data-binary @FILE"),
                           ("new.csv", "--data-binary @FILE"), (table.split("\n", 1)[1], "put a line with the names before"),
                           (table.replace("size", "sise", 1), 'a column is missing: "size" (rename "sise"'),
                           (png(9), "the body is a picture; this model takes a table with"),
                           (gzip.compress(bytes(40 << 20)), "more than 33554432 bytes when it is decompressed"),
                           (b"\x93NUMPY\x01\0", "numbers without names")):
            with self.subTest(body=body):
                code, text = answer(body)
                self.assertEqual(code, 400)
                self.assertIn(says, text)
        self.assertIn("the body is a form (curl -F)", answer("--x\r\n\r\n" + table, "multipart/form-data; boundary=x")[1])
        # What it says about itself, its own example, is understood.
        code, text = self.ask(url)
        self.assertIn("the columns size, place, and gives 2 probabilities: cheap, dear", text)
        self.assertEqual(answer(text.split("'")[1])[0], 200)


class OneColumn(Folder):
    def test_large_numbers_have_their_digits(self):
        self.write("all.csv", "x,t\n" + "".join(f"{i},{1700000000 + 3 * i}\n" for i in range(40)))
        self.write("job.yaml", "model: {loss: mse, layers: [linear: {out: 1}]}\n"
                               "data: {kind: csv, train: all.csv, target: t, batch: 8}\n")
        self.psrun("-m", "single", self.path("job.yaml"), out="run")
        self.predict(self.path("all.csv"))
        run, url = self.serve(self.path("run"))
        code, text = self.ask(url + "predict", json.dumps({"samples": [{"x": i} for i in range(40)]}).encode())
        self.assertEqual(code, 200, text)
        for answer, row in zip(json.loads(text)["predictions"], self.said(), strict=True):
            self.assertAlmostEqual(answer["t"], float(row["output_t"]), 4)
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(30), 0, run.stdout.read())

    def test_what_is_missing_and_what_is_long(self):
        """A null is a sample as others are, and an id has all its digits."""
        ids = (123456789012345678, 123456789012345679)
        self.write("all.csv", "x,y\n" + "".join(f"{ids[i % 2]},{i % 2}\n" for i in range(40)))
        self.write("job.yaml", "model: {layers: [linear: {out: 2}]}\ntrain: {epochs: 20}\noptimizer: {name: adamw, lr: 0.1}\n"
                               "data: {kind: csv, train: all.csv, target: y, missing: mean, categories: [x], batch: 8}\n")
        self.psrun("-m", "single", self.path("job.yaml"), out="run")
        self.moved()
        run, url = self.serve()
        samples = [{"x": ids[0]}, {"x": None}, {"x": ids[1]}, {"x": str(ids[0])}]
        code, text = self.ask(url + "predict", json.dumps({"samples": samples}).encode())
        self.assertEqual(code, 200, text)
        said = json.loads(text)
        self.assertNotIn("warnings", said)
        self.assertEqual(len(said["predictions"]), 4)
        self.assertEqual([said["predictions"][i]["class"] for i in (0, 2, 3)], [0, 1, 0])
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(30), 0, run.stdout.read())


class OtherLetters(Folder):
    def test_names_that_are_not_utf8(self):
        """The answer has them, with the bytes' numbers, as the results do."""
        self.write("all.csv", "".join(f"{i % 2},{i % 2}\n" for i in range(8)))
        Path(self.path("class_names.txt")).write_bytes("rouge\nbl\u00e9\n".encode("latin-1"))
        self.write("job.yaml", "model: {layers: [linear: {out: 2}]}\ntrain: {epochs: 20}\noptimizer: {name: adamw, lr: 0.1}\n"
                               "data: {kind: csv, train: all.csv, batch: 8}\n")
        self.psrun("-m", "single", self.path("job.yaml"), out="run")
        run, url = self.serve(self.path("job.yaml"), "train.init=" + self.path("run", "model.safetensors"))
        code, text = self.ask(url + "predict", b'{"samples": [[0], [1]]}')
        self.assertEqual(code, 200, text)
        self.assertEqual([p["class_name"] for p in json.loads(text)["predictions"]], ["rouge", "bl\\xe9"])
        self.assertEqual(self.text_of("run", "classes.txt"), "rouge\nbl\\xe9\n")
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(30), 0, run.stdout.read())


class Types(Folder):
    def test_bytes_and_floats_are_told_apart(self):
        """uint8 is multiplied by data.scale, and float32 is not: one of them for the other gives wrong answers."""
        values = [(37 * i * i) % 256 for i in range(24)]
        for name, descr, body in (("x", "|u1", bytes(values)), ("large", "<f4", struct.pack("<24f", *values)),
                                  ("scaled", "<f4", struct.pack("<24f", *[v / 255 for v in values])),
                                  ("y", "|u1", bytes(i % 2 for i in range(8)))):
            Path(self.path(name + ".npy")).write_bytes(npy(descr, "(8, 3)" if name != "y" else "(8,)", body))
        self.write("job.yaml", "model: {layers: [linear: {out: 2}]}\ntrain: {epochs: 20}\noptimizer: {name: adamw, lr: 0.1}\n"
                               "data: {kind: npy, train: 'x.npy,y.npy', batch: 8}\n")
        says = "samples of float32, which stay as they are, for a model that is trained on uint8"
        self.assertIn(says, " ".join(self.psrun("--check-data", self.path("job.yaml"), "data.test=large.npy,y.npy").split()))
        self.psrun("-m", "single", self.path("job.yaml"), out="run")
        self.assertNotIn("samples of", self.predict(self.path("x.npy")))
        said = [float(r["probability_1"]) for r in self.said()]
        self.assertNotIn("samples of", self.predict(self.path("scaled.npy")))
        for one, other in zip(said, self.said(), strict=True):
            self.assertAlmostEqual(one, float(other["probability_1"]), 5)
        self.assertIn(says, self.predict(self.path("large.npy")))
        run, url = self.serve(self.path("run"))
        rows = [values[i:i + 3] for i in range(0, 24, 3)]
        answers = json.loads(self.ask(url + "predict", json.dumps({"samples": rows}).encode())[1])["predictions"]
        for p, answer in zip(said, answers, strict=True):
            self.assertAlmostEqual(answer["probabilities"][1], p, 6)
        code, text = self.ask(url + "predict", json.dumps({"samples": rows, "dtype": "float32"}).encode())
        self.assertEqual(code, 200, text)
        self.assertIn(says, json.loads(text)["warnings"][0])
        run.send_signal(signal.SIGINT)
        self.assertEqual(run.wait(30), 0, run.stdout.read())
        self.psrun("-m", "single", self.path("job.yaml"), "data.train=scaled.npy,y.npy", out="floats")
        self.assertIn("samples of uint8, which are multiplied by 0.00392156863 (data.scale), for a model that is trained on",
                      self.predict(self.path("x.npy"), "floats"))


class Pictures(Folder):
    def test_pictures(self):
        for split in ("train", "test"):
            for k, name in enumerate(("bright", "dark")):
                os.makedirs(self.path(split, name))
                for i in range(2):
                    Path(self.path(split, name, f"{i}.png")).write_bytes(png(100 - 90 * k + i))
        self.write("job.yaml", "model: {input: [1, 4, 4], layers: [flatten, {linear: {name: a, out: 2}}]}\n"
                               "data: {kind: image_folder, batch: 2}\ntrain: {epochs: 2, threads: 1}\n")
        self.psrun("-m", "single", self.path("job.yaml"), out="run")
        shutil.copytree(self.path("test"), self.path("new"))
        one = Path(self.path("new", "dark", "1.png"))
        shutil.rmtree(self.path("test"))
        shutil.rmtree(self.path("train"))
        text = self.predict(self.path("new"))
        self.assertIn(" accuracy ", text)
        rows = self.said()
        self.assertEqual([r["truth_name"] for r in rows], ["bright", "bright", "dark", "dark"])
        self.assertEqual(rows[3]["file"], str(one))
        os.rename(self.path("new", "bright"), self.path("new", "unknown"))
        self.assertNotIn("accuracy", self.predict(self.path("new")))
        for what, stdin in ((one, None), ("-", one.read_bytes())):
            self.predict(what, stdin=stdin)
            (row,) = self.said()
            for name in ("class_name", "probability_bright", "probability_dark"):
                self.assertEqual(row[name], rows[3][name])
            self.assertEqual("file" in row, stdin is None)
        self.assertIn("standard input is no picture (PNG, JPEG, WebP, BMP); this model takes pictures of (1, 4, 4)",
                      self.predict("-", stdin=b"x,y\n1,2\n", code=1))


class Mistakes(Folder):
    def test_mistakes_are_named(self):
        os.makedirs(self.path("empty"))
        self.assertIn("is a folder without config.json", self.predict("x", "empty", code=1))
        self.write("empty/config.json", "{}")
        self.assertIn("config.json: model.input", self.predict("x", "empty", code=1))
        odd = self.path(os.fsdecode(b"caf\xe9.yaml"))
        self.write(odd, "model: {input: [1], layers: [linear: {out: 2}]}\n")
        self.assertIn("the path of the configuration is not UTF-8", self.psrun(odd, code=1))
        for argv, says in ((["--serve", "0"], "is not a port"), (["--predict", "-", "-w", "2", "x"], "one process")):
            done = subprocess.run([PSRUN, "--build-dir", BIN.parent, *argv, self.path("empty")],
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
            self.assertIn(says, done.stdout)


if __name__ == "__main__":
    unittest.main()
