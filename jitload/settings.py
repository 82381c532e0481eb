"""Reads `JITLOAD_*` at each public call, into a frozen record."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import re
import shutil
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from jitload.errors import CacheError, JitLoadError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment asks for.

    Attributes:
        arch: `JITLOAD_ARCH`: the architectures to build for where there is no GPU to ask, such as `sm_90a` or `80,90a`;
            where it is not set, tvm-ffi's `TVM_FFI_CUDA_ARCH_LIST`, such as `8.0 9.0a`.
        arch_variable: Which of the two it is from.
        cache_dir: `JITLOAD_CACHE_DIR`, or "" for the user's own cache directory.
        nvrtc: `JITLOAD_NVRTC`: a libnvrtc file, a CUDA toolkit, or a major version such as `12`.
        nvcc: `JITLOAD_NVCC`: the file of nvcc, or a CUDA toolkit.
        cxx: `JITLOAD_CXX`, else `CXX`: the command of the C++ compiler.
        trusts_group: `JITLOAD_TRUST_GROUP=1`: load from directories that a group may write.
        mode: `JITLOAD_MODE`: `auto`; `load-only` never builds; `rebuild` builds once more what it finds.
        cache_limit: `JITLOAD_CACHE_LIMIT` in bytes: what is above it is removed, least recently used first; 0 for none.
        path: `PATH`, in which compilers are looked for.
        toolkits: `CUDA_HOME` and `CUDA_PATH`.
        nvcc_flags: `NVCC_PREPEND_FLAGS` and `NVCC_APPEND_FLAGS`, which nvcc itself reads.
        environment: What the compilers themselves read, as `NAME=value`, where it is set.
        cache_path: `JITLOAD_CACHE_PATH`: directories in which finished entries are looked for, and nothing is written.
        remote: `JITLOAD_CACHE_REMOTE`: a URL of fsspec, such as `s3://bucket/kernels`, or `module:name` of a store.
        remote_writes: `JITLOAD_CACHE_REMOTE_WRITE=1`: what is built here is put there.
        remote_timeout_s: `JITLOAD_CACHE_REMOTE_TIMEOUT`: how many seconds one question to it may take.
        precompiles: Not `JITLOAD_PRECOMPILE=0`: keep precompiled headers for hand-written C++ in the cache.
    """

    arch: str
    arch_variable: str
    cache_dir: str
    nvrtc: str
    nvcc: str
    cxx: str
    trusts_group: bool
    mode: str
    cache_limit: int
    path: str
    toolkits: tuple[str, ...]
    nvcc_flags: tuple[str, str]
    environment: tuple[str, ...]
    precompiles: bool
    cache_path: tuple[str, ...]
    remote: str
    remote_writes: bool
    remote_timeout_s: float


_OWN = (
    *("JITLOAD_ARCH", "JITLOAD_CACHE_DIR", "JITLOAD_NVRTC", "JITLOAD_NVCC", "JITLOAD_CXX", "JITLOAD_TRUST_GROUP"),
    *("JITLOAD_MODE", "JITLOAD_CACHE_LIMIT", "JITLOAD_PRECOMPILE", "JITLOAD_CACHE_PATH", "JITLOAD_CACHE_REMOTE"),
    *("JITLOAD_CACHE_REMOTE_WRITE", "JITLOAD_CACHE_REMOTE_TIMEOUT", "JITLOAD_CPU_THREADS"),
)
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
# What gcc, clang, the assembler, the linker and NVRTC were seen to ask for and what can change what they make.
_READ_BY_COMPILERS = (
    *("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LPATH", "COMPILER_PATH", "GCC_EXEC_PREFIX"),
    *("GCC_ROOT", "G++_ROOT", "BINUTILS_ROOT", "GNUTARGET", "LDEMULATION", "LD_RUN_PATH", "SOURCE_DATE_EPOCH"),
    *("CCC_OVERRIDE_OPTIONS", "SDKROOT", "NIX_CFLAGS_COMPILE", "NIX_LDFLAGS"),
    *("EDG_BASE", "NV_NVVM_VERSION", "NVVM_IR_VER_CHK", "LLVM_OVERRIDE_PRODUCER", "FINALIZER_USE_LEGACY_ELF_BUILDER"),
)
UPSTREAMS_ARCH = "TVM_FFI_CUDA_ARCH_LIST"
_OTHERS = (UPSTREAMS_ARCH, "CXX", "PATH", *_TOOLKITS, "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_NAMES = (*_OWN, *_OTHERS, *_READ_BY_COMPILERS)
_KEYS = tuple(map(os.fsencode, _NAMES))
_LIMIT = 5 * 10**9
_PATIENCE_S = 5.0
_MODES = ("auto", "load-only", "rebuild")
_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}


def read_settings() -> Settings:
    """Return what the environment says now."""
    # `os.environ.get` raises and catches for each unset name: 7 µs of the 30 that a repeated call may take.
    raw = getattr(os.environ, "_data", None)
    if isinstance(raw, dict):
        return _settings(*[raw.get(key, b"") for key in _KEYS])
    return _settings(*[os.fsencode(os.environ.get(os.fsdecode(key), "")) for key in _KEYS])


@functools.lru_cache(maxsize=16)
def _settings(*raw: bytes) -> Settings:
    named = dict(zip(_NAMES, map(os.fsdecode, raw), strict=True))
    mode, limit, timeout = (named[f"JITLOAD_{name}"] for name in ("MODE", "CACHE_LIMIT", "CACHE_REMOTE_TIMEOUT"))
    if mode not in ("", *_MODES):
        raise CacheError(f"JITLOAD_MODE={mode!r} must be one of {', '.join(_MODES)}")
    if (threads := named["JITLOAD_CPU_THREADS"]) and not re.fullmatch(r"[1-9]\d{0,5}", threads, re.ASCII):
        raise JitLoadError(f"JITLOAD_CPU_THREADS={threads!r} must be a number of threads, such as 8")
    try:
        cache_limit = parse_size(limit) if limit else _LIMIT
    except ValueError as error:
        raise CacheError(f"JITLOAD_CACHE_LIMIT={limit!r}: {error}") from None
    arch_variable = "JITLOAD_ARCH" if named["JITLOAD_ARCH"] or not named[UPSTREAMS_ARCH] else UPSTREAMS_ARCH
    return Settings(
        arch=named[arch_variable],
        arch_variable=arch_variable,
        cache_dir=named["JITLOAD_CACHE_DIR"],
        nvrtc=named["JITLOAD_NVRTC"],
        nvcc=named["JITLOAD_NVCC"],
        cxx=named["JITLOAD_CXX"] or named["CXX"],
        trusts_group=named["JITLOAD_TRUST_GROUP"] == "1",
        mode=mode or "auto",
        cache_limit=cache_limit,
        path=named["PATH"],
        toolkits=tuple(named[name] for name in _TOOLKITS if named[name]),
        nvcc_flags=(named["NVCC_PREPEND_FLAGS"], named["NVCC_APPEND_FLAGS"]),
        environment=tuple(f"{name}={named[name]}" for name in _READ_BY_COMPILERS if named[name]),
        precompiles=named["JITLOAD_PRECOMPILE"] != "0",
        cache_path=tuple(place for place in named["JITLOAD_CACHE_PATH"].split(os.pathsep) if place),
        remote=named["JITLOAD_CACHE_REMOTE"],
        remote_writes=bool(named["JITLOAD_CACHE_REMOTE"]) and named["JITLOAD_CACHE_REMOTE_WRITE"] == "1",
        remote_timeout_s=_seconds(timeout) if timeout else _PATIENCE_S,
    )


def _seconds(text: str) -> float:
    if re.fullmatch(r"\d{1,6}(\.\d{1,6})?", text, re.ASCII) and float(text) > 0:
        return float(text)
    raise CacheError(f"JITLOAD_CACHE_REMOTE_TIMEOUT={text!r} must be a number of seconds above 0, such as 2.5")


def shown_url(url: str) -> str:
    """Return a URL for a message: without the name and password that it may carry."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def parse_size(text: str) -> int:
    """Return a size in bytes: `"2GB"`, `"500M"`, `"0"`.

    Raises:
        ValueError: It is none.
    """
    found = re.fullmatch(r"\s*(\d{1,18})(?:\.(\d{1,9}))?\s*([KMGT]?)i?B?\s*", text, re.IGNORECASE | re.ASCII)
    if found is None:
        raise ValueError("a size is a number with K, M, G or T, such as 2GB")
    return int(float(f"{found[1]}.{found[2] or 0}") * _UNITS[found[3].upper()])


def find_cache_dir(settings: Settings) -> Path:
    """Return the cache directory; it need not exist. A user without a home gets one for this process.

    Raises:
        CacheError: `JITLOAD_CACHE_DIR` names the home of a user who has none.
    """
    if settings.cache_dir.startswith("/"):
        return _path_of(settings.cache_dir)
    if settings.cache_dir:
        try:
            return Path(settings.cache_dir).expanduser().absolute()
        except RuntimeError as error:
            raise CacheError(
                f"JITLOAD_CACHE_DIR={settings.cache_dir}: nobody knows that home. Write the whole path."
            ) from error
        except OSError as error:
            raise CacheError(
                f"JITLOAD_CACHE_DIR={settings.cache_dir} is relative, and the working directory no longer exists. "
                "Write the whole path."
            ) from error
    with suppress(RuntimeError, KeyError, OSError):
        found = Path(user_cache_dir("jitload"))
        if found.is_absolute():  # "~/.cache" where nothing says what "~" is
            return found
    directory = private_cache_dir()
    warn_once(f"this user has no home: the cache is in {directory}, for this process only. Set JITLOAD_CACHE_DIR.")
    return directory


_path_of = functools.lru_cache(maxsize=16)(Path)


def private_cache_dir() -> Path:
    """Return a cache directory that ends with this process, where no other can be had.

    Raises:
        CacheError: There is no room for a temporary directory either.
    """
    return _private_cache_dir(os.getpid())


def is_in_private_cache(path: Path) -> bool:
    """Tell whether a path lies in this process's private cache directory, if there is one."""
    return _private_cache_dir.cache_info().currsize > 0 and path.is_relative_to(private_cache_dir())


@functools.lru_cache(maxsize=1)
def _private_cache_dir(process: int) -> Path:
    import tempfile

    try:
        directory = Path(tempfile.mkdtemp(prefix="jitload-"))
    except OSError as error:
        raise CacheError(
            f"there is no directory to build in: neither the cache nor a temporary one can be written ({error}). "
            "Set JITLOAD_CACHE_DIR or TMPDIR to a directory that can."
        ) from error
    atexit.register(_remove, directory, process)
    return directory


def make_private(directory: Path) -> None:
    """Make a directory and those above it; the ones we make are ours alone, whatever the umask."""
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        make_private(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)


def remember(path: Path, text: str) -> None:
    """Write a file of the cache whole, for the next process; one that cannot write it finds out again what it says."""
    fresh = path.with_name(f"{path.name}.{os.urandom(8).hex()}")  # another machine's process may have our number
    with suppress(OSError):
        make_private(path.parent)
        try:
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(path)
        finally:
            fresh.unlink(missing_ok=True)


def recall(path: Path) -> str:
    """Return what `remember` wrote.

    Raises:
        OSError, ValueError: It is not there, or is no file: a pipe would never end.
    """
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as opened:
        if not stat.S_ISREG(os.fstat(opened.fileno()).st_mode):
            raise ValueError(f"{path} is no regular file")
        return opened.read()


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child ends before its parent
        shutil.rmtree(directory, ignore_errors=True)


@functools.lru_cache(maxsize=64)
def warn_once(message: str) -> None:
    """Log a warning, the first time."""
    _log.warning("%s", message)
