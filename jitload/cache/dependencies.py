"""Records the files that a build read, and checks on each cache hit whether they are unchanged."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from jitload.cache.key import may_embed_path

# Values of `Dependency.size` for a file that does not exist, but that the build would read if it did. With
# _NO_DIRECTORY, the directory of the file does not exist, either.
_NO_FILE = -1
_NO_DIRECTORY = -2
# If a file changes twice within one tick of the file system's clock, `stat` may not show the second change. No tick is
# longer than 2 s.
_TICK_NS = 2_000_000_000

_State = tuple[int, int, int, int]
_digests: dict[str, tuple[_State, str]] = {}  # path -> digest of a file that was unchanged for more than a tick


class Dependency(NamedTuple):
    """A file that a build read, with its SHA-256 and the results of `stat`.

    A negative size marks a missing file that the build would read if it existed.

    Attributes:
        path: The path of the file.
        size: The file's size in bytes.
        mtime_ns: When the file was last written.
        ctime_ns: When the file was last changed in any way. This time also changes if an edit restores size and mtime.
        inode: The file's number in the file system.
        digest: The SHA-256 of the file's content. The value "" matches no content.
        is_settled: Whether the last change was more than 2 s before the digest was computed. If False, `stat` may miss
            a later change, because a file system's clock may tick every 2 s. Then the digest must be compared.
    """

    path: str
    size: int
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    digest: str = ""
    is_settled: bool = False

    def is_unchanged(self) -> bool:
        """Return whether the file is still as recorded. If `stat` is not conclusive, compare the digest."""
        if self.size < 0:
            return not (os.path.isfile(self.path) if self.size == _NO_FILE else os.path.lexists(self.path))
        try:
            status = os.stat(self.path)
            if self.is_settled and _state(status) == self[1:5]:
                return True
            is_file = stat.S_ISREG(status.st_mode)  # not a pipe or a device, whose reading might never end
            return is_file and status.st_size == self.size and _digest_of(self.path, status) == self.digest
        except OSError:
            return False


def _state(status: os.stat_result) -> _State:
    """Return the fields of a `Dependency` from `size` to `inode`."""
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _digest_of(path: str, status: os.stat_result) -> str:
    """Return a file's digest. Remember the digest if `stat` will show every later change to the file."""
    now_ns = time.time_ns()
    state = _state(status)
    remembered = _digests.get(path)
    if remembered and remembered[0] == state:
        return remembered[1]
    digest = digest_file(Path(path))
    if is_settled(status, now_ns):
        _digests[path] = (state, digest)
    return digest


def is_settled(status: os.stat_result, now_ns: int) -> bool:
    """Return whether a file last changed more than 2 s before `now_ns`.

    Then `stat` will show every later change.
    """
    return max(status.st_mtime_ns, status.st_ctime_ns) + _TICK_NS < now_ns


def digest_file(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- recording -------------------------------------------------------------------------------------------------


class StartTime(NamedTuple):
    """The time when a build began, on the wall clock and on the monotonic clock.

    Only the wall clock can be set.
    """

    wall_ns: int
    monotonic_ns: int

    @staticmethod
    def now() -> StartTime:
        """Return the current time."""
        return StartTime(wall_ns=time.time_ns(), monotonic_ns=time.monotonic_ns())

    def earliest_ns(self) -> int:
        """Return the build's start on the wall clock, corrected if the clock has been set back since."""
        return min(self.wall_ns, time.time_ns() - (time.monotonic_ns() - self.monotonic_ns))


def record_dependencies(paths: Iterable[Path], start: StartTime) -> tuple[Dependency, ...]:
    """Return a record for each file that a build read, or looked for and did not find.

    If a file was changed after `start`, its record never counts as unchanged.
    """
    start_ns = start.earliest_ns()
    records = {record.path: record for record in (_record(path, start_ns) for path in paths)}
    return tuple(records[path] for path in sorted(records))


def _record(path: Path, start_ns: int) -> Dependency:
    text = str(path)
    if text.startswith("#"):  # an #include whose path is unknown
        return Dependency(path=text, size=0)
    try:
        status, now_ns = path.stat(), time.time_ns()
        digest = digest_file(path) if path.is_file() else None
    except OSError:
        return _record_missing(path)
    if digest is None:  # a directory, not a file
        return Dependency(path=text, size=_NO_FILE)
    if status.st_ctime_ns > start_ns:  # the compiler may have read the file before or after the change
        return Dependency(path=text, size=status.st_size)
    return Dependency(text, *_state(status), digest=digest, is_settled=is_settled(status, now_ns))


def _record_missing(path: Path) -> Dependency:
    """Return a record of a missing file. If its directory is missing, too, record the topmost missing directory."""
    missing = path
    while not os.path.lexists(missing.parent) and missing.parent != missing:
        missing = missing.parent
    return Dependency(path=str(missing), size=_NO_FILE if missing == path else _NO_DIRECTORY)


# ---- in a manifest ---------------------------------------------------------------------------------------------


def to_manifest(dependency: Dependency, anchors: Sequence[str]) -> list[dict[str, Any]]:
    """Return the rows that describe a dependency in an entry's manifest.

    The anchors are the user's include directories and object files. A path below an anchor is written relative to the
    anchor, with the anchor's index: `@1/sub/x.h`. A file below several anchors has a row for each of them, because the
    compiler may have found the file through any of them.
    """
    row = dependency._asdict()
    roots = [anchor.rstrip("/") for anchor in anchors]
    relative_paths = [
        f"@{index}{dependency.path[len(root) :]}"
        for index, root in enumerate(roots)
        if dependency.path == root or dependency.path.startswith(root + "/")
    ]
    return [{**row, "path": path} for path in relative_paths or (dependency.path,)]


def from_manifest(row: dict[str, Any], anchors: Sequence[str]) -> Dependency:
    """Return the dependency in a row of a manifest. A leading `@1` in the path stands for `anchors[1]`.

    Raises:
        ValueError, TypeError, IndexError: The row is malformed.
    """
    dependency = Dependency(**row)
    if not isinstance(dependency.path, str):
        raise TypeError("the path of a file that the build read is not text")
    if not dependency.path.startswith("@"):
        return dependency
    index, slash, rest = dependency.path[1:].partition("/")
    return dependency._replace(path=f"{anchors[int(index)].rstrip('/')}{slash}{rest}")


def may_embed_paths(dependencies: Iterable[Dependency], anchors: Sequence[str]) -> bool:
    """Return whether compiled code may contain the path of a dependency below one of the directories `anchors`."""
    prefixes = tuple(anchor.rstrip("/") + "/" for anchor in anchors)
    try:
        return any(
            may_embed_path(Path(dependency.path).read_bytes())
            for dependency in dependencies
            if dependency.size > 0 and dependency.path.startswith(prefixes)
        )
    except OSError:
        return True
