"""Asks the driver about the occupancy of a kernel on the current GPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from jitload.cuda.bindings import import_bindings
from jitload.errors import JitLoadError, ToolchainError
from jitload.inspection.code import KernelCode, LoadedKernel, find_code, image_rank
from jitload.inspection.occupancy import (
    MULTIPROCESSORS,
    Multiprocessor,
    Occupancy,
    compute_occupancy,
    multiprocessor_of,
)
from jitload.toolchain.arch import capability_of, current_capability


def read_occupancy(kernel: LoadedKernel, arch: str | None, block: int | None, shared_bytes: int) -> Occupancy:
    """Return the occupancy of a kernel on the current GPU, or computed for another architecture.

    Args:
        kernel: The kernel.
        arch: As for `find_code`. The driver is asked if it is None or the architecture of the current GPU.
        block: Threads per block; None is 256, or the most that the kernel can have if that is less.
        shared_bytes: Dynamic shared memory per block.

    Raises:
        JitLoadError: The limits of the architecture are not known, or as for `find_code`.
        ValueError: No block of this kernel can have that many threads.
    """
    code = find_code(kernel, arch)
    most = min(code.kernel.max_threads, 1024)
    block = min(256, most) if block is None else block
    if not 1 <= block <= most:
        raise ValueError(f"{code.function}(): block={block}: a block of this kernel has 1 to {most} threads")
    if shared_bytes < 0:
        raise ValueError(f"{code.function}(): shared_bytes={shared_bytes} is negative")
    capability = current_capability()
    number = 10 * capability[0] + capability[1] if capability else 0
    is_current = image_rank(code.arch, number) and (arch is None or capability_of(code.arch)[0] == number)
    if is_current:
        try:
            driver = import_bindings("driver")
        except ToolchainError:  # without cuda-bindings the numbers are computed
            is_current = False
    if not is_current:
        return compute_occupancy(
            code, block, shared_bytes, multiprocessor_of(capability_of(code.arch)[0], code.function)
        )
    with _function(driver, code) as (device, function):
        return _ask(driver, device, function, compute_occupancy(code, block, shared_bytes, _limits(driver, device)))


def _ask(driver: Any, device: int, function: Any, computed: Occupancy) -> Occupancy:
    """Return an occupancy with the driver's numbers in place of computed ones."""
    shared = driver.CUdevice_attribute.CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN
    static = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
    most = _checked(driver.cuDeviceGetAttribute(shared, device)) - _checked(driver.cuFuncGetAttribute(static, function))
    if computed.shared_bytes > most:
        return computed  # no block fits, and the driver calls the question invalid
    dynamic = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    _checked(driver.cuFuncSetAttribute(function, dynamic, most))
    blocks = _checked(
        driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(function, computed.block, computed.shared_bytes)
    )
    _, suggested = _checked(driver.cuOccupancyMaxPotentialBlockSize(function, None, computed.shared_bytes, 0))
    return replace(
        computed,
        blocks=blocks,
        warps=blocks * -(-computed.block // 32),
        limited_by=computed.limited_by if blocks == min(computed.limits.values()) else ("the driver",),
        suggested_block=suggested,
        source="driver",
    )


@contextmanager
def _function(driver: Any, code: KernelCode) -> Iterator[tuple[int, Any]]:
    """Provide the current device and the kernel, which is loaded there apart from the module."""
    _checked(driver.cuInit(0))
    status, device = driver.cuCtxGetDevice()
    has_context = not status
    if not has_context:
        device = _checked(driver.cuDeviceGet(0))
        _checked(driver.cuCtxPushCurrent(_checked(driver.cuDevicePrimaryCtxRetain(device))))
    mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
    mode = _checked(driver.cuThreadExchangeStreamCaptureMode(mode))  # this thread may be capturing a graph
    try:
        library = _checked(driver.cuLibraryLoadData(code.cubin, [], [], 0, [], [], 0))
        try:
            kernel = _checked(driver.cuLibraryGetKernel(library, code.kernel.symbol.encode()))
            yield device, _checked(driver.cuKernelGetFunction(kernel))
        finally:
            driver.cuLibraryUnload(library)
    finally:
        driver.cuThreadExchangeStreamCaptureMode(mode)
        if not has_context:
            driver.cuCtxPopCurrent()
            driver.cuDevicePrimaryCtxRelease(device)


def _limits(driver: Any, device: Any) -> Multiprocessor:
    """Return the limits of a device's multiprocessors as the driver states them, in place of those of a table."""
    attribute = driver.CUdevice_attribute

    def get(name: str) -> int:
        return int(_checked(driver.cuDeviceGetAttribute(getattr(attribute, f"CU_DEVICE_ATTRIBUTE_{name}"), device)))

    number = 10 * get("COMPUTE_CAPABILITY_MAJOR") + get("COMPUTE_CAPABILITY_MINOR")
    return MULTIPROCESSORS.get(number, Multiprocessor(0, 0, 0))._replace(
        blocks=get("MAX_BLOCKS_PER_MULTIPROCESSOR"),
        warps=get("MAX_THREADS_PER_MULTIPROCESSOR") // 32,
        shared_bytes=get("MAX_SHARED_MEMORY_PER_MULTIPROCESSOR"),
        reserved_bytes=get("RESERVED_SHARED_MEMORY_PER_BLOCK"),
    )


def _checked(answer: tuple[Any, ...]) -> Any:
    """Return the results of a driver call, or raise an error for its status."""
    status, *values = answer
    if status:
        raise JitLoadError(f"the driver cannot tell the occupancy: {status.name}")
    return values[0] if len(values) == 1 else tuple(values)
