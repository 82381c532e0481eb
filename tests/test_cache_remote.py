"""The remote store: write-through, garbage, links, stores that are down or slow, nodes that see each other late."""

import logging
import threading
import time
from pathlib import Path

import pytest
from builds import ARCH, build, kernel, run_python

from jitload import errors
from jitload.cache import remote
from jitload.cache.archive import pack_key
from jitload.cache.key import SCHEMA, CacheKey
from jitload.cache.store import claim_entry
from jitload.settings import read_settings

TEXT = kernel("far")


class Store:
    """A store in memory that counts, and does what a test wants first."""

    def __init__(self, before=lambda: None) -> None:
        self.kept: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.before = before

    def get(self, key: str) -> bytes | None:
        self.asked.append(key)
        self.before()
        return self.kept.get(key)

    def put(self, key: str, data: bytes) -> None:
        self.before()
        if not key.endswith(".claim"):
            self.kept[key] = data

    def list(self, prefix: str) -> list[str]:
        return [name for name in self.kept if name.startswith(prefix)]

    def create(self, key: str, data: bytes) -> bool:
        return True


store = Store()
OWN = (remote._import_package, remote._open_store)


def use_url(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Use a store that fsspec opens, in place of `store`."""
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE", url)
    for name, function in zip(("_import_package", "_open_store"), OWN, strict=True):
        monkeypatch.setattr(remote, name, function)


@pytest.fixture(autouse=True)
def _afresh(monkeypatch):
    monkeypatch.setattr("jitload.pipeline._modules", {})
    monkeypatch.setattr(remote, "_failures", {})
    monkeypatch.setattr(remote, "_stores", {})
    monkeypatch.setattr(f"{__name__}.store", Store())
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE", "memory://store")
    monkeypatch.setattr(remote, "_import_package", lambda url: None)
    monkeypatch.setattr(remote, "_open_store", lambda url: store)
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE_WRITE", "1")
    errors.warn_once.cache_clear()


@pytest.fixture
def node(tmp_path, monkeypatch):
    """Return a function that makes this process one of another cache: a node by that name."""

    def become(name: str) -> Path:
        cache = tmp_path / name
        monkeypatch.setenv("JITLOAD_CACHE_DIR", str(cache))
        cache.mkdir(mode=0o700, exist_ok=True)
        return cache

    return become


def end_minute() -> None:
    """Let the store be asked again, although it has failed."""
    remote._failures.clear()


def test_a_node_loads_from_the_remote_store_what_another_one_built(node, monkeypatch):
    node("one")
    path = build(TEXT)
    (name,) = store.kept
    digest = path.parents[1].name[-64:]
    assert name == f"v{SCHEMA}/m-{digest[-24:]}/{ARCH}/{digest}.tar.gz"
    second_node = node("other")
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    product = build(TEXT)
    assert product.is_relative_to(second_node)
    assert product.read_bytes() == path.read_bytes()
    requests = len(store.asked)
    assert build(TEXT) == product
    assert len(store.asked) == requests  # a local hit asks nobody


def test_the_remote_store_is_written_only_on_request(node, monkeypatch):
    monkeypatch.delenv("JITLOAD_CACHE_REMOTE_WRITE")
    node("one")
    build(TEXT)
    assert len(store.asked) == 1
    assert store.kept == {}


def test_urls_of_fsspec(node, monkeypatch, tmp_path):
    pytest.importorskip("fsspec")
    use_url(monkeypatch, f"file://{tmp_path}/far away/store")
    node("one")
    path = build(TEXT)
    node("other")
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    assert build(TEXT).read_bytes() == path.read_bytes()
    kept = sorted(path for path in (tmp_path / "far away").rglob("*") if path.is_file())
    assert [(path.suffix, path.stat().st_size > 0) for path in kept] == [(".claim", False), (".gz", True)]


def test_builds_that_read_different_headers_travel_together(node, monkeypatch, tmp_path):
    text = '#include "h.h"\n' + kernel("far", "x[0] = VALUE;")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "include").mkdir()
    header = tmp_path / "include" / "h.h"
    paths = []
    for value, name in ((1, "one"), (2, "two")):
        header.write_text(f"#define VALUE {value}\n")
        node(name)
        paths.append(build(text, extra_include_paths=[header.parent]).read_bytes())
    assert paths[0] != paths[1]
    node("three")
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    for value in (2, 1):
        header.write_text(f"#define VALUE {value}\n")
        assert build(text, extra_include_paths=[header.parent]).read_bytes() == paths[value - 1]


def test_a_machine_without_nvrtc_finds_what_others_built(node, monkeypatch):
    node("one")
    path = build(TEXT)
    build(TEXT, arch="sm_80")
    build(kernel("other"))
    monkeypatch.setattr("jitload.sources.device.find_cuda_toolchain", _find_nothing)
    for mode in ("auto", "load-only"):
        cache = node(mode)
        monkeypatch.setenv("JITLOAD_MODE", mode)
        assert build(TEXT).read_bytes() == path.read_bytes()
        assert [key_dir.name for key_dir in cache.glob("m-*")] == [path.parents[1].name]  # and nothing else is fetched
        store.asked.clear()
        assert build(TEXT).is_relative_to(cache)
        assert store.asked == []
    with pytest.raises(errors.CacheError, match=r"(?s)nor in .*archs: sm_90a and sm_75"):
        build(TEXT, arch="sm_75")


def test_of_many_threads_one_asks(node, monkeypatch):
    node("one")
    build(TEXT)
    node("other")
    store.asked.clear()
    store.before = lambda: time.sleep(0.2)
    threads = [threading.Thread(target=build, args=(TEXT,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(store.asked) == 1


def test_precompiled_headers_stay_at_home(node):
    cache = node("one")
    key = CacheKey.of("headers", (("kind", "pch"),))
    with claim_entry(cache, key, read_settings()) as work:
        (work.dir / "all.h.gch").write_bytes(b"large")
        entry = work.publish("all.h.gch")
    assert pack_key(entry.dir.parent) == b""


class Exclusive(Store):
    def create(self, key: str, data: bytes) -> bool:
        return self.kept.setdefault(key, data) is data

    def put(self, key: str, data: bytes) -> None:
        self.kept[key] = data


@pytest.fixture
def exclusive(node, monkeypatch):
    """Return a store that can be claimed, and what it has after a build: the names of a claim and of an archive."""
    store = Exclusive()
    monkeypatch.setattr(f"{__name__}.store", store)
    node("one")
    build(TEXT)
    claim, archive = sorted(store.kept)
    assert store.kept[claim] == b""  # released
    node("two")
    return store, claim, archive


def test_a_host_waits_for_the_one_that_builds(exclusive, monkeypatch):
    store, claim, archive = exclusive
    data = store.kept.pop(archive)
    store.kept[claim] = str(time.time() + 50).encode()
    threading.Timer(0.3, lambda: store.kept.update({archive: data})).start()
    monkeypatch.setattr("jitload.sources.device.build", None)
    assert build(TEXT).name == "m.so"
    assert float(store.kept[claim]) > time.time()  # the other host releases its claim itself


@pytest.mark.parametrize("content", ["expired", "of a wrong clock", "damaged", "held"])
def test_a_claim_of_a_dead_host_expires(exclusive, monkeypatch, content):
    store, claim, archive = exclusive
    before = store.kept.pop(archive)
    times = {"expired": time.time() - 1, "of a wrong clock": time.time() + 9999, "held": time.time() + 1}
    store.kept[claim] = str(times.get(content, "?")).encode()
    monkeypatch.setattr(remote, "_LONGEST_PAUSE_S", 0.1)
    started = time.monotonic()
    build(TEXT)
    assert (0.5 if content == "held" else 0) < time.monotonic() - started < 20
    assert (len(store.kept[archive]) > len(before) / 2, store.kept[claim]) == (True, b"")


def test_a_failed_build_releases_its_claim(exclusive):
    store, *_ = exclusive
    store.kept.clear()
    with pytest.raises(errors.CompileError):
        build("__global__ void f() { nothing(); }")
    assert list(store.kept.values()) == [b""]


def spoil(data: bytes, other: bytes) -> dict[str, bytes | str]:
    """Return what may come in place of an archive; every kind of hostile member is in test_cache_archive.py."""
    middle = len(data) // 2
    return {
        "nothing": b"",
        "no archive": b"<html>404</html>" * 100,
        "text": "text",
        "cut": data[:middle],
        "flipped": data[:middle] + bytes([data[middle] ^ 0xFF]) + data[middle + 1 :],
        "of another key": other,
        "swollen": data,  # the test allows less
    }


@pytest.mark.parametrize("content", spoil(b"..", b""))
def test_garbage_costs_a_warning_and_a_build(node, caplog, monkeypatch, content, tmp_path):
    node("one")
    path = build(TEXT)
    (name,) = store.kept
    build(kernel("other"))
    (another,) = store.kept.keys() - {name}
    store.kept[name] = spoil(store.kept[name], store.kept[another])[content]
    if content == "swollen":
        monkeypatch.setattr(remote, "_MAX_UNPACKED", 1000)
    second_node = node("other")
    before = set(tmp_path.rglob("*"))
    product = build(TEXT)
    assert product.is_relative_to(second_node)
    assert product.read_bytes() == path.read_bytes()
    assert "the entry m from the remote cache " in caplog.text
    assert all(path.is_relative_to(second_node) for path in set(tmp_path.rglob("*")) - before)
    assert len(list(second_node.glob("m-*"))) == 1
    assert list((second_node / ".work").iterdir()) == []


def test_a_store_that_is_down_is_asked_once_a_minute(node, caplog):
    def fail():
        raise ConnectionError("no route to host")

    store.before = fail
    node("one")
    for name in ("a", "b", "c"):
        build(kernel(name))
    assert len(store.asked) == 1
    words = "the remote cache memory://store is not used for a minute: ConnectionError: no route to host"
    assert caplog.text.count(words) == 1
    store.before = lambda: None
    end_minute()
    build(kernel("e"))
    assert len(store.asked) == 2
    assert len(store.kept) == 1


def test_a_store_that_is_slow_costs_a_bounded_time(node, caplog, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE_TIMEOUT", "0.3")
    end = threading.Event()
    store.before = lambda: end.wait(30)
    node("one")
    build(kernel("a"))
    started = time.monotonic()
    end_minute()
    build(kernel("b"))
    assert time.monotonic() - started < 5
    assert "no answer within 0.3 s (JITLOAD_CACHE_REMOTE_TIMEOUT)" in caplog.text
    end.set()


def _find_nothing(*_: object) -> None:
    raise errors.ToolchainError("NVRTC was not found")


def test_a_hanging_store_does_not_hold_a_process_at_its_end(node, tmp_path):
    (tmp_path / "hanging.py").write_text(
        "import time\nfrom fsspec.implementations.memory import MemoryFileSystem\n"
        "class Hanging(MemoryFileSystem):\n    def _open(self, *args, **kwargs): time.sleep(60)\n"
    )
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import builds, fsspec\n"
        "fsspec.register_implementation('hanging', 'hanging.Hanging')\nprint(builds.build(builds.kernel('z')))"
    )
    env = {"JITLOAD_CACHE_REMOTE": "hanging://store", "JITLOAD_CACHE_REMOTE_TIMEOUT": "0.2"}
    started = time.monotonic()
    done = run_python(code, env={**env, "JITLOAD_CACHE_DIR": str(node("one"))})
    assert done.returncode == 0, done.stderr
    assert time.monotonic() - started < 20


def test_without_fsspec_the_warning_says_what_to_install(node, caplog, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "fsspec", None)
    use_url(monkeypatch, "s3://bucket/x")
    node("one")
    build(TEXT)
    assert "pip install 'jitload[remote]'" in caplog.text


def test_a_put_that_fails_costs_a_warning(node, caplog):
    def refuse(key: str, data: bytes) -> None:
        raise PermissionError("read only")

    store.put = refuse
    cache = node("one")
    with caplog.at_level(logging.WARNING):
        assert build(TEXT).is_relative_to(cache)
    assert "PermissionError: read only" in caplog.text
