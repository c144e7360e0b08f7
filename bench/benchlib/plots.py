"""Plots, if matplotlib is installed."""


def pyplot():
    """matplotlib.pyplot without a screen, or None."""
    try:
        import matplotlib
    except ImportError:
        return None
    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "pstrain"
    from matplotlib import pyplot as plt
    return plt


def save(figure, path):
    """Writes path.png and path.svg; returns the names."""
    names = [path + ".png", path + ".svg"]
    for name in names:
        figure.savefig(name, bbox_inches="tight", dpi=120)
    return names


def bars(plt, axes, labels, spreads, unit):
    """Medians as bars, with lines from the least to the greatest."""
    medians = [s["median"] for s in spreads]
    below = [s["median"] - s["min"] for s in spreads]
    above = [s["max"] - s["median"] for s in spreads]
    axes.bar(labels, medians, yerr=[below, above], capsize=4, color="#5b8db8")
    axes.set_ylabel(unit)
    axes.tick_params(axis="x", labelrotation=20)
    for i, value in enumerate(medians):
        axes.annotate(f"{value:,.4g}", (i, value / 2), ha="center", va="center",
                      color="white", fontsize=9)
