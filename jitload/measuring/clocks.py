"""Measures the time that functions take: on a GPU with CUDA events, on the CPU with the wall clock."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from time import perf_counter_ns
from typing import Any, NamedTuple

from jitload.cuda.bindings import check_driver, import_bindings
from jitload.errors import JitLoadError
from jitload.measuring.memory import Extent

_BATCH_US = 200.0  # a sample should take this long, so that the clock's resolution does not matter
_MAX_LAUNCHES = 50  # in each sample on a GPU; a stream can queue this many launches without blocking the host
_MAX_CALLS = 1000  # in each sample on the CPU
_MIN_FLUSH_BYTES = 64 << 20
_MAX_FLUSHES, _MARGIN = 100, 1.5  # before a sample; how much longer they take than the host for the launches
_WARM_UP = 2  # launches before the first event of a sample, because the work before it may have emptied the caches


class Sample(NamedTuple):
    """How a function is called for one sample.

    Attributes:
        call: A callable that calls the function once.
        launches: The number of calls between two readings of the clock.
        restore: A callable that restores the function's arguments before a sample, or None if that is not needed.
        host_us: How long a call takes until it returns to Python.
    """

    call: Callable[[], Any]
    launches: int = 1
    restore: Callable[[], None] | None = None
    host_us: float = 0.0


class CpuClock:
    """The wall clock of the host. All times are in microseconds.

    Attributes:
        device: The measured device: `cpu`, or for a `CudaClock`, `cuda:0` with the GPU's name.
        model: The model of the device: `cpu`, or the GPU's name.
        driver: The version of the driver, such as 13000, or 0 on the CPU.
        is_host: Whether the device is the host itself.
        peak_bytes_per_s: The peak bandwidth of the device's memory, or None if it is not known.
    """

    device: str = "cpu"
    model: str = "cpu"
    driver: int = 0
    is_host: bool = True
    peak_bytes_per_s: float | None = None

    def time(self, sample: Sample) -> float:
        """Return the time of one call, averaged over the calls of a sample."""
        if sample.restore:
            sample.restore()
        call = sample.call
        start = perf_counter_ns()
        for _ in range(sample.launches):
            call()
        return (perf_counter_ns() - start) / sample.launches / 1000

    time_host = time

    def batch(self, once_us: float, _host_us: float) -> int:
        """Return the number of calls for one sample, given the time of one call."""
        return min(_MAX_CALLS, math.ceil(_BATCH_US / max(once_us, 0.01)))

    def empty_cache(self) -> None:
        """Do nothing: the caches of a CPU are not emptied."""

    def wait(self) -> None:
        """Return at once: on the CPU, the work is done when a call returns."""

    def save(self, extent: Extent) -> Any:
        """Return a copy of the memory of a tensor."""
        self.wait()
        return ctypes.string_at(extent.address, extent.span)

    def restore(self, extent: Extent, copy: Any) -> None:
        """Write a copy back to the memory that it was made from."""
        self.wait()
        if ctypes.string_at(extent.address, extent.span) != copy:  # memory that did not change may be read-only
            ctypes.memmove(extent.address, copy, extent.span)


class CudaClock(CpuClock):
    """A clock that measures a GPU with CUDA events.

    The host may take longer to launch a function than the GPU takes to run it. To measure only the GPU's time, the
    clock first keeps the GPU busy with clearing a buffer until the host has enqueued the whole sample. Closing
    `resources` frees the clock's memory and events.
    """

    is_host: bool = False

    def __init__(self, driver: Any, device: int, stream: int, *, flushes_l2: bool, resources: ExitStack) -> None:
        self._driver, self._stream, self._flushes_l2, self._resources = driver, stream, flushes_l2, resources
        attribute = driver.CUdevice_attribute
        self._number = _checked(driver.cuDeviceGet(device))
        self.model = _checked(driver.cuDeviceGetName(256, self._number)).partition(b"\0")[0].decode()
        self.device = f"cuda:{device} ({self.model})"
        self.driver = int(_checked(driver.cuDriverGetVersion()))
        clock_khz = self._get(attribute.CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE)
        bus_bits = self._get(attribute.CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH)
        self.peak_bytes_per_s: float | None = 2 * 1000 * clock_khz * bus_bits / 8 or None  # two transfers in each cycle
        self._flush_bytes = max(_MIN_FLUSH_BYTES, 2 * self._get(attribute.CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE))
        self._buffer = self._allocate(self._flush_bytes)
        self._events = []
        for _ in range(2):
            self._events.append(_checked(driver.cuEventCreate(0)))
            resources.callback(driver.cuEventDestroy, self._events[-1])
        self._flush_us = max(1.0, self._time(self.empty_cache, self.empty_cache, 10))

    def time(self, sample: Sample) -> float:
        """Return the time of one call on the device, averaged over the launches of a sample."""
        restore = sample.restore or (lambda: None)

        def prepare() -> None:
            self._stay_busy((sample.launches + _WARM_UP) * sample.host_us)
            if not self._flushes_l2:
                for _ in range(_WARM_UP):
                    restore()
                    sample.call()
            restore()
            if self._flushes_l2:
                self.empty_cache()

        return self._time(prepare, sample.call, sample.launches)

    def time_host(self, sample: Sample) -> float:
        """Return the time until a call returns to Python while the device is idle."""
        if sample.restore:
            sample.restore()
        self.wait()
        start = perf_counter_ns()
        sample.call()
        return (perf_counter_ns() - start) / 1000

    def batch(self, once_us: float, host_us: float) -> int:
        """Return the number of calls for one sample, given the time of one call and that until it returns to Python.

        The device can stay busy until all are launched. If L2 is emptied, the number is 1.
        """
        most = int(_MAX_FLUSHES * self._flush_us / (_MARGIN * max(host_us, 0.01))) - _WARM_UP
        return 1 if self._flushes_l2 else max(1, min(_MAX_LAUNCHES, most, math.ceil(_BATCH_US / max(once_us, 0.01))))

    def wait(self) -> None:
        """Wait until the device has done all work."""
        _checked(self._driver.cuCtxSynchronize())

    def save(self, extent: Extent) -> Any:
        """Return a copy of the memory of a tensor."""
        if extent.device is None:
            return super().save(extent)
        copy = self._allocate(extent.span)
        _checked(self._driver.cuMemcpyDtoDAsync(copy, extent.address, extent.span, self._stream))
        return copy

    def restore(self, extent: Extent, copy: Any) -> None:
        """Write a copy back to the memory that it was made from."""
        if extent.device is None:
            super().restore(extent, copy)
        else:
            _checked(self._driver.cuMemcpyDtoDAsync(extent.address, copy, extent.span, self._stream))

    def _time(self, prepare: Callable[[], Any], call: Callable[[], Any], launches: int) -> float:
        start, stop = self._events
        prepare()
        _checked(self._driver.cuEventRecord(start, self._stream))
        for _ in range(launches):
            call()
        _checked(self._driver.cuEventRecord(stop, self._stream))
        _checked(self._driver.cuEventSynchronize(stop))
        return self._elapsed(start, stop) / launches

    def _elapsed(self, start: Any, stop: Any) -> float:
        return float(_checked(self._driver.cuEventElapsedTime(start, stop))) * 1000

    def _stay_busy(self, host_us: float) -> None:
        """Enqueue work that takes longer than the host needs for the next launches, but at most some milliseconds."""
        for _ in range(min(_MAX_FLUSHES, math.ceil(_MARGIN * host_us / self._flush_us) + 1)):
            self.empty_cache()

    def empty_cache(self) -> None:
        """Enqueue the clearing of a buffer that is larger than the L2 cache."""
        _checked(self._driver.cuMemsetD8Async(self._buffer, 0, self._flush_bytes, self._stream))

    def _allocate(self, size: int) -> Any:
        memory = _checked(self._driver.cuMemAlloc(size))
        self._resources.callback(self._driver.cuMemFree, memory)
        return memory

    def _get(self, attribute: Any) -> int:
        return int(_checked(self._driver.cuDeviceGetAttribute(attribute, self._number)))


Clock = CpuClock
HOST_CLOCK = CpuClock()


@contextmanager
def cuda_clock(device: int, stream: int | None, *, flushes_l2: bool) -> Iterator[CudaClock]:
    """Yield a clock of a GPU for the given stream, or for the GPU's current stream if `stream` is None.

    The GPU's primary context is current in the `with` block.
    """
    driver = import_bindings("driver")
    with ExitStack() as stack:
        _checked(driver.cuInit(0))
        number = _checked(driver.cuDeviceGet(device))
        if torch := _torch_with_cuda():
            stack.enter_context(torch.cuda.device(device))
            if stream is not None:  # 0 is the default stream, for which ExternalStream would create a new one
                chosen = torch.cuda.ExternalStream(stream) if stream else torch.cuda.default_stream(device)
                stack.enter_context(torch.cuda.stream(chosen))
        current = _current_stream(device)
        _checked(driver.cuCtxPushCurrent(_checked(driver.cuDevicePrimaryCtxRetain(number))))
        stack.callback(driver.cuDevicePrimaryCtxRelease, number)
        stack.callback(driver.cuCtxPopCurrent)
        timed = current if stream is None else stream
        for handle in {current, timed}:
            status, capture = driver.cuStreamIsCapturing(handle)
            if status or int(capture):
                raise JitLoadError("nothing can be measured while a CUDA graph is captured: measure before or after")
        _checked(driver.cuCtxSynchronize())  # other streams may still write the arguments
        yield CudaClock(driver, device, timed, flushes_l2=flushes_l2, resources=stack)


def _torch_with_cuda() -> Any:
    """Return torch if the program has imported it and torch can use a GPU, or else None."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and torch.cuda.is_available() else None


def _current_stream(device: int) -> int:
    if torch := _torch_with_cuda():
        return int(torch.cuda.current_stream(device).cuda_stream)
    import tvm_ffi

    return int(tvm_ffi.get_raw_stream(tvm_ffi.device("cuda", device)))


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return the results of a driver call, or raise JitLoadError if its status is an error."""
    if answer[0] and answer[0].name == "CUDA_ERROR_OUT_OF_MEMORY":
        raise JitLoadError(
            "measuring needs memory on the GPU for a copy of the tensors that the function writes to, and there is not "
            "enough: use smaller tensors, or free memory (torch.cuda.empty_cache() frees what torch keeps)"
        )
    return check_driver(answer, "measuring failed, perhaps because a kernel failed")
