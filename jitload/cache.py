"""A `Recipe` to its key; a key to a directory published whole.

    <cache>/<name>-<key>/<leaf>/manifest.json, <name>.so, and everything it was made from

The key covers what is known before a build. The headers that a build turns out to read are recorded with their
digests in the manifest, and looked at again on a hit: builds that read different headers are leaves of one key.
A published leaf is never changed.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import re
import secrets
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from jitload.errors import CacheError, CompileError
from jitload.settings import Settings, find_cache_dir, private_cache_dir, warn_once
from jitload.trust import refuse_if_shared, refuse_place

_SCHEMA = 1
_MANIFEST = "manifest.json"
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides what a build makes, as named parts.

    Attributes:
        name: The module's name; it opens the directory's name.
        parts: Label and value of each part; a value that is a tuple keeps its boundaries in the key.
    """

    name: str
    parts: tuple[tuple[str, str | bytes | tuple[str, ...]], ...]

    @property
    def key(self) -> str:
        """SHA-256 over the parts, each length-prefixed, as 64 hexadecimal digits."""
        digest = hashlib.sha256()
        for label, value in (("schema", str(_SCHEMA)), ("name", self.name), *self.parts):
            items = value if isinstance(value, tuple) else (value,)
            _feed(digest, label.encode())
            digest.update(len(items).to_bytes(8, "little"))
            for item in items:
                _feed(digest, item.encode("utf-8", "surrogateescape") if isinstance(item, str) else item)
        return digest.hexdigest()


def _feed(digest: Any, data: bytes) -> None:
    digest.update(len(data).to_bytes(8, "little"))
    digest.update(data)


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A header that a build read: where, and what `stat` and SHA-256 said of it.

    One that was looked for and was not there has size -1: it would be read now, were it there.
    """

    path: str
    size: int
    mtime_ns: int
    ctime_ns: int  # an edit that keeps size and mtime, as reproducible images have them, still moves this one
    digest: str

    def is_unchanged(self) -> bool:
        """Tell whether the file still has this content: by `stat`, and by digest where that differs."""
        if self.size < 0:
            return not os.path.isfile(self.path)
        try:
            found = os.stat(self.path)
            if found.st_mtime_ns == self.mtime_ns and found.st_size == self.size and found.st_ctime_ns == self.ctime_ns:
                return True
            return found.st_size == self.size and digest_file(Path(self.path)) == self.digest
        except OSError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A published build: its directory, and the product in it."""

    dir: Path
    product: Path
    headers: tuple[Header, ...]


@dataclass(slots=True, kw_only=True)
class Work:
    """A build in progress, in a private directory on the cache's own file system."""

    dir: Path
    recipe: Recipe
    cache_dir: Path
    key_dir: Path
    entry: Entry | None = field(default=None)
    started_ns: int = field(default_factory=time.time_ns)

    def publish(self, product: str, headers: tuple[Path, ...] = ()) -> Entry:
        """Move the directory into place whole, and return it as an entry.

        The loser of a race keeps its own build, so that nothing depends on when a rename becomes visible.
        """
        recorded = tuple(_record_header(path, self.started_ns) for path in headers)
        _write_manifest(self.dir, self.recipe, product, recorded)
        leaf = hashlib.sha256(repr([(h.path, h.digest) for h in recorded]).encode()).hexdigest()[:16]
        target = self._free_place(leaf)
        try:
            os.rename(self.dir, target)
            self.dir = target
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                hint = "Set JITLOAD_CACHE_DIR to another directory."
                raise CacheError(f"the cache {self.cache_dir} cannot take an entry: {error}. {hint}") from error
        _sync(self.dir.parent)
        self.entry = Entry(dir=self.dir, product=self.dir / product, headers=recorded)
        return self.entry

    def _free_place(self, leaf: str) -> Path:
        """Return a name never used before: a library that was mapped under a name must not come back under it."""
        names = (re.fullmatch(rf"{leaf}(?:\.(\d+))?(?:-\d+\.bad)?", name) for name in os.listdir(self.key_dir))
        taken = [int(name[1] or 0) for name in names if name]
        return self.key_dir / (f"{leaf}.{max(taken) + 1}" if taken else leaf)


def digest_file(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def open_cache(settings: Settings) -> Path:
    """Return the cache directory after a look at who may write it.

    Raises:
        CacheError: Others than this user and root could put code there.
    """
    cache_dir = find_cache_dir(settings)
    refuse_if_shared(cache_dir, settings)
    return cache_dir


# ---- a hit -----------------------------------------------------------------------------------------------------


def find_entry(cache_dir: Path, recipe: Recipe, settings: Settings) -> Entry | None:
    """Return the entry for a recipe whose product is whole and whose headers are as they were, or None.

    This writes nothing, takes no lock and starts nothing, unless an entry is damaged: that one is set aside.
    """
    key_dir = _key_dir(cache_dir, recipe)
    try:
        leaves = sorted(name for name in os.listdir(key_dir) if not name.startswith("."))
    except OSError:
        return None
    refuse_place(key_dir, cache_dir, settings, is_entry=True)
    for leaf in leaves:
        if leaf.endswith(".bad"):
            continue
        leaf_dir = key_dir / leaf
        try:
            refuse_place(leaf_dir, cache_dir, settings, is_entry=True)
            entry = _read_entry(leaf_dir, recipe)
        except (OSError, ValueError, KeyError, TypeError) as damage:
            if leaf_dir.exists():  # else another process has just set it aside
                _set_aside(leaf_dir, damage)
            continue
        if entry:
            return entry
    return None


def _key_dir(cache_dir: Path, recipe: Recipe) -> Path:
    return cache_dir / f"{recipe.name}-{recipe.key}"


def _read_entry(leaf_dir: Path, recipe: Recipe) -> Entry | None:
    """Return an entry whose product is whole, or None where it was made from other headers."""
    manifest = json.loads((leaf_dir / _MANIFEST).read_bytes())
    if manifest["schema"] != _SCHEMA or manifest["key"] != recipe.key:
        raise ValueError("its manifest is of another entry")
    headers = tuple(Header(**header) for header in manifest["headers"])
    if not all(header.is_unchanged() for header in headers):
        return None
    product = leaf_dir / manifest["product"]
    data = product.read_bytes()
    if len(data) != manifest["size"]:
        raise ValueError(f"{product.name} has {len(data)} bytes, not {manifest['size']}")
    if hashlib.sha256(data).hexdigest() != manifest["sha256"]:
        raise ValueError(f"{product.name} has another SHA-256 than its manifest says")
    return Entry(dir=leaf_dir, product=product, headers=headers)


def _set_aside(leaf_dir: Path, damage: Exception) -> None:
    aside = leaf_dir.with_name(f"{leaf_dir.name}-{time.time_ns()}.bad")
    _log.warning("cache entry %s is damaged (%s); it is set aside as %s and built again", leaf_dir, damage, aside.name)
    with suppress(OSError):  # a read-only cache: the entry stays, and is passed over each time
        os.rename(leaf_dir, aside)


# ---- a miss ----------------------------------------------------------------------------------------------------


@contextmanager
def claim_entry(cache_dir: Path, recipe: Recipe, settings: Settings) -> Iterator[Work]:
    """Give a private directory to build in, with the key's lock held where the file system has locks.

    `work.entry` is set where another process built the entry meanwhile. A directory that was not published is
    removed; one that a compiler failed in is kept for a look, if there is anything in it.
    """
    try:
        key_dir, work_dir = _make_dirs(cache_dir, recipe)
    except OSError as error:
        cache_dir = private_cache_dir()
        warn_once(f"the cache cannot be written ({error}); building in {cache_dir}, for this process only")
        key_dir, work_dir = _make_dirs(cache_dir, recipe)
    with _lock(cache_dir, recipe):
        work = Work(dir=work_dir, recipe=recipe, cache_dir=cache_dir, key_dir=key_dir)
        work.entry = find_entry(cache_dir, recipe, settings)
        try:
            yield work
        except CompileError:
            with suppress(OSError):
                work_dir.rmdir()
            raise
        except BaseException:
            shutil.rmtree(work_dir, ignore_errors=True)
            raise
        if work.entry is None or work.entry.dir != work_dir:
            shutil.rmtree(work_dir, ignore_errors=True)


def _make_dirs(cache_dir: Path, recipe: Recipe) -> tuple[Path, Path]:
    key_dir = _key_dir(cache_dir, recipe)
    private = cache_dir / ".work"
    for directory in (cache_dir, key_dir, private):
        make_private(directory)
    work_dir = private / f"{recipe.name}-{os.getpid()}-{secrets.token_hex(6)}"
    work_dir.mkdir(mode=0o700)
    return key_dir, work_dir


def make_private(directory: Path) -> None:
    """Make a directory and those above it; the ones we make are ours alone, whatever the umask."""
    if directory.is_dir():
        return
    if not directory.parent.is_dir():
        make_private(directory.parent)
    with suppress(FileExistsError):
        directory.mkdir(mode=0o700)
        directory.chmod(0o700)


@contextmanager
def _lock(cache_dir: Path, recipe: Recipe) -> Iterator[None]:
    """Hold the key's lock. It saves a second build, no more: where it cannot be had, the build goes on without."""
    from filelock import FileLock

    locks = cache_dir / ".locks"
    lock = None
    try:
        make_private(locks)
        lock = FileLock(locks / recipe.key)
        lock.acquire(poll_interval=0.01)
    except (OSError, NotImplementedError) as error:
        _log.info("building without a lock: %s", error)
        lock = None
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _record_header(path: Path, started_ns: int) -> Header:
    if not os.path.isfile(path):  # a path that begins with # is none: nobody knows what that include reads
        size = 0 if str(path).startswith("#") else -1
        return Header(path=str(path), size=size, mtime_ns=0, ctime_ns=0, digest="")
    found = path.stat()
    size, mtime_ns, ctime_ns = found.st_size, found.st_mtime_ns, found.st_ctime_ns
    header = Header(path=str(path), size=size, mtime_ns=mtime_ns, ctime_ns=ctime_ns, digest=digest_file(path))
    # Edited during the build, nobody knows what the compiler read: recorded so that it never matches.
    return replace(header, ctime_ns=0, digest="") if started_ns < mtime_ns <= time.time_ns() else header


def _write_manifest(work_dir: Path, recipe: Recipe, product: str, headers: tuple[Header, ...]) -> None:
    data = (work_dir / product).read_bytes()
    manifest: Mapping[str, Any] = {
        "schema": _SCHEMA,
        "name": recipe.name,
        "key": recipe.key,
        "product": product,
        "size": len(data),
        "sha256": hashlib.sha256(data).hexdigest(),
        "headers": [asdict(header) for header in headers],
        "parts": {label: _describe_part(value) for label, value in recipe.parts},
    }
    (work_dir / _MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in (work_dir / product, work_dir / _MANIFEST, work_dir):
        _sync(path)


def _describe_part(value: str | bytes | tuple[str, ...]) -> str | list[str]:
    """Return a part as a person compares it: short texts as they are, long ones and bytes by digest."""
    return [_describe(item) for item in value] if isinstance(value, tuple) else _describe(value)


def _describe(value: str | bytes) -> str:
    data = value.encode("utf-8", "surrogateescape") if isinstance(value, str) else value
    if isinstance(value, str) and len(data) <= 256:
        return value
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


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
