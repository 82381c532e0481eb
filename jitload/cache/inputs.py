"""The files that a build read: recorded after it, and looked at again on a hit."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from jitload.cache.recipe import speaks_of_its_place

_ABSENT = -1  # no such file, and one would be read
_ABSENT_DIR = -2  # not even the directory that it would be in
# A file may change twice within one tick of its file system's clock and look the same; no tick is longer than 2 s.
_TICK_NS = 2_000_000_000

State = tuple[int, int, int, int]
_digests: dict[str, tuple[State, str]] = {}  # of files that had been as they are for longer than a tick


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A file that a build read: where, and what `stat` and SHA-256 said of it.

    One that was looked for and was not there has a negative size: it would be read now, were it there.

    Attributes:
        path: The file.
        size: Its size in bytes.
        mtime_ns: When it was last written.
        ctime_ns: When it was last changed in any way: an edit that keeps size and mtime still moves this one.
        inode: Its number in the file system.
        digest: SHA-256 of its content; "" never matches.
        is_settled: Whether it was older than a tick of the clock when it was digested. If not, an edit right after may
            have left no trace in `stat`, and only the digest tells.
    """

    path: str
    size: int
    mtime_ns: int = 0
    ctime_ns: int = 0
    inode: int = 0
    digest: str = ""
    is_settled: bool = False

    def is_unchanged(self) -> bool:
        """Tell whether the file still has this content: by `stat`, and by digest where that does not tell."""
        if self.size < 0:
            return not (os.path.isfile(self.path) if self.size == _ABSENT else os.path.lexists(self.path))
        try:
            found = os.stat(self.path)
            if (
                self.is_settled
                and found.st_ctime_ns == self.ctime_ns
                and found.st_mtime_ns == self.mtime_ns
                and found.st_size == self.size
                and found.st_ino == self.inode
            ):
                return True
            is_file = stat.S_ISREG(found.st_mode)  # a pipe or device, which no build has recorded, would never end
            return is_file and found.st_size == self.size and _digest_of(self.path, found) == self.digest
        except OSError:
            return False


def _digest_of(path: str, found: os.stat_result) -> str:
    known = _digests.get(path)
    if known and known[0] == (found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino):
        return known[1]
    return _digest_now(path)


def _digest_now(path: str) -> str:
    """Return a file's digest, and remember it where nothing can change the file any more and keep what `stat` says."""
    found, now_ns = os.stat(path), time.time_ns()
    digest = digest_file(Path(path))
    if is_settled(found, now_ns):
        _digests[path] = ((found.st_size, found.st_mtime_ns, found.st_ctime_ns, found.st_ino), digest)
    return digest


def settled(header: Header) -> Header:
    """Return the record of an unchanged file as `stat` alone can tell it the next time, if it can by now."""
    known = _digests.get(header.path)
    if known is None or known[1] != header.digest:
        return header
    size, mtime_ns, ctime_ns, inode = known[0]
    return replace(header, size=size, mtime_ns=mtime_ns, ctime_ns=ctime_ns, inode=inode, is_settled=True)


def is_settled(found: os.stat_result, now_ns: int) -> bool:
    """Tell whether what changes from now on will show in what `stat` says."""
    return max(found.st_mtime_ns, found.st_ctime_ns) + _TICK_NS < now_ns


def digest_file(path: Path) -> str:
    """Return a file's SHA-256 in hexadecimal."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# ---- recording -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """When a build began, by the clock of the wall and by the one that nobody sets."""

    wall_ns: int
    steady_ns: int

    @staticmethod
    def start() -> Clock:
        """Return this moment."""
        return Clock(wall_ns=time.time_ns(), steady_ns=time.monotonic_ns())

    def began_ns(self) -> int:
        """Return when it began by the wall clock of now, which may have been set meanwhile; the earlier of two."""
        return min(self.wall_ns, time.time_ns() - (time.monotonic_ns() - self.steady_ns))


def record_headers(paths: Iterable[Path], clock: Clock) -> tuple[Header, ...]:
    """Return the records of the files that a build read, or looked for in vain."""
    began_ns = clock.began_ns()
    records = {record.path: record for record in (_record(path, began_ns) for path in paths)}
    return tuple(records[path] for path in sorted(records))


def _record(path: Path, began_ns: int) -> Header:
    text = str(path)
    if text.startswith("#"):  # no path: nobody knows what that include reads
        return Header(path=text, size=0)
    try:
        found, now_ns = path.stat(), time.time_ns()
        digest = digest_file(path) if path.is_file() else None
    except OSError:
        return _record_absent(path)
    if digest is None:  # a directory of that name
        return Header(path=text, size=_ABSENT)
    if found.st_ctime_ns > began_ns:  # edited during the build: nobody knows what the compiler read
        return Header(path=text, size=found.st_size)
    return Header(
        path=text,
        size=found.st_size,
        mtime_ns=found.st_mtime_ns,
        ctime_ns=found.st_ctime_ns,
        inode=found.st_ino,
        digest=digest,
        is_settled=is_settled(found, now_ns),
    )


def _record_absent(path: Path) -> Header:
    """Record the first directory on the way that does not exist, if it is not the file alone."""
    missing = path
    while not os.path.lexists(missing.parent) and missing.parent != missing:
        missing = missing.parent
    return Header(path=str(missing), size=_ABSENT if missing == path else _ABSENT_DIR)


# ---- anchors ---------------------------------------------------------------------------------------------------


def loosen(header: Header, anchors: Sequence[str]) -> list[dict[str, Any]]:
    """Return a record as a manifest keeps it: relative to the anchor that it lies below, written `@1/sub/x.h`.

    Below several anchors it is kept for each: nobody knows by which of them a compiler found it.
    """
    kept = {name: getattr(header, name) for name in Header.__slots__}
    roots = [anchor.rstrip("/") for anchor in anchors]
    places = [
        f"@{number}{header.path[len(root) :]}"
        for number, root in enumerate(roots)
        if header.path == root or header.path.startswith(root + "/")
    ]
    return [{**kept, "path": place} for place in places or (header.path,)]


def fasten(kept: dict[str, Any], anchors: Sequence[str]) -> Header:
    """Return the record that a manifest keeps, below the anchors of this request.

    Raises:
        ValueError, TypeError, IndexError: It is none.
    """
    header = Header(**kept)
    if not header.path.startswith("@"):
        return header
    number, slash, rest = header.path[1:].partition("/")
    return replace(header, path=f"{anchors[int(number)].rstrip('/')}{slash}{rest}")


def speak_of_their_place(headers: Iterable[Header], anchors: Sequence[str]) -> bool:
    """Tell whether what is made of files below the anchors may hold their paths."""
    below = tuple(anchor.rstrip("/") + "/" for anchor in anchors)
    try:
        return any(
            speaks_of_its_place(Path(header.path).read_bytes())
            for header in headers
            if header.size > 0 and header.path.startswith(below)
        )
    except OSError:
        return True
