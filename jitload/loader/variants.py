"""Tells which variant of a tuned function a call launches, and logs keys that were not tuned."""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from jitload.loader.function import TypedFunction

_log = logging.getLogger(__name__)
_HOW = ("first", "tuned", "nearest")  # in the order of the constants in runtime/device.h
_REPORT = ctypes.CFUNCTYPE(None, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_int32)


class Chosen(NamedTuple):
    """The variant that a call launches.

    Attributes:
        values: The values of the names in the `Tune`.
        dtypes: The dtypes of the arguments by which the function chooses.
        key: The values of the expressions in the key.
        how: `tuned` if the variant was chosen for this key, `nearest` if it was chosen for the nearest one, or `first`
            if it is the first variant, because the key was not tuned.
        grid: The number of blocks in x, y and z. `grid` and `block` are None if each call passes them.
        block: The number of threads per block in x, y and z.
        cluster: The number of blocks per cluster in x, y and z.
        shared_bytes: The dynamic shared memory per block.
    """

    values: dict[str, Any]
    dtypes: dict[str, str]
    key: dict[str, int]
    how: str
    grid: tuple[int, ...] | None
    block: tuple[int, ...] | None
    cluster: tuple[int, ...]
    shared_bytes: int


def explain_call(function: TypedFunction, args: Sequence[Any]) -> Chosen:
    """Return what a call with these arguments would launch."""
    facts = function._jitload_facts
    numbers = (ctypes.c_int64 * 21)()
    function._jitload_library.explain(facts["index"], ctypes.addressof(numbers), *args)
    index, how, _, *rest = numbers
    tune = facts.get("tune", {"variants": {}, "key": ()})
    variant = tune["variants"].get(str(index), {"values": {}, "dtypes": {}})
    key = dict(zip(tune["key"], rest, strict=False))
    grid, block, cluster = (tuple(rest[start : start + 3]) for start in (8, 11, 14))
    return Chosen(
        **variant, key=key, how=_HOW[how], grid=grid if any(block) else None, block=block if any(block) else None,
        cluster=cluster, shared_bytes=rest[17],
    )  # fmt: skip


@functools.lru_cache(maxsize=1)
def untuned_reporter() -> Any:
    """Return a C function that logs once that a key was not tuned."""
    return _REPORT(_report)


@functools.lru_cache(maxsize=4096)
def _report(name: bytes, key: bytes, gpu: bytes, how: int) -> None:
    choice = "the variant of the nearest key" if _HOW[how] == "nearest" else "the first variant"
    place = f"the key ({key.decode()}) was not tuned" if gpu else "no key was tuned on this GPU"
    _log.info("%s(): %s, so calls launch %s", name.decode(), place, choice)
