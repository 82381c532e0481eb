"""Tables of kernels with the resources that they use and their speed, for notebooks and terminals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

RESOURCES = ("registers", "spill_bytes", "local_bytes", "shared_bytes", "max_threads")
RESOURCE_TITLES = ("registers", "spills", "local memory", "static shared memory", "max threads per block")
_WIDTH, _MIN_NAME = 80, 8  # the width of a table, and the least width of a name in it, in characters


def format_resource(used: Mapping[str, Any], resource: str) -> str:
    """Return how much of a resource a kernel uses, as text. Register spills get a `!`, because they are slow."""
    value = used.get(resource)
    if value is None:
        return "-" if used["registers"] is None else "unknown"  # kernels on the CPU have no registers
    unit = " B" if resource.endswith("_bytes") else ""
    return f"{value}{unit}{' !' if resource == 'spill_bytes' and value else ''}"


def resource_cells(used: Any) -> list[str]:
    """Return the texts of the resources that a kernel uses. They are the attributes or the items of `used`."""
    values = used if isinstance(used, Mapping) else {label: getattr(used, label) for label in RESOURCES}
    return [format_resource(values, resource) for resource in RESOURCES]


def describe_resources(used: Any) -> str:
    """Return the resources that a kernel uses as text, without those that it does not use."""
    pairs = zip(RESOURCE_TITLES, resource_cells(used), strict=True)
    return ", ".join(f"{title} {text}" for title, text in pairs if text not in ("-", "0 B"))


# ---- tables of measurements ------------------------------------------------------------------------------------------


def shortened(name: str, width: int) -> str:
    """Return a name with its middle replaced by `…` if it is longer than `width`."""
    end = (width - 1) // 2
    return name if len(name) <= width else f"{name[: width - 1 - end]}…{name[-end:]}"


def four_digits(value: float | None) -> str:
    """Return a number as text: 1.23, 12.34, 123.4, 1234, 12345. For None, return ""."""
    return "" if value is None else f"{value:.{max(0, min(2, 4 - len(str(int(value)))))}f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """The time of a launch, the bytes that it moves and its floating-point operations, and what follows from them."""

    median_us: float | None = None
    p10_us: float | None = None
    p90_us: float | None = None
    bytes: int | None = None
    flop: float | None = None
    peak_gb_per_s: float | None = None

    @property
    def gb_per_s(self) -> float | None:
        """The bandwidth in 10⁹ bytes per second, or None if nothing is moved."""
        return self.bytes / self.median_us / 1000 if self.bytes and self.median_us else None

    @property
    def flop_per_s(self) -> float | None:
        """Floating-point operations per second, or None if `flop` was not passed."""
        return self.flop / self.median_us * 1e6 if self.flop and self.median_us else None

    @property
    def peak_share(self) -> float | None:
        """The bandwidth as a share of the peak. More than 1 means that the data was in a cache."""
        rate, peak = self.gb_per_s, self.peak_gb_per_s
        return rate / peak if rate is not None and peak else None


# Columns of tables, each with a function that returns the text of a cell.
TIME_COLUMNS: dict[str, Callable[[Rates], str]] = {
    "median µs": lambda r: four_digits(r.median_us),
    "p10": lambda r: four_digits(r.p10_us),
    "p90": lambda r: four_digits(r.p90_us),
}
RATE_COLUMNS: dict[str, Callable[[Rates], str]] = {
    "GB/s": lambda r: four_digits(r.gb_per_s),
    "of peak": lambda r: "" if r.peak_share is None else f"{r.peak_share:.0%}",
    "GFLOP/s": lambda r: four_digits(r.flop_per_s and r.flop_per_s / 1e9),
}


def measured_grid(
    rows: Mapping[str, Any],
    columns: Mapping[str, Callable[[Any], str]],
    best_us: float | None,
    notes: Sequence[str] = (),
) -> list[list[str]]:
    """Return the rows of a table of measurements: the titles, and then a row for each name.

    Columns without text are left out. If `best_us` is not None, a column compares the times with it.
    """
    cells = {title: list(map(text, rows.values())) for title, text in columns.items()}
    if best_us:
        cells["time"] = [f"{row.median_us / best_us:.2f}x" if row.median_us else "" for row in rows.values()]
    cells = {title: column for title, column in {**cells, "note": [*notes]}.items() if any(column)}
    return [["", *cells], *([name, *(column[n] for column in cells.values())] for n, name in enumerate(rows))]


def text_grid(rows: Sequence[Sequence[str]]) -> str:
    """Return a table for a terminal. The first row has the titles, and the first column has names."""
    columns = list(zip(*rows, strict=True))[1:]
    room = _WIDTH - sum(max(map(len, column)) + 2 for column in columns)
    rows = [[shortened(name, max(room, _MIN_NAME)), *cells] for name, *cells in rows]
    first, *widths = (max(map(len, column)) for column in zip(*rows, strict=True))
    lines = ("  ".join((name.ljust(first), *map(str.rjust, cells, widths))) for name, *cells in rows)
    return "\n".join(line.rstrip() for line in lines)


def html_grid(rows: Sequence[Sequence[str]], caption: str) -> str:
    """Return a table for a notebook. The first row has the titles."""
    import html

    head, *body = rows
    titles = "".join(f"<th>{html.escape(cell)}</th>" for cell in head)
    lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in body)
    caption = html.escape(caption)
    return f"<table><caption>{caption}</caption><thead><tr>{titles}</tr></thead><tbody>{lines}</tbody></table>"
