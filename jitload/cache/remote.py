"""Reads and writes a remote store, which maps keys to archives of entries. The store may be down or return garbage."""

from __future__ import annotations

import importlib
import logging
import os
import re
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from pathlib import Path
from typing import Any, Protocol, TypeVar

from jitload.cache.entry import Entry, find_entry, private_cache_dir
from jitload.cache.key import SCHEMA, CacheKey
from jitload.cache.locks import LOCKS_DIR, hold_lock
from jitload.errors import CacheError
from jitload.settings import Settings
from jitload.toolchain.host import make_private_dir

_MAX_PACKED = 256 << 20
_MAX_UNPACKED = 1 << 30
_RETRY_S = 60.0  # seconds; how long a store that failed is not asked again
_BUCKET_PROTOCOLS = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "b2", "r2", "hf"))
_log = logging.getLogger(__name__)
_stores: dict[tuple[str, int], RemoteStore] = {}
_failures: dict[str, tuple[float, str]] = {}  # address -> when the store may be asked again, and why it failed
Answer = TypeVar("Answer")


class RemoteStore(Protocol):
    """A store in which users share entries. `JITLOAD_CACHE_REMOTE=module:name` names a store of your own."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes that were stored under a key, or None."""

    def put(self, key: str, data: bytes) -> None:
        """Store bytes under a key. Replacing the bytes stored there before is allowed."""


def hide_credentials(url: str) -> str:
    """Return a URL without its user name and password, for messages."""
    return re.sub(r"//[^/@]*@", "//…@", url)


def last_failure(settings: Settings) -> str:
    """Return why the remote store is not asked at the moment: how it failed in the last minute; otherwise ""."""
    retry_s, problem = _failures.get(settings.remote, (0.0, ""))
    return problem if time.monotonic() < retry_s else ""


def fetch_entry(cache_dir: Path, key: CacheKey, settings: Settings) -> Entry | None:
    """Copy a key's entry from the remote store to the local cache. Return the entry, or None if the store has none.

    If several processes of this machine need the entry, one process copies it and the others wait.
    """
    if last_failure(settings):
        return None
    local_dir = _writable(cache_dir)
    with hold_lock(
        local_dir / LOCKS_DIR / f"{key.digest}-fetch", f"{key.name!r} from {hide_credentials(settings.remote)}"
    ):
        if entry := find_entry(local_dir, key, settings):
            return entry
        data = _ask(settings, lambda store: store.get(object_key(key)))
        if data is None or not _unpack(local_dir, data, key, settings):
            return None
        return find_entry(local_dir, key, settings)


def put_entry(entry: Entry, key: CacheKey, settings: Settings) -> None:
    """Put the newest local entries of a key, including `entry`, into the remote store as one archive."""
    if last_failure(settings):
        return
    from jitload.cache.archive import pack_key

    try:
        data = pack_key(entry.dir.parent)
    except (CacheError, OSError) as error:
        _log.warning("%s is not put into the remote cache: %s", key.name, error)
        return
    if data:
        _ask(settings, lambda store: store.put(object_key(key), data))


def object_key(key: CacheKey) -> str:
    """Return the store's name for a key's entries, made of letters, digits, `_`, `-`, `.` and `/`."""
    return f"v{SCHEMA}/{key.digest[:2]}/{key.name}-{key.digest}.tar.gz"


def _writable(cache_dir: Path) -> Path:
    try:
        make_private_dir(cache_dir)
        if os.access(cache_dir, os.W_OK):
            return cache_dir
    except OSError:
        pass
    return private_cache_dir()


def _unpack(local_dir: Path, data: Any, key: CacheKey, settings: Settings) -> bool:
    from jitload.cache.archive import unpack_key

    try:
        if not isinstance(data, bytes | bytearray | memoryview):
            raise CacheError(f"the store returned {type(data).__name__} instead of bytes")  # noqa: TRY301
        if len(data) > _MAX_PACKED:
            raise CacheError(f"the store returned more than {_MAX_PACKED} bytes")  # noqa: TRY301
        unpack_key(local_dir, bytes(data), f"{key.name}-{key.digest}", max_size=_MAX_UNPACKED)
    except CacheError as error:
        _log.warning(
            "the entry %s from the remote cache %s is not used: %s", key.name, hide_credentials(settings.remote), error
        )
        return False
    return True


# ---- a request with a time limit -------------------------------------------------------------------------------


def _ask(settings: Settings, request: Callable[[RemoteStore], Answer]) -> Answer | None:
    """Return the result of `request(store)`. If the request fails or takes too long, log a warning and return None.

    The time limit does not include the import of the store's package, which may take long if many processes start at
    the same time. After a failure, the store is not used for a minute.
    """
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


def _import_package(address: str) -> None:
    """Import the package of the store at an address."""
    if "://" not in address:
        _import_store(address)
        return
    try:
        import fsspec
    except ImportError as error:
        raise CacheError("a URL in JITLOAD_CACHE_REMOTE needs fsspec: pip install 'jitload[remote]'") from error
    for url in address.split("::"):  # a chain such as simplecache::s3://bucket
        fsspec.get_filesystem_class(url.partition("://")[0])


def _open_store(address: str) -> RemoteStore:
    """Return the store at an address. The address is a URL for fsspec, or `module:name`."""
    store = _stores.get((address, os.getpid()))
    if store is None:
        store = _FsspecStore(address) if "://" in address else _import_store(address)
        _stores[address, os.getpid()] = store
    return store


def _import_store(address: str) -> RemoteStore:
    module, colon, name = address.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise CacheError("JITLOAD_CACHE_REMOTE must be a URL, such as s3://bucket/kernels, or module:name")
    store: RemoteStore = getattr(importlib.import_module(module), name)
    return store


class _FsspecStore:
    """A directory or bucket that fsspec opens: `s3://` with s3fs, `gs://` with gcsfs, `file://`, `memory://`."""

    def __init__(self, url: str) -> None:
        import fsspec

        self._files, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")

    def get(self, key: str) -> bytes | None:
        try:
            with self._files.open(f"{self._root}/{key}", "rb") as file:
                data: bytes = file.read(_MAX_PACKED + 1)
        except FileNotFoundError:
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        path = f"{self._root}/{key}"
        protocols = (self._files.protocol,) if isinstance(self._files.protocol, str) else self._files.protocol
        is_local = "file" in protocols
        # Others could read an incomplete local file, so it is written under another name and renamed when complete.
        target = f"{path}.{os.getpid()}-{time.time_ns()}" if is_local else path
        try:
            self._files.pipe_file(target, data)
        except FileNotFoundError:
            if not _BUCKET_PROTOCOLS.isdisjoint(protocols):
                # The bucket's name is wrong, because buckets have no directories. `makedirs` would create a bucket.
                raise
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(target, data)
        if is_local:
            os.replace(target, path)
