"""Packs entries (cached builds) into an archive, and unpacks an archive, which anyone may have made, into a cache.

An archive is a file `.tar.gz`, or a directory for registries and signatures: a `.tar.gz` of each entry, and the file
`manifest.json` with their SHA-256.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jitload.cache.entry import LEAF_NAME, MANIFEST, WORK_DIR, newest_first, read_manifest
from jitload.cache.listing import check_leaf, list_entries
from jitload.cache.store import rename_to_leaf, temporary_dir
from jitload.errors import CacheError
from jitload.toolchain.private_files import make_private_dir

_MEMBER = re.compile(
    r"([A-Za-z0-9_][A-Za-z0-9_.-]{0,47}-[0-9a-f]{64})/(\d{4,}-[0-9a-f]{16})/([A-Za-z0-9_@+-][A-Za-z0-9_.@+-]{0,99})"
)
# Precompiled headers are not packed: they are large, fit one compiler only, and are made from other people's headers.
_NOT_PACKED = (".gch", ".pch")
_FILE_OVERHEAD = 4096  # bytes that a file takes on the disk in addition to its content
_Archive = AbstractContextManager[gzip.GzipFile]
_MAX_LEAVES = 8  # how many entries of one key are packed; each entry is a build that read other files


@dataclass(frozen=True, slots=True, kw_only=True)
class UnpackResult:
    """The result of unpacking an archive: how many entries were added, and how many were already present."""

    added: int
    present: int


# ---- packing ---------------------------------------------------------------------------------------------------


def pack(cache_dir: Path, target: Path) -> int:
    """Write the entries of a cache to the archive `target`, and return how many were written.

    Entries with precompiled headers are left out.

    Raises:
        CacheError: An entry is damaged, there is no entry to pack, or the archive cannot be written.
    """
    if contents := _contents(entry.dir for entry in list_entries(cache_dir)):
        return _write_archive(contents, target)
    raise CacheError(f"the cache {cache_dir} has no entry to pack")


def pack_entries(entry_dirs: Iterable[Path], target: Path) -> int:
    """Write the entries `entry_dirs` to the archive `target`, and return how many were written."""
    return _write_archive(_contents(entry_dirs), target)


def _contents(leaf_dirs: Iterable[Path]) -> dict[Path, list[str]]:
    """Return the file names of each entry, by directory. Skip entries with precompiled headers.

    Raises:
        CacheError: An entry is damaged.
    """
    contents = {}
    for leaf in leaf_dirs:
        try:
            names = sorted(check_leaf(leaf)["files"])
        except (OSError, ValueError, RecursionError) as error:
            raise CacheError(f"the entry {leaf} is damaged: {error}") from error
        if not any(name.endswith(_NOT_PACKED) for name in names):
            contents[leaf] = names
    return contents


def _write_archive(contents: Mapping[Path, Sequence[str]], target: Path) -> int:
    try:
        with tempfile.TemporaryDirectory(prefix=".jitload-", dir=target.parent) as directory:
            unfinished = Path(directory, target.name)
            if not target.suffix:
                _write_directory(contents, unfinished)
            else:
                check_archive_name(target.name)
                with unfinished.open("wb") as file:
                    _write_gzip(file, contents, 6)
            unfinished.replace(target)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise CacheError(f"the archive {target} cannot be written: {reason}") from error
    return len(contents)


def _write_directory(contents: Mapping[Path, Sequence[str]], directory: Path) -> None:
    directory.mkdir()
    digests = {}
    for leaf, names in contents.items():
        name, data = f"{leaf.parent.name}-{leaf.name}.tar.gz", _pack({leaf: names})
        (directory / name).write_bytes(data)
        digests[name] = hashlib.sha256(data).hexdigest()
    (directory / MANIFEST).write_text(json.dumps(digests, indent=1))


def _read_directory(directory: Path) -> Iterator[_Archive]:
    """Yield the archives in a directory after comparing each with its digest."""
    for name, digest in json.loads((directory / MANIFEST).read_bytes()).items():
        data = (directory / Path(name).name).read_bytes()
        if hashlib.sha256(data).hexdigest() != digest:
            raise ValueError(f"{name[:80]!r} does not have the digest in {MANIFEST}")
        yield gzip.GzipFile(fileobj=io.BytesIO(data))


def check_archive_name(name: str) -> None:
    """Raise CacheError if the name of an archive neither ends in `.tar.gz` nor is that of a directory."""
    if Path(name).suffix and not name.endswith(".tar.gz"):
        raise CacheError(f"{name!r} must end in .tar.gz, or have no suffix: then it becomes a directory")


def _write_gzip(file: IO[bytes], contents: Mapping[Path, Sequence[str]], level: int) -> None:
    # Without a file name and a time in the header, the same entries give the same archive.
    stream: Any = gzip.GzipFile("", "wb", level, file, mtime=0)
    with stream, tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as tar:
        for leaf, files in contents.items():
            for name in (MANIFEST, *files):
                info = tarfile.TarInfo(f"{leaf.parent.name}/{leaf.name}/{name}")
                with (leaf / name).open("rb") as data:
                    info.size, info.mode = os.fstat(data.fileno()).st_size, 0o600
                    tar.addfile(info, data)


# ---- unpacking -------------------------------------------------------------------------------------------------


def unpack(cache_dir: Path, source: Path, *, max_size: int) -> UnpackResult:
    """Add all entries of an archive to a cache, or none if one of them is invalid.

    Loading an unpacked library runs the code of the archive's author, as with a wheel. Unpacking itself is safe: links,
    file names outside an entry, and more than `max_size` bytes are refused.

    Raises:
        CacheError: The archive is damaged, too large, or not an archive of entries. Nothing was added to the cache.
    """
    archives = _read_directory(source) if source.is_dir() else (gzip.GzipFile(path) for path in [source])
    return _unpack(cache_dir, archives, f"the archive {source}", max_size=max_size)


def _unpack(
    cache_dir: Path, archives: Iterable[_Archive], description: str, *, max_size: int, only: str = ""
) -> UnpackResult:
    """Unpack archives into a cache. If `only` is not empty, refuse entries outside the directory `only`."""
    with temporary_dir(cache_dir, "unpack") as stage:
        try:
            leaves = _stage_members(archives, stage, max_size, only)
            for leaf in leaves:
                check_leaf(leaf)
        except Exception as error:  # each decompressor has errors of its own
            raise CacheError(f"{description} cannot be unpacked: {error}. Nothing was added to the cache.") from error
        added = sum(_publish(leaf, cache_dir) for leaf in leaves)
    return UnpackResult(added=added, present=len(leaves) - added)


def _stage_members(archives: Iterable[_Archive], stage: Path, max_size: int, only: str) -> list[Path]:
    """Write the files of archives to one directory per entry. Return the directories, sorted by path."""
    left = max_size
    leaves: set[Path] = set()
    for info, content in _members(archives, max_size):
        match = _MEMBER.fullmatch(info.name)
        left -= info.size + _FILE_OVERHEAD
        if match is None or info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.issparse():
            raise ValueError(f"it contains {info.name[:80]!r}, which is not a regular file of an entry")
        if only not in ("", match[1]):
            raise ValueError(f"it contains the entry {match[1][:60]}, but {only[:60]} was requested")
        if left < 0:
            raise _TooLargeError(max_size)
        leaf = stage / match[1] / match[2]
        leaves.add(leaf)
        make_private_dir(leaf)
        with (leaf / match[3]).open("xb") as file:
            shutil.copyfileobj(content, file)
    return sorted(leaves)


def _members(archives: Iterable[_Archive], max_size: int) -> Iterator[tuple[tarfile.TarInfo, Any]]:
    """Yield each file of archives with its content."""
    for archive in archives:
        with archive as data:
            stream: Any = _LimitedStream(data, max_size)
            with tarfile.open(fileobj=stream, mode="r|") as tar:
                yield from ((info, tar.extractfile(info)) for info in tar)
            if any(stream.last_block):  # `tarfile` ends an archive without a mark at its end, too
                raise EOFError("it is incomplete, its end is missing")


class _LimitedStream:
    """The uncompressed data of an archive. Headers, which `tarfile` keeps in memory, count towards the limit, too."""

    def __init__(self, stream: gzip.GzipFile, max_size: int) -> None:
        self._stream, self._max_size, self._left = stream, max_size, 2 * max_size
        self.last_block = b""

    def read(self, size: int) -> bytes:
        """Return at most `size` bytes, and b"" at the end."""
        data = self._stream.read(size)
        self._left -= len(data)
        if self._left < 0:
            raise _TooLargeError(self._max_size)
        self.last_block = data[-tarfile.BLOCKSIZE :] or self.last_block
        return data


class _TooLargeError(ValueError):
    """An archive is too large."""

    def __init__(self, max_size: int) -> None:
        super().__init__(f"it contains more than {max_size} bytes; `jitload cache unpack --max-size` allows more")


def _publish(leaf: Path, cache_dir: Path) -> bool:
    """Rename an unpacked entry to a free name in the cache. Return False if the cache already has the entry."""
    key_dir, suffix = cache_dir / leaf.parent.name, leaf.name[-16:]
    similar = [path for path in key_dir.glob(f"*-{suffix}") if LEAF_NAME.fullmatch(path.name)]
    if (digest := _product_digest(leaf)) and digest in map(_product_digest, similar):
        return False
    rename_to_leaf(leaf, key_dir, suffix)
    return True


def _product_digest(leaf_dir: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        manifest = read_manifest(leaf_dir)
        return str(manifest["files"][manifest["product"]][1])
    return ""


# ---- the entries of one key, for a remote store ----------------------------------------------------------------


def pack_key(key_dir: Path) -> bytes:
    """Return the newest entries of one key as an archive, or b"" if there is no entry to pack.

    Raises:
        CacheError: An entry is damaged.
        OSError: An entry cannot be read.
    """
    leaf_names = newest_first(os.listdir(key_dir))[:_MAX_LEAVES]
    contents = _contents(key_dir / name for name in reversed(leaf_names))
    return _pack(contents) if contents else b""


def _pack(contents: Mapping[Path, Sequence[str]]) -> bytes:
    packed = io.BytesIO()
    _write_gzip(packed, contents, 1)
    return packed.getvalue()


def unpack_key(cache_dir: Path, data: bytes, key_dir_name: str, *, max_size: int) -> UnpackResult:
    """Add the entries of an archive by `pack_key` to a cache. Refuse entries outside the directory `key_dir_name`."""
    archive = gzip.GzipFile(fileobj=io.BytesIO(data))
    return _unpack(cache_dir, [archive], "its archive", max_size=max_size, only=key_dir_name)


# ---- a bundle --------------------------------------------------------------------------------------------------


def fill_bundle(entry_dirs: Sequence[Path], bundle: Path, files: Iterable[tuple[str, str]] = ()) -> UnpackResult:
    """Copy entries to a bundle, write files beside them, and let every user read the bundle.

    A bundle is a cache that is shipped in a package or an image.
    """
    try:
        bundle.parent.mkdir(parents=True, exist_ok=True)  # `temporary_dir` would make these directories private
        with temporary_dir(bundle, "unpack") as stage:
            copies = [
                shutil.copytree(leaf, stage / leaf.parent.name / leaf.name, copy_function=shutil.copyfile)
                for leaf in _contents(entry_dirs)
            ]
            added = sum(_publish(copy, bundle) for copy in copies)
        for name, text in files:
            (bundle / name).write_text(text, encoding="utf-8")
            (bundle / name).chmod(0o644)
        _make_readable(bundle)
    except OSError as error:
        raise CacheError(f"entries cannot be copied to {bundle}: {error}") from error
    return UnpackResult(added=added, present=len(copies) - added)


def _make_readable(cache_dir: Path) -> None:
    """Let every user read the entries of a cache. Remove the directory for builds in progress if it is empty."""
    cache_dir.chmod(0o755)
    for entry in list_entries(cache_dir):
        for directory in (entry.dir.parent, entry.dir):
            directory.chmod(0o755)
        for name in os.listdir(entry.dir):
            (entry.dir / name).chmod(0o644)
    with suppress(OSError):
        (cache_dir / WORK_DIR).rmdir()
