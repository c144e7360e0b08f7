"""tests/gpu/run, rehearsed without a GPU: its parts, and what it writes at which time."""
import json
import os
import sys
import tarfile
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path

from jobs import BIN, ROOT, JobTest, nightly, run_well
from benchlib import netns


class GpuRun(JobTest):
    def rehearse(self, parts, minutes, code=0):
        out = self.path("gpu.json")
        run_well([sys.executable, ROOT / "tests/gpu/run", "--rehearse", "--out", out, "--minutes", str(minutes),
                  "--parts", ",".join(parts), BIN.parent], code=code, timeout=400)
        with open(out, encoding="utf-8") as f:
            return json.load(f)

    @nightly
    def test_parts_pass_and_say_what_they_cannot_do_here(self):
        report = self.rehearse(["parity", "single", "servers", "cudnn", "narrow", "nccl",
                                "sanitizer"], 6)
        status = {name: part["status"] for name, part in report["parts"].items()}
        self.assertEqual(status, {"parity": "passed", "single": "passed", "servers": "passed",
                                  "cudnn": "passed", "narrow": "passed", "nccl": "skipped",
                                  "sanitizer": "passed"}, report["parts"])
        self.assertIn("GPU", report["parts"]["nccl"]["why"])
        self.assertTrue(report["parts"]["parity"]["figures"]["BasicNet"]["passed"])
        ratios = {m["what"]: m["ratio"] for m in report["measures"]}
        self.assertGreater(ratios["ResNet-18: two workers with servers over a single worker"], 0)
        self.assertIsNone(ratios["BasicNet: single worker over PyTorch's eager"])

    @nightly
    def test_the_package_peers_and_two_ranks(self):
        parts = ["package", "limits", "peers", "slow_link", "package_speed", "nccl2", "kernels"]
        report = self.rehearse(parts, 6)
        self.assertEqual({name: part["status"] for name, part in report["parts"].items()},
                         {**{name: "passed" for name in parts}, "slow_link": "skipped" if netns.why_not() else "passed"},
                         report["parts"])
        self.assertEqual(report["parts"]["kernels"]["figures"]["a sample"]["kernels"], {"gemm": 4.0, "team_loss_rows": 0.7, "flat_relu": 0.5})

    def program(self):
        loader = SourceFileLoader("gpu_run", str(ROOT / "tests/gpu/run"))
        run = module_from_spec(spec_from_loader("gpu_run", loader))
        loader.exec_module(run)
        return run

    def test_what_pack_has_made_may_be_one_file(self):
        program = Path(self.path("bin", "test_device"))
        program.parent.mkdir()
        program.write_text("a program", encoding="ascii")
        program.chmod(0o755)
        with tarfile.open(self.path("pack.tar.gz"), "w:gz") as archive:
            archive.add(program.parent, "bin")
        found = Path(self.program().find_build(self.path("pack.tar.gz"), self.path("unpacked")))
        self.assertTrue(os.access(found / "bin" / "test_device", os.X_OK))

    def test_a_figure_is_written_as_soon_as_it_is_there(self):
        run, written = self.program(), []

        def cut(runner):
            yield "first", lambda: 1
            self.assertEqual(written[-1]["figures"], {"first": 1})
            raise run.Skip("no time left")

        def broken(runner):
            yield "none", lambda: [][0]
            yield "first", lambda: 2
            raise run.Failed("exit code 1")

        for part, status in ((cut, "cut"), (broken, "failed")):
            result = run.run_part(part, None, lambda r: written.append(json.loads(json.dumps(r))))
            self.assertEqual(result["status"], status)
            self.assertEqual(written[-1], result)
            self.assertEqual(list(result["figures"]), ["first"])
            self.assertEqual(list(result.get("failures", [])),
                             ["none", "the part"] if part == broken else [])
        self.assertLessEqual(sum(run.PARTS.values()), 510)


if __name__ == "__main__":
    import unittest
    unittest.main()
