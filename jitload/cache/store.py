"""Builds an entry in a private directory under the key's lock, and publishes it by renaming the whole directory.

Readers need no lock, and a missing lock costs only a duplicate build, which becomes another entry of the same key.
"""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import itertools
import json
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from jitload.cache.dependencies import (
    Dependency,
    StartTime,
    digest_file,
    may_embed_paths,
    record_dependencies,
    to_manifest,
)
from jitload.cache.entry import (
    EXHAUSTED,
    FAILED_MARKER,
    LEAF_NAME,
    MANIFEST,
    WORK_DIR,
    Entry,
    find_entry,
    key_dir_of,
    names_in,
    remember_rebuild,
)
from jitload.cache.key import SCHEMA, CacheKey, describe_parts
from jitload.cache.locks import LOCKS_DIR, hold_lock, host_tag, lock_directory, unlock
from jitload.errors import CacheError, CacheWriteError, CompileError, JitLoadError
from jitload.settings import Settings
from jitload.toolchain.private_files import make_private_dir

_FAILED_KEPT_S = 7 * 86400.0
_LONGEST_BUILD_S = 86400.0
_BUILDS_PER_CHECK = 16  # on average; a check of the size walks through the cache
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_FULL_MESSAGES = tuple(os.strerror(number) for number in _FULL)  # the text of these errors in a compiler's output
_HOST_TAG = re.compile(r"-([0-9a-f]{8})-\d+-[0-9a-f]+$")  # matches the end of a work directory's name
_log = logging.getLogger(__name__)
_unfinished: set[Path] = set()


class Work:
    """A build in progress, in the private directory `dir` on the cache's file system.

    `entry` is None until this build is published. If another process has already published the entry, `entry` is set
    from the start. `needs_library` says whether kernels need a library, and not only a record.
    """

    needs_library = False

    def __init__(
        self, directory: Path, key: CacheKey, cache_dir: Path, settings: Settings, entry: Entry | None = None
    ) -> None:
        self.dir, self.key, self.cache_dir, self.settings, self.entry = directory, key, cache_dir, settings, entry
        self._start = StartTime.now()

    def publish(self, product: str, dependencies: tuple[Path, ...] | tuple[Dependency, ...] = ()) -> Entry:
        """Write the manifest, rename the work directory to a new entry of the cache, and return the entry.

        `product` is the file name of the library or other result. `dependencies` are the files that the build read or
        looked for, or the records of them in the entry from which this one is made.

        If another process has just published an entry of the same key, this build becomes another entry.
        """
        paths = (path for path in dependencies if isinstance(path, Path))
        recorded = tuple(row for row in dependencies if isinstance(row, Dependency))
        recorded += record_dependencies(paths, self._start)
        _write_manifest(self, product, recorded)
        digests = repr([(dependency.path, dependency.digest) for dependency in recorded])
        suffix = hashlib.sha256(digests.encode()).hexdigest()[:16]
        self.dir = rename_to_leaf(self.dir, key_dir_of(self.cache_dir, self.key), suffix)
        self.entry = Entry(dir=self.dir, product=self.dir / product, dependencies=recorded, is_new=True)
        if self.settings.mode == "rebuild":
            remember_rebuild(self.cache_dir, self.key)
        return self.entry


def rename_to_leaf(directory: Path, key_dir: Path, suffix: str) -> Path:
    """Rename a directory to a new entry of a key, and return its path, which no entry has had before.

    At a path that this process has loaded before, the dynamic loader would return the old library.
    """
    make_private_dir(key_dir)
    numbers = [int(match[1]) for name in os.listdir(key_dir) if (match := LEAF_NAME.match(name))]
    for number in itertools.count(max(numbers, default=-1) + 1):
        target = key_dir / f"{number:04d}-{suffix}"
        try:
            os.rename(directory, target)
        except OSError as error:
            if error.errno == errno.ENOENT and directory.is_dir():
                make_private_dir(key_dir)  # it was empty, and has just been pruned
            elif error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
        else:
            break
    return target


@contextmanager
def claim_entry(cache_dir: Path, key: CacheKey, settings: Settings, *, needs_library: bool = False) -> Iterator[Work]:
    """Yield a `Work` with a private directory to build in. Hold the key's lock if the file system has locks.

    If another process has built the entry in the meantime, `Work.entry` is set from the start, and there is no
    directory. If `needs_library` is true, only an entry with a library counts.

    After the block, an unpublished directory is removed. But if a compiler failed and left files in the directory, they
    are kept for inspection.

    Raises:
        CacheWriteError: The build cannot be written to this cache directory. Another directory may work. No part of the
            build is left.
        CacheError: `JITLOAD_MODE=load-only` forbids building.
    """
    if settings.mode == "load-only":
        from jitload.cache.explain import explain_miss

        raise CacheError(explain_miss(cache_dir, key, settings))
    try:
        prepare_cache(cache_dir)
    except OSError as error:
        raise _cannot_take_entry(cache_dir, error) from error
    find = functools.partial(find_entry, cache_dir, key, settings, needs_library=needs_library)
    with hold_lock(cache_dir / LOCKS_DIR / key.digest, f"{key.name!r}", find) as built_by_another:
        if entry := built_by_another or find():
            no_dir = cache_dir / WORK_DIR / "none"
            yield Work(no_dir, key, cache_dir, settings, entry)
            return
        with _work_dir(cache_dir, key, settings) as work:
            work.needs_library = needs_library
            yield work
    after_build(cache_dir, settings)


def prepare_cache(cache_dir: Path) -> None:
    """Make the directories in which builds begin. Raise OSError if the cache cannot be written."""
    for directory in (cache_dir, cache_dir / WORK_DIR):
        make_private_dir(directory)
    if not os.access(cache_dir / WORK_DIR, os.W_OK):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(cache_dir))


# ---- work directories ------------------------------------------------------------------------------------------


@contextmanager
def _work_dir(cache_dir: Path, key: CacheKey, settings: Settings) -> Iterator[Work]:
    """Yield a `Work` with a new directory. After the block, an unpublished directory is treated as in `claim_entry`."""
    started = time.monotonic()
    try:
        work_dir, lock = make_work_dir(cache_dir, key.name)
    except OSError as error:
        raise _cannot_take_entry(cache_dir, error) from error
    work = Work(work_dir, key, cache_dir, settings)
    _unfinished.add(work_dir)
    _log.info("building %s in %s", key.name, work_dir)
    is_kept = False
    try:
        yield work
        _log.info("built %s in %.2f s", key.name, time.monotonic() - started)
    except BaseException as error:
        if cache_error := _cache_error(error, work):
            raise cache_error from error
        is_kept = isinstance(error, CompileError) and _keep_failure(work_dir)
        raise
    finally:
        if work.entry is None and not is_kept:
            shutil.rmtree(work_dir, ignore_errors=True)
        _unfinished.discard(work_dir)
        unlock(lock)


@atexit.register
def _remove_unfinished() -> None:
    """Remove the directories of builds that other threads have not finished when the program ends."""
    for work_dir in tuple(_unfinished):
        shutil.rmtree(work_dir, ignore_errors=True)


os.register_at_fork(after_in_child=_unfinished.clear)


def make_work_dir(cache_dir: Path, name: str) -> tuple[Path, int | None]:
    """Return a new work directory and the descriptor of its lock.

    The descriptor is None if the file system has no locks. If another process removes the directory before this process
    locks it, another directory is made.
    """
    while True:
        work_dir = cache_dir / WORK_DIR / f"{name}-{host_tag()}-{os.getpid()}-{os.urandom(6).hex()}"
        work_dir.mkdir(mode=0o700)
        try:
            work_dir.chmod(0o700)
            lock = lock_directory(work_dir)
        except FileNotFoundError:
            continue
        except OSError:  # the file system has no locks
            return work_dir, None
        if lock is not None:
            return work_dir, lock


@contextmanager
def temporary_dir(cache_dir: Path, name: str) -> Iterator[Path]:
    """Yield a temporary directory on the cache's file system.

    If this process dies, the next build removes the directory.

    Raises:
        CacheError: The cache cannot be written.
    """
    try:
        prepare_cache(cache_dir)
        directory, lock = make_work_dir(cache_dir, name)
        try:
            yield directory
        finally:
            shutil.rmtree(directory, ignore_errors=True)
            unlock(lock)
    except OSError as error:
        raise CacheError(f"the cache {cache_dir} cannot be written: {error}") from error


def _cache_error(error: BaseException, work: Work) -> CacheError | None:
    """Return the CacheError that replaces an error of the file system or of this process.

    Return None for any other error.
    """
    if isinstance(error, CacheWriteError):
        return None  # a build that this build started raised the error, whose message is complete
    if isinstance(error, OSError):
        is_in_cache = error.errno in _FULL or Path(str(error.filename or "")).is_relative_to(work.cache_dir)
        if is_in_cache and error.errno not in EXHAUSTED:
            return _cannot_take_entry(work.cache_dir, error)
        advice = "; raise this process's limit (ulimit)" if error.errno in (*EXHAUSTED, errno.EFBIG) else ""
        return CacheError(f"the build of {work.key.name!r} failed: {error}{advice}")
    if not isinstance(error, JitLoadError):
        return None
    if not work.dir.is_dir():
        return _cannot_take_entry(work.cache_dir, "the directory of the build was removed")
    log = error.log if isinstance(error, CompileError) else str(error)
    message = next((message for message in _FULL_MESSAGES if message in log), "")
    return _cannot_take_entry(work.cache_dir, message) if message else None


def _cannot_take_entry(cache_dir: Path, reason: object) -> CacheWriteError:
    hint = "Set JITLOAD_CACHE_DIR to another directory, or make room there."
    return CacheWriteError(f"the cache {cache_dir} cannot store an entry: {reason}. {hint}")


def _keep_failure(work_dir: Path) -> bool:
    """Mark the directory of a failed build to be kept for inspection. Return False if the directory is empty."""
    with suppress(OSError):
        if os.listdir(work_dir):
            (work_dir / FAILED_MARKER).touch()
            return True
    return False


# ---- what is published -----------------------------------------------------------------------------------------


def _write_manifest(work: Work, product: str, dependencies: tuple[Dependency, ...]) -> None:
    """Write the manifest, with the digests of all other files of the entry."""
    key = work.key
    files = {}
    for path in sorted(work.dir.iterdir()):
        if path.name.startswith(".ninja_"):  # ninja's own records, which are not needed in the cache
            path.unlink()
        elif path.is_file():
            files[path.name] = path.stat().st_size, digest_file(path)
    embeds_paths = key.embeds_paths or may_embed_paths(dependencies, key.anchors)
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "name": key.name,
        "key": key.digest,
        "product": product,
        "anchors": list(key.anchors) if embeds_paths else None,
        "dependencies": [row for dependency in dependencies for row in to_manifest(dependency, key.anchors)],
        "created": int(time.time()),
        "files": files,
        "parts": describe_parts(key),
    }
    (work.dir / MANIFEST).write_text(json.dumps(manifest, indent=1))


# ---- after a build ---------------------------------------------------------------------------------------------


def after_build(cache_dir: Path, settings: Settings) -> None:
    """Remove what killed processes have left. In about one of sixteen calls, prune the cache if it is above its limit.

    This is done only after builds, because a cache hit writes nothing.
    """
    sweep_work_dirs(cache_dir)
    if settings.cache_limit and os.urandom(1)[0] % _BUILDS_PER_CHECK == 0:
        from jitload.cache.prune import prune_to_limit

        prune_to_limit(cache_dir, settings.cache_limit)


def sweep_work_dirs(cache_dir: Path) -> None:
    """Remove the directories of dead builders, and of builds that failed more than a week ago."""
    root = cache_dir / WORK_DIR
    for name in names_in(root):
        with suppress(OSError):
            if _is_abandoned(f"{root}/{name}"):
                shutil.rmtree(root / name, ignore_errors=True)


def _is_abandoned(work_dir: str) -> bool:
    """Return whether a build failed more than a week ago, or whether its builder is dead.

    A builder is dead if this process can lock the directory. Builders on another machine, or without locks, count as
    dead if their directory is more than a day old. There may be hundreds of failed builds, which each build looks at.
    Therefore the path is a string.
    """
    match, lock = _HOST_TAG.search(work_dir), None
    if (failed_s := _age_s(f"{work_dir}/{FAILED_MARKER}")) is None and match and match[1] == host_tag():
        with suppress(OSError):  # raised if the file system has no locks
            lock = lock_directory(Path(work_dir))
            if lock is None:
                return False  # the builder is alive
    unlock(lock)
    failed_s = failed_s or _age_s(f"{work_dir}/{FAILED_MARKER}")  # it may have failed in the meantime
    age_s = _age_s(work_dir) or 0.0
    return failed_s > _FAILED_KEPT_S if failed_s is not None else lock is not None or age_s > _LONGEST_BUILD_S


def _age_s(path: str) -> float | None:
    """Return the seconds since a file or directory was changed, or None if there is none."""
    try:
        return time.time() - os.lstat(path).st_mtime
    except FileNotFoundError:
        return None
