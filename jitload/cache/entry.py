"""Finds the cache directory, and in it the finished entry for a key.

Loading a library runs its code with this user's rights. So the cache directory is checked first: other users must not
be able to write to it. An entry is used only if it is undamaged and up to date.

    <cache>/<name>-<key>/<number>-<dependencies>/manifest.json, <name>.so, and everything it was made from

An entry is a directory, called a leaf, below the directory of its key. The key covers what is known before a build.
The files that a build reads are recorded with their digests in the manifest and checked on a hit. Builds for one key
that read different files become different leaves. A published leaf is never changed.

A hit writes nothing. When a process ends, it sets the modification times of the manifests of the entries that it has
used.
"""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import json
import logging
import os
import re
import stat
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from jitload.cache.dependencies import Dependency, from_manifest
from jitload.cache.key import SCHEMA, CacheKey
from jitload.errors import CacheError, warn_once
from jitload.settings import Settings

MANIFEST = "manifest.json"
WORK_DIR = ".work"  # the directory of a cache that contains builds in progress and failed builds
FAILED_MARKER = ".failed"  # a file in the directory of a build in which a compiler failed
KEY_DIR_NAME = re.compile(r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,47})-([0-9a-f]{64})")
LEAF_NAME = re.compile(r"(\d{4,})-[0-9a-f]{16}")
_LARGEST_MANIFEST = 64 << 20
EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOMEM)  # this process lacks resources; the entry may be good
_INACCESSIBLE = (errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE)  # with these errors, the entry may be undamaged
_log = logging.getLogger(__name__)

_rebuilt: set[tuple[str, str]] = set()  # cache directories and digests of this process's builds in mode `rebuild`
_used_leaves: dict[Path, None] = {}


class Entry(NamedTuple):
    """A published build.

    Attributes:
        dir: The directory of the entry.
        product: The library or, for kernels that have no library yet, the record that describes them.
        dependencies: The files that the build read.
        is_new: Whether this call made the entry.
    """

    dir: Path
    product: Path
    dependencies: tuple[Dependency, ...]
    is_new: bool = False

    @property
    def is_record(self) -> bool:
        """Whether the product is a record, not a library."""
        return self.product.suffix == ".record"


def open_cache(settings: Settings) -> Path:
    """Return the cache directory. Raise CacheError if another user could write to it."""
    cache_dir = find_cache_dir(settings)
    check_cache_dir(cache_dir, settings)
    return cache_dir


def key_dir_of(cache_dir: Path, key: CacheKey) -> Path:
    """Return the directory of the entries for a key."""
    return cache_dir / f"{key.name}-{key.digest}"


def find_entry(
    cache_dir: Path, key: CacheKey, settings: Settings, *, is_read_only: bool = False, needs_library: bool = False
) -> Entry | None:
    """Return an entry for a key, or None.

    If no entry has the key's digest, an entry may be returned that differs only in the key's unknown parts. The entry's
    product (library) must be undamaged, and the files that its build read must be unchanged. In the mode
    `rebuild`, only entries that this process has built are found.

    Damaged entries are renamed, but not in the mode `load-only`. If `is_read_only` is true, nothing is renamed and no
    use is recorded. This function writes nothing else, takes no lock and starts no process. If `needs_library` is true,
    records are skipped.

    Raises:
        CacheError: Another user may write to the key's directory, or this process lacks file descriptors or memory.
    """
    may_write = not is_read_only and settings.mode != "load-only"
    if settings.mode == "rebuild" and (str(cache_dir), key.digest) not in _rebuilt:
        return None
    key_dir = key_dir_of(cache_dir, key)
    try:
        leaf_names = newest_first(os.listdir(key_dir))
        check_entry_dir(key_dir, cache_dir, settings)
    except OSError as error:
        leaf_names = []
        if not isinstance(error, FileNotFoundError) or os.path.islink(key_dir):
            handle_problem(key_dir, error, may_rename=may_write)
    for leaf_name in leaf_names:
        try:
            check_entry_dir(key_dir / leaf_name, cache_dir, settings)
            entry = _read_entry(key_dir / leaf_name, key, settings)
        except (OSError, ValueError, LookupError, TypeError, RecursionError, CacheError) as problem:
            handle_problem(key_dir / leaf_name, problem, may_rename=may_write)
            continue
        if entry is not None and not (needs_library and entry.is_record):
            if may_write:
                _used_leaves[entry.dir] = None
            return entry
    if not key.unknown_parts:
        return None
    from jitload.cache.matching import matching_keys

    options: dict[str, bool] = {"is_read_only": is_read_only, "needs_library": needs_library}
    entries = (find_entry(cache_dir, other, settings, **options) for other in matching_keys(cache_dir, key, settings))
    return next(filter(None, entries), None)


def remember_rebuild(cache_dir: Path, key: CacheKey) -> None:
    """Let later calls in this process use an entry that was just built in the mode `rebuild`."""
    _rebuilt.add((str(cache_dir), key.digest))


def newest_first(names: Iterable[str]) -> list[str]:
    """Return those of `names` that are names of entry directories, the newest first.

    The newest entry is most likely up to date.
    """
    matches = (match for name in names if (match := LEAF_NAME.fullmatch(name)))
    return [match[0] for match in sorted(matches, key=lambda match: (int(match[1]), match[0]), reverse=True)]


def names_in(directory: Path) -> list[str]:
    """Return the names in a directory, or [] if it cannot be read or another process has removed it."""
    with suppress(OSError):
        return os.listdir(directory)
    return []


def handle_problem(path: Path, problem: Exception, *, may_rename: bool) -> None:
    """Rename a damaged or untrusted entry. If it is inaccessible or `may_rename` is false, only log a warning.

    Raises:
        CacheError: This process lacks file descriptors or memory.
    """
    number = problem.errno if isinstance(problem, OSError) else None
    if number in EXHAUSTED:
        raise CacheError(
            f"the cache entry {path} cannot be read: {problem}. Raise this process's limit (ulimit)."
        ) from problem
    if not os.path.lexists(path):
        return  # another process has just renamed it
    if number in _INACCESSIBLE or not may_rename:
        _log.warning("cache entry %s cannot be used (%s); it is skipped", path, problem)
        return
    renamed = path.with_name(f"{path.name}-{time.time_ns()}.bad")
    reason = str(problem).partition(". Repair it with")[0]  # this advice is for entries that are not built again
    _log.warning("cache entry %s cannot be used (%s); it is renamed to %s and built again", path, reason, renamed.name)
    with suppress(OSError):  # in a read-only cache the entry keeps its name, and every search skips it
        os.rename(path, renamed)


# ---- reading an entry ------------------------------------------------------------------------------------------


def _read_entry(leaf_dir: Path, key: CacheKey, settings: Settings) -> Entry | None:
    """Return the entry in a directory. Return None if the entry does not fit. Raise an error if the entry is damaged.

    An entry fits if the files that its build read are unchanged. If its code contains paths of anchors (the user's
    include directories and object files), the anchors must be those of the key.
    """
    manifest = read_manifest(leaf_dir, settings)
    if manifest["schema"] != SCHEMA or manifest["key"] != key.digest:
        raise ValueError("its manifest belongs to another entry")
    if manifest["anchors"] is not None and tuple(manifest["anchors"]) != key.anchors:
        return None
    dependencies = tuple(from_manifest(row, key.anchors) for row in manifest["dependencies"])
    if not all(dependency.is_unchanged() for dependency in dependencies):
        return None
    check_files(leaf_dir, manifest, [manifest["product"]], settings)
    return Entry(dir=leaf_dir, product=leaf_dir / manifest["product"], dependencies=dependencies)


def read_manifest(leaf_dir: Path, settings: Settings | None = None) -> dict[str, Any]:
    """Return the manifest of an entry. If `settings` is None, a group may write to the manifest.

    Raises:
        OSError, ValueError, RecursionError: The manifest cannot be read or is malformed.
    """
    manifest = json.loads(read_file(leaf_dir / MANIFEST, _LARGEST_MANIFEST, settings))
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is malformed")  # noqa: TRY004  handled like any other damage
    return manifest


def check_files(
    leaf_dir: Path, manifest: dict[str, Any], names: Iterable[str], settings: Settings | None = None
) -> None:
    """Check files of an entry against its manifest.

    Raises:
        OSError, ValueError, LookupError, TypeError: A file is missing or damaged, or the manifest is malformed.
    """
    for name in names:
        if "/" in name:
            raise ValueError("its manifest names a file outside the entry")
        size, digest = manifest["files"][name]
        data = read_file(leaf_dir / name, int(size), settings)
        if len(data) != size:
            raise ValueError(f"{name} has {len(data)} bytes, but its manifest states {size}")
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name} does not have the SHA-256 that its manifest states")


def read_file(path: Path, max_size: int, settings: Settings | None = None) -> bytes:
    """Return the content of a regular file. Refuse links, pipes, and files that other users may write.

    If `settings` is None, a file that a group may write is accepted.

    Raises:
        OSError, ValueError: The file cannot be read, is not regular, is too large, or may be written by other users.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(path, flags), "rb", buffering=0) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{path.name} is not a regular file")
        if status.st_size > max_size:
            raise ValueError(f"{path.name} has {status.st_size} bytes, but should have at most {max_size}")
        if problem := _distrust(path, status, settings):
            raise ValueError(problem)
        return file.read()


# ---- when entries are used ---------------------------------------------------------------------------------------


@atexit.register
def write_uses() -> None:
    """Record in the cache which entries this process has used. Failures are ignored, as in a read-only cache."""
    while _used_leaves:
        leaf_dir, _ = _used_leaves.popitem()
        with suppress(OSError):
            os.utime(leaf_dir / MANIFEST)


os.register_at_fork(after_in_child=_used_leaves.clear)  # the parent process records its uses itself


# ---- the cache directory ---------------------------------------------------------------------------------------------

_ADVICE = "Set JITLOAD_CACHE_DIR to a directory of your own."


def find_cache_dir(settings: Settings) -> Path:
    """Return the path of the cache directory, which may not exist yet.

    A user without a home directory gets a temporary cache directory for this process.
    """
    if settings.cache_dir:
        return resolve_dir(settings.cache_dir, "JITLOAD_CACHE_DIR")
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The XDG specification says to ignore relative paths. If the home directory is unknown, "~" stays in the path.
    base = base if os.path.isabs(base) else os.path.expanduser("~/.cache")
    if os.path.isabs(base):
        return Path(base, "jitload")
    directory = private_cache_dir()
    warn_once(
        f"this user has no home directory, so this process uses the temporary cache {directory}. To keep the cache, "
        "set JITLOAD_CACHE_DIR to a directory that can be written."
    )
    return directory


def resolve_dir(directory: str, variable: str) -> Path:
    """Return the absolute path of `directory`, the value of the environment variable `variable`."""
    try:
        return Path(directory).expanduser().absolute()
    except RuntimeError as error:
        raise CacheError(
            f"{variable}={directory}: the home directory of this user is unknown. Write an absolute path."
        ) from error


def private_cache_dir() -> Path:
    """Return this process's temporary cache directory. Create the directory at the first call."""
    return _private_cache_dir(os.getpid())


def is_in_private_cache(path: Path) -> bool:
    """Return whether a path is in this process's temporary cache directory."""
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
    """Remove a temporary cache directory when the process that made it ends. Do nothing in a forked child."""
    if os.getpid() == process_id:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)


# ---- who may write to the cache ----------------------------------------------------------------------------------


def check_cache_dir(cache_dir: Path, settings: Settings, advice: str = _ADVICE) -> None:
    """Raise CacheError if another user could write to the cache directory or replace it.

    All existing directories on its path are checked, even if the cache directory does not exist. `advice` is for
    messages about a directory that this user cannot repair.
    """
    try:
        directories = _directories_above(str(cache_dir))
    except OSError as error:
        raise CacheError(f"the cache {cache_dir} cannot be accessed: {error}. {advice}".rstrip()) from error
    for path, status in directories:
        if problem := _distrust(path, status, settings, advice, is_sticky=bool(status.st_mode & stat.S_ISVTX)):
            raise CacheError(f"the cache {cache_dir} is not trusted: {problem}")


def _directories_above(path: str) -> list[tuple[str, os.stat_result]]:
    """Return a (path, status) pair for each existing directory on a path, and on the path to which its links lead."""
    directories, end = [("/", os.stat("/"))], 0
    while end >= 0:
        end = path.find("/", end + 1)
        prefix = path[:end] if end > 0 else path
        try:
            status = os.lstat(prefix)
        except OSError:  # the path does not exist, or this user may not search a directory on it
            break
        if stat.S_ISLNK(status.st_mode):
            target = os.path.realpath(path)
            return [*directories, *(_directories_above(target) if target != path else ())]
        directories.append((prefix, status))
    return directories


def check_entry_dir(directory: str | Path, cache_dir: Path, settings: Settings) -> None:
    """Raise CacheError if another user could write to a directory of an entry.

    Raises:
        OSError: The directory does not exist, or is a link or a file.
    """
    status = os.lstat(directory)
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(directory))
    if problem := _distrust(directory, status, settings):
        raise CacheError(f"the cache {cache_dir} is not trusted: {problem}")


def _distrust(
    path: str | Path, status: os.stat_result, settings: Settings | None, advice: str = "", *, is_sticky: bool = False
) -> str:
    """Return why another user could change a file or directory, or "". If `settings` is None, groups are trusted.

    If `is_sticky` is true, a directory may be writable: with the sticky bit, as in /tmp, nobody can replace our files.
    """
    if status.st_uid not in (os.getuid(), 0):
        return f"{path} belongs to user {status.st_uid}, who is neither this user nor root. {advice}".rstrip()
    if is_sticky:
        return ""
    if status.st_mode & stat.S_IWOTH:
        return f"everyone can write to {path}. Repair it with: chmod o-w '{path}'"
    is_own_group = status.st_gid in (os.getgid(), 0)
    if status.st_mode & stat.S_IWGRP and not is_own_group and settings is not None and not settings.trusts_group:
        return (
            f"group {status.st_gid} can write to {path}; JITLOAD_TRUST_GROUP=1 trusts groups. Repair it with: "
            f"chmod g-w '{path}'"
        )
    return ""
