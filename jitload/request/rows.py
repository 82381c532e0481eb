"""Measurements of variants: the rows of a file, and the rule that chooses a variant from them."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from jitload.errors import JitLoadError, LaunchSpecError, warn_once
from jitload.request.tune import Table, Values, label_of
from jitload.request.tuned import Tuned
from jitload.tables import Rates

FORMAT = 1
_TIE = 1.01  # times that differ by this factor or less count as equal
_ADVICE = "tune again, and save to a new file"  # which does not keep the old rows
_PAIRS = ("dtypes", "key", "values")  # fields that a file has as mappings


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Rates):
    """The measurement of a variant for one key.

    Attributes:
        function: The function's name.
        gpu: The model of the GPU, or `cpu`.
        dtypes: The dtypes of the arguments by which the function chooses, `(("x", "float16"),)`.
        key: The expressions of the key with their values, `(("x.shape[1]", 4096),)`.
        values: The values of the variant, `(("B", 128), ("V", 4))`.
        number: The position of the variant in the space.
        reason: Why the variant was not measured to the end, or "".
        median_us: The median of its time in microseconds, or None if it was not measured.
        p10_us: The 10th percentile.
        p90_us: The 90th percentile.
        samples: The number of samples.
        registers: Registers per thread.
        spill_bytes: The bytes that a thread stores to local memory for lack of registers.
        shared_bytes: Static and dynamic shared memory of a block.
        occupancy: The share of a multiprocessor's warps that can be active.
        bytes: The bytes that a call moves.
        flop: The number of floating-point operations of a call.
        peak_gb_per_s: The peak bandwidth of the memory in 10⁹ bytes per second.
        mode: How it was measured: `eager` or `graph`, with `cold` if the L2 cache was emptied, and with
            `exact` if only variants with equal results were admitted.
        driver: The version of the driver, as the driver reports it.
        source: The digest of the source, the options and the launch.
    """

    function: str
    gpu: str
    dtypes: tuple[tuple[str, str], ...] = ()
    key: tuple[tuple[str, int], ...] = ()
    values: Values
    number: int
    reason: str = ""
    median_us: float | None = None
    p10_us: float | None = None
    p90_us: float | None = None
    samples: int = 0
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None
    occupancy: float | None = None
    bytes: int | None = None
    flop: float | None = None
    peak_gb_per_s: float | None = None
    mode: str = "eager"
    driver: int = 0
    source: str = ""

    @property
    def group(self) -> tuple[Any, ...]:
        """What the rows share from which one variant is chosen."""
        return self.function, self.gpu, self.dtypes, self.key

    @property
    def label(self) -> str:
        """The values as text."""
        return label_of(self.values)


def choose(rows: Iterable[Row]) -> Row | None:
    """Return the row of the fastest variant: of those that tie, the first. Return None if none was measured."""
    measured = [row for row in rows if row.median_us is not None and not row.reason]
    if not measured:
        return None
    fastest = min(row.median_us or 0.0 for row in measured)
    ties = [row for row in measured if (row.median_us or 0.0) <= _TIE * fastest]
    return min(ties, key=lambda row: (row.number, row.values))


def choose_tables(
    rows: Iterable[Row], key: tuple[str, ...], is_variant: Callable[[Values], bool], label: str
) -> tuple[Table, ...]:
    """Return the tables of the variants that are chosen from the sorted rows of the file with this label.

    Only variants that still exist, as `is_variant` says, are chosen.

    Raises:
        LaunchSpecError: The expressions of the key have changed, or no variant exists any more.
    """
    tables: dict[str, list[tuple[tuple[int, ...], Values]]] = {}
    for _, group in itertools.groupby(rows, key=lambda row: row.group):
        measured = [*group]
        if (row := choose(measured)) is None:
            continue
        if tuple(text for text, _ in row.key) != key:
            was = ", ".join(text for text, _ in row.key) or "no key"
            problem = f"{label} has choices by {was}, but the key is {', '.join(key) or 'empty'}: {_ADVICE}"
            raise LaunchSpecError(problem, kernel=row.function, field="tuned")
        if (chosen := choose(row for row in measured if is_variant(row.values))) is None:
            problem = f"{label} has {row.label} and others, none of which is a variant any more: {_ADVICE}"
            raise LaunchSpecError(problem, kernel=row.function, field="tuned")
        tables.setdefault(row.gpu, []).append((tuple(value for _, value in row.key), chosen.values))
    return tuple(Table(gpu, tuple(chosen)) for gpu, chosen in tables.items())


def merge(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows with one row for each variant and key: the last. Rows are sorted.

    Times that were measured in another mode, with another driver or of another source cannot be compared. Of a group of
    rows, only those count that were measured like the last.
    """
    merged: dict[tuple[Any, ...], dict[Values, Row]] = {}
    for row in rows:
        group = merged.setdefault(row.group, {})
        group.pop(row.values, None)
        group[row.values] = row
    kept = []
    for group in merged.values():
        last = [*group.values()][-1]
        same = (last.mode, last.driver, last.source)
        kept += [row for row in group.values() if (row.mode, row.driver, row.source) == same]
    return tuple(sorted(kept, key=lambda row: (row.function, row.gpu, row.dtypes, row.key, row.number, row.values)))


# ---- the file -------------------------------------------------------------------------------------------------------


def write_rows(rows: Iterable[Row]) -> str:
    """Return rows as the text of a file: JSON with a line for each row."""
    defaults = {field.name: field.default for field in fields(Row)}
    lines = []
    for row in rows:
        facts = {name: value for name, value in asdict(row).items() if value != defaults[name]}
        facts.update({name: dict(facts[name]) for name in _PAIRS if name in facts})
        lines.append(json.dumps(facts, ensure_ascii=False))
    return f'{{"format": {FORMAT}, "rows": [\n' + ",\n".join(lines) + "\n]}\n"


@functools.lru_cache(maxsize=8)
def read_rows(file: Tuned) -> tuple[Row, ...]:
    """Return the measurements in a file. The rows of a file that was edited by hand are merged like any others.

    Raises:
        JitLoadError: `Tuning.save` did not write the file, or another release of jitload did.
    """
    try:
        content = json.loads(file.text)
        if content["format"] != FORMAT:
            raise JitLoadError(f"{file.label} has the format {content['format']!r}; this release reads {FORMAT}")
        return merge(map(_row_of, content["rows"]))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        reason = f"{error} is missing" if isinstance(error, KeyError) else error
        raise JitLoadError(f"{file.label} is not a file that Tuning.save() wrote: {reason}") from error


def rows_of(file: Tuned, function: str, source: str, dtypes: tuple[tuple[str, str], ...] = ()) -> list[Row]:
    """Return the measurements of a function for dtypes.

    If there are none, log that calls launch the first variant. Warn if the digest of the source has changed.
    """
    rows = [row for row in read_rows(file) if row.function == function]
    found = [row for row in rows if row.dtypes == dtypes]
    if not found:
        types = f" for {', '.join(f'{name}={dtype}' for name, dtype in dtypes)}" if rows and dtypes else ""
        message = f"{file.label} has no measurements of {function}(){types}, so calls launch the first variant"
        warn_once(message, level=logging.INFO if rows else logging.WARNING)
    if any(row.source not in ("", source) for row in found):
        message = (
            f"{file.label} was measured with another source or other options than {function!r} has now: tune again."
        )
        warn_once(message, level=logging.WARNING)
    return found


def _row_of(facts: Mapping[str, Any]) -> Row:
    """Return a row of a file.

    Raises:
        ValueError: A field is missing or unknown, or has a value that no measurement has.
    """
    pairs = {name: tuple(facts[name].items()) for name in _PAIRS if name in facts}
    row = {**{field.name: field.default for field in fields(Row)}, **facts, **pairs}
    for name, value in row.items():
        if name not in _IS_VALID or not _IS_VALID[name](value):
            raise ValueError(f"a row has {name} = {facts.get(name)!r}")
    return Row(**row)


def _is_number(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and 0 <= value < math.inf)


# Whether a field of a row may have a value.
_IS_VALID: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("function", "gpu", "reason", "mode", "source"), lambda value: isinstance(value, str)),
    **dict.fromkeys(("number", "samples", "driver"), lambda value: type(value) is int and value >= 0),
    **dict.fromkeys(("median_us", "p10_us", "p90_us", "occupancy", "flop", "peak_gb_per_s"), _is_number),
    **dict.fromkeys(("registers", "spill_bytes", "shared_bytes", "bytes"), _is_number),
    "dtypes": lambda pairs: all(isinstance(dtype, str) for _, dtype in pairs),
    "key": lambda pairs: all(type(value) is int and -(2**63) <= value < 2**63 for _, value in pairs),
    "values": lambda pairs: all(isinstance(value, int | str) for _, value in pairs),
}
