"""The settings in environment variables; each public call reads the variables anew."""

from __future__ import annotations

import functools
import os
import re
from typing import NamedTuple

from jitload.errors import JitLoadError


class Settings(NamedTuple):
    """The environment at the time of a public call.

    Attributes:
        arch: `JITLOAD_ARCH`: the architectures to build for if there is no GPU, such as `sm_90a` or `80,90a`. If this
            variable is not set, tvm-ffi's `TVM_FFI_CUDA_ARCH_LIST`, such as `8.0 9.0a`.
        arch_variable: The name of the variable whose value is in `arch`.
        cache_dir: `JITLOAD_CACHE_DIR`, or "" for the user's own cache directory.
        nvrtc: `JITLOAD_NVRTC`: a libnvrtc file, a CUDA toolkit, or a major version such as `12`.
        nvcc: `JITLOAD_NVCC`: the path of nvcc, or a CUDA toolkit.
        cutlass: `JITLOAD_CUTLASS`: the directory of CUTLASS, or "" for the newest CUTLASS in a wheel.
        cxx: `JITLOAD_CXX`, or `CXX` if the former is not set: the command of the C++ compiler.
        trusts_group: `JITLOAD_TRUST_GROUP=1`: whether to load from directories that the group may write to.
        mode: `JITLOAD_MODE`: `auto` builds libraries that are not in the cache, `load-only` never builds, and `rebuild`
            builds a library even if it is in the cache.
        cache_limit: `JITLOAD_CACHE_LIMIT`: the maximum size of the cache in bytes, or 0 for no limit. The least
            recently used entries are removed first.
        path: `PATH`: the directories to search for compilers and other tools.
        toolkits: The values of `CUDA_HOME` and `CUDA_PATH` that are set.
        nvcc_flags: `NVCC_PREPEND_FLAGS` and `NVCC_APPEND_FLAGS`, which nvcc itself reads.
        environment: The variables that the compilers themselves read, as `NAME=value`. Unset variables are left out.
        cache_path: `JITLOAD_CACHE_PATH`: more directories to search for finished entries. Nothing is written to them.
        remote: `JITLOAD_CACHE_REMOTE`: the URL of a remote store for fsspec, `s3://bucket/kernels`.
        remote_writes: `JITLOAD_CACHE_REMOTE_WRITE=1`: whether to upload new libraries to the remote cache.
        remote_timeout_s: `JITLOAD_CACHE_REMOTE_TIMEOUT`: how many seconds a remote operation may take.
        record: `JITLOAD_RECORD`: the file in which to record what this process loads, or "".
        checks_for_gpu: `JITLOAD_CPU_GPU_CHECK`, by default True: whether NVRTC also checks kernels built for the CPU.
        isolates: `JITLOAD_ISOLATE=1`: whether to run NVRTC in a child process.
        checks_bounds: `JITLOAD_BOUNDS=1`: whether all kernels have the checks of `Launch(bounds="check")`.
        library: `JITLOAD_LIBRARY`: `later` builds the library of kernels in the background, `now` waits for it, and
            `never` does without one.
        precompiles: `JITLOAD_PRECOMPILE`, by default True: whether to precompile headers of hand-written C++, and
            to keep headers parsed for NVRTC.
    """

    arch: str
    arch_variable: str
    cache_dir: str
    nvrtc: str
    nvcc: str
    cutlass: str
    cxx: str
    trusts_group: bool
    mode: str
    cache_limit: int
    path: str
    toolkits: tuple[str, ...]
    nvcc_flags: tuple[str, str]
    environment: tuple[str, ...]
    checks_for_gpu: bool
    isolates: bool
    checks_bounds: bool
    library: str
    precompiles: bool
    cache_path: tuple[str, ...]
    remote: str
    remote_writes: bool
    remote_timeout_s: float
    record: str


_OWN_VARIABLES = (
    *("JITLOAD_ARCH", "JITLOAD_CACHE_DIR", "JITLOAD_NVRTC", "JITLOAD_NVCC", "JITLOAD_CXX", "JITLOAD_TRUST_GROUP"),
    *("JITLOAD_MODE", "JITLOAD_CACHE_LIMIT", "JITLOAD_PRECOMPILE", "JITLOAD_CACHE_PATH", "JITLOAD_CACHE_REMOTE"),
    *("JITLOAD_CACHE_REMOTE_WRITE", "JITLOAD_CACHE_REMOTE_TIMEOUT", "JITLOAD_CPU_THREADS"),
    *("JITLOAD_CPU_TIMEOUT", "JITLOAD_ISOLATE", "JITLOAD_CPU_GPU_CHECK", "JITLOAD_LIBRARY", "JITLOAD_CUTLASS"),
    *("JITLOAD_RECORD", "JITLOAD_BOUNDS"),
)
_TOOLKIT_VARIABLES = ("CUDA_HOME", "CUDA_PATH")
# The variables that gcc, clang, the assembler, the linker and NVRTC read and that can change their output.
_COMPILER_VARIABLES = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LPATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("GCC_ROOT", "G++_ROOT", "BINUTILS_ROOT", "GNUTARGET", "LDEMULATION", "LD_RUN_PATH", "SOURCE_DATE_EPOCH"),
    *("CCC_OVERRIDE_OPTIONS", "SDKROOT", "NIX_CFLAGS_COMPILE", "NIX_LDFLAGS"),
    *("EDG_BASE", "NV_NVVM_VERSION", "NVVM_IR_VER_CHK", "LLVM_OVERRIDE_PRODUCER", "FINALIZER_USE_LEGACY_ELF_BUILDER"),
)
_SEARCH_PATHS = frozenset(("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LPATH", "COMPILER_PATH"))
ARCH_LIST_VARIABLE = "TVM_FFI_CUDA_ARCH_LIST"
_SHARED_VARIABLES = (ARCH_LIST_VARIABLE, "CXX", "PATH", *_TOOLKIT_VARIABLES, "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_VARIABLES = (*_OWN_VARIABLES, *_SHARED_VARIABLES, *_COMPILER_VARIABLES)
_KEYS = tuple(map(os.fsencode, _VARIABLES))
_DEFAULT_CACHE_LIMIT = 5 * 10**9
_DEFAULT_TIMEOUT_S = 5.0
_MODES = ("auto", "load-only", "rebuild")
_LIBRARIES = ("later", "now", "never")
_FLAGS = {**dict.fromkeys(("1", "true", "yes", "on"), True), **dict.fromkeys(("0", "false", "no", "off"), False)}
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def read_settings() -> Settings:
    """Return the current settings."""
    # `os.environ.get` raises and catches an exception for each unset name. That would take 7 of the 30 µs that a
    # repeated call of load_inline takes.
    raw = getattr(os.environ, "_data", None)
    if isinstance(raw, dict):
        settings = _parse(*[raw.get(key, b"") for key in _KEYS])
    else:
        settings = _parse(*[os.fsencode(os.environ.get(os.fsdecode(key), "")) for key in _KEYS])
    if not settings.environment:
        return settings
    pairs = (variable.split("=", 1) for variable in settings.environment)
    return settings._replace(environment=tuple(f"{name}={absolute_search_path(name, path)}" for name, path in pairs))


def absolute_search_path(name: str, value: str) -> str:
    """Return the value of a variable. If it is a search path, such as `CPATH`, its directories are made absolute.

    Compilers run in the directory of the build, where relative directories would have another meaning.
    """
    if name not in _SEARCH_PATHS:
        return value
    return os.pathsep.join(directory and os.path.abspath(directory) for directory in value.split(os.pathsep))


@functools.lru_cache(maxsize=16)
def _parse(*raw: bytes) -> Settings:
    values = dict(zip(_VARIABLES, map(os.fsdecode, raw), strict=True))

    def flag(name: str, *, default: bool = False) -> bool:
        return read_flag(name, values[name], default=default)

    mode, limit = values["JITLOAD_MODE"], values["JITLOAD_CACHE_LIMIT"]
    if mode not in ("", *_MODES):
        raise JitLoadError(f"JITLOAD_MODE={mode!r} must be one of {', '.join(_MODES)}")
    if (library := values["JITLOAD_LIBRARY"]) not in ("", *_LIBRARIES):
        raise JitLoadError(f"JITLOAD_LIBRARY={library!r} must be one of {', '.join(_LIBRARIES)}")
    if (threads := values["JITLOAD_CPU_THREADS"]) and not re.fullmatch(r"[1-9]\d{0,5}", threads, re.ASCII):
        raise JitLoadError(f"JITLOAD_CPU_THREADS={threads!r} must be a number of threads, such as 8")
    _read_seconds(values, "JITLOAD_CPU_TIMEOUT")  # the library reads it, at its first launch
    try:
        cache_limit = parse_size(limit) if limit else _DEFAULT_CACHE_LIMIT
    except ValueError as error:
        raise JitLoadError(f"JITLOAD_CACHE_LIMIT={limit!r}: {error}") from None
    arch_variable = "JITLOAD_ARCH" if values["JITLOAD_ARCH"] or not values[ARCH_LIST_VARIABLE] else ARCH_LIST_VARIABLE
    return Settings(
        arch=values[arch_variable],
        arch_variable=arch_variable,
        cache_dir=values["JITLOAD_CACHE_DIR"],
        nvrtc=values["JITLOAD_NVRTC"],
        nvcc=values["JITLOAD_NVCC"],
        cutlass=values["JITLOAD_CUTLASS"],
        cxx=values["JITLOAD_CXX"] or values["CXX"],
        trusts_group=flag("JITLOAD_TRUST_GROUP"),
        mode=mode or "auto",
        cache_limit=cache_limit,
        path=values["PATH"],
        toolkits=tuple(values[name] for name in _TOOLKIT_VARIABLES if values[name]),
        nvcc_flags=(values["NVCC_PREPEND_FLAGS"], values["NVCC_APPEND_FLAGS"]),
        environment=tuple(f"{name}={values[name]}" for name in _COMPILER_VARIABLES if values[name]),
        checks_for_gpu=flag("JITLOAD_CPU_GPU_CHECK", default=True),
        isolates=flag("JITLOAD_ISOLATE"),
        library=library or "later",
        precompiles=flag("JITLOAD_PRECOMPILE", default=True),
        cache_path=tuple(directory for directory in values["JITLOAD_CACHE_PATH"].split(os.pathsep) if directory),
        remote=values["JITLOAD_CACHE_REMOTE"],
        remote_writes=flag("JITLOAD_CACHE_REMOTE_WRITE") and bool(values["JITLOAD_CACHE_REMOTE"]),
        remote_timeout_s=_read_seconds(values, "JITLOAD_CACHE_REMOTE_TIMEOUT") or _DEFAULT_TIMEOUT_S,
        record=values["JITLOAD_RECORD"],
        checks_bounds=flag("JITLOAD_BOUNDS"),
    )


def read_flag(name: str, text: str, *, default: bool = False) -> bool:
    """Return the value of a boolean variable. An empty text means the default.

    Raises:
        JitLoadError: The text is not one of 1, true, yes, on, 0, false, no, off and "".
    """
    if (flag := _FLAGS.get(text.strip().lower(), default if not text else None)) is None:
        raise JitLoadError(f"{name}={text!r} must be 1, true, yes or on, or 0, false, no or off")
    return flag


def _read_seconds(values: dict[str, str], name: str) -> float | None:
    if not (text := values[name]):
        return None
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII) and float(text) > 0:
        return float(text)
    raise JitLoadError(f"{name}={text!r} must be a number of seconds above 0, such as 2.5")


def parse_size(text: str) -> int:
    """Return the number of bytes for a text such as `"2GB"`, `"500M"` or `"0"`.

    Raises:
        ValueError: The text is not a size.
    """
    match = re.fullmatch(r"\s*(\d{1,18})(?:\.(\d{1,9}))?\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE | re.ASCII)
    if match is None:
        raise ValueError("a size is a number with K, M, G or T, such as 2GB")
    return int(float(f"{match[1]}.{match[2] or 0}") * _UNITS[match[3].upper()])
