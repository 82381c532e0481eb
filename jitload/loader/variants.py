"""Tells which variant of a tuned function a call launches, and measures variants in first calls."""

from __future__ import annotations

import ctypes
import importlib
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from jitload.loader.direct_calls import CheckedFunction
from jitload.loader.function import TypedFunction
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
    function = getattr(function, "_jitload_frozen", None) or function
    facts = function._jitload_facts
    numbers = (ctypes.c_int64 * 21)()
    function._jitload_library.explain(facts["index"], ctypes.addressof(numbers), *args)
    index, how, _, *rest = numbers
    tune = facts.get("tune", {"variants": {}, "key": ()})
    variant = tune["variants"].get(str(index), {"values": {}, "dtypes": {}})
    key = dict(zip(tune["key"], rest, strict=False))
    grid, block, cluster = (tuple(rest[start : start + 3]) for start in (8, 11, 14))
    return Chosen(
        **variant, key=key, how=HOW[how], grid=grid if any(block) else None, block=block if any(block) else None,
        cluster=cluster, shared_bytes=rest[17],
    )  # fmt: skip


class MeasuringFunction(CheckedFunction):
    """A function of variants that measures them in the first call with a key that was not tuned.

    The choices last as long as the process. While a CUDA graph is captured, calls do not measure.
    """

    _jitload_frozen: TypedFunction | None = None  # the function with the choices that were made so far

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function. Measure first if the key is new."""
        frozen = self._jitload_frozen or self
        torch = sys.modules.get("torch")
        is_captured = torch is not None and torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        if not (is_captured or kwargs) and explain_call(frozen, args).how != "tuned":
            frozen = self._jitload_frozen = self._jitload_measure(frozen, args)
        return CheckedFunction.__call__(frozen, *args, **kwargs)

    def _jitload_measure(self, frozen: TypedFunction, args: Sequence[Any]) -> TypedFunction:
        """Tune for a key, and return the function with its choice and all earlier ones."""
        from jitload.request.rows import merge, read_rows, write_rows  # a cache hit does not need it

        best = frozen.tune(*args, progress=False).best
        request = frozen._jitload_library.request
        earlier = read_rows(request.tuned) if request.tuned else ()
        request = request._replace(tuned=Tuned("the first calls", write_rows(merge((*earlier, best)))))
        pipeline = importlib.import_module("jitload.pipeline")  # it is above the loader
        module = pipeline.load_request(request, None, keep_module_alive=True, verbose=False)
        function: TypedFunction = module[self.__name__]
        return function
