"""Measurements of variants: the rows of a file, and the rule that chooses a variant from them."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from types import NoneType
from typing import Any

from jitload.errors import JitLoadError, LaunchSpecError, warn_once
from jitload.request.tune import Choice, Table, Values, label_of
from jitload.request.tuned import Tuned
from jitload.tables import Rates

FORMAT = 1
_TIE = 1.01  # times that differ by this factor or less count as equal
_PAIRS = ("dtypes", "key", "values")  # fields that a file has as mappings
# The types of the values that a field with this annotation has in a file.
_TYPES: dict[str, tuple[type, ...]] = {
    "str": (str,), "int": (int,), "int | None": (int, NoneType), "float | None": (int, float, NoneType),
    "tuple[tuple[str, str], ...]": (str,), "tuple[tuple[str, int], ...]": (int,), "Values": (int, bool, str),
}  # fmt: skip


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
    def method(self) -> tuple[Any, ...]:
        """What the rows share whose times can be compared."""
        return self.mode, self.driver, self.source

    @property
    def label(self) -> str:
        """The values as text."""
        return label_of(self.values)


def choose(rows: Iterable[Row]) -> Row | None:
    """Return the row of the fastest variant: of those that tie, the first. Return None if none was measured."""
    times = [(row.median_us, row) for row in rows if row.median_us is not None and not row.reason]
    slowest = _TIE * min((time for time, _ in times), default=0.0)
    ties = (row for time, row in times if time <= slowest)
    return min(ties, key=lambda row: (row.number, row.values), default=None)


def merge(rows: Iterable[Row]) -> tuple[Row, ...]:
    """Return rows with one row for each variant and key: the last. Rows are sorted.

    Times that were measured in another mode, with another driver or of another source cannot be compared. Of a group of
    rows, only those count that were measured like the last.
    """
    rows = [*rows]
    last = {row.group: row.method for row in rows}
    merged = {(row.group, row.values): row for row in rows if row.method == last[row.group]}
    return tuple(sorted(merged.values(), key=lambda row: (*row.group, row.number, row.values)))


def with_tables(choice: Choice, file: Tuned | None, like: Row, is_variant: Callable[[Values], bool]) -> Choice:
    """Return a choice with tables of the variants that are chosen from the measurements in a file.

    The function, dtypes and source are those of `like`. Log if the file has no measurements of them. `is_variant` says
    whether a variant with these values still exists.

    Raises:
        LaunchSpecError: The expressions of the key have changed, or no variant exists any more.
    """
    if file is None:
        return choice
    rows = [row for row in read_rows(file) if row.function == like.function]
    own = [row for row in rows if row.dtypes == like.dtypes]
    if not own:
        types = f" for {', '.join(f'{name}={dtype}' for name, dtype in like.dtypes)}" if rows and like.dtypes else ""
        message = f"{file.label} has no measurements of {like.function}(){types}, so calls launch the first variant"
        warn_once(message, level=logging.INFO if rows else logging.WARNING)
    if any(row.source not in ("", like.source) for row in own):
        problem = f"was measured with another source or other options than {like.function!r} has now: tune again"
        warn_once(f"{file.label} {problem}", level=logging.WARNING)
    tables: dict[str, list[tuple[tuple[int, ...], Values]]] = {}
    for _, group in itertools.groupby(own, key=lambda row: row.group):
        if (row := choose(measured := [*group])) is None:
            continue
        chosen = choose(row for row in measured if is_variant(row.values))
        problem = "" if chosen else f"{row.label} and others, none of which is a variant any more"
        if (key := tuple(text for text, _ in row.key)) != choice.key:
            problem = f"choices by {', '.join(key) or 'no key'}, but the key is {', '.join(choice.key) or 'empty'}"
        if problem or chosen is None:
            problem = f"{file.label} has {problem}: tune again, and save to a new file"  # which has no old rows
            raise LaunchSpecError(problem, kernel=like.function, field="tuned")
        tables.setdefault(row.gpu, []).append((tuple(value for _, value in row.key), chosen.values))
    return choice._replace(tables=tuple(Table(gpu, tuple(pairs)) for gpu, pairs in tables.items()), digest=file.digest)


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


def _row_of(facts: Mapping[str, Any]) -> Row:
    """Return a row of a file. Raise an error if a field is missing or unknown, or has a value of another type."""
    row = Row(**{**facts, **{name: tuple(facts[name].items()) for name in _PAIRS if name in facts}})
    for field in fields(Row):
        value = getattr(row, field.name)
        is_pairs = field.name in _PAIRS
        low, high = (-(2**63), 2**63) if is_pairs else (0, math.inf)
        for item in (item for _, item in value) if is_pairs else (value,):
            is_number = isinstance(item, int | float)
            if type(item) not in _TYPES[str(field.type)] or (is_number and not low <= item < high):
                raise ValueError(f"a row has {field.name} = {facts[field.name]!r}")
    return row
