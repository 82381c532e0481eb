"""The cache: one build for a key, made in private and published whole. What a hit does is in `entry`.

Nobody waits for a lock to read, and nothing is right only because of a lock: it saves the second build. Whoever
loses a race uses what it built itself, so that nothing depends on when one machine sees what another wrote.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jitload.cache.entry import EXHAUSTED, FAILED, LEAF, MANIFEST, Entry, find_entry, key_dir_of, rebuilt
from jitload.cache.inputs import Clock, Header, digest_file, loosen, record_headers, speak_of_their_place
from jitload.cache.locks import hold_lock, host_tag, mark_directory, unlock
from jitload.cache.notes import BLOCK, GROWN, append_bytes
from jitload.cache.recipe import SCHEMA, Recipe, describe_parts
from jitload.errors import CacheError, CachePlaceError, CompileError, JitLoadError
from jitload.settings import Settings, make_private, private_cache_dir, warn_once

_WORK = ".work"
_KEPT_S = 7 * 86400.0  # that a failed build is kept for a look, and what was set aside
_LONGEST_BUILD_S = 86400.0
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_SIGNS = tuple(os.strerror(number) for number in _FULL)  # how a compiler says it
_OWNER = re.compile(r"-([0-9a-f]{8})-\d+-[0-9a-f]+$")
_log = logging.getLogger(__name__)
_in_progress: set[Path] = set()


@dataclass(slots=True, kw_only=True)
class Work:
    """A build in progress, in a private directory on the cache's own file system."""

    dir: Path
    recipe: Recipe
    cache_dir: Path
    settings: Settings
    entry: Entry | None = None
    clock: Clock = field(default_factory=Clock.start)

    def publish(self, product: str, headers: tuple[Path, ...] = ()) -> Entry:
        """Move the directory into place whole, and return it as an entry.

        The loser of a race keeps its own build, so that nothing depends on when a rename becomes visible.
        """
        recorded = record_headers(headers, self.clock)
        size = _write_manifest(self, product, recorded)
        target = self._free_place(recorded)
        try:
            self._move_to(target)
            self.dir = target
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise _place_error(self.cache_dir, error) from error
        _sync(self.dir.parent)
        self.entry = Entry(dir=self.dir, product=self.dir / product, headers=recorded, is_new=True)
        if self.settings.mode == "rebuild":
            rebuilt.add((str(self.cache_dir), self.recipe.key))
        with suppress(OSError):
            append_bytes(self.cache_dir / GROWN, size // BLOCK + 1)
        return self.entry

    def _move_to(self, target: Path) -> None:
        try:
            os.rename(self.dir, target)
        except FileNotFoundError:  # the key's directory was empty, and was pruned just now
            make_private(target.parent)
            os.rename(self.dir, target)

    def _free_place(self, headers: tuple[Header, ...]) -> Path:
        """Return a name never used before: a library that was mapped under a name must not come back under it."""
        key_dir = key_dir_of(self.cache_dir, self.recipe)
        make_private(key_dir)
        taken = [int(found[1]) for name in os.listdir(key_dir) if (found := LEAF.match(name))]
        read = hashlib.sha256(repr([(header.path, header.digest) for header in headers]).encode()).hexdigest()[:16]
        return key_dir / f"{max(taken, default=-1) + 1:04d}-{read}"


@contextmanager
def claim_entry(cache_dir: Path, recipe: Recipe, settings: Settings, *, is_patient: bool = True) -> Iterator[Work]:
    """Give a private directory to build in, with the key's lock held where the file system has locks.

    `work.entry` is set where another process built the entry meanwhile. A directory that was not published is
    removed; one that a compiler failed in is kept for a look, if there is anything in it.

    Raises:
        CachePlaceError: The cache cannot take the build; nothing of it is left, and another directory may do.
        CacheError: `JITLOAD_MODE=load-only` forbids it.
        LockHeldError: Somebody else builds it, and `is_patient` is False.
    """
    if settings.mode == "load-only":
        from jitload.cache.why import explain_miss

        raise CacheError(explain_miss(cache_dir, recipe, settings))
    cache_dir = _writable(cache_dir)
    look = _Look(cache_dir, recipe, settings)
    lock, what = cache_dir / ".locks" / recipe.key, f"{recipe.name!r}"
    with hold_lock(lock, what, look.if_anything_is_new, is_patient=is_patient) as found:
        if entry := found or find_entry(cache_dir, recipe, settings):
            nowhere = cache_dir / _WORK / "none"
            yield Work(dir=nowhere, recipe=recipe, cache_dir=cache_dir, settings=settings, entry=entry)
            return
        with _work_dir(cache_dir, recipe, settings) as work:
            yield work
    after_build(cache_dir, settings)


class _Look:
    """A look for the entry that somebody else builds, which is cheap as long as nothing has been published."""

    def __init__(self, cache_dir: Path, recipe: Recipe, settings: Settings) -> None:
        self._wanted = (cache_dir, recipe, settings)
        self._key_dir = str(key_dir_of(cache_dir, recipe))
        self._seen: list[str] = []

    def if_anything_is_new(self) -> Entry | None:
        if not os.access(self._key_dir, os.F_OK):  # without an exception: many wait, on the cores that build
            return None
        try:
            names = os.listdir(self._key_dir)
        except OSError:
            return None
        if names == self._seen:
            return None
        self._seen = names
        return find_entry(*self._wanted)


def _writable(cache_dir: Path) -> Path:
    """Return the cache, or a directory of this process where it cannot be written, as that is said once."""
    try:
        _probe(cache_dir)
    except OSError as error:
        private = private_cache_dir()
        warn_once(f"the cache cannot be written ({error}); building in {private}, for this process only")
        with suppress(OSError):  # what is wrong with it shows when it is built in
            _probe(private)
        return private
    return cache_dir


def _probe(cache_dir: Path) -> None:
    for directory in (cache_dir, cache_dir / _WORK):
        make_private(directory)
    if not os.access(cache_dir / _WORK, os.W_OK):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(cache_dir))


@contextmanager
def _work_dir(cache_dir: Path, recipe: Recipe, settings: Settings) -> Iterator[Work]:
    """Give a directory that is gone, published or kept as a failure when it is left."""
    started = time.monotonic()
    try:
        work_dir, mark = _make_work_dir(cache_dir, recipe)
    except OSError as error:
        raise _place_error(cache_dir, error) from error
    work = Work(dir=work_dir, recipe=recipe, cache_dir=cache_dir, settings=settings)
    _in_progress.add(work_dir)
    is_lost = False
    _log.info("building %s in %s", recipe.name, work_dir)
    try:
        yield work
        is_lost = work.entry is not None and work.entry.dir == work_dir  # to a process that published it first
        _log.info("built %s in %.2f s", recipe.name, time.monotonic() - started)
    except BaseException as error:
        failure = _place_failure(error, work)
        if isinstance(error, CompileError) and failure is None:
            _keep_failure(work_dir)
        else:
            shutil.rmtree(work_dir, ignore_errors=True)
        if failure is not None:
            raise failure from error
        raise
    finally:
        _in_progress.discard(work_dir)
        if mark is not None and not is_lost:  # what was lost lies there as long as this process may load it
            unlock(mark)
    if work.entry is None:
        shutil.rmtree(work_dir, ignore_errors=True)


@atexit.register
def _abandon() -> None:
    """End what threads still build when the process ends, after Ctrl-C say: they would leave children and files."""
    if _in_progress:
        from jitload.building.ninja import stop_running

        stop_running()
        for work_dir in tuple(_in_progress):
            shutil.rmtree(work_dir, ignore_errors=True)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_progress.clear)


def _make_work_dir(cache_dir: Path, recipe: Recipe) -> tuple[Path, int | None]:
    """Make a directory and mark it as a living builder's; one that a sweeper was quicker to mark is not used."""
    while True:
        work_dir = cache_dir / _WORK / f"{recipe.name}-{host_tag()}-{os.getpid()}-{secrets.token_hex(6)}"
        work_dir.mkdir(mode=0o700)
        try:
            work_dir.chmod(0o700)
            return work_dir, mark_directory(work_dir)
        except (BlockingIOError, FileNotFoundError):
            continue
        except OSError:
            return work_dir, None


def _place_failure(error: BaseException, work: Work) -> CacheError | None:
    """Return the error that a failure is where neither the source nor the tools are to blame."""
    if isinstance(error, CachePlaceError):
        return None  # of a build within this one, and said already
    if isinstance(error, OSError):
        is_here = error.errno in _FULL or str(error.filename or "").startswith(str(work.cache_dir))
        if is_here and error.errno not in EXHAUSTED:
            return _place_error(work.cache_dir, error)
        return CacheError(f"the build of {work.recipe.name!r} could not go on: {error}")
    if not isinstance(error, JitLoadError):
        return None
    if not work.dir.is_dir():
        return _place_error(work.cache_dir, "the directory was removed during the build")
    log = error.log if isinstance(error, CompileError) else str(error)
    sign = next((sign for sign in _SIGNS if sign in log), "")
    return _place_error(work.cache_dir, sign) if sign else None


def _place_error(cache_dir: Path, why: object) -> CachePlaceError:
    hint = "Set JITLOAD_CACHE_DIR to another directory, or make room there."
    return CachePlaceError(f"the cache {cache_dir} cannot take an entry: {why}. {hint}")


def _keep_failure(work_dir: Path) -> None:
    """Keep a failed build for a look, unless it never came to write anything."""
    with suppress(OSError):
        if os.listdir(work_dir):
            (work_dir / FAILED).touch()
        else:
            work_dir.rmdir()


# ---- what is published -----------------------------------------------------------------------------------------


def _write_manifest(work: Work, product: str, headers: tuple[Header, ...]) -> int:
    """Write what the entry is and what it was made from, through to the disk; return the size of it all."""
    recipe = work.recipe
    for path in work.dir.glob(".ninja_*"):  # of no use to anybody else
        path.unlink()
    files = {
        path.name: (path.stat().st_size, digest_file(path)) for path in sorted(work.dir.iterdir()) if path.is_file()
    }
    is_placed = recipe.is_placed or speak_of_their_place(headers, recipe.anchors)
    manifest: dict[str, Any] = {
        "schema": SCHEMA,
        "name": recipe.name,
        "key": recipe.key,
        "product": product,
        "size": files[product][0],
        "sha256": files[product][1],
        "anchors": list(recipe.anchors) if is_placed else None,
        "headers": [kept for header in headers for kept in loosen(header, recipe.anchors)],
        "created": int(time.time()),
        "files": files,
        "parts": describe_parts(recipe),
    }
    (work.dir / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (work.dir / product, work.dir / MANIFEST, work.dir):
        _sync(path)
    return sum(size for size, _ in files.values())


def _sync(path: Path) -> None:
    """Write a file or directory through to the disk, where the file system can: FUSE may refuse directories.

    What a crash cuts short is found by its size and digest, so that a refusal costs a later build at most.
    """
    with suppress(OSError):
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


# ---- after a build ---------------------------------------------------------------------------------------------


def after_build(cache_dir: Path, settings: Settings) -> None:
    """Remove what dead builders left behind, and what the cache holds above its limit."""
    sweep_work(cache_dir)
    if settings.cache_limit:
        from jitload.cache.prune import prune_if_grown

        prune_if_grown(cache_dir, settings.cache_limit)


def sweep_work(cache_dir: Path) -> None:
    """Remove the directories of builders that died, and of failed builds that nobody will look at any more."""
    with suppress(OSError):
        for name in os.listdir(cache_dir / _WORK):
            with suppress(OSError):
                _sweep_one(cache_dir / _WORK / name)


def _sweep_one(work_dir: Path) -> None:
    """Remove one directory if its builder is dead, as its lock tells.

    Where there are no locks, and for builders below another kernel, age decides: no build takes a day.
    """
    if (work_dir / FAILED).exists():
        if _age_s(work_dir / FAILED) > _KEPT_S:
            shutil.rmtree(work_dir, ignore_errors=True)
        return
    owner = _OWNER.search(work_dir.name)
    try:
        mark = mark_directory(work_dir) if owner and owner[1] == host_tag() else None
    except BlockingIOError:
        return
    except OSError:
        mark = None
    if mark is not None or _age_s(work_dir) > _LONGEST_BUILD_S:
        shutil.rmtree(work_dir, ignore_errors=True)
    if mark is not None:
        unlock(mark)


def _age_s(path: Path) -> float:
    return time.time() - path.lstat().st_mtime
