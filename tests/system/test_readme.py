"""The statements of the documents are true. `test_readme.py --write` renews the table of keys."""
import json
import os
import re
import struct
import subprocess
import sys
import unittest

from jobs import BIN, DIGITS, ROOT, JobTest, npy

README = ROOT / "README.md"
CONFIGURATION = ROOT / "docs/configuration.md"
RESULTS = ROOT / "bench/results"
# A released version's notes may name things that are gone.
PAGES = [page for folder in (ROOT, ROOT / "docs", ROOT / "python", RESULTS) for page in sorted(folder.glob("*.md"))
         if page.name != "CHANGELOG.md"]
FOLDERS = ("bench", "common", "configs", "coordinator", "deploy", "docs", "library", "server", "session", "tests",
           "worker")
PATH = re.compile(rf"\b(?:{'|'.join(FOLDERS)})/[\w./-]*\w")
SOURCE = re.compile(r"`([\w-]+\.(?:c|h|cc|hpp|cu|cuh|py|cmake))`")
LINK = re.compile(r"\]\((?!https?:)([^)#]*)(?:#([^)]*))?\)")
MATRIX = re.compile(r"<!-- matrix: begin .*?-->\n(.*?)<!-- matrix: end -->", re.S)  # in docs/consistency.md
KEYS = re.compile(r"(<!-- keys: begin .*? -->\n)(.*?)(<!-- keys: end -->)", re.S)


def keys_table():
    return subprocess.run([BIN / "ps-worker", "--keys"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout


def places(page):
    """The anchors of a page's titles."""
    titles = re.findall(r"^#+ (.*)", page.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w -]", "", title).strip().lower().replace(" ", "-") for title in titles}


class Readme(JobTest):
    def setUp(self):
        super().setUp()
        self.text = README.read_text(encoding="utf-8")

    def test_the_table_of_keys_is_current(self):
        text = CONFIGURATION.read_text(encoding="utf-8")
        self.assertEqual(KEYS.search(text).group(2), keys_table(),
                         "renew it: tests/system/test_readme.py --write")

    def test_every_layer_is_listed(self):
        header = (ROOT / "common/model/layer_settings.h").read_text(encoding="utf-8")
        listed = re.findall(r"`(\w+)`", (ROOT / "docs/models.md").read_text(encoding="utf-8"))
        self.assertEqual(set(re.findall(r'X\(\w+, "(\w+)"\)', header)) - set(listed), set())

    @staticmethod
    def refusal(settings, config=DIGITS):
        """What the program says to them as a job begins; "" where it takes them."""
        return subprocess.run([BIN / "ps-config-json", "--job", config, "job.workers=4", *settings], stdout=subprocess.DEVNULL,
                              stderr=subprocess.PIPE, text=True, check=False).stderr

    def has_no_effect(self, settings):
        """Whether a job with them says so."""
        return "it has no effect" in self.psrun("-w", 1, "--overwrite", DIGITS, "train.steps=1", "train.eval_every=0", *settings)

    def test_what_works_with_what(self):
        """docs/consistency.md. A column may have several keys: with commas between them all are set, else each alone. A row
        may have a configuration in the place of keys."""
        def settings(cell):
            return [[key.replace(": ", "=") for key in re.findall(r"`([\w.]+: [^`]+)`", each)]
                    for each in re.sub(r"`\s+`", "`;`", cell).split(";")]
        table = MATRIX.search((ROOT / "docs/consistency.md").read_text(encoding="utf-8")).group(1)
        _, _, ways, *rows = ([cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines())
        self.assertGreater(len(rows), 15)
        for row in rows:
            config = next((ROOT / name for name in re.findall(r"`(configs/[^`]+)`", row[0])), DIGITS)
            for way, says in zip(ways[1:], row[1:], strict=True):
                for chosen in settings(way):
                    both, more = chosen + settings(row[0])[0], settings(says)[0]
                    with self.subTest(row=row[0], way=chosen, says=says):
                        self.assertEqual(self.refusal(chosen), "")
                        self.assertEqual(not self.refusal(both, config), says in ("yes", "–"))
                        if more:
                            self.assertEqual(self.refusal(both + more), "")
                        elif says == "–":
                            self.assertTrue(self.has_no_effect(both))
                        else:
                            self.assertIn(says, ("yes", "no"))
        tables = ROOT / "configs/criteo-dlrm.yaml"
        for key in ("loss_scale.use=on", "train.precision=fp16", "train.ema=0.9", "train.device=cuda"):
            self.assertIn("with embedding_bag", self.refusal([key], tables), key)

    def test_what_they_name_is_there(self):
        sources = {path.name for folder in FOLDERS for path in (ROOT / folder).rglob("*.*")}
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            missing = [n for n in PATH.findall(text) if not (ROOT / n).exists()]
            missing += [n for n in SOURCE.findall(text) if n not in sources]
            for name, place in LINK.findall(text):
                there = page.parent / name if name else page
                if not there.exists() or place and place not in places(there):
                    missing.append(f"{name}#{place}")
            self.assertEqual(missing, [], page.relative_to(ROOT))

    def test_they_are_short(self):
        """As long as somebody reads in one go."""
        def size(name, of):
            return len(re.findall(of, (ROOT / name).read_text(encoding="utf-8"), re.M))
        for name, what, of, most in (
                ("README.md", "lines", "\n", 130), ("README.md", "words", r"\S+", 1200), ("CHANGELOG.md", "lines", "\n", 60),
                ("CONTRIBUTING.md", "lines", "\n", 60), ("bench/results/README.md", "rows", r"^\| (?!claim |---)", 80)):
            self.assertLessEqual(size(name, of), most, f"{what} of {name}")
        self.assertLessEqual(sum(path.stat().st_size for path in RESULTS.iterdir()), 300_000)

    def test_the_workflow_does_what_the_readme_says(self):
        text = (ROOT / ".github/workflows/two-commands.yml").read_text(encoding="utf-8")
        images = re.findall(r'"(debian|ubuntu):([\d.]+)"', text)
        self.assertEqual({(name.lower(), first) for name, first in re.findall(r"(Debian|Ubuntu) ([\d.]+) or newer", self.text)},
                         {(name, min(there for image, there in images if image == name)) for name, _ in images})
        self.assertEqual(re.findall(r"- run: (\S+)", text), re.findall(r"^(\w+/\w+) +# installs", self.text, re.M))

    def test_every_result_is_listed_and_says_where_it_is_from(self):
        text = (RESULTS / "README.md").read_text(encoding="utf-8")
        listed = set(re.findall(r"\d{4}-\d\d-\d\d-[\w-]+", text))
        self.assertEqual(listed, {path.stem for path in RESULTS.iterdir()} - {"README"})
        for path in RESULTS.glob("*.json"):
            report = json.loads(path.read_text(encoding="utf-8"))
            for key in ("date", "command", "machine"):
                self.assertTrue(report.get(key), f"{path.name}: {key}")

    def test_the_model_of_ones_own_trains_on_data_of_ones_own(self):
        job = re.search(r"```yaml\n(.*?)```", self.text, re.S).group(1)
        os.mkdir(self.path("mydata"))
        # Three classes: a bright third of the image.
        images = b"".join(bytes(255 if row // 4 == i % 3 else 0 for row in range(12)
                                for _ in range(12)) for i in range(240))
        labels = b"".join(struct.pack("<q", i % 3) for i in range(240))
        for name, content in (("job.yaml", job.encode()),
                              ("mydata/x.npy", npy("|u1", "(240, 12, 12)", images)),
                              ("mydata/y.npy", npy("<i8", "(240,)", labels))):
            with open(self.path(name), "wb") as f:
                f.write(content)
        self.psrun("-w", 2, self.path("job.yaml"))
        self.assertEqual(self.summary()["test_accuracy"], 1.0)
        self.assertEqual(self.summary()["test_samples"], 40)


def write():
    text = CONFIGURATION.read_text(encoding="utf-8")
    CONFIGURATION.write_text(KEYS.sub(lambda m: m.group(1) + keys_table() + m.group(3), text),
                             encoding="utf-8")


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    else:
        unittest.main(verbosity=2)
