"""Where the cache is: the directory that the environment names, the user's own, or one for this process."""

from __future__ import annotations

import atexit
import functools
import os
from contextlib import suppress
from pathlib import Path

from jitload.errors import CacheError, warn_once
from jitload.settings import Settings


def find_cache_dir(settings: Settings) -> Path:
    """Return the cache directory, which need not exist. For a user without a home, it lasts as long as this process.

    Raises:
        CacheError: `JITLOAD_CACHE_DIR` cannot be resolved to an absolute path.
    """
    if settings.cache_dir.startswith("/"):
        return _to_path(settings.cache_dir)
    if settings.cache_dir:
        return _resolve(settings.cache_dir)
    from platformdirs import user_cache_dir

    with suppress(RuntimeError, KeyError, OSError):
        directory = Path(user_cache_dir("jitload"))
        if directory.is_absolute():  # it is "~/.cache/jitload" if the home is unknown
            return directory
    directory = private_cache_dir()
    warn_once(f"this user has no home: the cache is in {directory}, for this process only. Set JITLOAD_CACHE_DIR.")
    return directory


_to_path = functools.lru_cache(maxsize=16)(Path)


def _resolve(directory: str) -> Path:
    try:
        return Path(directory).expanduser().absolute()
    except RuntimeError as error:
        raise CacheError(
            f"JITLOAD_CACHE_DIR={directory}: the home of this user is unknown. Write the whole path."
        ) from error
    except OSError as error:
        raise CacheError(
            f"JITLOAD_CACHE_DIR={directory} is relative, and the working directory no longer exists. "
            "Write the whole path."
        ) from error


def private_cache_dir() -> Path:
    """Return this process's temporary cache directory, which is used if there is no other.

    Raises:
        CacheError: A temporary directory cannot be created either.
    """
    return _private_cache_dir(os.getpid())


def is_in_private_cache(path: Path) -> bool:
    """Return whether a path lies in this process's temporary cache directory, if there is one."""
    return _private_cache_dir.cache_info().currsize > 0 and path.is_relative_to(private_cache_dir())


@functools.lru_cache(maxsize=1)
def _private_cache_dir(process_id: int) -> Path:
    import tempfile

    try:
        directory = Path(tempfile.mkdtemp(prefix="jitload-"))
    except OSError as error:
        raise CacheError(
            "there is no directory to build in: neither the cache directory nor a temporary one can be written "
            f"({error}). Set JITLOAD_CACHE_DIR or TMPDIR to a directory that can be written."
        ) from error
    atexit.register(_remove_own, directory, process_id)
    return directory


def _remove_own(directory: Path, process_id: int) -> None:
    """Remove a process's directory when that process ends, but not when a forked child of it ends."""
    if os.getpid() == process_id:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)
