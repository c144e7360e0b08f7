"""Jobs with embedding tables, without Python: Criteo's files, DLRM, evaluation, predictions, refusals."""
import contextlib
import csv
import gzip
import json
import math
import random
import re
import shutil
import signal
import subprocess
import unittest
import urllib.error
import urllib.request
from pathlib import Path

from jobs import (PSRUN, ROOT, JobTest, Psrun, clicks_model, free_port, read_safetensors, read_until, torch_python,
                  wait_until)
from test_python import environment

LINES, BATCH, RATE = 120, 16, 0.1
# Without the file's rows, each is the first one, which the servers had made.
SERVED = """
import sys, torch, pstrain
served = pstrain.rows(sys.argv[1])
[(ids, _), *_] = served.tables.values()
assert f"pairs.rows.C1: dim=4, mode=None, {len(ids)} rows, pairs.rows.C2" in repr(served), served
try:
    pstrain.rows(sys.argv[2])
except pstrain.InputError as error:
    assert "without tables of rows" in str(error) and "model.rows.safetensors" in str(error), error
for name, (ids, weight) in list(served.tables.items()):
    assert torch.equal(served({name: ids})[name], weight)
    served.tables[name] = (ids[:0], weight[:0])
    assert torch.equal(served({name: ids})[name], weight)
print(len(served.tables))
"""
SETTINGS = """
data: {kind: criteo, path: '.', train: clicks.txt.gz, test: clicks.txt, batch: 16, shuffle: false}
optimizer: {name: adam, lr: 0.01}
train: {epochs: 1, device: cpu}
"""


def clicks(n):
    """Lines as Criteo's: some cells are empty, some counts negative; a few ids are frequent."""
    draw = random.Random(3)
    cell = lambda text: "" if draw.random() < 0.15 else text
    for _ in range(n):
        counts = [cell(str(int(draw.lognormvariate(1, 1.5)) - 1)) for _ in range(13)]
        ids = [cell(f"{int(30 ** draw.random()) * 2654435761 + 97 * k & 0xffffffff:08x}") for k in range(26)]
        yield "\t".join([str(int(draw.random() < 0.4))] + counts + ids) + "\n"


class Clicks(JobTest):
    def job(self, rate=RATE, name="job.yaml", bounds=""):
        text = "".join(clicks(LINES))
        self.file("clicks.txt", text)
        Path(self.path("clicks.txt.gz")).write_bytes(gzip.compress(text.encode()))
        model = clicks_model("linear: {name: bottom1, out: 8}, relu, linear: {name: bottom2, out: 4}, relu",
                             f"tables: 26, dim: 4, lr: {rate}, init: normal, scale: 0.3{bounds}",
                             "linear: {name: top1, out: 8}", "relu", "linear: {name: top2, out: 1}")
        return self.file(name, model + SETTINGS)

    def test_dlrm_is_pytorchs(self):
        """Two workers and two servers against nn.EmbeddingBag, from the same first weights; the last batch is short."""
        if not torch_python():
            self.skipTest("no PyTorch (python3-torch)")
        seed = "train.seed=18446744073709551615"  # the largest
        self.psrun("-s", "1", "-w", "1", self.job(0, "zero.yaml"), "optimizer.lr=0", seed, out="zero")
        self.psrun("-s", "2", "-w", "2", self.job(), seed)
        first = [self.path("zero", f"model.{kind}") for kind in ("safetensors", "rows.safetensors")]
        said = subprocess.run([torch_python(), str(ROOT / "tests/system/clicks_by_hand.py"), self.path("clicks.txt"), *first,
                               str(2 * BATCH), str(RATE), self.path("by-hand.safetensors")], check=True, text=True,
                              stdout=subprocess.PIPE).stdout.split()
        want = read_safetensors(self.path("by-hand.safetensors"))[0]
        found = read_safetensors(self.path("out", "model.safetensors"))[0]
        rows = read_safetensors(self.path("out", "model.rows.safetensors"))[0]
        start = read_safetensors(first[1])[0]
        for name, (_, _, values) in want.items():
            have = (rows[name + ".weight"] if name + ".weight" in rows else found[name])[2]
            self.assertEqual(len(have), len(values), name)
            worst = max(abs(a - b) for a, b in zip(have, values))
            self.assertLess(worst, 2e-5, name)
        self.assertGreater(max(abs(a - b) for a, b in zip(rows["pairs.rows.C1.weight"][2],
                                                          start["pairs.rows.C1.weight"][2])), 0.05)
        served = subprocess.run([torch_python(), "-c", SERVED, first[1], first[0]], env=environment(), text=True, stdout=subprocess.PIPE)
        self.assertEqual(served.stdout, "26\n")
        evaluation = self.records()[-1]
        self.assertAlmostEqual(evaluation["test_auc"], float(said[0]), 4)
        self.assertAlmostEqual(evaluation["test_loss"], float(said[1]), 5)

    def test_rows_do_not_depend_on_servers_and_go_on_from_a_file(self):
        """Equal bits; from train.init's rows as from those that were made; with micro-batches of half the size."""
        zero = self.path("zero", "model.safetensors")
        self.psrun("-s", "1", "-w", "2", self.job(0, "zero.yaml"), "optimizer.lr=0", out="zero")
        self.psrun("-s", "1", "-w", "2", self.job(), "exchange.shm=off")
        self.psrun("-s", "3", "-w", "2", self.job(), f"train.init={zero}", out="again")
        for file in ("model.safetensors", "model.rows.safetensors"):
            self.assertEqual(Path(self.path("out", file)).read_bytes(), Path(self.path("again", file)).read_bytes(), file)
        self.psrun("-s", "1", "-w", "2", self.job(), "data.batch=8", "train.accumulate=2", out="micro")
        whole, parts = (read_safetensors(self.path(out, "model.rows.safetensors"))[0] for out in ("out", "micro"))
        for name in whole:
            self.assertEqual(whole[name][1], parts[name][1])
            self.assertLess(max(abs(a - b) for a, b in zip(whole[name][2], parts[name][2])), 1e-5, name)

    def test_tables_with_bounds(self):
        """A row in the second step with its id; only those of the last two steps; a row in each of 1,024 partitions."""
        ids = [[int(cell, 16) if cell else 1 << 32 for cell in line.rstrip("\n").split("\t")[14:]] for line in clicks(LINES)]
        steps = [[{line[k] for line in ids[at:at + 2 * BATCH]} for at in range(0, LINES, 2 * BATCH)] for k in range(26)]

        def kept(name, bounds):
            self.psrun("-s", "2", "-w", "2", self.job(bounds=bounds), out=name)
            rows = read_safetensors(self.path(name, "model.rows.safetensors"))[0]
            return [set(rows[f"pairs.rows.C{k + 1}.ids"][2]) for k in range(26)]

        self.assertEqual(kept("admit", ", admit: 2"),
                         [{i for step in table for i in step if sum(i in other for other in table) > 1} for table in steps])
        self.assertEqual(kept("expire", ", expire: 2"), [table[-2] | table[-1] for table in steps])
        least = 1024 * (2 * 4 * 4 + 27)
        found, met = kept("evict", f", max_bytes: {least}, evict: true"), [set().union(*table) for table in steps]
        self.assertTrue(all(some <= whole for some, whole in zip(found, met)))
        self.assertLess(sum(map(len, found)), sum(map(len, met)))

    def test_predictions_of_new_clicks(self):
        self.psrun("-s", "1", "-w", "1", self.job())
        unlabelled = self.file("new.txt", "".join(line.partition("\t")[2] for line in clicks(LINES)))
        self.psrun("--predict", self.path("clicks.txt"), self.path("out"), out="said")
        self.psrun("--predict", unlabelled, self.path("out"), out="new")
        said, new = (list(csv.DictReader(self.text_of(out, "predictions.csv").splitlines())) for out in ("said", "new"))
        self.assertEqual(len(new), LINES)
        self.assertEqual([row["probability_1"] for row in said], [row["probability_1"] for row in new])
        argv = self.psrun_argv("--predict", "-", self.path("out"), out="piped")
        piped = lambda lines: subprocess.run(argv, input=lines, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        done = piped(b"0\t" * 39 + b"a\n" + b"0\t" * 40 + b"a\n")
        self.assertEqual(done.returncode, 1)
        self.assertIn("standard input:2: 41 columns", done.stdout.decode())
        done = piped(Path(self.path("clicks.txt.gz")).read_bytes())
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertEqual(self.text_of("piped", "predictions.csv"), self.text_of("said", "predictions.csv"))
        chances = zip([float(row["probability_1"]) for row in new], clicks(LINES))
        loss = -sum(math.log(p if line[0] == "1" else 1 - p) for p, line in chances) / LINES
        self.assertAlmostEqual(loss, self.records()[-1]["test_loss"], 4)

    def ask(self, port, body=None):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/predict", body, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def test_rows_of_another_step_are_refused(self):
        """As a process leaves them that is killed between the two files."""
        self.psrun("-s", "1", "-w", "1", self.job())
        self.psrun("-s", "1", "-w", "1", self.job(), "train.steps=4", out="fewer")
        shutil.copy(self.path("fewer", "model.rows.safetensors"), self.path("out"))
        said = self.psrun("--predict", self.path("clicks.txt"), self.path("out"), out="said", code=1)
        self.assertIn("model.rows.safetensors: has the rows of step 4, and", said)
        said = self.psrun("-s", "1", "-w", "1", self.job(), f"train.init={self.path('out', 'model.safetensors')}", out="more", code=1)
        self.assertIn("train.init: ", said)
        self.assertIn("has the rows of step 4, and", said)

    def test_clicks_over_http(self):
        """The page's example works; lines with and without labels and JSON are answered as --predict has it."""
        self.psrun("-s", "1", "-w", "1", self.job())
        self.psrun("--predict", self.path("clicks.txt"), self.path("out"), out="said")
        said = [float(row["probability_1"]) for row in csv.DictReader(self.text_of("said", "predictions.csv").splitlines())]
        lines = [line.rstrip("\n").split("\t") for line in clicks(LINES)]
        samples = [[int(cell) if cell else None for cell in line[1:14]] + [cell or None for cell in line[14:]] for line in lines]
        port = free_port()
        run = self.start_psrun("--serve", port, self.path("out"), out="served")
        self.assertTrue(read_until(run.stdout, f"at http://127.0.0.1:{port}/predict"))
        _, page = self.ask(port)
        self.assertIn("gives the probability of the label 1", page)
        code, _ = self.ask(port, re.search("curl -d '(.*)' localhost", page)[1].encode())
        self.assertEqual(code, 200)
        for body in ("\n".join("\t".join(line) for line in lines), "\n".join("\t".join(line[1:]) for line in lines),
                     json.dumps({"samples": samples})):
            _, text = self.ask(port, body.encode())
            for answer, want in zip(json.loads(text)["predictions"], said, strict=True):
                self.assertAlmostEqual(answer["probability_1"], want, 6)
        first = samples[0]
        for body, says in (([first[:13]], "sample 0 has not 39 values: a click is a list of 13 counts and 26 ids"),
                           ([first, first[:20] + [17] + first[21:]], "sample 1: value 20 is neither null nor an id"),
                           ([["7"] + first[1:]], "sample 0: value 0 is neither null nor a count"),
                           ([first[:13] + ["8" * 17] + first[14:]], "sample 0: value 13 is neither null nor an id")):
            code, text = self.ask(port, json.dumps({"samples": body}).encode())
            self.assertEqual(code, 400)
            self.assertIn(says, text)
        code, text = self.ask(port, b"\x93NUMPY\x01\x00")
        self.assertIn("the body is an npy file, without ids; this model takes clicks: 13 counts and 26 ids", text)
        run.send_signal(signal.SIGINT)

    def test_the_best_by_the_area_under_the_curve(self):
        """The losses fall on when it does not rise any more: the test's clicks are those of training."""
        said = self.psrun("-s", "1", "-w", "1", self.job(), "train.epochs=4", "checkpoint.best=auc")
        shown = re.findall(r"epoch \d/4  test loss \S+ [\d.]+% AUC (\S+)  train \S+(  best)?\n", said)
        areas = [record["test_auc"] for record in self.records() if "test_auc" in record]
        self.assertEqual([area for area, _ in shown], [f"{area:.4f}" for area in areas])
        self.assertRegex(said, rf"\n  test +AUC {areas[-1]:.4f}, accuracy ")
        runs = subprocess.run([ROOT / "deploy/show-runs", self.path("out")], check=True, text=True,
                              stdout=subprocess.PIPE).stdout
        self.assertRegex(runs.splitlines()[1], rf" AUC {areas[-1]:.4f} ")
        self.assertEqual({record["test_quality"] for record in self.records() if "test_auc" in record}, {"test_auc"})
        curves = self.text_of("out", "curves.svg")
        self.assertIn(">AUC</text>", curves)
        self.assertEqual(curves.count("<polyline"), 3)  # losses of training and tests, the AUC of tests
        best = 1 + areas.index(max(areas))
        self.assertLess(best, 4)
        self.assertEqual(self.summary()["best_epoch"], best)
        self.assertEqual([i for i, (_, mark) in enumerate(shown, 1) if mark][-1], best)

    def test_one_class_has_no_area(self):
        """It would never get better: train.patience would end the job."""
        yes = [line for line in clicks(LINES) if line.startswith("1")]
        job = self.job()
        self.file("yes.txt", "".join(yes))
        said = self.psrun("-s", "1", "-w", "1", job, "data.test=yes.txt", "checkpoint.best=auc", "train.patience=3", code=1)
        self.assertIn("checkpoint.best: auc compares two classes, and all samples of the test set are of one", said)

    def test_samples_that_stay_in_a_file(self):
        """data.stream: the same files, by any number of threads, of parts and shares of the lines; the same report."""
        job = self.job()
        for n, settings in enumerate(([], ["data.train=clicks.txt,clicks.txt.gz@30-199", "data.shuffle=true"],
                                      ["data.test=20%", "data.test_by=random", "data.shuffle=true"])):
            files = []
            for stream in ("false", "true"):
                out = f"out-{n}-{stream}"
                self.psrun("-s", "2", "-w", "2", job, *settings, f"data.stream={stream}", "data.threads=3", out=out)
                files.append([Path(self.path(out, name)).read_bytes() for name in ("model.safetensors",
                                                                                    "model.rows.safetensors")] +
                             [self.records(out)[-1][key] for key in ("test_loss", "test_auc")])
            self.assertEqual(*files)
        said = [self.psrun("--check-data", job, f"data.stream={stream}", out="c") for stream in ("false", "true")]
        self.assertEqual(*[[line for line in text.splitlines() if " ids " in line] for text in said])

    def test_figures_of_tables(self):
        """summary.json: of each table, all servers' rows, and the distinct ids of each step."""
        self.psrun("-s", "2", "-w", "1", self.job())
        lines = [line.rstrip("\n").split("\t") for line in clicks(LINES)]
        rows = read_safetensors(self.path("out", "model.rows.safetensors"))[0]
        tables = self.summary()["tables"]
        self.assertEqual([t["name"] for t in tables], [f"pairs.rows.C{k}" for k in range(1, 27)])
        for k, table in enumerate(tables):
            ids = [line[14 + k] for line in lines]
            self.assertEqual(table["rows"], len(set(ids)))
            self.assertEqual(table["rows"], rows[table["name"] + ".ids"][1][0])
            self.assertEqual(table["stepped"], sum(len(set(ids[at:at + BATCH])) for at in range(0, LINES, BATCH)))
            self.assertEqual([table[key] for key in ("dropped", "ahead", "ready")], [0, 0, 0])
            self.assertGreater(table["bytes"], table["rows"] * 2 * 4 * 4)  # 4 numbers, each with Adagrad's sum

    def test_figures_while_it_runs(self):
        """/metrics of a server and /status.json have each table."""
        port = free_port()
        job = self.start_psrun("-s", "1", "-w", "1", self.job(), "train.epochs=1000000", f"metrics.port={port}")

        def text(path="metrics"):
            self.assertIsNone(job.poll())
            with contextlib.suppress(OSError):
                return urllib.request.urlopen(f"http://127.0.0.1:{port}/{path}", timeout=10).read().decode()

        def shown():
            tables = json.loads(text("status.json") or "{}").get("tables", [])
            return [t["name"] for t in tables if t["rows"] > 0 and t["stepped"] > 0]

        name = re.compile(r'^pstrain_table_rows_stepped_total\{.*role="server",rank="0",table="pairs.rows.C26"\} [1-9]', re.M)
        try:
            wait_until(lambda: name.search(text() or ""), "no figures of tables")
            wait_until(lambda: shown() == [f"pairs.rows.C{k}" for k in range(1, 27)], "no tables in the status")
            wait_until(lambda: json.loads(text("status.json") or "{}").get("job", {}).get("quality", {}).get("value"),
                       "no evaluation")
            top = Psrun.run([PSRUN, "--top", str(port)]).stdout
            self.assertRegex(top, r"samples/s  test AUC [01]\.\d{4}  restarts")
            self.assertRegex(top, r"\ntable +rows +memory +ids stepped +prefetch hits +dropped\n")
            self.assertRegex(top, r"\npairs\.rows\.C26 +[1-9][0-9]* +[0-9.]+ k?B +[1-9][0-9,]* +- +0\n")
        finally:
            job.terminate()
            job.communicate()

    def test_it_runs_at_once(self):
        said = self.psrun("-s", "2", "-w", "2", ROOT / "configs/criteo-dlrm.yaml", "data.samples=4096",
                          "data.test_samples=1024", "train.epochs=1")
        self.assertIn("AUC", said)
        self.assertRegex(said, r"weights +of the last epoch, 1\n")  # with one test there is no best
        shown = self.psrun("--describe", ROOT / "configs/criteo-dlrm.yaml", out="d")
        self.assertIn("26 tables of rows", shown)
        # 256 samples of 26 ids: of 8 bytes, and rows of 16 floats.
        self.assertIn("a worker sends at most 468.0 KiB for them, and receives 416.0 KiB.\n", shown)
        self.assertLessEqual(max(map(len, shown.splitlines())), 80)

    def test_the_documented_command_for_files_warns_of_nothing(self):
        self.job()  # its files
        said = self.psrun("-s", "1", "-w", "1", ROOT / "configs/criteo-dlrm.yaml", "data.kind=criteo",
                          f"data.path={self.folder}", "data.train=clicks.txt", "data.test=10%", "train.epochs=1")
        self.assertNotIn("unused", said)

    def test_check_data(self):
        """How many labels, ids and empty cells there are."""
        said = " ".join(self.psrun("--check-data", self.job(), "data.test=clicks.txt@0-9").split())
        lines = [line.rstrip("\n").split("\t") for line in clicks(LINES)]
        yes = sum(line[0] == "1" for line in lines)
        self.assertIn(f"a label (bce_with_logits): 0 in {LINES - yes} samples, 1 in {yes}; in data.test 0 in ", said)
        ids = [len({line[14 + k] for line in lines}) for k in range(26)]
        self.assertIn(f"{min(ids)} to {max(ids)} different ids in a column, {sum(ids)} in all; "
                      f"{sum(line[14:].count('') for line in lines):,} missing of {LINES * 26:,}", said)
        self.file("one.txt", "0" + "\t1" * 13 + "\ta" * 26 + "\n")
        said = " ".join(self.psrun("--check-data", self.job(), "data.train=one.txt", "data.test=").split())
        self.assertIn("C1 to C26; 1 different id in each column, 26 in all", said)

    def test_what_is_refused(self):
        job = self.job()
        more = self.file("more.yaml", Path(job).read_text(encoding="utf-8").replace("tables: 26", "tables: [C1, C27]"))
        self.assertIn("reads column C27 of ids; the samples have C1 to C26", self.psrun("-s", "1", "-w", "1", more, code=1))
        for keys, says in ((["-m", "allreduce", "-w", "2"], "exchange.name: with embedding_bag it has to be ps"),
                           (["-s", "1", "-w", "1", "train.ema=0.9"], "train.ema: with embedding_bag it has to be 0"),
                           (["-s", "1", "-w", "1", "train.init=none.safetensors"], "none.safetensors"),
                           (["-s", "1", "-w", "1", "data.kind=synthetic", "data.train=", "data.test="], "column C26 of ids")):
            self.assertIn(says, self.psrun(*keys[:4], job, *keys[4:], code=1, out="refused"))
        self.assertIn("cannot be written", self.psrun("--export-torch", job, code=1, out="e"))


if __name__ == "__main__":
    unittest.main()
