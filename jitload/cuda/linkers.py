"""PTX or LTO-IR in, machine code out: nvJitLink in this process, or the driver's own linker."""

from __future__ import annotations

import ctypes
import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from jitload.arch import capability_of
from jitload.errors import ToolchainError
from jitload.toolchain.driver import load_driver

Format = Literal["ptx", "lto-ir", "fatbin"]

_NVJITLINK_TYPES = {"ptx": 2, "lto-ir": 3, "fatbin": 4}
_CU_JIT_INPUT_PTX = 1
_ERROR_LOG, _ERROR_LOG_SIZE, _TARGET = 5, 6, 9  # CU_JIT_ERROR_LOG_BUFFER, …_SIZE_BYTES, CU_JIT_TARGET
_SUFFIX_BASES = {"": 0, "a": 0x10000, "f": 0x20000}  # CU_COMPUTE_ACCELERATED_TARGET_BASE, …_FAMILY_…
_LOG_BYTES = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkJob:
    """One image to link: its bytes and what they are, what messages call it, the architecture, and options."""

    data: bytes
    format: Format
    name: str
    arch: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """What a linker made: machine code, or None where it refused, and its words."""

    cubin: bytes | None
    log: str


# ---- nvJitLink ---------------------------------------------------------------------------------------------------


def link_with_nvjitlink(path: Path, job: LinkJob) -> Linked:
    """Link with nvJitLink.

    Raises:
        ToolchainError: The library cannot be loaded.
    """
    library = _load(str(path))
    lto = ("-lto",) if job.format == "lto-ir" else ()
    options = tuple(map(os.fsencode, (f"-arch={job.arch}", *lto, *job.options)))
    handle = ctypes.c_void_p()
    # A refused option gives a handle all the same, for its log.
    status = library.nvJitLinkCreate(ctypes.byref(handle), len(options), (ctypes.c_char_p * len(options))(*options))
    try:
        if status == 0:
            status = library.nvJitLinkAddData(
                handle, _NVJITLINK_TYPES[job.format], job.data, ctypes.c_size_t(len(job.data)), job.name.encode()
            )
        if status == 0:
            status = library.nvJitLinkComplete(handle)
        logs = [_text(library, handle, which) for which in ("ErrorLog", "InfoLog")] if handle else []
        log = "\n".join(text.rstrip() for text in logs if text.strip())
        if status != 0:
            return Linked(cubin=None, log=log or f"nvJitLink failed with result {status}")
        return Linked(cubin=_read(library, handle, "LinkedCubin"), log=log)
    finally:
        if handle:
            library.nvJitLinkDestroy(ctypes.byref(handle))


@functools.lru_cache(maxsize=4)
def _load(path: str) -> ctypes.CDLL:
    try:
        return ctypes.CDLL(path)
    except OSError as error:
        raise ToolchainError(f"nvJitLink cannot be loaded from {path}: {error}") from error


def _read(library: ctypes.CDLL, handle: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    getattr(library, f"nvJitLinkGet{what}Size")(handle, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value + 1)
    getattr(library, f"nvJitLinkGet{what}")(handle, buffer)
    return buffer.raw[: size.value]


def _text(library: ctypes.CDLL, handle: ctypes.c_void_p, what: str) -> str:
    return _read(library, handle, what).rstrip(b"\0").decode(errors="replace")


# ---- the driver's linker -----------------------------------------------------------------------------------------


def link_with_driver(job: LinkJob) -> Linked | None:
    """Link with the driver's linker, or return None where there is no driver, no GPU, or where it is not up to this."""
    driver = load_driver()
    if driver is None or job.format != "ptx" or job.options or driver.cuInit(0) != 0:
        return None
    with _context(driver) as is_current:
        return _link_with_driver(driver, job) if is_current else None


@contextmanager
def _context(driver: ctypes.CDLL) -> Iterator[bool]:
    """Have a context: the thread's own, or for this long the first device's primary one."""
    context, device = ctypes.c_void_p(), ctypes.c_int()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) == 0 and context:
        yield True
        return
    is_held = (
        driver.cuDeviceGet(ctypes.byref(device), 0) == 0
        and driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device) == 0
    )
    try:
        yield is_held and driver.cuCtxSetCurrent(context) == 0
    finally:
        if is_held:
            driver.cuCtxSetCurrent(None)
            driver.cuDevicePrimaryCtxRelease_v2(device)


def _link_with_driver(driver: ctypes.CDLL, job: LinkJob) -> Linked:
    number, suffix = capability_of(job.arch)
    log = ctypes.create_string_buffer(_LOG_BYTES)
    names = (ctypes.c_int * 3)(_ERROR_LOG, _ERROR_LOG_SIZE, _TARGET)
    # The driver reads numbers out of the pointers themselves.
    values = (ctypes.c_void_p * 3)(ctypes.addressof(log), _LOG_BYTES, number + _SUFFIX_BASES[suffix])
    state, cubin, size = ctypes.c_void_p(), ctypes.c_void_p(), ctypes.c_size_t()
    status = driver.cuLinkCreate_v2(3, names, values, ctypes.byref(state))
    try:
        if status == 0:
            data = job.data + b"\0"
            arguments = (data, ctypes.c_size_t(len(data)), job.name.encode(), 0, None, None)
            status = driver.cuLinkAddData_v2(state, _CU_JIT_INPUT_PTX, *arguments)
        if status == 0:
            status = driver.cuLinkComplete(state, ctypes.byref(cubin), ctypes.byref(size))
        if status == 0:
            return Linked(cubin=ctypes.string_at(cubin, size.value), log="")  # it belongs to the linker
    finally:
        if state:
            driver.cuLinkDestroy(state)
    words = log.value.decode(errors="replace")
    return Linked(cubin=None, log=words or f"the driver's linker failed with error {status}")
