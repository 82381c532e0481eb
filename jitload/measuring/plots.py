"""Parts of the plots of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitload.errors import JitLoadError
from jitload.tables import Rates, shortened

PLOTTED_NAME = 32  # the greatest width of a name in a plot, in characters
MAX_BARS = 40


def make_figure(grid: tuple[int, int], width: float, lines: int) -> tuple[Any, Any]:
    """Return a figure of rows and columns of axes with this width and so many lines of text, and the axes."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise JitLoadError("plot() needs matplotlib: pip install 'jitload[plot]'") from error
    rows, columns = grid
    size = width * columns, max(3.5, 1 + 0.25 * min(lines, MAX_BARS)) * rows
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    plt.close(figure)  # otherwise, a notebook would show the figure twice
    return figure, axes


def draw_times(axes: Any, times: Mapping[str, Rates]) -> None:
    """Draw a bar with lines from p10 to p90 for each name, or if there are many, a dot for each, the fastest first."""
    medians = [rates.median_us or 0.0 for rates in times.values()]
    if len(times) <= MAX_BARS:
        lines = [
            (us - (row.p10_us or us), (row.p90_us or us) - us) for us, row in zip(medians, times.values(), strict=True)
        ]
        axes.barh(range(len(times)), medians, xerr=[*zip(*lines, strict=True)], capsize=3)
        axes.set_yticks(range(len(times)), [shortened(name, PLOTTED_NAME) for name in times])
        axes.set_ylim(len(times) - 0.5, -0.5)  # the first function is at the top, as in the table
        axes.set_xlabel("median time in µs, from p10 to p90")
        return
    ranked = sorted(zip(medians, times, strict=True))
    axes.plot(sorted(medians), ".")
    for rank in (0, len(times) // 2, len(times) - 1):
        time, name = ranked[rank]
        axes.annotate(name, (rank, time), xytext=(4, 6), textcoords="offset points", fontsize="small")
    axes.set_xlabel("the fastest first")
    axes.set_ylabel("median time in µs")
