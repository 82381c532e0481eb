"""Tells which variant of a tuned function a call launches, and measures variants in first calls."""

from __future__ import annotations

import ctypes
import importlib
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from jitload.loader.direct_calls import CheckedFunction
from jitload.loader.function import TypedFunction, in_graphs
from jitload.loader.untuned import HOW
from jitload.request.tuned import Tuned


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
    config = function._jitload_config
    function = function._jitload_library.first_calls.get(function.__name__, function)
    facts = function._jitload_facts
    numbers = (ctypes.c_int64 * 21)()
    function._jitload_library.explain(facts["index"], ctypes.addressof(numbers), *args)
    index, how, _, *rest = numbers
    tune = facts.get("tune", {"variants": {}, "key": ()})
    variant = tune["variants"].get(str(index), {"values": {}, "dtypes": {}})
    key = dict(zip(tune["key"], rest, strict=False))
    grid, block, cluster = (tuple(rest[start : start + 3]) for start in (8, 11, 14))
    declared = (grid, block) if any(block) else (None, None)
    return Chosen(
        **variant, key=key, how=HOW[how], grid=config[2:5] if config[1] else declared[0],
        block=config[6:9] if config[5] else declared[1], cluster=cluster,
        shared_bytes=rest[17] if config[9] is None else config[9],
    )  # fmt: skip


_measuring = threading.Lock()  # of first calls, which would disturb each other's measurements
_untraced: Any = None  # `_choose` as a function that torch.compile does not trace, if torch's tracer is imported


class MeasuringFunction(CheckedFunction):
    """A function of variants that measures them in the first call with a key that was not tuned.

    The choices last as long as the process. Calls with a configuration, `f[grid, block]`, do not measure, and neither
    do calls while a CUDA graph is captured.
    """

    @in_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Measure first if the key is new."""
        global _untraced  # noqa: PLW0603  made once, because each `disable` takes 8 µs
        if _untraced is None and (dynamo := sys.modules.get("torch._dynamo")):
            _untraced = dynamo.disable(_choose)
        return CheckedFunction.__call__((_untraced or _choose)(self, args), *args, **kwargs)


def _choose(function: MeasuringFunction, args: Sequence[Any]) -> TypedFunction:
    """Return the function with the choices so far. Measure first if the key of a call is new."""
    torch, chosen = sys.modules.get("torch"), function._jitload_library.first_calls
    is_captured = torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    if not (is_captured or function._jitload_key) and explain_call(function, args).how != "tuned":
        with _measuring:
            if explain_call(function, args).how != "tuned":  # no other thread has measured in the meantime
                chosen[function.__name__] = _measure(chosen.get(function.__name__, function), args)
    if (frozen := chosen.get(function.__name__)) is None:
        return function
    return frozen[function._jitload_key] if function._jitload_key else frozen


def _measure(function: TypedFunction, args: Sequence[Any]) -> TypedFunction:
    """Tune for the key of a call, and return the function with its choice and all earlier ones."""
    from jitload.request.rows import merge, read_rows, write_rows  # a cache hit does not need it

    best = function.tune(*args, progress=False).best
    request = function._jitload_library.request
    earlier = read_rows(request.tuned) if request.tuned else ()
    request = request._replace(tuned=Tuned("the first calls", write_rows(merge((*earlier, best)))))
    pipeline = importlib.import_module("jitload.pipeline")  # it is above the loader
    module = pipeline.load_request(request, None, keep_module_alive=True, verbose=False)
    measured: TypedFunction = module[function.__name__]
    return measured
