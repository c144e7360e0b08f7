"""bench/step --shapes: every case of shapes.py, ours against PyTorch at its best."""
import os
import statistics
import sys

from . import runs, shapes, stats
from .job_config import BenchError, JobConfig
from .steps import Torch, run_on

# PyTorch's ways; a case is compared with the faster one.
WAYS = {"plain": ["fused"], "channels_last": ["fused", "channels_last"]}
STEPS = 1000  # at most; seconds end a run long before


class Sweep:
    def __init__(self, args, build, core, folder):
        self.args, self.build, self.core, self.folder = args, build, core, folder
        overrides = list(args.overrides)
        if not any(o.startswith("train.threads=") for o in overrides):
            overrides.append("train.threads=1")
        self.overrides = overrides
        self.cases = shapes.cases(args.only)
        if not self.cases:
            raise BenchError("no shape has a name with " + " or ".join(args.only))
        self.rows = []

    def _ours(self, case, overrides):
        argv = [os.path.join(self.build, "bin", "ps-bench-step"), "--seconds",
                str(self.args.seconds), case.path, str(STEPS), str(self.args.warmup),
                *overrides]
        return run_on(self.core, argv, self.threads)

    def _case(self, case, torch):
        """The case's row, with --bf16 also of bf16 on both sides."""
        overrides = [*case.overrides, *self.overrides]
        row = self._compare(case, torch, overrides)
        if self.args.bf16:
            narrow = self._compare(case, torch, [*overrides, "train.precision=bf16"])
            narrow["gain"] = row["cpu_ms"] / narrow["cpu_ms"]
            row["bf16"] = narrow
        return row

    def _compare(self, case, torch, overrides):
        """Every way in turn, several rounds."""
        job = os.path.join(self.folder, "job.json")
        config = JobConfig.load(self.build, case.write(self.folder), overrides)
        config.write(job)
        ours, theirs, warnings = [], {way: [] for way in WAYS}, []
        for _ in range(self.args.rounds):
            result, said = self._ours(case, overrides)
            ours.append(result)
            warnings = said.strip().splitlines()
            for way, words in WAYS.items():
                theirs[way].append(torch.run(job, *words, steps=STEPS,
                                             warmup=self.args.warmup,
                                             seconds=self.args.seconds))
        median = {way: [statistics.median(r["step_ms"]) for r in results]
                  for way, results in theirs.items()}
        best = min(median, key=lambda way: statistics.median(median[way]))
        our = [statistics.median(r["step_ms"]) for r in ours]
        our_cpu = [statistics.median(r["cpu_ms"]) for r in ours]
        cpu = [statistics.median(r["cpu_ms"]) for r in theirs[best]]
        return {"case": case.name, "batch": config.batch(0), "step_ms": stats.spread(our),
                "torch_ms": {way: stats.spread(ms) for way, ms in median.items()},
                "best": best, "ratio": stats.paired_ratio(median[best], our),
                "cpu_ms": statistics.median(our_cpu),
                "cpu_ratio": stats.paired_ratio(cpu, our_cpu), "warnings": warnings}

    def run(self, python, version):
        """Fills rows, the worst first."""
        threads = [o.split("=")[1] for o in self.overrides if o.startswith("train.threads=")]
        self.threads, self.version = max(1, int(threads[-1])), version
        with Torch(python, self.core, self.threads) as torch:
            for i, case in enumerate(self.cases):
                row = self._case(case, torch)
                self.rows.append(row)
                print(f"{i + 1}/{len(self.cases)} {case.name}: "
                      f"{row['ratio']['median']:.2f}", file=sys.stderr)
        self.rows.sort(key=lambda row: row["ratio"]["median"])

    def result(self):
        isa = os.environ.get("ONEDNN_MAX_CPU_ISA")
        below = sum(1 for row in self.rows if row["ratio"]["median"] < 1.0)
        return {**runs.origin(), "torch": self.version, "threads": self.threads, "core": self.core,
                "rounds": self.args.rounds, "seconds": self.args.seconds, "isa": isa,
                "below_1": below, "shapes": self.rows}


def _narrow_columns(row):
    if not row:
        return ""
    return (f"{row['step_ms']['median']:>10.3f}{row['ratio']['median']:>11.2f}"
            f"{row['cpu_ratio']['median']:>13.2f}{row['gain']:>6.2f}")


def table(result):
    narrow = any("bf16" in row for row in result["shapes"])
    lines = [f"{len(result['shapes'])} shapes, {result['threads']} thread(s), against "
             f"PyTorch {result['torch']}, the faster of plain and channels_last, fused "
             f"optimizer; medians of {result['rounds']} rounds",
             f"{'':44}{'step ms':>10}{'plain':>10}{'ch. last':>10}{'faster by':>22}"
             f"{'in cpu time':>13}" + (f"{'bf16 ms':>10}{'faster by':>11}{'in cpu time':>13}"
                                       f"{'gain':>6}" if narrow else "")]
    for row in result["shapes"]:
        r = row["ratio"]
        torch = "".join(f"{ms['median']:>10.3f}" for ms in row["torch_ms"].values())
        span = f"{r['median']:.2f} ({r['min']:.2f}-{r['max']:.2f})"
        lines.append(f"{row['case']:44}{row['step_ms']['median']:>10.3f}{torch}{span:>22}"
                     f"{row['cpu_ratio']['median']:>13.2f}"
                     + _narrow_columns(row.get("bf16")))
        lines += [f"    {line}" for line in row["warnings"]]
    if narrow:
        lines.append("bf16: train.precision=bf16 against torch.autocast; gain: processor time "
                     "of our float32 over that of our bf16")
    lines.append(f"{result['below_1']} shapes are slower than PyTorch. cpu time: of the "
                 "whole process, all threads")
    return "\n".join(lines)
