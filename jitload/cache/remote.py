"""Reads and writes a remote store, which maps keys to archives of entries. The store may be down or return garbage."""

from __future__ import annotations

import functools
import logging
import operator
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from jitload.cache.entry import Entry, find_entry, key_dir_of, private_cache_dir
from jitload.cache.key import SCHEMA, CacheKey
from jitload.cache.locks import LOCKS_DIR, hold_lock
from jitload.cache.store import prepare_cache
from jitload.errors import CacheError
from jitload.settings import Settings
from jitload.toolchain.private_files import replace_file

_MAX_PACKED = 256 << 20
_MAX_UNPACKED = 1 << 30
_MAX_FETCHED = 16  # how many archives of other tools are tried for one key
_CLAIM_S = 60.0  # how long a claim holds; other hosts wait for at most two claims
_LONGEST_PAUSE_S = 2.0
_RETRY_S = 60.0  # seconds; how long a store that failed is not asked again
_OBJECT_NAME = re.compile(r"([0-9a-f]{64})\.tar\.gz")
_log = logging.getLogger(__name__)
_stores: dict[tuple[str, int], _Store] = {}
_failures: dict[str, tuple[float, str]] = {}  # address -> when the store may be asked again, and why it failed
Answer = TypeVar("Answer")


def hide_credentials(url: str) -> str:
    """Return a URL without its user name and password, for messages."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def last_failure(settings: Settings) -> str:
    """Return how the remote store failed in the last minute, in which this process does not ask it; otherwise ""."""
    until_s, problem = _failures.get(settings.remote, (0.0, ""))
    return problem if time.monotonic() < until_s else ""


def fetch_entry(cache_dir: Path, key: CacheKey, settings: Settings, *, needs_library: bool) -> Entry | None:
    """Copy an entry for a key from the remote store to the local cache. Return it, or None if the store has none.

    If the key has unknown parts, the archives of other tools are tried one after another. If several processes of this
    machine need the entry, one process copies it and the others wait.
    """
    local_dir = _writable(cache_dir)
    find = functools.partial(find_entry, local_dir, key, settings, needs_library=needs_library)
    with hold_lock(
        local_dir / LOCKS_DIR / f"{key.digest}-fetch",
        f"{key.name!r} from {hide_credentials(settings.remote)}",
        verb="fetches",
    ):
        if entry := find():
            return entry
        for other in _keys_to_fetch(local_dir, key, settings):
            data = _ask(settings, operator.methodcaller("get", f"{object_dir(key)}/{other.digest}.tar.gz"))
            is_new = data is not None and _unpack(local_dir, data, other, settings)
            if is_new and (entry := find()):
                return entry
    return None


def _keys_to_fetch(local_dir: Path, key: CacheKey, settings: Settings) -> Sequence[CacheKey]:
    """Return the keys whose archives may have an entry for a key."""
    if not key.unknown_parts:
        return (key,)
    names = _ask(settings, operator.methodcaller("list", f"{object_dir(key)}/")) or ()
    matches = (_OBJECT_NAME.fullmatch(name.rpartition("/")[2]) for name in names)
    keys = [key._replace(digest=match[1]) for match in matches if match]
    return [other for other in keys if not key_dir_of(local_dir, other).exists()][:_MAX_FETCHED]


def put_entry(entry: Entry, key: CacheKey, settings: Settings) -> None:
    """Put the newest local entries of a key, including `entry`, into the remote store as one archive."""
    from jitload.cache.archive import pack_key

    try:
        data = pack_key(entry.dir.parent)
    except (CacheError, OSError) as error:
        _log.warning("%s is not put into the remote cache: %s", key.name, error)
        return
    if data:
        _ask(settings, operator.methodcaller("put", f"{object_dir(key)}/{key.digest}.tar.gz", data))


@contextmanager
def claim_build(cache_dir: Path, key: CacheKey, settings: Settings, *, needs_library: bool) -> Iterator[Entry | None]:
    """Yield None if this host is to build the entry for a key, or the entry that another host has built meanwhile.

    The claim is an object in the store, which is emptied after the block. If its host dies, it expires.
    """
    name = f"{object_dir(key)}/{key.digest}.claim"
    take = functools.partial(_take_claim, name=name)
    deadline_s, pause_s = time.monotonic() + 2 * _CLAIM_S, 0.05
    while (is_mine := _ask(settings, take)) is False and time.monotonic() < deadline_s:
        if pause_s > 1:
            _log.info("another host builds %s", key.name)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
        if entry := fetch_entry(cache_dir, key, settings, needs_library=needs_library):
            yield entry
            return
    try:
        yield None
    finally:
        if is_mine:
            _ask(settings, lambda store: store.put(name, b""))


def _take_claim(store: _Store, name: str) -> bool:
    """Claim a build, and return True. Return False if another host has claimed it."""
    claim = str(time.time() + _CLAIM_S).encode()
    if not store.create(name, claim):
        with suppress(ValueError):
            if 0 < float(store.get(name) or 0) - time.time() <= _CLAIM_S:
                return False
        store.put(name, claim)  # if several hosts replace an expired claim at the same time, each of them builds
    return True


def object_dir(key: CacheKey) -> str:
    """Return the common beginning of the store's names for what a key asks for, whatever tools made it.

    It consists of letters, digits, `_`, `-`, `.` and `/`.
    """
    archs = next((value for label, value in key.parts if label == "archs"), ())
    return f"v{SCHEMA}/{key.name}-{key.asked}/{'-'.join(map(str, archs))[:100] or 'any'}"


def _writable(cache_dir: Path) -> Path:
    try:
        prepare_cache(cache_dir)
    except OSError:
        return private_cache_dir()
    return cache_dir


def _unpack(local_dir: Path, data: Any, key: CacheKey, settings: Settings) -> bool:
    from jitload.cache.archive import unpack_key

    try:
        unpack_key(local_dir, data, f"{key.name}-{key.digest}", max_size=_MAX_UNPACKED)
    except (CacheError, TypeError) as error:  # TypeError: the store returned something other than bytes
        _log.warning(
            "the entry %s from the remote cache %s is not used: %s", key.name, hide_credentials(settings.remote), error
        )
        return False
    return True


# ---- a request with a time limit -------------------------------------------------------------------------------


def _ask(settings: Settings, request: Callable[[_Store], Answer]) -> Answer | None:
    """Return the result of `request(store)`. If the request fails or takes too long, log a warning and return None.

    The time limit does not include the import of the store's package, which may take long if many processes start at
    the same time. After a failure, this process does not use the store for a minute.
    """
    if last_failure(settings):
        return None
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(request(_open_store(settings.remote)))
        except BaseException as error:  # noqa: BLE001  a store's library may raise anything
            answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    try:
        _import_package(settings.remote)
        threading.Thread(target=ask, name="jitload-remote", daemon=True).start()
        if wait([answer], settings.remote_timeout_s).done:
            return answer.result()
        problem = f"no answer within {settings.remote_timeout_s:g} s (JITLOAD_CACHE_REMOTE_TIMEOUT)"
    except (Exception, SystemExit) as error:  # noqa: BLE001  a store that is down must not fail the call
        problem = f"{type(error).__name__}: {error}"
    _failures[settings.remote] = (time.monotonic() + _RETRY_S, problem)
    _log.warning("the remote cache %s is not used for a minute: %s", hide_credentials(settings.remote), problem)
    return None


def _import_package(url: str) -> None:
    """Import the package of the store at a URL."""
    try:
        import fsspec
    except ImportError as error:
        raise CacheError("JITLOAD_CACHE_REMOTE needs fsspec: pip install 'jitload[remote]'") from error
    for part in url.split("::"):  # a chain such as simplecache::s3://bucket
        fsspec.get_filesystem_class(part.partition("://")[0])


def _open_store(url: str) -> _Store:
    """Return the store at a URL. Each process opens its own, because a fork must not share connections."""
    if (url, os.getpid()) not in _stores:
        _stores[url, os.getpid()] = _Store(url)
    return _stores[url, os.getpid()]


class _Store:
    """A directory or bucket that fsspec opens: `s3://` with s3fs, `gs://` with gcsfs, `file://`, `memory://`."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._files, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")
        self._is_local = "file" in self._files.protocol

    def get(self, key: str) -> bytes | None:
        with suppress(FileNotFoundError), self._files.open(f"{self._root}/{key}", "rb") as file:
            data: bytes = file.read(_MAX_PACKED)  # an archive that is cut off cannot be unpacked
            return data
        return None

    def list(self, prefix: str) -> list[str]:
        self._files.invalidate_cache()
        with suppress(FileNotFoundError):
            return sorted(map(str, self._files.ls(f"{self._root}/{prefix.rstrip('/')}", detail=False)))
        return []

    def create(self, key: str, data: bytes) -> bool:
        """Store new data, or return False. Where the back end has no exclusive writing, hosts may overwrite it."""
        path = f"{self._root}/{key}"
        try:
            if self._is_local:
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with open(path, "xb") as file:
                    file.write(data)
            else:
                self._files.pipe_file(path, data, mode="create")
        except FileExistsError:
            return False
        except Exception as error:  # noqa: BLE001  the back end or the server does not know this mode
            _log.info("the remote cache cannot be claimed, so each host builds: %s", error)
        return True

    def put(self, key: str, data: bytes) -> None:
        path = f"{self._root}/{key}"
        if self._is_local:
            replace_file(Path(path), data)
        else:
            self._files.pipe_file(path, data)
