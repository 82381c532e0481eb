"""Reads `JITLOAD_*` at each public call, into a frozen record."""

from __future__ import annotations

import functools
import logging
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the environment asks for.

    Attributes:
        arch: `JITLOAD_ARCH`: the architectures to build for where there is no GPU to ask, such as `sm_90a` or `80,90a`.
        cache_dir: `JITLOAD_CACHE_DIR`, or "" for the user's own cache directory.
        nvrtc: `JITLOAD_NVRTC`: a libnvrtc file, a CUDA toolkit, or a major version such as `12`.
        cxx: `JITLOAD_CXX`, else `CXX`: the command of the C++ compiler.
        trusts_group: `JITLOAD_TRUST_GROUP=1`: load from directories that a group may write.
        path: `PATH`, in which compilers are looked for.
        toolkits: `CUDA_HOME` and `CUDA_PATH`.
    """

    arch: str
    cache_dir: str
    nvrtc: str
    cxx: str
    trusts_group: bool
    path: str
    toolkits: tuple[str, ...]


_VARIABLES = ("JITLOAD_ARCH", "JITLOAD_CACHE_DIR", "JITLOAD_NVRTC", "JITLOAD_CXX", "CXX", "JITLOAD_TRUST_GROUP", "PATH")
_TOOLKITS = ("CUDA_HOME", "CUDA_PATH")
_KEYS = tuple(os.fsencode(name) for name in (*_VARIABLES, *_TOOLKITS))


def read_settings() -> Settings:
    """Return what the environment says now."""
    # `os.environ.get` raises and catches for each unset name: 7 µs of the 30 that a repeated call may take.
    raw = getattr(os.environ, "_data", None)
    if isinstance(raw, dict):
        return _settings(*[raw.get(key, b"") for key in _KEYS])
    return _settings(*[os.fsencode(os.environ.get(os.fsdecode(key), "")) for key in _KEYS])


@functools.lru_cache(maxsize=16)
def _settings(*raw: bytes) -> Settings:
    arch, cache_dir, nvrtc, own_cxx, cxx, trust, path, *toolkits = map(os.fsdecode, raw)
    return Settings(
        arch=arch,
        cache_dir=cache_dir,
        nvrtc=nvrtc,
        cxx=own_cxx or cxx,
        trusts_group=trust == "1",
        path=path,
        toolkits=tuple(home for home in toolkits if home),
    )


def find_cache_dir(settings: Settings) -> Path:
    """Return the cache directory; it need not exist. A user without a home gets one for this process."""
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser().absolute()
    with suppress(RuntimeError, KeyError, OSError):
        found = Path(user_cache_dir("jitload"))
        if found.is_absolute():  # "~/.cache" where nothing says what "~" is
            return found
    return _private_cache_dir()


@functools.lru_cache(maxsize=1)
def _private_cache_dir() -> Path:
    found = Path(tempfile.mkdtemp(prefix="jitload-"))
    _log.warning("this user has no home: the cache is in %s, for this process only. Set JITLOAD_CACHE_DIR.", found)
    return found
