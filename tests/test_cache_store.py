"""The cache between processes: read-only, shared, raced for, and left by a builder that was killed."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from builds import ADD, build, kernel, load, run_python, start_python, work_dirs

import jitload

BUILD = "import builds; print(builds.build(builds.ADD))"


@pytest.fixture
def counting_compiler(tmp_path, monkeypatch) -> Callable[[], int]:
    """Put a script in the compiler's place; the function returns how many wrappers it has compiled."""
    log, script = tmp_path / "log", tmp_path / "counting-c++"
    real = shutil.which("c++")
    script.write_text(f'#!/bin/sh\ncase "$*" in *wrapper.cc*) echo x >> "{log}"; sleep 0.3;; esac\nexec {real} "$@"\n')
    script.chmod(0o755)
    monkeypatch.setenv("JITLOAD_CXX", str(script))
    return lambda: len(log.read_text().split()) if log.exists() else 0


@contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Make a directory read-only: by its bits, or for root, whom bits do not bind, by a mount."""
    if os.getuid() != 0:
        folders = [directory, *(path for path in directory.rglob("*") if path.is_dir())]
        for folder in folders:
            folder.chmod(0o500)
        yield
        for folder in folders:
            folder.chmod(0o700)
        return
    options = (["--bind", str(directory)], ["-o", "remount,ro,bind"])
    if any(
        subprocess.run(["mount", *words, str(directory)], capture_output=True, check=False).returncode
        for words in options
    ):
        subprocess.run(["umount", str(directory)], capture_output=True, check=False)
        pytest.skip("this root may not mount")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(directory)], check=True)  # what was loaded from it stays mapped


# ---- read-only -------------------------------------------------------------------------------------------------


def test_a_read_only_cache_with_the_entry_works(cache, caplog):
    path = build(ADD)
    with read_only(cache):
        assert build(ADD) == path
        assert list(load(ADD)) == ["add"]
    assert caplog.text == ""


def test_a_read_only_cache_without_the_entry_builds_in_private_and_says_so(cache, caplog):
    build(ADD)
    with read_only(cache):
        path = build(kernel("other"))
        assert list(jitload.load_module(path)) == ["other"]
    assert f"the cache {cache} cannot store an entry: [Errno 30] " in caplog.text
    assert f" Building in {path.parent.parent.parent}, for this process only" in caplog.text
    assert not path.is_relative_to(cache)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    shutil.rmtree(path.parent.parent.parent)


def test_a_damaged_entry_of_a_read_only_cache_is_skipped(cache, caplog):
    path = build(ADD)
    os.truncate(path, 1000)
    with read_only(cache):
        fresh = build(ADD)
    assert "cannot be used (" in caplog.text
    assert not fresh.is_relative_to(cache)
    shutil.rmtree(fresh.parent.parent.parent)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_builds_in_private_where_the_home_is_closed(tmp_path):
    private = tmp_path / "home of root"
    private.mkdir(mode=0o700)
    code = """
import os
import sys
import tempfile
import jitload
import jitload.codegen.wrapper
import jinja2
import encodings.idna
import fcntl
import socket
import jitload.cache.prune
import jitload.loader.module
import jitload.kernels.compilation
import jitload.building.runtime
import filelock
os.chdir("/")
from jitload.errors import CacheWriteError
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from jitload.cache.entry import open_cache, find_entry, private_cache_dir
from jitload.cache.key import CacheKey
from jitload.cache.store import claim_entry
from jitload.settings import read_settings
settings = read_settings()
cache = open_cache(settings)
key = CacheKey.of("r", ())
assert find_entry(cache, key, settings) is None
try:
    with claim_entry(cache, key, settings) as work:
        raise AssertionError("it can be written")
except CacheWriteError as error:
    print(error, file=sys.stderr)
with claim_entry(private_cache_dir(), key, settings) as work:
    (work.dir / "p").write_bytes(b"x")
    entry = work.publish("p")
print(entry.product, entry.product.stat().st_uid)
"""
    env = {"JITLOAD_CACHE_DIR": str(private / "cache"), "TMPDIR": "/tmp"}
    done = run_python(code, env)
    assert done.returncode == 0, done.stderr
    assert "cannot store an entry: [Errno 13]" in done.stderr
    product, owner = done.stdout.split()
    assert owner == "65534"
    assert not Path(product).parent.parent.parent.exists()  # it ended with the process


def test_a_cache_that_cannot_be_written_is_replaced_once_for_the_process(tmp_path):
    (tmp_path / "file").write_text("")
    code = "import builds; paths = {builds.build(builds.ADD) for _ in range(3)}; print(len(paths), *paths)"
    done = run_python(code, {"JITLOAD_CACHE_DIR": str(tmp_path / "file" / "cache"), "TMPDIR": str(tmp_path)})
    assert (done.stdout[:2], done.stderr.count("cannot store an entry")) == ("1 ", 1), done.stderr
    assert os.listdir(tmp_path) == ["file"]


# ---- several processes -----------------------------------------------------------------------------------------


def test_without_locks_each_builds_and_all_work(cache, counting_compiler):
    build(kernel("first"))
    refuse = "import fcntl\ndef no(*_, **__): raise OSError(37, 'No locks available')\nfcntl.flock = no\n"
    processes = [start_python(refuse + BUILD) for _ in range(2)]
    paths = {Path(process.communicate()[0].strip()) for process in processes}
    assert [process.returncode for process in processes] == [0, 0]
    assert all(list(jitload.load_module(path)) == ["add"] for path in paths)
    assert counting_compiler() in (2, 3)


def test_an_interrupt_leaves_nothing_behind(cache, monkeypatch):
    build(kernel("first"))

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("jitload.building.library.run_ninja", interrupt)
        with pytest.raises(KeyboardInterrupt):
            build(ADD)
    assert work_dirs(cache) == []
    assert list(load(ADD)) == ["add"]
