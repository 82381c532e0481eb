"""Bare NVRTC through ctypes, the floor below every build: the library that jitload uses, source in, cubin out."""

from __future__ import annotations

import ctypes
from pathlib import Path


def nvrtc_path() -> Path:
    """Return the NVRTC that jitload would use."""
    from jitload.settings import read_settings
    from jitload.toolchain.cuda import find_cuda_toolchain

    return find_cuda_toolchain(read_settings()).nvrtc_path


def open_nvrtc(path: Path) -> ctypes.CDLL:
    """Load the library."""
    return ctypes.CDLL(str(path))


def compile_bare(library: ctypes.CDLL, source: str, arch: str) -> bytes:
    """Compile to a cubin with no option but the architecture."""
    program, size = ctypes.c_void_p(), ctypes.c_size_t()
    _check(library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None))
    options = (ctypes.c_char_p * 1)(f"--gpu-architecture={arch}".encode())
    _check(library.nvrtcCompileProgram(program, 1, options))
    _check(library.nvrtcGetCUBINSize(program, ctypes.byref(size)))
    cubin = ctypes.create_string_buffer(size.value)
    _check(library.nvrtcGetCUBIN(program, cubin))
    _check(library.nvrtcDestroyProgram(ctypes.byref(program)))
    return cubin.raw


def _check(status: int) -> None:
    if status != 0:
        raise RuntimeError(f"NVRTC failed with nvrtcResult {status}")
