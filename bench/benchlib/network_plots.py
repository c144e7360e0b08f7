"""The pictures of bench/network: the exchange alone in bars beside plain TCP, and training."""
from . import plots

OURS, OURS_CODED, ALLREDUCE, TORCH, ALONE = "#2b6ca3", "#7fb2d9", "#d9822b", "#8c8c8c", "#d8d8d8"


def _color(name):
    if name == "alone":
        return ALONE
    if name == "ps":
        return OURS
    if name.startswith("ps "):
        return OURS_CODED
    return ALLREDUCE if name == "all-reduce" else TORCH


def _panels(rows):
    return (list(dict.fromkeys(r["workers"] for r in rows)),
            list(dict.fromkeys(r["mbit"] for r in rows)))


def _bar(axes, x, row):
    p50 = row["ms_p50"]
    value, top = p50["median"], p50["max"]
    axes.bar(x, value, width=0.84, color=_color(row["what"]), label=row["what"],
             yerr=[[value - p50["min"]], [top - value]], capsize=3, error_kw={"linewidth": 1})
    if not row["what"].startswith("ps "):  # a codec's bytes are others
        top = max(top, row["bound_ms"])
        axes.hlines(row["bound_ms"], x - 0.42, x + 0.42, color="black", linewidth=1.6,
                    label="the arrangement's bound: its bytes at TCP's rate")
    axes.annotate(f"{value:,.0f}", (x, top), xytext=(0, 3), textcoords="offset points",
                  ha="center", va="bottom", fontsize=8)


def _exchange(axes, rows):
    ticks, x = [], 0
    for nbytes in sorted({r["bytes"] for r in rows}):
        bars = [r for r in rows if r["bytes"] == nbytes and not r["what"].startswith("line rate")]
        for i, row in enumerate(bars):
            _bar(axes, x + i, row)
        ticks.append((x + (len(bars) - 1) / 2, f"{nbytes / 1e6:.3g} MB"))
        x += len(bars) + 0.8
    axes.set_xticks(*map(list, zip(*ticks)))
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(y=0.12)
    axes.grid(True, axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _exchange_figure(plt, rows):
    workers, mbits = _panels(rows)
    figure, grid = plt.subplots(len(mbits), len(workers), squeeze=False,
                                figsize=(max(6, 4.2 * len(workers)), 3.6 * len(mbits) + 0.8))
    for line, mbit in zip(grid, mbits):
        for axes, n in zip(line, workers):
            here = [r for r in rows if (r["workers"], r["mbit"]) == (n, mbit)]
            _exchange(axes, here)
            axes.set_title(f"{n} workers, {mbit} Mbit/s", fontsize=10)
        line[0].set_ylabel("ms a step")
    named = {}
    for axes in grid.flat:
        for handle, label in zip(*axes.get_legend_handles_labels()):
            named.setdefault(label, handle)
    figure.suptitle("The exchange of a gradient alone, every host on a link of its own")
    figure.legend(named.values(), named.keys(), loc="lower center", ncols=min(5, len(named)),
                  fontsize=9, frameon=False)
    figure.tight_layout(rect=(0, 0.05, 1, 1))
    return figure


def _says(row):
    words = [f"{row['samples_per_second']['median']:,.0f}"]
    if row["to_ddp"]:
        words.append(f"{row['to_ddp']['median']:.2f} × DDP")
    if row["test_accuracy"]:
        words.append(f"{100 * row['test_accuracy']['median']:.2f}%")
    return "   ".join(words)


def _training(axes, rows):
    for y, row in enumerate(rows):
        rate = row["samples_per_second"]
        value = rate["median"]
        axes.barh(y, value, height=0.76, color=_color(row["mode"]), capsize=3,
                  xerr=[[value - rate["min"]], [rate["max"] - value]],
                  error_kw={"linewidth": 1})
        axes.annotate(_says(row), (rate["max"], y), xytext=(5, 0), textcoords="offset points",
                      va="center", fontsize=8)
    axes.set_yticks(range(len(rows)), [r["mode"] for r in rows])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.6 * max(r["samples_per_second"]["max"] for r in rows))
    axes.set_xlabel("samples/s, all workers;  × DDP;  test accuracy", fontsize=9)
    axes.grid(True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _training_figure(plt, rows):
    workers, mbits = _panels(rows)
    most = max(len([r for r in rows if (r["workers"], r["mbit"]) == (n, m)])
               for n in workers for m in mbits)
    figure, grid = plt.subplots(len(mbits), len(workers), squeeze=False,
                                figsize=(6.4 * len(workers), (0.32 * most + 1.2) * len(mbits)))
    for line, mbit in zip(grid, mbits):
        for axes, n in zip(line, workers):
            here = [r for r in rows if (r["workers"], r["mbit"]) == (n, mbit)]
            _training(axes, here)
            axes.set_title(f"Training: {n} workers, {mbit} Mbit/s", fontsize=10)
    figure.tight_layout()
    return figure


def save(path, exchanged, trained):
    """Writes path.png and path-training.png, and both as svg; returns the names."""
    plt = plots.pyplot()
    trained = [r for r in trained if r["samples_per_second"]]
    names = []
    if plt and exchanged:
        names += plots.save(_exchange_figure(plt, exchanged), path)
    if plt and trained:
        names += plots.save(_training_figure(plt, trained), path + "-training")
    return names
