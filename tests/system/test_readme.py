"""What README.md and docs/ say is so. `test_readme.py --write` renews the table of keys."""
import os
import re
import struct
import subprocess
import sys
import unittest

from jobs import BIN, ROOT, JobTest

README = ROOT / "README.md"
CONFIGURATION = ROOT / "docs/configuration.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
KEYS = re.compile(r"(<!-- keys: begin .*? -->\n)(.*?)(<!-- keys: end -->)", re.S)


def keys_table():
    return subprocess.run([BIN / "ps-worker", "--keys"], stdout=subprocess.PIPE, text=True,
                          check=True).stdout


def npy(descr, shape, body):
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}"
    header += " " * (-(len(header) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + body


class Readme(JobTest):
    def setUp(self):
        super().setUp()
        self.text = README.read_text(encoding="utf-8")

    def test_the_table_of_keys_is_current(self):
        text = CONFIGURATION.read_text(encoding="utf-8")
        self.assertEqual(KEYS.search(text).group(2), keys_table(),
                         "renew it: tests/system/test_readme.py --write")

    def test_what_they_name_is_there(self):
        for page in PAGES:
            text = page.read_text(encoding="utf-8")
            names = re.findall(r"\b(?:deploy|bench|tests|configs|common|docs)/[\w./-]*\w", text)
            links = re.findall(r"\]\((?!https?:|#)([^)#]+)", text)
            missing = [n for n in names if not (ROOT / n).exists()]
            missing += [n for n in links if not (page.parent / n).exists()]
            self.assertEqual(missing, [], page.name)

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
