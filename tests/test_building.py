"""What happens during a build: the garbage collector, the log, and the files that a compiler reads."""

import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
from builds import kernel, load

from jitload.building import native, ninja, resources, runtime
from jitload.building.files_read import read_depfile, unversioned_headers
from jitload.building.resources import freeze_old_objects
from jitload.elf.file import read_dynamic_symbols
from jitload.errors import CompileError


def test_a_collector_that_the_program_switched_off_stays_off():
    with pytest.raises(CompileError):
        load("__global__ void held(")
    assert gc.isenabled()
    gc.disable()
    try:
        load(kernel("held_by_others"))
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_collections_during_a_build_skip_what_was_there_before(monkeypatch):
    monkeypatch.setattr(resources, "_blocks_left", 2)
    gc.unfreeze()  # what conftest.py has frozen
    try:
        with freeze_old_objects():
            assert gc.get_freeze_count()
            with monkeypatch.context() as patch:
                patch.delattr(gc, "get_freeze_count")  # to count frozen objects of torch takes 10 ms
                with freeze_old_objects():
                    pass
            assert gc.get_freeze_count()
            child = os.fork()
            if child == 0:
                os._exit(gc.get_freeze_count() > 0)
        assert (os.waitpid(child, 0)[1], gc.get_freeze_count()) == (0, 0)
        monkeypatch.setattr(resources, "_blocks_left", 0)
        with freeze_old_objects():
            assert not gc.get_freeze_count()
    finally:
        gc.freeze()


LOOP = """
from jitload.building.resources import freeze_old_objects

class Model:
    count = 0
    def __init__(self):
        self.itself, self.layers = self, [[] for _ in range(300)]
        Model.count += 1
    def __del__(self):
        Model.count -= 1

for _ in range(2000):
    model = Model()
    with freeze_old_objects():
        pass
print(Model.count)
"""


def test_a_program_that_loads_in_a_loop_has_its_cycles_collected():
    output = subprocess.run([sys.executable, "-c", LOOP], capture_output=True, text=True, check=True).stdout
    assert int(output) < 1000


def test_what_the_program_has_frozen_stays_frozen():
    gc.freeze()
    load(kernel("frozen"))
    assert gc.get_freeze_count()


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
    ("/usr/include/c++/12/vector", False),
    ("/usr/lib/gcc/x86_64-linux-gnu/12/include/stddef.h", False),
    ("/usr/include/zlib.h", True),
    ("/usr/include/x86_64-linux-gnu/openblas.h", True),
    ("/usr/local/include/own.h", True),
    ("/versioned/tvm/ffi/c_api.h", False),
    ("relative.h", False),
]


@pytest.mark.parametrize(("path", "is_recorded"), HEADERS)
def test_headers_of_other_packages_are_recorded(path, is_recorded):
    assert list(unversioned_headers([Path(path)], [Path("/versioned")])) == [Path(path)] * is_recorded


@pytest.mark.parametrize("flags", [(*ninja._LINK_FLAGS, *runtime.LINK_OPTIONS), native._LINK_FLAGS])
def test_libraries_contain_what_gcc_calls_by_itself(tmp_path, flags):
    """On aarch64, these are also the functions for atomic operations, and without them no library could be loaded."""
    source = tmp_path / "divide.cc"
    source.write_text('extern "C" __int128 divide(__int128 a, __int128 b) { return a / b; }')
    library = tmp_path / "divide.so"
    subprocess.run(["g++", "-fPIC", source, "-o", library, *flags], check=True)
    symbols = read_dynamic_symbols(library.read_bytes())
    assert "divide" in symbols.defined
    assert symbols.undefined == ()
