"""The picture of bench/network, if matplotlib is installed: the exchange alone beside plain TCP."""

COLORS = {"ps": "#2b6ca3", "all-reduce": "#d9822b", "Gloo": "#8c8c8c"}
CODED = "#7fb2d9"


def _bar(axes, x, row):
    p50 = row["ms_p50"]
    value, top = p50["median"], p50["max"]
    axes.bar(x, value, width=0.84, color=COLORS.get(row["what"], CODED), label=row["what"],
             yerr=[[value - p50["min"]], [top - value]], capsize=3, error_kw={"linewidth": 1})
    if not row["what"].startswith("ps "):  # a codec's bytes are others
        top = max(top, row["bound_ms"])
        axes.hlines(row["bound_ms"], x - 0.42, x + 0.42, color="black", linewidth=1.6,
                    label="the arrangement's bound: its bytes at TCP's rate")
    axes.annotate(f"{value:,.0f}", (x, top), xytext=(0, 3), textcoords="offset points",
                  ha="center", va="bottom", fontsize=8)


def _sizes(axes, rows):
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
    workers, mbits = (list(dict.fromkeys(r[key] for r in rows)) for key in ("workers", "mbit"))
    figure, grid = plt.subplots(len(mbits), len(workers), squeeze=False,
                                figsize=(max(6, 4.2 * len(workers)), 3.6 * len(mbits) + 0.8))
    for line, mbit in zip(grid, mbits):
        for axes, n in zip(line, workers):
            _sizes(axes, [r for r in rows if (r["workers"], r["mbit"]) == (n, mbit)])
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


def save(path, rows):
    """Writes path.png; returns its name, or why there is none."""
    try:
        import matplotlib
    except ImportError:
        return "no plot: there is no matplotlib (deploy/packages bench installs it)"
    matplotlib.use("Agg")  # no screen
    from matplotlib import pyplot as plt
    _exchange_figure(plt, rows).savefig(path + ".png", bbox_inches="tight", dpi=120)
    return path + ".png"
