"""The remote store for real: buckets of S3 (moto) and of Google (an emulator), through s3fs and gcsfs."""

import logging
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import build, kernel, run_python

from jitload import errors
from jitload.cache import remote

_BUILD = """
import builds
from jitload.prebuilding.worker import Task, build_task
done = build_task(Task(number=0, request={"name": "m", "cuda_sources": builds.kernel("f"), "arch": builds.ARCH}))
print(done.path, done.state)
"""
SERVERS = ("s3://kernels/some/where", "gs://kernels/some/where")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of its own that writes to a remote one."""
    monkeypatch.setattr("jitload.pipeline._modules", {})
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE_WRITE", "1")
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE_TIMEOUT", "60")
    return use(monkeypatch, tmp_path / "one")


@pytest.fixture
def server(request, monkeypatch) -> Iterator[str]:
    """Start a server for the URL that the test asks for, and return the URL."""
    monkeypatch.setattr(remote, "_stores", {})
    yield from (_s3 if request.param.startswith("s3") else _google)(monkeypatch, request.param)


def _s3(monkeypatch, url: str) -> Iterator[str]:
    pytest.importorskip("s3fs", reason="no s3fs: S3 is not tested")
    moto = pytest.importorskip("moto.server", reason="no moto: S3 is not tested")
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{host}:{port}")
    import s3fs

    s3fs.S3FileSystem.clear_instance_cache()  # its files of an earlier test know that server
    s3fs.S3FileSystem(skip_instance_cache=True).makedirs("kernels", exist_ok=True)  # moto keeps it
    yield url
    server.stop()


def _google(monkeypatch, url: str) -> Iterator[str]:
    pytest.importorskip("gcsfs", reason="no gcsfs: Google's store is not tested")
    emulator = pytest.importorskip("gcp_storage_emulator.server", reason="no emulator: Google's store is not tested")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = emulator.create_server("127.0.0.1", port, in_memory=True, default_bucket="kernels")
    server.start()
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"http://127.0.0.1:{port}")
    monkeypatch.setenv("GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false")
    yield url
    server.stop()


def use(monkeypatch, cache: Path) -> Path:
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(cache))
    return cache


def built() -> tuple[Path, str]:
    """Build in a process of its own; return the library, and whether it was built there."""
    done = run_python("import warnings; warnings.simplefilter('ignore')" + _BUILD)
    assert done.returncode == 0, done.stderr
    path, state = done.stdout.split()
    return Path(path), state


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_what_one_machine_builds_another_has_without_building(cache, server, monkeypatch, tmp_path):
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE", server)
    first, state = built()
    assert state == "built"
    second_cache = use(monkeypatch, tmp_path / "other")
    monkeypatch.setenv("JITLOAD_MODE", "load-only")
    second, state = built()
    assert (second.is_relative_to(second_cache), state) == (True, "reused")
    assert second.read_bytes() == first.read_bytes()


@pytest.mark.parametrize("server", SERVERS, indirect=True)
def test_claims_and_lists(server):
    store = remote._open_store(server)
    claims = [store.create("v/a.claim", data) for data in (b"1", b"2")]
    assert claims == [True, server.startswith("gs")]  # the imitation of Google's store has no exclusive writing
    assert store.get("v/a.claim") == (b"2" if claims[1] else b"1")
    assert [name.rpartition("/")[2] for name in store.list("v/")] == ["a.claim"]
    assert store.list("w/") == []


@pytest.mark.parametrize("server", SERVERS[:1], indirect=True)
def test_a_bucket_that_is_not_there_is_not_made(cache, server, monkeypatch, caplog):
    errors.warn_once.cache_clear()
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE", "s3://kernles/some/where")
    assert build(kernel("f")).is_relative_to(cache)
    assert "the remote cache s3://kernles/some/where is not used for a minute: FileNotFoundError" in caplog.text
    import s3fs

    assert s3fs.S3FileSystem(skip_instance_cache=True).ls("") == ["kernels"]


@pytest.mark.parametrize("scheme", ["file", "memory"])
def test_urls_are_written_exclusively(tmp_path, scheme):
    pytest.importorskip("fsspec")
    store = remote._open_store(f"{scheme}://{tmp_path}/claims")
    assert [store.create("v/a.claim", data) for data in (b"1", b"2")] == [True, False]
    assert store.get("v/a.claim") == b"1"
    store.put("v/a.claim", b"")
    assert store.get("v/a.claim") == b""
