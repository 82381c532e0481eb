"""A remote store of entries: bytes by key, asked when a build would be next, and never trusted to be there or whole."""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from pathlib import Path
from typing import Any, Protocol, TypeVar

from jitload.cache.entry import Entry, find_entry
from jitload.cache.locks import hold_lock
from jitload.cache.recipe import SCHEMA, Recipe
from jitload.errors import CacheError
from jitload.settings import Settings, make_private, private_cache_dir, shown_url

_LARGEST = 256 << 20  # of an archive
_LARGEST_UNPACKED = 1 << 30
_SILENCE_S = 60.0  # that a store which failed is not asked again
_BUCKETS = frozenset(("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss", "adl", "oss", "oci", "b2", "r2", "hf"))
_log = logging.getLogger(__name__)
_stores: dict[tuple[str, int], RemoteStore] = {}
_silent_until: dict[str, float] = {}
Answer = TypeVar("Answer")


class RemoteStore(Protocol):
    """Where entries can be kept for others: `JITLOAD_CACHE_REMOTE=module:name` names one of your own."""

    def get(self, key: str) -> bytes | None:
        """Return the bytes that were put under a key, or None."""

    def put(self, key: str, data: bytes) -> None:
        """Keep bytes under a key; what was there before may be replaced."""


def fetch_entry(cache_dir: Path, recipe: Recipe, settings: Settings) -> Entry | None:
    """Return an entry from the remote store, as it lies in the local cache then; of the processes here one asks."""
    if _is_silent(settings):
        return None
    key = recipe.key
    place = _writable(cache_dir)
    with hold_lock(place / ".locks" / f"{key}-fetch", f"{recipe.name!r} from {shown_url(settings.remote)}"):
        if entry := find_entry(place, recipe, settings, key=key):
            return entry
        data = _ask(settings, lambda store: store.get(object_key(recipe, key)))
        if data is None or not _unpack(place, data, recipe, settings, key=key):
            return None
        return find_entry(place, recipe, settings, key=key)


def put_entry(entry: Entry, recipe: Recipe, settings: Settings) -> None:
    """Put the local entries of a recipe into the remote store."""
    if _is_silent(settings):
        return
    from jitload.cache.archive import pack_key

    try:
        data = pack_key(entry.dir.parent)
    except (CacheError, OSError) as error:
        _log.warning("%s is not put into the remote cache: %s", recipe.name, error)
        return
    if data:
        _ask(settings, lambda store: store.put(object_key(recipe, recipe.key), data))


def object_key(recipe: Recipe, key: str) -> str:
    """Return the name under which a store has the entries of a recipe: letters, digits, `_`, `-`, `.` and `/`."""
    return f"v{SCHEMA}/{key[:2]}/{recipe.name}-{key}.tar.gz"


def _writable(cache_dir: Path) -> Path:
    try:
        make_private(cache_dir)
        if os.access(cache_dir, os.W_OK):
            return cache_dir
    except OSError:
        pass
    return private_cache_dir()


def _unpack(place: Path, data: Any, recipe: Recipe, settings: Settings, *, key: str) -> bool:
    from jitload.cache.archive import unpack_key

    try:
        if not isinstance(data, bytes | bytearray | memoryview) or len(data) > _LARGEST:
            raise CacheError(f"it gave {type(data).__name__}, and not bytes, at most {_LARGEST} of them")  # noqa: TRY301
        unpack_key(place, bytes(data), f"{recipe.name}-{key}", max_size=_LARGEST_UNPACKED)
    except CacheError as error:
        _log.warning(
            "what the remote cache %s has of %s is not used: %s", shown_url(settings.remote), recipe.name, error
        )
        return False
    return True


# ---- a question with a bound -----------------------------------------------------------------------------------


def _is_silent(settings: Settings) -> bool:
    return time.monotonic() < _silent_until.get(settings.remote, 0.0)


def _ask(settings: Settings, question: Callable[[RemoteStore], Answer]) -> Answer | None:
    """Return a store's answer. One that fails or takes too long is left alone for a minute, with a warning."""
    answer: Future[Answer] = Future()

    def ask() -> None:
        try:
            answer.set_result(question(_store(settings.remote)))
        except BaseException as error:  # noqa: BLE001  whatever a store raises
            answer.set_exception(error if isinstance(error, Exception) else RuntimeError(repr(error)))

    threading.Thread(target=ask, name="jitload-remote", daemon=True).start()
    try:
        return answer.result(settings.remote_timeout_s)
    except FutureTimeoutError:
        problem = f"no answer within {settings.remote_timeout_s:g} s (JITLOAD_CACHE_REMOTE_TIMEOUT)"
    except Exception as error:  # noqa: BLE001  likewise: a cache that is down must not cost the call
        problem = f"{type(error).__name__}: {error}"
    _silent_until[settings.remote] = time.monotonic() + _SILENCE_S
    _log.warning("the remote cache %s is left alone for a minute: %s", shown_url(settings.remote), problem)
    return None


def _store(place: str) -> RemoteStore:
    """Return the store that a URL of fsspec, or `module:name`, means."""
    known = _stores.get((place, os.getpid()))
    if known is None:
        known = _stores[place, os.getpid()] = _FsspecStore(place) if "://" in place else _named_store(place)
    return known


def _named_store(place: str) -> RemoteStore:
    module, colon, name = place.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), name)):
        raise CacheError("it is neither a URL, such as s3://bucket/kernels, nor module:name")
    store: RemoteStore = getattr(importlib.import_module(module), name)
    return store


class _FsspecStore:
    """A directory or bucket behind fsspec: `s3://` with s3fs, `gs://` with gcsfs, `file://`, `memory://`."""

    def __init__(self, url: str) -> None:
        try:
            import fsspec
        except ImportError as error:
            raise CacheError("a URL takes fsspec: pip install 'jitload[remote]'") from error
        self._files, root = fsspec.core.url_to_fs(url)
        self._root = root.rstrip("/")

    def get(self, key: str) -> bytes | None:
        try:
            with self._files.open(f"{self._root}/{key}", "rb") as file:
                data: bytes = file.read(_LARGEST + 1)
        except FileNotFoundError:
            return None
        return data

    def put(self, key: str, data: bytes) -> None:
        # Under another name first: where a file grows in sight of others, they would read half of it.
        path = f"{self._root}/{key}"
        is_local = "file" in _protocols(self._files)
        fresh = f"{path}.{os.getpid()}-{time.time_ns()}" if is_local else path
        try:
            self._files.pipe_file(fresh, data)
        except FileNotFoundError:
            if not _BUCKETS.isdisjoint(_protocols(self._files)):
                raise  # a bucket of another name than was meant: "making its directory" would make the bucket
            self._files.makedirs(path.rpartition("/")[0], exist_ok=True)
            self._files.pipe_file(fresh, data)
        if is_local:
            os.replace(fresh, path)


def _protocols(files: Any) -> tuple[str, ...]:
    return (files.protocol,) if isinstance(files.protocol, str) else tuple(files.protocol)
