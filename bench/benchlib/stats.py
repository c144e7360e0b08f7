"""Medians with their spread, and the costs of exchanges by formula."""
import statistics


def spread(values):
    """{"median", "min", "max"} of the values that are not None; None if there is none."""
    values = [v for v in values if v is not None]
    if not values:
        return None
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def percentile(values, q):
    """The value below which a share q of the values lies; None if there are no values."""
    return sorted(values)[min(len(values) - 1, int(q * len(values)))] if values else None


def of_times(ns):
    """The figures of times in nanoseconds."""
    ms = [v * 1e-6 for v in ns]
    return {"ms": spread(ms), "ms_p50": percentile(ms, 0.5), "ms_p99": percentile(ms, 0.99)}


def paired_ratio(above, below):
    """Ratios of each round's pair, so that what disturbs a round disturbs both."""
    return spread([a / b for a, b in zip(above, below) if a and b])


def grouped(rows, keys):
    """{(row[key], ...): rows}, in the order in which they come."""
    groups = {}
    for row in rows:
        groups.setdefault(tuple(row[k] for k in keys), []).append(row)
    return groups


def medians(rows, keys, figures):
    """Of each group of rows: its keys, the number of its rounds, and the figures' medians with extremes."""
    return [{**dict(zip(keys, key)), "rounds": len(found), **{k: spread([r.get(k) for r in found]) for k in figures}}
            for key, found in grouped(rows, keys).items()]


def error_of(values):
    """{"mean", "error": its standard error, None for one value} of the values that are not None; None if there
    is none."""
    values = [v for v in values if v is not None]
    if not values:
        return None
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else None
    return {"mean": statistics.fmean(values), "error": error}


FORMULAS = {
    "ring": "ring all-reduce: 2(n-1)/n * G/B",
    "servers": "servers on k hosts of their own: max(G/B, nG/(kB))",
    "beside": "servers beside the workers: 2(n-1)/n * G/B",
    "both": "servers on k hosts of their own and beside the workers, whose parts keep all links "
            "busy equally long (BytePS): 2n(n-1)/(n^2 + kn - 2k) * G/B, from k = n on G/B",
}


def exchange_seconds(workers, servers, gradient_bytes, rate):
    """Time on the wire of a step, per topology; rate in bytes/s and direction."""
    n, k, full = workers, max(1, servers), gradient_bytes / rate
    ring = 2 * (n - 1) / n * full
    both = 2 * n * (n - 1) / (n * n + k * n - 2 * k) * full if n > 2 else ring
    return {"ring": ring, "servers": max(full, n * full / k) if n > 1 else full, "beside": ring,
            "both": max(both, full) if n > 1 else full}
