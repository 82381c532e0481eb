"""Links PTX, LTO-IR or a fatbin to machine code with nvJitLink."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from jitload.cuda.bindings import load_bindings
from jitload.cuda.messages import read_spills, without_report

Format = Literal["ptx", "lto-ir", "fatbin"]

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
    """The result of linking: the cubin (None on failure), and the messages.

    `spill_bytes` maps symbols of kernels to the bytes that a thread spills.
    """

    cubin: bytes | None
    log: str
    spill_bytes: Mapping[str, int] = field(default_factory=dict)


def link(path: Path, job: LinkJob) -> Linked:
    """Link an image with the nvJitLink library at `path`."""
    nvjitlink = load_bindings("nvjitlink", path)
    lto = ("-lto",) if job.format == "lto-ir" else ()
    handle, failure = _create(path, (f"-arch={job.arch}", *lto, *job.options, _REPORT))
    try:
        if not failure:
            failure = _add(nvjitlink, handle, job)
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


def _add(nvjitlink: Any, handle: int, job: LinkJob) -> str:
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
