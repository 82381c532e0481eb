"""Reads `JITLOAD_*` at each public call, into a frozen record."""

from __future__ import annotations

import atexit
import functools
import logging
import os
import shutil
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from jitload.errors import CacheError

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment asks for.

    Attributes:
        arch: `JITLOAD_ARCH`: the architectures to build for where there is no GPU to ask, such as `sm_90a` or `80,90a`.
        cache_dir: `JITLOAD_CACHE_DIR`, or "" for the user's own cache directory.
        nvrtc: `JITLOAD_NVRTC`: a libnvrtc file, a CUDA toolkit, or a major version such as `12`.
        nvcc: `JITLOAD_NVCC`: the file of nvcc, or a CUDA toolkit.
        cxx: `JITLOAD_CXX`, else `CXX`: the command of the C++ compiler.
        trusts_group: `JITLOAD_TRUST_GROUP=1`: load from directories that a group may write.
        path: `PATH`, in which compilers are looked for.
        toolkits: `CUDA_HOME` and `CUDA_PATH`.
        nvcc_flags: `NVCC_PREPEND_FLAGS` and `NVCC_APPEND_FLAGS`, which nvcc itself reads.
    """

    arch: str
    cache_dir: str
    nvrtc: str
    nvcc: str
    cxx: str
    trusts_group: bool
    path: str
    toolkits: tuple[str, ...]
    nvcc_flags: tuple[str, str]


_VARIABLES = (
    "JITLOAD_ARCH", "JITLOAD_CACHE_DIR", "JITLOAD_NVRTC", "JITLOAD_NVCC", "JITLOAD_CXX", "CXX", "JITLOAD_TRUST_GROUP",
    "PATH",
)  # fmt: skip
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
_NVCC_FLAGS = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_KEYS = tuple(os.fsencode(name) for name in (*_VARIABLES, *_TOOLKITS, *_NVCC_FLAGS))


def read_settings() -> Settings:
    """Return what the environment says now."""
    # `os.environ.get` raises and catches for each unset name: 7 µs of the 30 that a repeated call may take.
    raw = getattr(os.environ, "_data", None)
    if isinstance(raw, dict):
        return _settings(*[raw.get(key, b"") for key in _KEYS])
    return _settings(*[os.fsencode(os.environ.get(os.fsdecode(key), "")) for key in _KEYS])


@functools.lru_cache(maxsize=16)
def _settings(*raw: bytes) -> Settings:
    arch, cache_dir, nvrtc, nvcc, own_cxx, cxx, trust, path, *toolkits, before, after = map(os.fsdecode, raw)
    return Settings(
        arch=arch,
        cache_dir=cache_dir,
        nvrtc=nvrtc,
        nvcc=nvcc,
        cxx=own_cxx or cxx,
        trusts_group=trust == "1",
        path=path,
        toolkits=tuple(home for home in toolkits if home),
        nvcc_flags=(before, after),
    )


def find_cache_dir(settings: Settings) -> Path:
    """Return the cache directory; it need not exist. A user without a home gets one for this process.

    Raises:
        CacheError: `JITLOAD_CACHE_DIR` names the home of a user who has none.
    """
    if settings.cache_dir:
        try:
            return Path(settings.cache_dir).expanduser().absolute()
        except RuntimeError as error:
            raise CacheError(
                f"JITLOAD_CACHE_DIR={settings.cache_dir}: nobody knows that home. Write the whole path."
            ) from error
    with suppress(RuntimeError, KeyError, OSError):
        found = Path(user_cache_dir("jitload"))
        if found.is_absolute():  # "~/.cache" where nothing says what "~" is
            return found
    directory = private_cache_dir()
    warn_once(f"this user has no home: the cache is in {directory}, for this process only. Set JITLOAD_CACHE_DIR.")
    return directory


@functools.lru_cache(maxsize=1)
def private_cache_dir() -> Path:
    """Return a cache directory that ends with this process, where no other can be had."""
    directory = Path(tempfile.mkdtemp(prefix="jitload-"))
    atexit.register(_remove, directory, os.getpid())
    return directory


def _remove(directory: Path, owner: int) -> None:
    if os.getpid() == owner:  # a forked child ends before its parent
        shutil.rmtree(directory, ignore_errors=True)


@functools.lru_cache(maxsize=64)
def warn_once(message: str) -> None:
    """Log a warning, the first time."""
    _log.warning("%s", message)
