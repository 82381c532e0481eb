"""Links PTX, LTO-IR or a fatbin to machine code, with nvJitLink or with the driver's own linker."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jitload.cuda.bindings import import_bindings, load_bindings
from jitload.cuda.messages import read_spills, without_report
from jitload.toolchain.arch import capability_of, driver_version

Format = Literal["ptx", "lto-ir", "fatbin"]

_LOG_BYTES = 1 << 16
_REPORT = "-Xptxas=-v"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkJob:
    """An image to link: its bytes, their format, its name in messages, the architecture, and options."""

    data: bytes
    format: Format
    name: str
    arch: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Linked:
    """The result of a linker: the cubin (None on failure), and the messages.

    `spill_bytes` maps symbols of kernels to the bytes that a thread spills.
    """

    cubin: bytes | None
    log: str
    spill_bytes: Mapping[str, int] = field(default_factory=dict)


# ---- nvJitLink ---------------------------------------------------------------------------------------------------


def link_with_nvjitlink(path: Path, job: LinkJob) -> Linked:
    """Link an image with the nvJitLink library at `path`."""
    nvjitlink = load_bindings("nvjitlink", path)
    lto = ("-lto",) if job.format == "lto-ir" else ()
    handle, failure = _create(path, (f"-arch={job.arch}", *lto, *job.options, _REPORT))
    try:
        if not failure:
            failure = _link(nvjitlink, handle, job)
        logs = [_read(nvjitlink, handle, name) for name in ("error_log", "info_log")] if handle else []
        texts = [log.rstrip(b"\0").decode(errors="replace").rstrip() for log in logs]
        report = "\n".join(text for text in texts if text)
        log = without_report(report, job.options)
        if failure:
            return Linked(cubin=None, log=log or f"nvJitLink failed with {failure}")
        cubin = _read(nvjitlink, handle, "linked_cubin")
        return Linked(cubin=cubin, log=log, spill_bytes=read_spills(report, is_linked=True))
    finally:
        if handle:
            nvjitlink.destroy(handle)


def _create(path: Path, options: Sequence[str]) -> tuple[int, str]:
    """Return a handle of nvJitLink (0 if there is none), and an error message ("" if there is no error).

    `create` of cuda.bindings is not used, because it loses the handle if nvJitLink rejects an option. The handle is
    needed to read the log, which names the option.
    """
    handle = ctypes.c_void_p()
    texts = (ctypes.c_char_p * len(options))(*map(os.fsencode, options))
    result = ctypes.CDLL(str(path)).nvJitLinkCreate(ctypes.byref(handle), len(options), texts)
    return handle.value or 0, f"result {result}" if result else ""


def _link(nvjitlink: Any, handle: int, job: LinkJob) -> str:
    """Link an image. Return an error message, or "" if there is no error."""
    types = nvjitlink.InputType
    input_type = {"ptx": types.PTX, "lto-ir": types.LTOIR, "fatbin": types.FATBIN}[job.format]
    try:
        nvjitlink.add_data(handle, int(input_type), job.data, len(job.data), job.name)
        nvjitlink.complete(handle)
    except nvjitlink.nvJitLinkError as error:
        return str(error)
    return ""


def _read(nvjitlink: Any, handle: int, name: str) -> bytes:
    buffer = bytearray(getattr(nvjitlink, f"get_{name}_size")(handle))
    if buffer:
        getattr(nvjitlink, f"get_{name}")(handle, buffer)
    return bytes(buffer)


# ---- the driver's linker -----------------------------------------------------------------------------------------


def link_with_driver(job: LinkJob) -> Linked | None:
    """Link PTX with the driver's linker, or return None if this is impossible.

    The job must be PTX without options. A GPU and a driver for CUDA 12 or newer are needed.
    """
    version = driver_version()
    if job.format != "ptx" or job.options or version is None or version < (12, 0):  # cuda.bindings needs driver 12.0
        return None
    driver = import_bindings("driver")
    (error,) = driver.cuInit(0)
    if error:
        return None
    with _context(driver) as is_current:
        return _link_with_driver(driver, job) if is_current else None


@contextmanager
def _context(driver: Any) -> Iterator[bool]:
    """Make a CUDA context current during the `with` block, and yield whether this succeeded.

    The thread's current context is used if there is one, otherwise the primary context of device 0.
    """
    error, context = driver.cuCtxGetCurrent()
    if not error and int(context):
        yield True
        return
    error, context = driver.cuDevicePrimaryCtxRetain(0)
    if error:
        yield False
        return
    try:
        (error,) = driver.cuCtxSetCurrent(context)
        yield not error
    finally:
        driver.cuCtxSetCurrent(None)
        driver.cuDevicePrimaryCtxRelease(0)


def _link_with_driver(driver: Any, job: LinkJob) -> Linked:
    number, suffix = capability_of(job.arch)
    target = getattr(driver.CUjit_target, f"CU_TARGET_COMPUTE_{number}{suffix.upper()}", None)
    if target is None:
        return Linked(cubin=None, log=f"unsupported architecture {job.arch}: this cuda-bindings does not know it")
    log = bytearray(_LOG_BYTES)
    option = driver.CUjit_option
    options = [option.CU_JIT_ERROR_LOG_BUFFER, option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES, option.CU_JIT_TARGET]
    error, state = driver.cuLinkCreate(len(options), options, [log, _LOG_BYTES, target])
    if not error:
        try:
            data, ptx = job.data + b"\0", driver.CUjitInputType.CU_JIT_INPUT_PTX
            (error,) = driver.cuLinkAddData(state, ptx, data, len(data), job.name.encode(), 0, [], [])
            if not error:
                error, cubin, size = driver.cuLinkComplete(state)
            if not error:
                # Copy the cubin, because its memory belongs to the linker, which is destroyed below.
                return Linked(cubin=ctypes.string_at(cubin, size), log="")
        finally:
            driver.cuLinkDestroy(state)
    messages = log.partition(b"\0")[0].decode(errors="replace")
    return Linked(cubin=None, log=messages or f"the driver's linker failed with {error.name}")
