"""Asks the CUDA driver about devices, without a context; a machine without a driver is an answer, too."""

from __future__ import annotations

import ctypes
import functools

_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE: a driver that works, and no GPU that it may use
_MAJOR, _MINOR = 75, 76  # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and _MINOR


@functools.lru_cache(maxsize=1)
def open_driver() -> ctypes.CDLL | None:
    """Return libcuda, or None where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError:
        return None


def driver_version() -> tuple[int, int] | None:
    """Return the newest CUDA version that the driver runs, (13, 0), or None without a driver. Needs no cuInit."""
    number = ctypes.c_int()
    driver = open_driver()
    if driver is None or driver.cuDriverGetVersion(ctypes.byref(number)) != 0:
        return None
    return number.value // 1000, number.value % 1000 // 10


def current_capability() -> tuple[int, int] | None:
    """Return the compute capability of this thread's current device, else of device 0; None without a GPU.

    This calls `cuInit`: a process that forks afterwards cannot use CUDA in the child.
    """
    driver = open_driver()
    if driver is None:
        return None
    device = ctypes.c_int()
    if driver.cuCtxGetDevice(ctypes.byref(device)) != 0:
        device.value = 0  # no context yet; the runtime would use device 0
        if driver.cuInit(0) != 0:
            return None
    return _capability(driver, device.value)


def driver_error() -> int:
    """Return the CUresult with which the driver refuses to start; 0 where it starts, or where there is no GPU."""
    driver = open_driver()
    status = 0 if driver is None else int(driver.cuInit(0))
    return 0 if status == _NO_DEVICE else status


_capabilities: dict[int, tuple[int, int]] = {}


def _capability(driver: ctypes.CDLL, device: int) -> tuple[int, int] | None:
    if known := _capabilities.get(device):
        return known
    major, minor = ctypes.c_int(), ctypes.c_int()
    if (
        driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, device) != 0
        or driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, device) != 0
    ):
        return None
    return _capabilities.setdefault(device, (major.value, minor.value))
