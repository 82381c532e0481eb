"""Measurements of variants: the rows of a file, and the rule that chooses a variant from them."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jitload.errors import JitLoadError, LaunchSpecError, warn_once
from jitload.request.tune import Choice, Tuned, Values, spelled
from jitload.tables import Rates

FORMAT = 1
_TIE = 1.01  # times that differ by this factor or less count as equal
PAIRS = ("dtypes", "key", "values")  # fields that a file has as mappings


@dataclass(frozen=True, slots=True, kw_only=True)
class Row(Rates):
    """The measurement of a variant for one key."""

    function: str
    gpu: str  #: The model of the GPU, or `cpu`.
    dtypes: tuple[tuple[str, str], ...] = ()  #: The dtypes of the arguments by which the function chooses.
    key: tuple[tuple[str, int], ...] = ()  #: The expressions of the key with their values.
    values: Values  #: The values of the variant, `(("B", 128), ("V", 4))`.
    number: int  #: The position of the variant in the space.
    reason: str = ""  #: Why the variant was not measured to the end.
    samples: int = 0
    registers: int | None = None
    spill_bytes: int | None = None
    shared_bytes: int | None = None  #: Static and dynamic shared memory of a block.
    occupancy: float | None = None  #: The share of a multiprocessor's warps that can be active.
    mode: str = "eager"  #: Or `graph`, with `cold` if the L2 cache was emptied, and `exact`.
    driver: int = 0
    source: str = ""  #: The digest of the source, the options and the launch.

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
        """The values as text, `B=128 V=4`."""
        return " ".join(f"{name}={spelled(value)}" for name, value in self.values)


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


def with_choices(choice: Choice, file: Tuned | None, like: Row, space: Iterable[Values]) -> Choice:
    """Return a choice with the variants in a space that are chosen from the measurements in a file.

    The function, dtypes and source are those of `like`. Warn if the file only has measurements of others.

    Raises:
        LaunchSpecError: The expressions of the key have changed.
    """
    if file is None:
        return choice
    rows = [row for row in read_rows(file) if row.function == like.function]
    own = [row for row in rows if row.dtypes == like.dtypes]
    if not rows and read_rows(file):
        message = f"{file.label} has no measurements of {like.function}(): calls launch the first variant"
        warn_once(message, level=logging.WARNING)
    if any(row.source not in ("", like.source) for row in own):
        problem = f"was measured with another source or other options than {like.function!r} has now: tune again"
        warn_once(f"{file.label} {problem}", level=logging.WARNING)
    choices, variants = [], {*space}
    for (_, gpu, _, key), group in itertools.groupby(own, key=lambda row: row.group):
        if (texts := tuple(text for text, _ in key)) != choice.key:
            problem = f"{file.label} has choices by {', '.join(texts)!r}, but the key is {', '.join(choice.key)!r}"
            raise LaunchSpecError(f"{problem}: tune again, and save to a new file", kernel=like.function, field="tuned")
        if chosen := choose(row for row in group if row.values in variants):
            choices.append((gpu, tuple(value for _, value in key), chosen.values))
    return choice._replace(chosen=tuple(choices), digest=file.digest)


# ---- the file -------------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=8)
def read_rows(file: Tuned | None) -> tuple[Row, ...]:
    """Return the measurements in a file, if there is one. The rows of a file that was edited by hand are merged, too.

    Raises:
        JitLoadError: `Tuning.save` did not write the file, or another release of jitload did.
    """
    if file is None:
        return ()
    try:
        return merge(_parse(file.text))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise JitLoadError(f"{file.label} is not a file that Tuning.save() wrote: {error!r}") from error


def _parse(text: str) -> Iterator[Row]:
    """Yield the rows of a file. Raise an error if one of them cannot be a measurement."""
    content = json.loads(text)
    if content["format"] != FORMAT:
        raise ValueError(f"it has the format {content['format']!r}; this release reads {FORMAT}")
    for facts in content["rows"]:
        row = Row(**{**facts, **{name: tuple(facts[name].items()) for name in PAIRS if name in facts}})
        are_values = all(isinstance(value, int | str) for _, value in row.values)
        are_numbers = all(type(number) is int and -(2**63) <= number < 2**63 for _, number in row.key)
        is_time = row.median_us is None or (isinstance(row.median_us, int | float) and 0 <= row.median_us < math.inf)
        if not (are_values and are_numbers and is_time and isinstance(row.gpu, str) and row.gpu):
            raise ValueError(f"a row has values that no measurement has: {facts}")
        yield row
