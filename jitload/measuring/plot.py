"""Draws measurements with matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jitload.errors import JitLoadError
from jitload.measuring.benchmark import Benchmark

if TYPE_CHECKING:
    from jitload.measuring.comparison import Comparison


def plot_comparison(comparison: Comparison) -> Any:
    """Return a figure with a bar for each function and, if their operations are known, a roofline diagram.

    Raises:
        JitLoadError: matplotlib is not installed.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise JitLoadError("plot() needs matplotlib: pip install 'jitload[plot]'") from error
    benchmarks = comparison.benchmarks
    has_roofline = all(b.flop_per_s and b.bytes for b in benchmarks.values())
    figure, axes = plt.subplots(
        1, 1 + has_roofline, figsize=(5 * (1 + has_roofline), 3.5), squeeze=False, layout="constrained"
    )
    _draw_bars(axes[0][0], benchmarks)
    if has_roofline:
        _draw_roofline(axes[0][1], benchmarks)
    plt.close(figure)  # a notebook would show it twice
    return figure


def _draw_bars(axes: Any, benchmarks: dict[str, Benchmark]) -> None:
    records = list(benchmarks.values())
    medians = [b.median_us for b in records]
    spread = [[b.median_us - b.p10_us for b in records], [b.p90_us - b.median_us for b in records]]
    axes.bar(list(benchmarks), medians, yerr=spread, capsize=4)
    axes.set_ylabel("median time in µs, from p10 to p90")
    axes.set_title(records[0].device)


def _draw_roofline(axes: Any, benchmarks: dict[str, Benchmark]) -> None:
    """Draw operations per second over operations per byte, below the line that the memory's bandwidth allows."""
    intensities = {name: (benchmark.flop or 0) / benchmark.bytes for name, benchmark in benchmarks.items()}
    for name, benchmark in benchmarks.items():
        axes.plot(intensities[name], (benchmark.flop_per_s or 0) / 1e9, "o", label=name)
    if peak := next(iter(benchmarks.values())).peak_gb_per_s:
        ends = [min(intensities.values()) / 10, max(intensities.values()) * 10]
        axes.plot(ends, [peak * end for end in ends], "k-", lw=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("FLOP per byte")
    axes.set_ylabel("GFLOP/s")
    axes.set_title("roofline of the memory")
    axes.legend()
