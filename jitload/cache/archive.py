"""Entries of a cache into one file, and such a file, which may be anybody's, into a cache."""

from __future__ import annotations

import io
import os
import re
import secrets
import shutil
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from jitload.cache.entry import LEAF, MANIFEST, newest_first, read_manifest
from jitload.cache.inventory import Item, check_entry, walk
from jitload.cache.locks import host_tag, lock_directory, unlock
from jitload.cache.notes import BLOCK, GROWN, append_bytes
from jitload.errors import CacheError
from jitload.settings import make_private

_MEMBER = re.compile(r"([A-Za-z0-9_]{1,48}-[0-9a-f]{64})/(\d{4,}-[0-9a-f]{16})/([A-Za-z0-9_@+-][A-Za-z0-9_.@+-]{0,99})")
_STAYS = (".gch", ".pch")  # precompiled headers: large, for one compiler alone, and made of other people's headers
_MOST_MEMBERS = 1_000_000
_PIECE = 1 << 20
_EACH = 4096  # that a file takes besides, an empty one in a directory of its own, too
_MOST_LEAVES = 8  # builds of one key that read different headers


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """How many entries an archive brought, and how many of its entries were there already."""

    added: int
    present: int


# ---- pack ------------------------------------------------------------------------------------------------------


def pack(cache_dir: Path, target: Path, keys: Iterable[str] = ()) -> int:
    """Write the entries of a cache, or those whose keys begin as given, to an archive; return how many.

    Precompiled headers stay behind. An entry that is damaged is an error: an archive is to be relied upon.

    Raises:
        CacheError: An entry is damaged, there is none, or the archive cannot be written.
    """
    wanted = tuple(keys)
    items = [item for item in walk(cache_dir) if not wanted or item.key.startswith(wanted)]
    items = [item for item in items if _travels(item)]
    if not items:
        raise CacheError(f"the cache {cache_dir} has no such entry to pack")
    return _pack(items, target)


def pack_entries(entry_dirs: Iterable[Path], target: Path) -> int:
    """Write entries to an archive, and return how many; one that is damaged is an error.

    Raises:
        CacheError: An entry is damaged, or the archive cannot be written.
    """
    return _pack(_items(entry_dirs), target)


def _items(entry_dirs: Iterable[Path]) -> list[Item]:
    dirs = dict.fromkeys(entry_dirs)
    items = [
        Item(dir=path, name=path.parent.name[:-65], key=path.parent.name[-64:], size=0, used_s=0, hits=0)
        for path in dirs
    ]
    return [item for item in items if _travels(item)]


def _pack(items: Sequence[Item], target: Path) -> int:
    fresh = target.with_name(f".jitload-{secrets.token_hex(8)}")
    try:
        with (
            _opened(fresh, target.name, "wb") as stream,
            tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
        ):
            for item in items:
                _pack_one(tar, item)
        fresh.replace(target)
    except (OSError, ValueError) as error:
        raise CacheError(f"the archive {target} cannot be written: {error}") from error
    finally:
        fresh.unlink(missing_ok=True)
    return len(items)


def _travels(item: Item) -> bool:
    item.check()
    return not any(name.endswith(_STAYS) for name in item.manifest()["files"])


def _pack_one(tar: tarfile.TarFile, item: Item) -> None:
    for name in (MANIFEST, *sorted(item.manifest()["files"])):
        path = item.dir / name
        info = tarfile.TarInfo(f"{item.name}-{item.key}/{item.dir.name}/{name}")
        with path.open("rb") as data:
            info.size, info.mode = os.fstat(data.fileno()).st_size, 0o600
            tar.addfile(info, data)


# ---- unpack ----------------------------------------------------------------------------------------------------


def unpack(cache_dir: Path, source: Path, *, max_size: int) -> Unpacked:
    """Add the entries of an archive to a cache: all of them, or none if one is not what it should be.

    Whoever made the archive decides what code is loaded, as with a wheel; nothing else can come out of it: no links,
    no names outside an entry, no more than `max_size` bytes.

    Raises:
        CacheError: The archive is damaged, too large, or none of ours; nothing of it was kept.
    """
    return _unpack(cache_dir, lambda: _opened(source, source.name, "rb"), f"the archive {source}", max_size=max_size)


def _unpack(
    cache_dir: Path,
    opened: Callable[[], AbstractContextManager[IO[bytes]]],
    what: str,
    *,
    max_size: int,
    only: str = "",
) -> Unpacked:
    """Unpack an archive into a cache; with `only`, one that holds the entries of that key's directory and no others."""
    with _staging(cache_dir) as stage:
        try:
            with opened() as stream:
                leaves = _stage_members(stream, stage, max_size)
            sizes = [_checked_size(leaf, only) for leaf in leaves]
        except _unpacking_errors() as error:
            raise CacheError(f"{what} cannot be unpacked: {error}. Nothing of it was kept.") from error
        added = sum(_publish(leaf, cache_dir) for leaf in leaves)
        with suppress(OSError):
            append_bytes(cache_dir / GROWN, sum(sizes) // BLOCK + 1)
    return Unpacked(added=added, present=len(leaves) - added)


# ---- one key ---------------------------------------------------------------------------------------------------


def pack_key(key_dir: Path) -> bytes:
    """Return the newest entries of one key as an archive; nothing where they do not travel.

    Raises:
        CacheError: An entry is damaged.
        OSError: One cannot be read.
    """
    leaves = newest_first(os.listdir(key_dir))[:_MOST_LEAVES]
    items = _items(key_dir / leaf for leaf in reversed(leaves))
    if not items:
        return b""
    import gzip

    packed = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", 1, packed, mtime=0) as stream,
        tarfile.open(fileobj=stream, mode="w|", format=tarfile.USTAR_FORMAT) as tar,
    ):
        for item in items:
            _pack_one(tar, item)
    return packed.getvalue()


def unpack_key(cache_dir: Path, data: bytes, key_name: str, *, max_size: int) -> Unpacked:
    """Add the entries of one key, and of no other, from what `pack_key` made of them.

    Raises:
        CacheError: It is damaged, too large, or of another key; nothing of it was kept.
    """
    import gzip

    def opened() -> AbstractContextManager[IO[bytes]]:
        packed: Any = gzip.GzipFile(fileobj=io.BytesIO(data))
        return packed  # type: ignore[no-any-return]

    return _unpack(cache_dir, opened, "it", max_size=max_size, only=key_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Leaf:
    """An entry that was unpacked, and where it belongs; a directory above it would cost as much as a file of it."""

    dir: Path
    key_name: str
    name: str


def _checked_size(leaf: _Leaf, only: str) -> int:
    if only not in ("", leaf.key_name):
        raise ValueError(f"it holds an entry {leaf.key_name[:60]}, and {only[:60]} was asked for")
    return check_entry(leaf.dir, leaf.key_name[-64:])


@contextmanager
def _staging(cache_dir: Path) -> Iterator[Path]:
    """Give a directory on the cache's file system that a dead process's successor removes."""
    stage = cache_dir / ".work" / f"unpack-{host_tag()}-{os.getpid()}-{secrets.token_hex(6)}"
    mark = None
    try:
        make_private(stage)
        with suppress(OSError):
            mark = lock_directory(stage)
        yield stage
    except OSError as error:
        raise CacheError(f"the cache {cache_dir} cannot be written: {error}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        if mark is not None:
            unlock(mark)


def _stage_members(stream: IO[bytes], stage: Path, max_size: int) -> list[_Leaf]:
    """Write the files of an archive into a directory for each entry, and return these by key and number."""
    left = max_size
    leaves: dict[tuple[str, str], _Leaf] = {}
    for number, (info, data) in enumerate(_members(stream)):
        found = _MEMBER.fullmatch(info.name)
        left -= info.size + _EACH
        if found is None:
            raise ValueError(f"it holds {info.name[:80]!r}, which is no file of an entry")
        if left < 0 or number >= _MOST_MEMBERS:
            raise ValueError(f"it holds more than {max_size} bytes; allow more with --max-size")
        place = found[1], found[2]
        if place not in leaves:
            leaves[place] = _Leaf(dir=stage / str(len(leaves)), key_name=found[1], name=found[2])
            make_private(leaves[place].dir)
        with (leaves[place].dir / found[3]).open("xb") as file:
            for piece in data:
                file.write(piece)
    return [leaves[place] for place in sorted(leaves)]


def _members(stream: IO[bytes]) -> Iterator[tuple[tarfile.TarInfo, Iterator[bytes]]]:
    """Yield the regular files of a plain tar archive. Anything else is refused, with all that tar can be made to do."""
    while any(block := _exactly(stream, tarfile.BLOCKSIZE)):
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.size < 0:
            raise ValueError(f"it holds {info.name[:80]!r}, which is no regular file")
        yield info, _data_of(stream, info.size)


def _data_of(stream: IO[bytes], size: int) -> Iterator[bytes]:
    left = size
    while left:
        piece = _exactly(stream, min(left, _PIECE))
        left -= len(piece)
        yield piece
    if rest := -size % tarfile.BLOCKSIZE:
        _exactly(stream, rest)


def _exactly(stream: IO[bytes], size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = stream.read(size - len(data))
        if not piece:
            raise EOFError("it ends too early")
        data += piece
    return data


def _publish(leaf: _Leaf, cache_dir: Path) -> bool:
    """Move a whole entry into place, under a free number; one that is there already is left as it is."""
    key_dir = cache_dir / leaf.key_name
    make_private(key_dir)
    while True:
        names = [found for name in os.listdir(key_dir) if (found := LEAF.match(name))]
        likes = [key_dir / found[0] for found in names if found[0].endswith(leaf.name[-16:])]
        if likes and (digest := _product_digest(leaf.dir)) in map(_product_digest, likes) and digest:
            return False
        number = max((int(found[1]) for found in names), default=-1) + 1
        target = key_dir / f"{number:04d}-{leaf.name[-16:]}"
        try:
            os.rename(leaf.dir, target)
        except OSError:
            if not target.exists():
                raise
        else:
            return True


def _product_digest(leaf_dir: Path) -> str:
    """Return what an entry's manifest says of its product; "" where there is none that says anything."""
    with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
        return str(read_manifest(leaf_dir)["sha256"])
    return ""


# ---- compression -----------------------------------------------------------------------------------------------


@contextmanager
def _opened(path: Path, name: str, mode: str) -> Iterator[IO[bytes]]:
    """Open an archive for reading or writing; its name says how it is compressed."""
    with ExitStack() as stack:
        if name.endswith((".tar.zst", ".tzst")):
            yield stack.enter_context(_open_zstd(path, mode))
        elif name.endswith((".tar.gz", ".tgz")):
            import gzip

            raw = stack.enter_context(path.open(mode))
            # Without a name and a time in it, the same entries make the same archive.
            packed: Any = gzip.GzipFile("", mode, 6, raw, mtime=0)
            yield stack.enter_context(packed)
        elif name.endswith(".tar"):
            yield stack.enter_context(path.open(mode))
        else:
            raise CacheError(f"{name!r} must end in .tar.zst, .tar.gz or .tar: the name says how it is compressed")


def _open_zstd(path: Path, mode: str) -> Any:
    with suppress(ImportError):
        from compression import zstd  # Python 3.14

        return zstd.open(path, mode)
    with suppress(ImportError):
        import zstandard

        return zstandard.open(path, mode)
    raise CacheError("a .tar.zst archive needs: pip install zstandard  (or name it .tar.gz, which needs nothing)")


def _unpacking_errors() -> tuple[type[Exception], ...]:
    """Return what may be raised where an archive is damaged, by whatever unfolds it, too."""
    import zlib

    found: list[type[Exception]] = [OSError, EOFError, ValueError, RecursionError, tarfile.TarError, zlib.error]
    with suppress(ImportError):
        from compression.zstd import ZstdError

        found.append(ZstdError)
    with suppress(ImportError):
        import zstandard

        found.append(zstandard.ZstdError)
    return tuple(found)
