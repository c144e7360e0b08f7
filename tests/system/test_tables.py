"""Tables by the names of their columns: jobs, evaluations and predictions stand on one state, in the users' units."""
import csv
import gzip
import importlib.util
import json
import os
import random
import re
import struct
import subprocess
import sys
import unittest
from pathlib import Path

from jobs import PSRUN, JobTest, python_with, read_safetensors, run_well

# Several conversions by one process: pandas is imported once.
CONVERSIONS = """import contextlib, io, json, sys
sys.path.insert(0, sys.argv[1])
from psrunlib import cli
def convert(argv):
    said = io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True)
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        return cli.main(["--convert", *argv]), said.buffer.getvalue().decode()
print(json.dumps([convert(argv) for argv in json.loads(sys.argv[2])]))
"""
CITIES = {"Rome": 0.0, "Oslo": 90.0, "Paris, F": 50.0}


def rows_of(n, seed):
    draw = random.Random(seed)
    for i in range(n):
        city, area = draw.choice(list(CITIES)), draw.uniform(20, 200)
        yield {"id": f"{i:03}", "city": city, "area": f"{area:.3f}", "rooms": "" if i % 9 == 4 else str(draw.randint(1, 6)),
               "price": f"{2 * area + CITIES[city] + 300:.3f}", "kind": ("small", "mid", "large")[int(area > 80) + int(area > 140)]}


class Tables(JobTest):
    def setUp(self):
        super().setUp()
        self.table = self.write("all.csv", rows_of(150, 1))
        self.new = self.write("new.csv", rows_of(20, 2))
        # One layer, so that a prediction can be calculated by hand.
        self.numbers = self.file("numbers.yaml", (
            "model: {loss: mse, layers: [linear: {name: all, out: 1}]}\n"
            "data: {kind: csv, train: all.csv, test: 20%, target: price, drop: [id, kind], missing: own, batch: 10}\n"
            "train: {epochs: 60}\noptimizer: {name: adamw, lr: 0.03, weight_decay: 0}\n"))
        self.classes = self.file("classes.yaml", (
            "model: {layers: [linear: {out: 16}, relu, linear: {out: 3}]}\n"
            "data: {kind: csv, train: all.csv, test: 20%, target: kind, drop: [id], missing: mean, batch: 10}\n"
            "train: {epochs: 40}\noptimizer: {name: adamw, lr: 0.02}\n"))

    def write(self, name, rows):
        path, rows = self.path(name), list(rows)
        with open(path, "w", encoding="utf-8", newline="") as f:
            table = csv.DictWriter(f, list(rows[0]))
            table.writeheader()
            table.writerows(rows)
        return path

    def state(self, out="out"):
        return json.loads(read_safetensors(self.path(out, "model.safetensors"))[1]["preprocessing"])

    def predictions(self, what, out):
        self.psrun("--predict", what, "--init", self.path("out", "model.safetensors"), self.numbers, out=out)
        data = Path(self.path(out, "predictions.npy")).read_bytes()
        at = 10 + struct.unpack("<H", data[8:10])[0]
        self.assertIn(b"'<f8'", data[:at])  # a float32 would lose digits of large numbers
        return struct.unpack(f"<{(len(data) - at) // 8}d", data[at:])

    def by_hand(self, rows, out="out"):
        """The model and its preprocessing in double precision."""
        state, tensors = self.state(out), read_safetensors(self.path(out, "model.safetensors"))[0]
        target = state["targets"][0]
        for row in rows:
            x = []
            for c in state["columns"]:
                cell = row[c["name"]]
                if c["categories"]:
                    x += [float(cell == k) for k in c["categories"]]
                else:
                    x += [((float(cell) if cell else c["fill"]) - c["mean"]) / c["std"]]
                x += [float(not cell)] * c["own"]
            output = sum(a * b for a, b in zip(x, tensors["all.weight"][2], strict=True)) + tensors["all.bias"][2][0]
            yield output * target["std"] + target["mean"]

    def test_numbers_are_predicted_in_their_own_units(self):
        self.psrun("-s", 1, "-w", 2, self.numbers)
        rows = list(rows_of(20, 2))
        got = self.predictions(self.new, "said")
        for value, want, row in zip(got, self.by_hand(rows), rows, strict=True):
            self.assertLess(abs(value - want), 1e-6 * abs(want))
            self.assertLess(abs(value - float(row["price"])), 12)
        # Other columns' order, more columns, gzip: the same.
        moved = [{"more": "x", **dict(reversed(row.items()))} for row in rows]
        Path(self.path("moved.csv.gz")).write_bytes(gzip.compress(Path(self.write("m.csv", moved)).read_bytes()))
        self.assertEqual(self.predictions(self.path("moved.csv.gz"), "again"), got)
        # Lines of the test part are known by their keys.
        self.psrun("--predict", "test", self.path("out"), out="tested")
        ids = [line.split(",")[1] for line in self.text_of("tested", "predictions.csv").splitlines()]
        prices = {row["id"]: float(row["price"]) for row in rows_of(150, 1)}
        self.assertEqual((ids[0], len(ids)), ("id", 31))
        with open(self.path("tested", "predictions.csv"), encoding="utf-8") as f:
            for row in csv.DictReader(f):
                self.assertAlmostEqual(float(row["truth"]), prices[row["id"]], 2)
                self.assertEqual(int(row["index"]), int(row["id"]))  # the line of all.csv
        self.assertEqual(json.loads(self.text_of("tested", "figures.json"))["numbers"][0]["name"], "price")
        # Of the training samples alone: numpy's mean and std of the lines that are not in the test part.
        area = next(c for c in self.state()["columns"] if c["name"] == "area")
        values = [float(row["area"]) for row in rows_of(150, 1)]
        self.assertNotAlmostEqual(area["mean"], sum(values) / len(values), 6)

    def test_large_numbers_keep_their_digits(self):
        # A float32 has steps of 128 there.
        rows = [{"größe": i, "t": 1700000000 + 3 * i} for i in range(40)]
        job = self.file("times.yaml", (
            "model: {loss: mse, layers: [linear: {out: 1}]}\ntrain: {epochs: 1}\n"
            f"data: {{kind: csv, train: {self.write('t.csv', rows)}, test: 25%, target: t}}\n"))
        said = self.psrun("--check-data", job, "data.test=")
        self.assertIn(f"\n{'':12}{'größe':24}  0 to 39\n", said)
        said = " ".join(said.split())
        self.assertIn("t, a number (regression, mse): 1700000000 to 1700000117, mean 1700000058", said)
        self.psrun("-m", "single", job)
        for workers in (1, 2):
            self.psrun("--overwrite", "--predict", "test", "-w", workers, self.path("out"), out="said")
            errors = []
            with open(self.path("said", "predictions.csv"), encoding="utf-8") as f:
                for row in csv.DictReader(f):
                    self.assertEqual(float(row["truth"]), rows[int(row["index"])]["t"])
                    errors.append(float(row["output_t"]) - float(row["truth"]))
            figures = json.loads(self.text_of("said", "figures.json"))
            self.assertAlmostEqual(sum(map(abs, errors)) / len(errors), figures["mae"], 4)
            self.assertAlmostEqual((sum(e * e for e in errors) / len(errors)) ** 0.5, figures["rmse"], 4)
            data = Path(self.path("said", "predictions.npy")).read_bytes()
            with open(self.path("said", "predictions.csv"), encoding="utf-8") as f:
                said = [float(row["output_t"]) for row in csv.DictReader(f)]
            for one, other in zip(struct.unpack(f"<{len(said)}d", data[128:]), said, strict=True):
                self.assertAlmostEqual(one, other, 4)

    def test_workers_and_streams_change_nothing(self):
        self.psrun("-s", 2, "-w", 2, self.classes)
        self.assertGreater(self.summary()["test_accuracy"], 0.9)
        self.assertEqual([t["categories"] for t in self.state()["targets"]], [["large", "mid", "small"]])
        for out, mode, stream in (("reduced", ("-m", "allreduce"), "false"), ("streamed", ("-s", 1), "true")):
            self.psrun("-w", 2, *mode, self.classes, f"data.stream={stream}", out=out)
            self.assertEqual(self.weights(out), self.weights())
            self.assertEqual(self.summary(out)["test_accuracy"], self.summary()["test_accuracy"])
        # Its weights are enough for an evaluation, of a file without training samples.
        self.write("only.csv", rows_of(60, 3))
        alone = ("data.train=", "data.test=only.csv", "train.epochs=0", f"train.init={self.path('out', 'model.safetensors')}")
        self.psrun("-m", "single", self.classes, *alone, out="judged")
        self.assertGreater(self.summary("judged")["test_accuracy"], 0.85)

    def test_auc_is_of_all_samples_of_all_workers(self):
        draw = random.Random(4)
        xs = [round(draw.gauss(0, 1), 1) for _ in range(40000)]  # of which many are alike
        rows = [{"x": x, "y": "yes" if x + draw.gauss(0, 2) > 0 else "no"} for x in xs]
        self.write("t.csv", rows)
        job = self.file("auc.yaml", (
            "model: {layers: [linear: {out: 2}]}\ntrain: {epochs: 1}\noptimizer: {name: sgd, lr: 0.1}\n"
            f"data: {{kind: csv, train: {self.write('few.csv', rows[:200])}, test: t.csv, target: y, batch: 10}}\n"))
        self.psrun("-s", 1, "-w", 2, job)
        # The output of one layer rises with x, or falls: a rank sum.
        of = {"yes": {}, "no": {}}
        for row in rows:
            of[row["y"]][row["x"]] = of[row["y"]].get(row["x"], 0) + 1
        pairs = below = 0
        for x in sorted(set(xs)):
            pairs += of["yes"].get(x, 0) * (below + of["no"].get(x, 0) / 2)
            below += of["no"].get(x, 0)
        area = pairs / sum(of["yes"].values()) / below
        self.assertLess(abs(self.summary()["test_auc"] - area), 1e-12)
        self.psrun("--predict", "test", "-w", 2, self.path("out"), out="said")
        self.assertAlmostEqual(json.loads(self.text_of("said", "confusion.json"))["auc"], area, 6)

    def test_the_best_epoch_is_kept(self):
        draw = random.Random(5)
        rows = [{"x": f"{draw.random():.3f}", "z": f"{draw.random():.3f}", "y": draw.choice("ab")} for _ in range(60)]
        job = self.file("chance.yaml", (  # of which nothing can be learnt: what is learnt is worse than nothing
            "model: {layers: [linear: {out: 64}, relu, linear: {out: 2}]}\ntrain: {epochs: 6}\n"
            f"data: {{kind: csv, train: {self.write('t.csv', rows)}, test: 50%, target: y, batch: 5}}\n"
            "optimizer: {name: adamw, lr: 0.02}\n"))

        def check(said, epochs):
            tested = [r["test_loss"] for r in self.records() if "test_loss" in r]
            best = tested.index(min(tested)) + 1
            self.assertEqual((len(tested), self.summary()["best_epoch"]), (epochs, best))
            self.assertIn(f"epoch {best} tested better: psrun --predict NEW {self.path('out')} --init {file}\n", said)
            out = f"judged-{epochs}"
            self.psrun("-m", "single", job, "train.epochs=0", f"train.init={file}", out=out)
            self.assertAlmostEqual(self.summary(out)["test_loss"], min(tested), 6)

        file = self.path("out", "best.safetensors")
        check(self.psrun("-s", 1, "-w", 2, job, "checkpoint.every=1000"), 6)
        check(self.psrun("--resume", self.path("out"), "train.epochs=8"), 8)
        self.assertEqual(self.state("out"), json.loads(read_safetensors(file)[1]["preprocessing"]))

    def test_the_latest_lines_are_tested(self):
        rows = [{"when": f"2024-{1 + i * 7 % 12:02}-01", "x": i, "y": i % 2} for i in range(48)]
        job = self.file("time.yaml", (
            "model: {layers: [linear: {out: 2}]}\ntrain: {epochs: 1}\n"
            f"data: {{kind: csv, train: {self.write('t.csv', rows)}, test: 25%, test_by: when, target: y, drop: when}}\n"))
        self.psrun("-m", "single", job)
        early = [row["x"] for row in rows if row["when"] < "2024-10"]
        self.assertEqual(self.state()["columns"][0]["mean"], sum(early) / len(early))

    def test_other_data_are_refused(self):
        self.psrun("-m", "single", self.numbers, "checkpoint.every=100")
        lines = Path(self.table).read_text(encoding="utf-8").splitlines(True)
        Path(self.table).write_text("".join(lines[:-9]), encoding="utf-8")
        said = self.psrun("-m", "single", "--resume", self.path("out"), self.numbers, "train.epochs=90", code=1)
        self.assertIn("were trained on other data", said)
        # Of two workers each has its own files.
        Path(self.path("other")).mkdir()
        text = "".join(lines[:-9])
        for other, says in (("".join(lines), "data.train: this worker has "),
                            (text.replace("Rome,1", "Rome,2"), "have other columns, means or categories than worker 0's")):
            Path(self.path("other", "all.csv")).write_text(other, encoding="utf-8")
            parts = self.start_job(1, 2, "model.input=[6]", lambda _, rank: f"data.path={self.path('other') if rank else self.folder}",
                                   config=self.numbers)
            self.assertEqual(self.wait_all(parts)["worker 1"], 1)
            self.assertIn(says, parts["worker 1"].text())

    def test_workers_with_other_answers_are_refused(self):
        """Also where nothing is fitted: samples are known by their places."""
        rows = [f"{i},{i % 3}\n" for i in range(30)]
        job = self.file("plain.yaml", "data: {kind: csv, train: t.csv}\nmodel: {input: [1], layers: [linear: {out: 3}]}\n")
        Path(self.path("other")).mkdir()
        self.file("t.csv", "".join(rows))
        for other, says in ((rows[:-1], "data.train: this worker has 29 samples, and worker 0 has 30: give all workers"),
                            (rows[1:] + rows[:1], "data.train: this worker's samples have other answers than worker 0's")):
            Path(self.path("other", "t.csv")).write_text("".join(other), encoding="utf-8")
            parts = self.start_job(1, 2, lambda _, rank: f"data.path={self.path('other') if rank else self.folder}", config=job)
            self.assertEqual(self.wait_all(parts)["worker 1"], 1)
            self.assertIn(says, parts["worker 1"].text())

    def test_mistakes_are_named(self):
        for settings, says in (
                (["data.target=prise"], "there is no column \"prise\" (is it \"price\"?), which data.target names"),
                (["data.missing=error"], ":6: column 4: \"\" is not a value of \"rooms\": fill it, set data.missing"),
                (["data.test=20"], "data.test: 20: write a share as 20%"),
                (["data.test=0%"], "data.test: a share is above 0% and below 100%"),
                (["data.test=", "data.test_by=area"], "data.test_by: needs data.test that is a share"),
                (["data.drop=[price]"], "data.target: \"price\" is in data.drop, too: leave it out of one"),
                (["data.target=[]", "data.drop=[]", "data.test_by=area"], "data.test_by: 'area' is neither random nor order"),
                (["data.kind=npy"], "data.target: needs data.kind csv"),
                (["data.target=[price, area]"], ': set out: 2 in linear "all" (' + self.numbers + ":1)"),
                (["model.loss=cross_entropy"], "to predict numbers, set model.loss to mse")):
            with self.subTest(settings=settings):
                self.assertIn(says, " ".join(self.psrun("--check-data", self.numbers, *settings, code=1).split()))
        self.assertIn('of "rooms": fill it, set data.missing to mean or own, or leave out the line. Missing cells: 17 of "rooms"',
                      self.psrun("--check-data", self.numbers, "data.missing=error", code=1))

    def test_what_check_data_says(self):
        rows = [row for i, row in enumerate(rows_of(150, 1)) if row["rooms"]]
        low, high = (f(float(r["price"]) for r in rows_of(150, 1)) for f in (min, max))
        said = self.psrun("--check-data", self.numbers, "data.test=")
        self.assertLessEqual(max(map(len, said.splitlines())), 80)
        said = " ".join(said.split())
        self.assertIn("city 3 texts: Oslo, \"Paris, F\", Rome".replace('"', ""), said)
        self.assertIn(f"rooms 1 to 6, {150 - len(rows)} missing ", said)
        self.assertIn("left out id, kind (data.drop)", said)
        self.assertIn(f"target price, a number (regression, mse): {low:.4g} to {high:.4g}, mean ", said)
        said = " ".join(self.psrun("--check-data", self.classes, "model.layers=[linear: {out: 4}]").split())
        self.assertIn("look at there are 3 classes, and the model has 4 outputs: set out: 3 in the last layer data.test", said)
        kinds = [row["kind"] for row in rows_of(150, 1)]
        for k, name in enumerate(("large", "mid", "small")):
            train, test = map(int, re.search(rf"(\d+) (\d+) {k} {name}", said).groups())
            self.assertEqual(train + test, kinds.count(name))

    def test_columns_to_look_at(self):
        """An index without a name, as pandas writes it, and numbers with a unit."""
        lines = [f"{i},{i % 7}.5 m{i},{i % 3},{i % 5},7,a" for i in range(60)]
        Path(self.path("odd.csv")).write_text("\n".join([",area,old,price,same,also", *lines]) + "\n")
        odd = ["--check-data", self.numbers, f"data.train={self.path('odd.csv')}", "data.test=", "data.drop=[old]"]
        said = " ".join(self.psrun(*odd).split())
        self.assertIn('"column 1" rises from line to line: if it is an index or an id, add it to data.drop', said)
        for name, value in (("same", "7"), ("also", "a")):
            self.assertIn(f'"{name}" is {value} in every line, and says nothing: add it to data.drop', said)
        self.assertIn('all texts of "area" begin with a number, such as "0.5 m', said)
        said = " ".join(self.psrun(*odd[:-1], "data.drop=[old, column 1]").split())
        self.assertNotIn("rises", said)
        self.assertIn("left out old, column 1 (data.drop)", said)
        said = " ".join(self.psrun("--check-data", self.classes, *odd[2:-1], "data.drop=[]", "data.target=also").split())
        self.assertIn("; all samples have the same label: there is nothing to learn data.test", said)
        self.assertNotIn("set out: 1", said)
        Path(self.path("odd.csv")).write_text("area|price\n1|2\n")
        said = " ".join(self.psrun(*odd, code=1).split())
        self.assertIn('the first line is a single column, "area|price": put commas, semicolons or tabs', said)
        Path(self.path("odd.csv")).write_text("1,2\n3,4\n")
        self.assertIn("the first line has: 1, 2: put a line with the names before it",
                      " ".join(self.psrun(*odd, code=1).split()))

    def convert(self, *arguments, python=sys.executable, **env):
        run = subprocess.run([python, PSRUN, "--convert", *arguments], text=True, stdout=subprocess.PIPE,
                             stderr=subprocess.STDOUT, check=False, env=dict(os.environ, **env))
        return run.returncode, run.stdout

    def test_a_conversion_that_cannot_be(self):
        self.assertIn("reads files that end in .parquet,", self.convert("a.txt")[1])
        self.assertIn("there is no such file", self.convert("a.parquet")[1])
        self.file("a.parquet", "")
        self.file("pandas.py", "raise ImportError\n")
        code, said = self.convert(self.path("a.parquet"), PYTHONPATH=self.folder)
        self.assertEqual((code, said.count("\n")), (1, 1))
        self.assertIn("psrun: --convert needs pandas: apt-get install python3-pandas", said)

    def test_convert(self):
        """2^53 + 1 beside an empty cell is no float; a number in a column "created_at" is no date."""
        rows = [{"id": 9007199254740993, "created_at": 1700000000, "zip": "01067"}, {"id": None, "created_at": 1, "zip": "7"}]
        a, b, c = self.path("a.json"), self.path("b.jsonl"), self.path("c.html")
        self.file("a.json", json.dumps([*rows, {"id": 1, "created_at": 1.5, "zip": "ä, b"}]))
        self.file("b.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
        self.file("c.html", "<table><tr><th>id</th></tr><tr><td>9007199254740993</td></tr><tr><td></td></tr></table>")
        has_it = importlib.util.find_spec("pandas") is not None
        said = run_well([sys.executable if has_it else python_with("pandas"), "-c", CONVERSIONS, PSRUN.parent,
                         json.dumps([[a], [a], [a, "--overwrite"], [b], [c]])])
        done = json.loads(said.splitlines()[-1])
        self.assertEqual([code for code, _ in done[:-1]], [0, 1, 0, 0], done)
        self.assertIn("is there already", done[1][1])
        wanted = "id,created_at,zip\n9007199254740993,1700000000,01067\n,1,7\n"
        self.assertEqual(self.text_of("a.csv"), wanted + '1,1.5,"ä, b"\n')
        self.assertEqual(self.text_of("b.csv"), wanted)
        if done[-1][0] == 0:
            self.assertEqual(self.text_of("c.csv").splitlines()[1], "9007199254740993")
        else:  # pandas 1, or no parser of HTML
            self.assertRegex(done[-1][1], "which pandas 1|lxml|html5lib")


if __name__ == "__main__":
    unittest.main()
