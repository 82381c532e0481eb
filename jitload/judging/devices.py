"""Calls a function on the host or on a GPU and measures it, in a candidate's process and in the judge.

The functions of torch and of the driver are kept in attributes, because a candidate may replace those of modules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from jitload.cuda.bindings import import_bindings
from jitload.measuring.clocks import CudaClock

_Call = Callable[[], Any]
Measure = Callable[..., tuple[Any, float, float]]
NOTHING = torch.empty(0, dtype=torch.uint8)
DELAYS_MS = (2, 20, 200)  # how long a GPU is kept busy until a function has launched its work


def measure_on_host(call: _Call, target: Any = NOTHING, source: Any = NOTHING) -> tuple[Any, float, float]:
    """Call a function on the host after the bytes of `source`, its inputs, were copied to `target`.

    Return its results, its time, and how long the device was kept busy before, both in microseconds.
    """
    # With one thread: torch's threads would take time from the candidate's.
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())
    start = perf_counter()
    results = call()
    return results, (perf_counter() - start) * 1e6, 0.0


class Gpu(CudaClock):
    """A GPU. It is kept busy before a call, and the inputs are written only when the call has launched its work.

    So the time is that of the GPU. Work in another stream that does not wait for the inputs is done before them. Work
    for which nothing waits is done after the results are copied.
    """

    def __init__(self, name: str, resources: ExitStack, *, flushes_l2: bool) -> None:
        functions: Any = torch._C  # noqa: SLF001  its functions look up no other ones
        self._set_stream, self._sleep = functions._cuda_setStream, functions._cuda_sleep  # noqa: SLF001
        stream = torch.cuda.default_stream(name)
        self._facts = {fact: getattr(stream, fact) for fact in ("stream_id", "device_index", "device_type")}
        torch.zeros(1, device=name)  # this starts CUDA
        resources.enter_context(torch.cuda.stream(stream))
        driver = SimpleNamespace(**vars(import_bindings("driver")))
        super().__init__(driver, stream.device_index, 0, flushes_l2=flushes_l2, resources=resources)
        self._cycles_per_ms = self._get(driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE)  # which is in kHz
        self._delay_ms = DELAYS_MS[0]

    def measure(self, call: _Call, target: Any = NOTHING, source: Any = NOTHING) -> tuple[Any, float, float]:
        """Call a function while the device is busy, if possible for longer than the last call took to launch its work.

        Lines of the L2 cache do not persist until then. Work that does not wait for the inputs sees zeros, which are
        valid as indices, too.
        """
        self._set_stream(**self._facts)
        target.zero_()
        source = source.to(target.device)
        self.wait()
        self._driver.cuCtxResetPersistingL2Cache()
        began, busy_us = perf_counter(), self._delay_ms * 1000.0
        self._sleep(int(self._delay_ms * self._cycles_per_ms))
        target.copy_(source)
        if self._flushes_l2:
            self.empty_cache()
        start, stop = self._events
        self._driver.cuEventRecord(start, 0)
        results = call()
        self._set_stream(**self._facts)  # the function may have chosen another one
        self._driver.cuEventRecord(stop, 0)
        copies = tree_map_only(torch.Tensor, torch.clone, results)
        needed_ms = 2000 * (perf_counter() - began)
        self._delay_ms = next((d for d in DELAYS_MS if d > needed_ms or d == 10 * self._delay_ms), DELAYS_MS[0])
        self.wait()
        return copies, self._elapsed(start, stop), busy_us


def open_device(name: str, resources: ExitStack, *, flushes_l2: bool) -> Measure:
    """Return the function that measures on this device. Closing `resources` frees its memory and events."""
    return measure_on_host if name == "cpu" else Gpu(name, resources, flushes_l2=flushes_l2).measure
