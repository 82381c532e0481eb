"""The host or a GPU as a candidate's process uses it: it copies the tensors of a call, and measures the call.

The functions of torch and of the driver are kept in local variables, because a candidate may replace those of modules.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_map

from jitload.measuring.clocks import HOST_CLOCK, Clock, CudaClock

_Call = Callable[[], Any]


class Device(NamedTuple):
    """What a candidate's process does with the host, where work is done when a call returns, or with a GPU."""

    clock: Clock
    copy: Callable[[Any, Any], object]  # the bytes of the second tensor to the first one
    upload: Callable[[Any], Any] = lambda memory: memory  # return a copy of shared memory
    # Make the default stream the current one, fill memory with zeros, reset the L2 cache, and keep the stream busy.
    use_stream: Callable[[], object] = lambda: None
    clear: Callable[[Any], object] = lambda _: None
    reset: Callable[[], object] = lambda: None
    delay: Callable[[int], object] = lambda _: None
    is_busy: Callable[[], bool] = lambda: True  # whether a delay goes on, and work that was launched now is done
    copies: Callable[[Any], Any] = lambda values: values  # of the tensors among some values


def measure(device: Device, write: _Call, call: _Call) -> tuple[Any, dict[str, Any]]:
    """Call a function whose inputs `write` writes. Return its results, and the times."""
    results: list[Any] = []
    device.reset()
    elapsed, late = device.clock.time_once(write, lambda: results.append(call()))
    return results[0], {"us": elapsed, "late_us": max(0.0, late)}


def call_behind(device: Any, write: _Call, call: _Call, *, delay_ms: int) -> tuple[Any, dict[str, Any]]:
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
    device.clock.wait()
    return copies, {"is_ordered": is_ordered}


def _copy_on_host(target: Any, source: Any) -> None:  # with one thread: torch's would take time from the candidate's
    ctypes.memmove(target.data_ptr(), source.data_ptr(), source.numel())


HOST = Device(HOST_CLOCK, _copy_on_host)


def gpu(name: str, *, flushes_l2: bool) -> Device:
    """Return a GPU, and start CUDA on it."""
    from jitload.cuda.bindings import import_bindings

    functions: Any = torch._C  # noqa: SLF001  its functions look up no other ones
    set_stream, sleep = functions._cuda_setStream, functions._cuda_sleep  # noqa: SLF001
    torch.zeros(1, device=name)
    stream, plain = torch.cuda.default_stream(name), (torch.Tensor, torch.nn.Parameter)
    stream_facts = {fact: getattr(stream, fact) for fact in ("stream_id", "device_index", "device_type")}
    driver = SimpleNamespace(**vars(import_bindings("driver")))
    number = torch.device(name).index or 0
    clock = CudaClock(driver, number, 0, flushes_l2=flushes_l2, resources=ExitStack())
    rate = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_CLOCK_RATE
    cycles_per_ms = driver.cuDeviceGetAttribute(rate, driver.cuDeviceGet(number)[1])[1]  # in kHz
    end_of_delay, other_stream = driver.cuEventCreate(2)[1], driver.cuStreamCreate(1)[1]  # untimed; non-blocking
    word = driver.cuMemAlloc(4)[1]

    def reset() -> None:
        clock.wait()
        driver.cuCtxResetPersistingL2Cache()

    def delay(delay_ms: int) -> None:
        sleep(delay_ms * cycles_per_ms)
        driver.cuEventRecord(end_of_delay, 0)

    def is_busy() -> bool:
        driver.cuMemsetD8Async(word, 0, 4, other_stream)
        driver.cuStreamSynchronize(other_stream)
        return bool(driver.cuEventQuery(end_of_delay)[0] == driver.CUresult.CUDA_ERROR_NOT_READY)

    return Device(
        clock,
        copy=lambda target, source: target.copy_(source),
        upload=lambda memory: memory.to(name),
        use_stream=lambda: set_stream(**stream_facts),
        clear=lambda memory: memory.zero_(),  # zeros are valid as indices, too
        reset=reset,
        delay=delay,
        is_busy=is_busy,
        copies=lambda values: tree_map(lambda v: v.clone() if type(v) in plain else v, values),
    )
