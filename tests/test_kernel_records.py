"""Kernels that are launched from their record, before there is a library, and the library that follows."""

import errno
import json
import logging
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from builds import kernel, python_env, run_python

import jitload
from jitload import Launch
from jitload.building import background
from jitload.building.native import NAMES, find_native
from jitload.cache import store
from jitload.errors import ToolchainError

FUNCTIONS = {"k": Launch(grid=1, block=1)}
LOAD = """
import sys, time
import jitload
functions = {{"k": jitload.Launch(grid=1, block=1)}}
mod = jitload.load_inline("m", cuda_sources={source!r}, functions=functions, arch="sm_90a")
print(mod.__dict__["_jitload_origin"].suffix, list(mod), flush=True)
time.sleep({seconds})
"""


def entries(cache: Path) -> list[Path]:
    """Return the entries of a cache, in the order in which they were made."""
    return sorted(path.parent for path in cache.glob("m-*/*/manifest.json"))


def product(entry: Path) -> str:
    return json.loads((entry / "manifest.json").read_text())["product"]


def load(name: str = "m") -> jitload.Module:
    return jitload.load_inline(name, cuda_sources=kernel("k"), functions=FUNCTIONS, arch="sm_90a")


def load_in_child(seconds: float = 0.0, **environment: str) -> str:
    """Return what a new process says of the module that it loads."""
    done = run_python(LOAD.format(source=kernel("k"), seconds=seconds), environment, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def wait_for_library(cache: Path) -> None:
    deadline = time.monotonic() + 60
    while not any(product(entry).endswith(".so") for entry in entries(cache)):
        assert time.monotonic() < deadline, "no library was built"
        time.sleep(0.05)


def test_kernels_work_without_a_library(cache):
    mod = load()
    (entry,) = entries(cache)
    assert product(entry) == "kernels.record"
    assert not [*entry.glob("*.so"), *entry.glob("*.o"), *entry.glob("*.cc")]
    assert isinstance(mod, jitload.loader.module.tvm_ffi.Module)
    assert (list(mod), "k" in mod, len(mod), "nothing" in mod) == (["k"], True, 1, False)
    assert (mod.implements_function("k"), mod.implements_function("nothing")) == (True, False)
    assert json.loads(mod.get_function_metadata("k")["type_schema"])["type"] == "ffi.Function"
    assert "k(" in repr(mod)
    assert str(mod.k.ptx()).startswith("//")
    assert mod.k.kernel.name == "k"
    with pytest.raises(AttributeError, match="has no function 'nothing'; it has: k"):
        mod.nothing  # noqa: B018
    with pytest.raises(TypeError, match=r"k\(\)"):
        mod.k(1, 2, 3, 4, 5, 6)


def test_the_next_process_uses_what_is_there(cache):
    assert load_in_child() == ".record ['k']"
    assert load_in_child() == ".record ['k']"
    assert load_in_child(JITLOAD_LIBRARY="now") == ".so ['k']"  # made from the record
    assert load_in_child() == ".so ['k']"
    assert [product(entry) for entry in entries(cache)] == ["kernels.record", "m.so"]


def test_the_library_of_a_record_in_a_shared_directory_is_built_in_the_cache(cache, tmp_path, monkeypatch):
    load()
    shared = Path(shutil.move(cache, tmp_path / "shared"))
    before = sorted(shared.rglob("*"))
    monkeypatch.setenv("JITLOAD_CACHE_PATH", str(shared))
    monkeypatch.setenv("JITLOAD_LIBRARY", "later")
    monkeypatch.setattr("jitload.building.background._DELAY_S", 0.0)
    monkeypatch.setattr("jitload.pipeline._modules", {})
    assert load().__dict__["_jitload_origin"].is_relative_to(shared)
    wait_for_library(cache)
    monkeypatch.setattr("jitload.pipeline._modules", {})
    assert load().__dict__["_jitload_origin"].is_relative_to(cache)
    assert sorted(shared.rglob("*")) == before


def test_no_library_is_built_for_a_cache_that_cannot_be_written(cache, monkeypatch, caplog):
    load()

    def refuse(*_: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(cache))

    monkeypatch.setenv("JITLOAD_LIBRARY", "later")
    monkeypatch.setattr("jitload.building.background._DELAY_S", 0.0)
    monkeypatch.setattr("jitload.pipeline._modules", {})
    monkeypatch.setattr(store, "make_private_dir", refuse)
    with caplog.at_level(logging.INFO):
        load()
        if thread := background._queue.thread:
            thread.join(60)
    assert f"the library of 'm' is not built: the cache {cache} cannot store an entry: [Errno 30]" in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_process_that_ends_first_leaves_no_half(cache, tmp_path):
    compiler = tmp_path / "c++"
    compiler.write_text(f"#!/bin/sh\ntouch {tmp_path}/started\nsleep 3600\n")
    compiler.chmod(0o755)
    assert load_in_child(1.5, JITLOAD_LIBRARY="later", JITLOAD_CXX=str(compiler)) == ".record ['k']"
    assert (tmp_path / "started").exists()
    assert [product(entry) for entry in entries(cache)] == ["kernels.record"]
    assert not list((cache / ".work").iterdir())


def test_damage_is_found(cache):
    for damages_cubin in (False, True):
        load()
        entry = entries(cache)[-1]
        record, cubin = ((entry / name).read_bytes() for name in ("kernels.record", "sm_90a.cubin"))
        place = record.index(cubin) + len(cubin) // 2 if damages_cubin else len(record) - 1
        (entry / "kernels.record").write_bytes(record[:place] + b"\1\1" + record[place + 2 :])
        assert load_in_child() == ".record ['k']"
        assert entries(cache)[-1] != entry, "the entry was used"


@pytest.mark.parametrize("damage", ["in the background", "now"])
def test_a_library_is_not_made_from_damaged_files(cache, monkeypatch, damage):
    """A crash of the machine may have truncated files that a hit does not read."""
    load()
    (damaged,) = entries(cache)
    (damaged / "wrapper.json").write_bytes(b"")
    monkeypatch.setenv("JITLOAD_LIBRARY", "now" if damage == "now" else "later")
    monkeypatch.setattr("jitload.building.background._DELAY_S", 0.0)
    for _ in range(2):
        monkeypatch.setattr("jitload.pipeline._modules", {})
        load()
        if thread := background._queue.thread:
            thread.join(60)
    assert product(entries(cache)[-1]) == "m.so"
    assert not damaged.exists()


def test_damaged_files_are_not_shown(cache):
    function = load().k
    (entry,) = entries(cache)
    assert (entry / "source0.cu").read_text() == kernel("k")
    (entry / "sm_90a.ptx").write_text("")
    with pytest.raises(jitload.JitLoadError, match=r"sm_90a.ptx is damaged: remove the directory .*build the library"):
        function.ptx()


def test_a_header_that_changes_is_read_again_also_for_the_library(cache, tmp_path, monkeypatch):
    header = tmp_path / "value.h"
    source = '#include "value.h"\n' + kernel("k", "x[0] = VALUE;")
    options = {"functions": FUNCTIONS, "arch": "sm_90a", "extra_include_paths": [str(tmp_path)]}

    def load_with_header() -> None:
        monkeypatch.setattr("jitload.pipeline._modules", {})
        jitload.load_inline("m", cuda_sources=source, **options)

    header.write_text("#define VALUE 1\n")
    load_with_header()
    header.write_text("#define VALUE -12345\n")
    monkeypatch.setenv("JITLOAD_LIBRARY", "now")
    load_with_header()
    ptx = (entries(cache)[-1] / "sm_90a.ptx").read_text()
    assert product(entries(cache)[-1]) == "m.so"
    header.write_text("#define VALUE 1\n")
    load_with_header()
    assert (entries(cache)[-1] / "sm_90a.ptx").read_text() != ptx


@pytest.fixture
def bare_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave nothing on the PATH but Python."""
    assert all(find_native(name) for name in NAMES)
    directory = tmp_path / "bin"
    directory.mkdir()
    (directory / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("PATH", str(directory))
    for name in ("CXX", "CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("bare_path")
def test_kernels_need_no_compiler(cache):
    assert load_in_child(1.0, JITLOAD_LIBRARY="later") == ".record ['k']"
    assert load_in_child() == ".record ['k']"
    source = kernel("k")
    for call in (
        lambda: jitload.load_inline("c", cpp_sources="int f(int x) { return x; }", functions=["f"]),
        lambda: jitload.load_inline("c", cuda_sources=source, arch="cpu"),
        lambda: jitload.build_inline("m", cuda_sources=source, functions=FUNCTIONS, arch="sm_90a"),
    ):
        with pytest.raises(ToolchainError, match=r"no C\+\+ compiler.*apt install g\+\+"):
            call()


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu", "bare_path")
def test_the_quickstart_runs_without_a_compiler(cache):
    command = [sys.executable, str(Path(__file__).parents[1] / "examples" / "quickstart.py")]
    done = subprocess.run(command, env=python_env(), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
