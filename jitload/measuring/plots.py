"""Parts of the plots of measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jitload.errors import JitLoadError
from jitload.tables import shortened

PLOTTED_NAME = 32  # the greatest width of a name in a plot, in characters


def make_figure(grid: tuple[int, int], width: float, lines: int) -> tuple[Any, Any]:
    """Return a figure of rows and columns of axes with this width and so many lines of text, and the axes."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise JitLoadError("plot() needs matplotlib: pip install 'jitload[plot]'") from error
    rows, columns = grid
    size = width * columns, max(3.5, 1 + 0.25 * lines) * rows
    figure, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    plt.close(figure)  # otherwise, a notebook would show the figure twice
    return figure, axes


def draw_bars(axes: Any, times: Mapping[str, tuple[float, float, float]]) -> None:
    """Draw a bar for each median, with lines from p10 to p90. `times` maps names to (median, p10, p90)."""
    medians = [median for median, _, _ in times.values()]
    spread = [[median - p10 for median, p10, _ in times.values()], [p90 - median for median, _, p90 in times.values()]]
    axes.barh(range(len(times)), medians, xerr=spread, capsize=3)
    axes.set_yticks(range(len(times)), [shortened(name, PLOTTED_NAME) for name in times])
    axes.set_ylim(len(times) - 0.5, -0.5)  # the first function is at the top, as in the table
    axes.set_xlabel("median time in µs, from p10 to p90")
