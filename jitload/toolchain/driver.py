"""Asks the CUDA driver for its version and for the current GPU's compute capability.

It uses ctypes, because a cache hit asks these questions, and importing cuda.bindings takes ten times as long as a hit.
"""

from __future__ import annotations

import ctypes
import functools

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: the driver works, and there is no GPU that it may use
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


@functools.lru_cache(maxsize=1)
def load_driver() -> ctypes.CDLL | None:
    """Return libcuda, or None if there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver runs, (13, 0), or None without a driver. It needs no cuInit."""
    driver, number = load_driver(), ctypes.c_int()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def current_capability() -> tuple[int, int] | None:
    """Return the compute capability of this thread's current device, or else of device 0. Return None without a GPU.

    This calls `cuInit`: a process that forks afterwards cannot use CUDA in the child.
    """
    driver, device = load_driver(), ctypes.c_int()
    if driver is None:
        return None
    if driver.cuCtxGetDevice(ctypes.byref(device)) != 0:
        device.value = 0  # no context yet; the runtime would use device 0
        if driver.cuInit(0) != 0:
            return None
    return _capability(device.value)


@functools.lru_cache(maxsize=16)
def _capability(device: int) -> tuple[int, int] | None:
    driver, major, minor = load_driver(), ctypes.c_int(), ctypes.c_int()
    assert driver is not None
    failed = driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device)
    failed = failed or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device)
    return None if failed else (major.value, minor.value)


def driver_error() -> int:
    """Return the CUresult with which the driver fails to start, or 0 if it starts or there is no GPU."""
    driver = load_driver()
    status = 0 if driver is None else int(driver.cuInit(0))
    return 0 if status == _NO_DEVICE else status
