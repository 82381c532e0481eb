"""NVRTC called by the shortest way, so that the tests of its readers do not depend on jitload's own driver."""

import ctypes
import importlib.util
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Answer:
    """What one run of NVRTC gave; `cubin` is empty when it failed."""

    log: str
    cubin: bytes
    lowered: tuple[str, ...]


@cache
def nvrtc_library() -> ctypes.CDLL:
    """Open the NVRTC of JITLOAD_TEST_KIT (a `pip --target` directory) or of this environment."""
    kit = os.environ.get("JITLOAD_TEST_KIT")
    spec = importlib.util.find_spec("nvidia")
    roots = (
        [Path(kit) / "nvidia"] if kit else [Path(p) for p in (spec.submodule_search_locations or [])] if spec else []
    )
    libraries = sorted(path for root in roots for path in root.glob("*/lib/libnvrtc.so.1[0-9]"))
    if not libraries:
        pytest.skip("there is no NVRTC wheel in this environment")
    # 13.0 does not find its builtins by itself.
    for builtins in libraries[0].parent.glob("libnvrtc-builtins.so.1*"):
        ctypes.CDLL(str(builtins))
    return ctypes.CDLL(str(libraries[0]))


def ask_nvrtc(
    source: str,
    options: Sequence[str],
    names: Sequence[str] = (),
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Compile a source and look up the lowered names."""
    nvrtc, program = nvrtc_library(), ctypes.c_void_p()
    files = headers or {}
    texts = (ctypes.c_char_p * len(files))(*[text.encode() for text in files.values()])
    paths = (ctypes.c_char_p * len(files))(*[path.encode() for path in files])
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"k.cu", len(files), texts, paths) == 0
    try:
        for name in names:
            assert nvrtc.nvrtcAddNameExpression(program, name.encode()) == 0
        flags = ["--modify-stack-limit=false", *options]
        failed = nvrtc.nvrtcCompileProgram(
            program, len(flags), (ctypes.c_char_p * len(flags))(*[flag.encode() for flag in flags])
        )
        log = _fetch(nvrtc, program, "ProgramLog").rstrip(b"\0").decode()
        if failed:
            return Answer(log, b"", ())
        return Answer(log, _fetch(nvrtc, program, "CUBIN"), tuple(_lowered(nvrtc, program, name) for name in names))
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, kind: str) -> bytes:
    size = ctypes.c_size_t()
    assert nvrtc[f"nvrtcGet{kind}Size"](program, ctypes.byref(size)) == 0
    buffer = ctypes.create_string_buffer(size.value)
    assert nvrtc[f"nvrtcGet{kind}"](program, buffer) == 0
    return buffer.raw


def _lowered(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, name: str) -> str:
    text = ctypes.c_char_p()
    assert nvrtc.nvrtcGetLoweredName(program, name.encode(), ctypes.byref(text)) == 0
    return (text.value or b"").decode()
