"""What happens during a build: the garbage collector, the log, and the files that a compiler reads."""

import gc
import logging
import os
import re
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from builds import kernel, load, run_python

from jitload.building import native, ninja
from jitload.building.files_read import read_depfile, unversioned_headers
from jitload.building.resources import collect_young_objects, pause_garbage_collection
from jitload.building.stages import shown_log, stage
from jitload.elf.file import read_dynamic_symbols
from jitload.errors import CompileError


@pytest.fixture
def gc_states(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Note whether the collector is on before ninja is waited for, and behind that."""
    notes: list[bool] = []
    monkeypatch.setenv("JITLOAD_LIBRARY", "now")
    wait = subprocess.Popen.communicate

    def noting(process, *arguments, **options):
        is_ninja = process.args[0].endswith("ninja")
        notes.extend([gc.isenabled()] * is_ninja)
        waited = wait(process, *arguments, **options)
        notes.extend([gc.isenabled()] * is_ninja)
        return waited

    monkeypatch.setattr(subprocess.Popen, "communicate", noting)
    return notes


@pytest.fixture
def switched_off() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


def test_the_collector_is_off_during_a_build(gc_states):
    assert list(load(kernel("held"))) == ["held"]
    assert gc_states[0] is False
    assert gc.isenabled()


def test_the_collector_is_off_for_a_limited_time(gc_states, monkeypatch):
    monkeypatch.setattr("jitload.pipeline._GC_PAUSE_S", 0.01)
    load(kernel("held_briefly"))
    assert gc_states[-1] is True  # the compile took longer
    with pause_garbage_collection(), pause_garbage_collection(at_most_s=0.01):
        time.sleep(0.5)
        assert gc.isenabled()


def test_the_collector_is_on_again_after_a_failed_build():
    with pytest.raises(CompileError):
        load("__global__ void held(")
    assert gc.isenabled()


def test_the_collector_is_on_again_after_a_hit():
    for _ in range(2):
        load(kernel("again"), keep_module_alive=False)
    assert gc.isenabled()


@pytest.mark.usefixtures("switched_off")
def test_a_collector_that_the_program_switched_off_stays_off(gc_states):
    load(kernel("held_by_others"))
    assert gc_states
    assert not any(gc_states)
    assert not gc.isenabled()


def test_the_last_of_several_builds_switches_the_collector_on():
    is_in, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with pause_garbage_collection():
            is_in.set()
            go_on.wait(10)

    build_thread = threading.Thread(target=hold)
    with pause_garbage_collection():
        build_thread.start()
        assert is_in.wait(10)
    states = [gc.isenabled()]
    go_on.set()
    build_thread.join()
    assert [*states, gc.isenabled()] == [False, True]


def test_a_child_forked_during_a_build_has_the_collector_on():
    with pause_garbage_collection():
        child = os.fork()
        if child == 0:
            os._exit(0 if gc.isenabled() else 1)
        assert not gc.isenabled()
    assert os.waitpid(child, 0)[1] == 0


def test_after_a_build_only_young_objects_are_collected():
    """Or the first hit behind `import torch` would be the one that pays for a look at all that torch made."""
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    with pause_garbage_collection():
        made = [[] for _ in range(20_000)]
    assert len(made) == 20_000
    assert gc.get_stats()[2]["collections"] == before
    assert gc.get_count()[0] < gc.get_threshold()[0]


def test_a_thread_of_a_build_collects_what_is_due_only_in_a_pause():
    gc.collect()
    with pause_garbage_collection():
        made = [[] for _ in range(20_000)]
        collect_young_objects()
        assert gc.get_count()[0] < gc.get_threshold()[0]
    gc.disable()  # as a program may do
    try:
        made += [[] for _ in range(20_000)]
        collect_young_objects()
        assert gc.get_count()[0] > gc.get_threshold()[0]
    finally:
        gc.enable()


# ---- imports -----------------------------------------------------------------------------------------------------

FIRST_BUILD = """
import sys, threading
import builds, jitload
late = {"jitload.codegen.wrapper", "jitload.elf.cubin", "jitload.loader.module", "jitload.model",
        "jitload.signature.kernels", "jitload.toolchain.cutlass"}
start, found = threading.Thread.start, []
def watch(thread):
    if thread.name == "jitload-nvrtc":
        found.append(late & {*sys.modules})
    start(thread)
threading.Thread.start = watch
from jitload.cuda import bindings
opened, open_nvrtc = [], bindings.open_nvrtc
bindings.open_nvrtc = lambda path: opened.append(threading.current_thread().name) or open_nvrtc(path)
builds.load(builds.ADD)
assert found == [set()], found
assert opened == ["jitload-build"]  # while the caller makes the job for NVRTC
"""


def test_what_reads_the_result_of_nvrtc_is_imported_while_it_runs(cache):
    done = run_python(FIRST_BUILD)
    assert done.returncode == 0, done.stderr
    assert os.listdir(cache)


# ---- stages ------------------------------------------------------------------------------------------------------


def unconfigured_logger(monkeypatch, level=logging.NOTSET):
    """Return the package's logger as in a program without handlers; pytest adds its own when a test begins."""
    logger = logging.getLogger("jitload")
    for name, value in {"propagate": False, "handlers": [], "level": level, "_cache": {}}.items():
        monkeypatch.setattr(logger, name, value)
    return logger


@pytest.mark.parametrize("level", [logging.WARNING, logging.ERROR, logging.INFO])
def test_the_last_of_several_builds_restores_the_logger(monkeypatch, capsys, level):
    logger = unconfigured_logger(monkeypatch, level)
    shown_log.__enter__()
    shown_log.__enter__()
    shown_log.__exit__(None, None, None)
    with stage("the second build"):
        pass
    shown_log.__exit__(None, None, None)
    assert logger.level == level
    assert not logger.handlers
    with stage("a build that is not shown"):
        pass
    assert re.fullmatch(r"jitload: the second build: \d+ ms\n", capsys.readouterr().err)


def test_nothing_is_shown_by_default(monkeypatch, capsys):
    unconfigured_logger(monkeypatch)
    with stage("a build"):
        pass
    assert not capsys.readouterr().err


# ---- the files that a compiler read ------------------------------------------------------------------------------


def test_a_depfile_is_read_with_its_escapes(tmp_path):
    directory = tmp_path / "a $b #c"
    directory.mkdir()
    (directory / "x y.h").write_text("")
    source = directory / "s.cc"
    source.write_text('#include "x y.h"\n')
    subprocess.run(["c++", "-MD", "-MF", "d", "-c", str(source), "-o", "s.o"], cwd=tmp_path, check=True)
    assert read_depfile((tmp_path / "d").read_text())[-1] == directory / "x y.h"


HEADERS = [
    ("/usr/include/stdio.h", False),
    ("/usr/include/x86_64-linux-gnu/bits/types.h", False),
    ("/usr/include/c++/12/vector", False),
    ("/usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h", False),
    ("/usr/include/linux/types.h", False),
    ("/usr/include/zlib.h", True),
    ("/usr/include/eigen3/Eigen/Core", True),
    ("/usr/include/x86_64-linux-gnu/openblas.h", True),
    ("/usr/local/include/own.h", True),
    ("/versioned/tvm/ffi/c_api.h", False),
    ("relative.h", False),
]


@pytest.mark.parametrize(("path", "is_recorded"), HEADERS)
def test_headers_of_other_packages_are_recorded(path, is_recorded):
    assert list(unversioned_headers([Path(path)], [Path("/versioned")])) == [Path(path)] * is_recorded


@pytest.mark.parametrize("flags", [ninja.LINK_FLAGS, native._LINK_FLAGS])
def test_libraries_contain_what_gcc_calls_by_itself(tmp_path, flags):
    """On aarch64, these are also the functions for atomic operations, and without them no library could be loaded."""
    source = tmp_path / "divide.cc"
    source.write_text('extern "C" __int128 divide(__int128 a, __int128 b) { return a / b; }')
    library = tmp_path / "divide.so"
    subprocess.run(["g++", "-fPIC", source, "-o", library, *flags], check=True)
    symbols = read_dynamic_symbols(library.read_bytes())
    assert "divide" in symbols.defined
    assert symbols.undefined == ()
