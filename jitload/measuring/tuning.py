"""The class `Tuning`: measurements of variants as a table, a file, a plot or a data frame."""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from jitload.cache.entry import find_cache_dir
from jitload.cache.locks import LOCKS_DIR, hold_lock
from jitload.errors import JitLoadError
from jitload.request.rows import FORMAT, PAIRS, Row, choose, merge, read_rows
from jitload.request.tune import read_tuned
from jitload.settings import read_settings
from jitload.tables import RATE_COLUMNS, TIME_COLUMNS, Rates, html_grid, measured_grid, shortened, text_grid
from jitload.toolchain.private_files import replace_file
from jitload.tracebacks import ends_at_caller

_PLOTTED_NAME = 32  # the greatest width of a name in a plot, in characters
_MAX_NAMES = 40  # in a plot
_COLUMNS: dict[str, Callable[[Row], str]] = {
    **TIME_COLUMNS,
    **RATE_COLUMNS,
    "regs": lambda r: "" if r.registers is None else str(r.registers),
    "spills": lambda r: str(r.spill_bytes) if r.spill_bytes else "",
    "shared": lambda r: str(r.shared_bytes) if r.shared_bytes else "",
    "occ.": lambda r: "" if r.occupancy is None else f"{r.occupancy:.0%}",
}


class Tuning:
    """Measurements of variants. It prints as a table for each key, and `|` adds two of them up.

    Attributes:
        rows: The measurements, a `Row` for each variant and key.
    """

    def __init__(self, rows: Iterable[Row]) -> None:
        self.rows = merge(rows)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tuning:
        """Return the measurements in a file that `save` wrote.

        Raises:
            JitLoadError: The file cannot be read.
        """
        return cls(read_rows(read_tuned(os.fspath(path))))

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the measurements to a file, and add those that are already there. Return the path.

        Of two measurements of one variant and key, the new one is kept. Missing directories are created. Several
        processes may save to one file at the same time.
        """
        target = Path(path)
        with hold_lock(find_cache_dir(read_settings()) / LOCKS_DIR / "measurements", f"{target}", verb="writes"):
            merged = Tuning.load(target) | self if target.exists() else self
            replace_file(target, merged.to_json().encode())
        return target

    def to_json(self) -> str:
        """Return the text of a file with the measurements: JSON with a line for each row."""
        own_first = sorted(fields(Row), key=lambda field: field.name in (*Rates.__slots__, "source"))
        lines = []
        for row in self.rows:
            facts = {f.name: value for f in own_first if (value := getattr(row, f.name)) != f.default}
            facts |= {name: dict(facts[name]) for name in PAIRS if name in facts}
            lines.append(json.dumps(facts, ensure_ascii=False))
        return f'{{"format": {FORMAT}, "rows": [\n' + ",\n".join(lines) + "\n]}\n"

    def __or__(self, other: Tuning) -> Tuning:
        return Tuning((*self.rows, *other.rows))

    @property
    def choices(self) -> tuple[Row, ...]:
        """The measurements of the variants that are chosen, one for each key of each function, GPU and dtype."""
        return tuple(row for rows in self.groups() if (row := choose(rows)))

    @property
    def best(self) -> Row:
        """The measurement of the chosen variant, if there is only one key.

        Raises:
            JitLoadError: No variant could be measured, or there are several keys.
        """
        if len(self.choices) != 1:
            raise JitLoadError(f"there are {len(self.choices)} choices: see .choices\n{self}")
        return self.choices[0]

    def groups(self) -> list[list[Row]]:
        """Return the rows from which one variant is chosen, for each choice."""
        return [[*rows] for _, rows in itertools.groupby(self.rows, key=lambda row: row.group)]

    def __str__(self) -> str:
        return "\n\n".join(
            "\n".join((_title(rows), text_grid(_grid(rows)), *(f"{r.label}: {r.reason}" for r in rows if r.reason)))
            for rows in self.groups()
        )

    def _repr_html_(self) -> str:
        return "".join(html_grid(_grid(rows, has_reasons=True), _title(rows)) for rows in self.groups())

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with a row for each variant and key, and a column for each value."""
        import pandas as pd

        choices = self.choices
        return pd.DataFrame(
            {**dict(row.dtypes), **dict(row.key), **dict(row.values), **asdict(row)}
            | {"gb_per_s": row.gb_per_s, "is_chosen": row in choices}
            for row in self.rows
        )

    @ends_at_caller
    def plot(self) -> Any:
        """Return a matplotlib figure for each key: a heat map of two values, or else the variants by their times.

        Raises:
            JitLoadError: matplotlib is not installed, or nothing was measured.
        """
        try:
            import matplotlib.pyplot as plt
        except ImportError as error:
            raise JitLoadError("plot() needs matplotlib: pip install 'jitload[plot]'") from error
        groups = [rows for rows in self.groups() if choose(rows)]
        if not groups:
            raise JitLoadError("no variant was measured, so there is nothing to plot")
        lines = min(max(map(len, groups)), _MAX_NAMES)
        size = 7, max(3.5, 1 + 0.25 * lines) * len(groups)
        figure, axes = plt.subplots(len(groups), 1, figsize=size, squeeze=False, layout="constrained")
        plt.close(figure)  # otherwise, a notebook would show the figure twice
        for (axis,), rows in zip(axes, groups, strict=True):
            _draw(axis, rows)
            axis.set_title(_title(rows))
        return figure


def _title(rows: Sequence[Row]) -> str:
    row = rows[0]
    parts = [row.function, *(f"{name}: {dtype}" for name, dtype in row.dtypes)]
    parts += [f"{text} = {value}" for text, value in row.key]
    return f"{', '.join(parts)} on {row.gpu}, {row.mode}"


def _ranked(rows: Sequence[Row]) -> list[Row]:
    """Return the rows of variants that were measured, the fastest first."""
    measured = (row for row in rows if row.median_us is not None and not row.reason)
    return sorted(measured, key=lambda row: (row.median_us or 0.0, row.number))


def _grid(rows: Sequence[Row], *, has_reasons: bool = False) -> list[list[str]]:
    """Return the rows of a table: the fastest variants first, with the reasons of the others if they have a column."""
    best = choose(rows)
    shown = {row.label: row for row in (*_ranked(rows), *(row for row in rows if has_reasons and row.reason))}
    notes = ["*" if row is best else row.reason for row in shown.values()]
    return measured_grid(shown, _COLUMNS, best.median_us if best else None, notes)


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    """Draw the times of variants, as colours if two values vary. A variant without a time then stays empty."""
    names = [name for name, _ in rows[0].values if len({dict(row.values)[name] for row in rows}) > 1]
    if len(names) != 2:
        _draw_times(axes, _ranked(rows))
        return
    ys, xs = ([*dict.fromkeys(dict(row.values)[name] for row in rows)] for name in names)
    times = {tuple(dict(row.values)[name] for name in names): row.median_us for row in _ranked(rows)}
    image = axes.imshow([[times.get((y, x), math.nan) for x in xs] for y in ys], aspect="auto", cmap="viridis_r")
    axes.figure.colorbar(image, ax=axes, label="median time in µs")
    axes.set_xticks(range(len(xs)), map(str, xs))
    axes.set_yticks(range(len(ys)), map(str, ys))
    axes.set_xlabel(names[1])
    axes.set_ylabel(names[0])


def _draw_times(axes: Any, rows: Sequence[Row]) -> None:
    """Draw a dot with a line from p10 to p90 for each variant. If there are many, only three of them have names."""
    medians = [row.median_us or 0.0 for row in rows]
    ends = [(us - (row.p10_us or us), (row.p90_us or us) - us) for us, row in zip(medians, rows, strict=True)]
    axes.errorbar(medians, range(len(rows)), xerr=[*zip(*ends, strict=True)], fmt=".", capsize=3)
    named = range(len(rows)) if len(rows) <= _MAX_NAMES else (0, len(rows) // 2, len(rows) - 1)
    axes.set_yticks(named, [shortened(rows[rank].label, _PLOTTED_NAME) for rank in named])
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first is at the top, as in the table
    axes.set_xlabel("median time in µs")
