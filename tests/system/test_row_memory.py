"""The memory of workers does not depend on the tables, in jobs with embedding tables by YAML: while the rows of a file go
to the servers, while they come from there into a file, and while a saved model is used."""
import gzip
import json
import re
import shutil
import struct
import unittest
from array import array
from pathlib import Path

from jobs import BIN, Faults, JobTest, Process, read_safetensors

DIM, FEW, MANY = 16, 100, 1 << 20
TABLE_BYTES = (MANY - FEW) * (8 + 4 * DIM)
JOB = f"""
model:
  input: [13]
  loss: bce_with_logits
  layers:
    - concat: {{name: c, branches: [[], [embedding_bag: {{name: rows, tables: [C1], dim: {DIM}, lr: 0.1}}]]}}
    - linear: {{name: top, out: 1}}
data: {{kind: synthetic_clicks, samples: 320, test_samples: 64, batch: 16, eval_batch: 16}}
train: {{epochs: 1, device: cpu}}
"""
NAME = "c.rows.C1"


class RowMemory(JobTest):
    def rows(self, n):
        """A file of weights, and one of n rows: number i has the id 3i + 1 and values by it."""
        folder = Path(self.path(f"from-{n}"))
        folder.mkdir()
        shutil.copy(self.path("first", "model.safetensors"), folder)
        head = {f"{NAME}.ids": {"dtype": "I64", "shape": [n], "data_offsets": [0, 8 * n]},
                f"{NAME}.weight": {"dtype": "F32", "shape": [n, DIM], "data_offsets": [8 * n, (8 + 4 * DIM) * n]}}
        text = json.dumps(head).encode()
        with open(folder / "model.rows.safetensors", "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            array("q", range(1, 3 * n, 3)).tofile(file)
            array("f", range(n * DIM)).tofile(file)
        return str(folder / "model.safetensors")

    def predicting_bytes(self, weights, out, what="test", *keys):
        """Memory of a process that has predicted some batches, without the pages of files, which the system can have back:
        it maps a file in pieces of its own choice."""
        faults = Faults(self.path(f"faults-{out}"), "prediction.batch:3:hold")
        argv = [BIN / "ps-worker", "--config", self.path("job.yaml"), "--predict", what, "--init", weights, "--out",
                self.path(out), *(word for key in keys for word in ("--set", key))]
        process = Process("predicting", argv, faults.env)
        try:
            faults.wait_for("prediction.batch", process.popen)
            status = Path(f"/proc/{process.popen.pid}/status").read_text()
            faults.let_go("prediction.batch")
            self.assertEqual(process.popen.wait(), 0, process.text())
        finally:
            process.end()
        return int(re.search(r"RssAnon:\s+(\d+) kB", status)[1]) << 10

    def test_memory_of_a_worker(self):
        job = self.file("job.yaml", JOB)
        self.psrun("-s", "2", "-w", "1", job, out="first")
        peaks, predicting = [], []
        for n in (FEW, MANY):
            weights, out = self.rows(n), f"out-{n}"
            self.psrun("-s", "2", "-w", "1", job, f"train.init={weights}", out=out)
            peaks.append(self.summary(out)["peak_rss_bytes"])
            predicting.append(self.predicting_bytes(self.path(out, "model.safetensors"), f"said-{n}"))
        self.assertLess(peaks[1] - peaks[0], TABLE_BYTES / 2)
        self.assertLess(predicting[1] - predicting[0], TABLE_BYTES / 2)
        self.check_rows(self.path(f"out-{MANY}", "model.rows.safetensors"))

    def test_memory_of_new_clicks(self):
        """Counts and ids of --predict's file stay out of memory, also by gzip and without labels."""
        lines, out = 250000, 0
        self.psrun("-s", "1", "-w", "1", self.file("job.yaml", JOB), out="first")
        weights, cells = self.path("first", "model.safetensors"), "1\t" * 13 + "\t".join("a" * 26) + "\n"
        few = self.file("few.txt", ("0\t" + cells) * 200)
        many = [self.file("many.txt", ("0\t" + cells) * lines)]
        many.append(self.path("many.txt.gz"))
        Path(many[1]).write_bytes(gzip.compress((cells * lines).encode(), 1))
        taken = []
        for path in (few, *many):
            out += 1
            taken.append(self.predicting_bytes(weights, f"clicks-{out}", path, "data.kind=criteo", "data.eval_batch=32"))
            with open(self.path(f"clicks-{out}", "predictions.csv"), encoding="utf-8") as file:
                self.assertEqual(sum(1 for _ in file), (200 if path == few else lines) + 1)
        for bytes_ in taken[1:]:
            self.assertLess(bytes_ - taken[0], lines * 264 / 5)

    def check_rows(self, path):
        """Those that were given are there as they were, by rising id; the samples' others are between them."""
        tensors = read_safetensors(path)[0]
        ids, weights = tensors[f"{NAME}.ids"][2], tensors[f"{NAME}.weight"][2]
        self.assertTrue(all(a < b for a, b in zip(ids, ids[1:])))
        trained = set(read_safetensors(self.path("first", "model.rows.safetensors"))[0][f"{NAME}.ids"][2])
        given = [i for i, id_ in enumerate(ids) if id_ not in trained]
        self.assertEqual([ids[i] for i in given], list(range(1, 3 * MANY, 3)))
        self.assertEqual(len(ids), MANY + len(trained))
        for number, i in enumerate(given):
            self.assertEqual(weights[DIM * i], DIM * number)
            self.assertEqual(weights[DIM * i + DIM - 1], DIM * number + DIM - 1)


if __name__ == "__main__":
    unittest.main()
