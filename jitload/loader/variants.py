"""Tells which variant of a tuned function a call launches, and measures variants in first calls."""

from __future__ import annotations

import ctypes
import functools
import importlib
import logging
import sys
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from jitload.errors import warn_once
from jitload.loader.direct_calls import CheckedFunction
from jitload.loader.function import TypedFunction, in_graphs
from jitload.request.tune import read_tuned

_HOW = ("first", "tuned", "nearest")  # in the order of the constants in runtime/core/choice.h


@functools.lru_cache(maxsize=1)
def untuned_reporter() -> Any:
    """Return a C function that logs once that a key was not tuned."""

    def report(name: bytes, key: Any, count: int, gpu: bytes, how: int) -> None:
        variant = "the variant of the nearest key" if _HOW[how] == "nearest" else "the first variant"
        reason = (
            f"the key ({', '.join(map(str, key[:count]))}) was not tuned" if gpu else "no key was tuned on this device"
        )
        warn_once(f"{name.decode()}(): {reason}, so calls launch {variant}", level=logging.INFO)

    numbers = ctypes.POINTER(ctypes.c_int64)
    return ctypes.CFUNCTYPE(None, ctypes.c_char_p, numbers, ctypes.c_int32, ctypes.c_char_p, ctypes.c_int32)(report)


class Chosen(NamedTuple):
    """The variant that a call launches.

    It was `tuned` for the call's key or for the `nearest` one, or is the `first`, because the key was not tuned.
    `threads` and `shared_bytes` of a block are those that the `Launch` declares.
    """

    values: dict[str, Any]
    dtypes: dict[str, str]
    key: dict[str, int]
    how: str
    threads: int
    shared_bytes: int


def explain_call(function: TypedFunction, args: Sequence[Any]) -> Chosen:
    """Return what a call with these arguments would launch."""
    function = with_choices(function)
    facts = function._jitload_facts
    numbers = (ctypes.c_int64 * 12)()
    function._jitload_library.explain(facts["index"], ctypes.addressof(numbers), *args)
    index, threads, shared_bytes, how, *key = numbers
    tune = facts.get("tune", {"variants": {}, "key": ()})
    variant = tune["variants"].get(str(index), {"values": {}, "dtypes": {}})
    facts = {"key": dict(zip(tune["key"], key, strict=False)), "how": _HOW[how]}
    return Chosen(**variant, **facts, threads=threads, shared_bytes=shared_bytes)


_measuring = threading.Lock()  # of first calls, which would disturb each other's measurements
_untraced: Any = None  # `_measured` as a function that torch.compile does not trace, if torch's tracer is imported


class MeasuringFunction(CheckedFunction):
    """A function of variants that measures them in the first call with a key that was not tuned.

    The choices last as long as the process. Calls with a configuration, `f[grid, block]`, and calls while a CUDA graph
    is captured do not measure.
    """

    @in_graphs
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Measure first if the key is new."""
        global _untraced  # noqa: PLW0603  made once, because each `disable` takes 8 µs
        if _untraced is None and (dynamo := sys.modules.get("torch._dynamo")):
            _untraced = dynamo.disable(_measured)
        return CheckedFunction.__call__((_untraced or _measured)(self, args), *args, **kwargs)


def _measured(function: TypedFunction, args: Sequence[Any]) -> TypedFunction:
    """Return a function with the choices so far. Measure first if the key of a call is new."""
    torch = sys.modules.get("torch")
    is_captured = torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
    if not (is_captured or function._jitload_key or explain_call(function, args).how == "tuned"):
        with _measuring:
            if explain_call(function, args).how != "tuned":  # no other thread has measured in the meantime
                function._jitload_library.first_calls[function.__name__] = _measure(with_choices(function), args)
    return with_choices(function)


def with_choices(function: TypedFunction) -> TypedFunction:
    """Return a function with what its first calls have chosen, unless it has a configuration."""
    if function._jitload_key:
        return function
    return function._jitload_library.first_calls.get(function.__name__, function)


def _measure(function: TypedFunction, args: Sequence[Any]) -> TypedFunction:
    """Tune for the key of a call, and return the function with its choice and all earlier ones."""
    from jitload.measuring.tuning import Tuning  # a cache hit does not need these modules
    from jitload.request.rows import read_rows

    request = function._jitload_library.request
    found = Tuning([*read_rows(request.tuned), function.tune(*args, progress=False).best])
    request = request._replace(tuned=read_tuned(found))
    pipeline = importlib.import_module("jitload.pipeline")  # it is above the loader
    module = pipeline.load_request(request)
    measured: TypedFunction = module[function.__name__]
    return measured
