"""The host or a GPU as a candidate's process uses it: it copies the tensors of a call, and measures the call.

The functions that measure are kept in local variables, because a candidate may replace those of modules.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any

from jitload.measuring.clocks import CudaClock

_Measure = Callable[[Callable[[], object], Callable[[], Any]], tuple[float, float, Any]]


class Host:
    """The host, where all work is done when a call returns."""

    def __init__(self) -> None:
        self.measure = _host_timer()

    def use_stream(self) -> None:
        """Do nothing, as some other methods: there are no streams."""

    wait = use_stream

    def delay(self, _: int) -> None:
        """Do nothing."""

    clear = delay

    def is_busy(self) -> bool:
        """Return whether work in other streams was done before the inputs were written."""
        return True

    def upload(self, memory: Any) -> Any:
        """Return memory on the device with the bytes of the shared memory."""
        return memory

    copies = upload

    def copy(self, target: Any, source: Any) -> None:
        """Copy bytes with one thread, because torch's threads would take time from the candidate's."""
        ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())


def _host_timer() -> _Measure:
    now = time.perf_counter_ns

    def measure(write: Callable[[], object], call: Callable[[], Any]) -> tuple[float, float, Any]:
        write()
        start = now()
        result = call()
        return (now() - start) / 1000, 0.0, result

    return measure


class Gpu:
    """A GPU, with copies of the functions of torch and of the driver. A candidate may replace the originals."""

    def __init__(self, name: str, *, flushes_l2: bool) -> None:
        import torch

        from jitload.cuda.bindings import import_bindings

        functions: Any = torch._C  # noqa: SLF001  its functions look up no other ones
        self._name, self._sleep, set_stream = name, functions._cuda_sleep, functions._cuda_setStream  # noqa: SLF001
        torch.zeros(1, device=name)
        stream = torch.cuda.default_stream(name)
        chosen = {name: getattr(stream, name) for name in ("stream_id", "device_index", "device_type")}
        self.use_stream = lambda: set_stream(**chosen)
        self._driver = driver = SimpleNamespace(**vars(import_bindings("driver")))
        number = torch.device(name).index or 0
        clock = CudaClock(driver, number, 0, flushes_l2=flushes_l2, resources=ExitStack())
        rate = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE
        self._cycles_per_ms = driver.cuDeviceGetAttribute(rate, driver.cuDeviceGet(number)[1])[1]  # in kHz
        self._end_of_delay, self._other_stream = driver.cuEventCreate(2)[1], driver.cuStreamCreate(1)[1]  # non-blocking
        self._word = driver.cuMemAlloc(4)[1]
        self.measure, self.wait = _device_timer(driver, clock), clock.wait

    def delay(self, delay_ms: int) -> None:
        """Keep the current stream busy."""
        self._sleep(delay_ms * self._cycles_per_ms)
        self._driver.cuEventRecord(self._end_of_delay, 0)

    def is_busy(self) -> bool:
        """Return whether the delay goes on, although work in another stream is done that was launched only now."""
        self._driver.cuMemsetD8Async(self._word, 0, 4, self._other_stream)
        self._driver.cuStreamSynchronize(self._other_stream)
        return bool(self._driver.cuEventQuery(self._end_of_delay)[0] == self._driver.CUresult.CUDA_ERROR_NOT_READY)

    def clear(self, memory: Any) -> None:
        """Fill memory with zeros, which are valid as indices, too."""
        memory.zero_()

    def upload(self, memory: Any) -> Any:
        """Return memory on the device with the bytes of the shared memory."""
        return memory.to(self._name)

    def copies(self, values: Any) -> Any:
        """Return copies of the tensors among the values, except for those of classes derived from `torch.Tensor`."""
        import torch
        from torch.utils._pytree import tree_map

        return tree_map(lambda v: v.clone() if type(v) in (torch.Tensor, torch.nn.Parameter) else v, values)

    def copy(self, target: Any, source: Any) -> None:
        """Copy bytes in the current stream."""
        target.copy_(source)


def _device_timer(driver: Any, clock: CudaClock) -> _Measure:
    """Return a function that measures with events of the driver's."""
    now, reset = time.perf_counter_ns, driver.cuCtxResetPersistingL2Cache

    def measure(write: Callable[[], object], call: Callable[[], Any]) -> tuple[float, float, Any]:
        results: list[Any] = []
        clock.wait()
        reset()
        elapsed = clock.time_once(write, lambda: results.append(call()))
        start = now()
        clock.wait()  # work in other streams may go on
        return elapsed, (now() - start) / 1000, results[0]

    return measure


def call_behind(
    device: Any, delay_ms: int, write: Callable[[], object], call: Callable[[], Any]
) -> tuple[Any, dict[str, Any]]:
    """Call a function whose inputs are written only when it has launched its work, unless it waits for them.

    The device is kept busy until then. Work that does not wait for the current stream is done before the inputs are
    there. The results are copied in this stream, too.

    Returns:
        The results as this stream sees them, and whether the device was still busy when all work had been launched.
    """
    device.delay(delay_ms)
    write()
    returned = call()
    device.use_stream()  # the candidate may have chosen another one
    copies = device.copies(returned)
    is_ordered = device.is_busy()
    device.wait()
    return copies, {"is_ordered": is_ordered}
