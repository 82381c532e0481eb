"""Defects of the loader that jitload replaces, as far as no other file of tests has their subject."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from builds import ADD, build, kernel, load, message

import jitload
from jitload import Launch


@pytest.fixture(scope="module")
def library() -> Path:
    return build(ADD, functions={"add": Launch(grid=1, block=1, doc="Add one.")})


def read_dynamic(library: Path) -> str:
    return subprocess.run(["readelf", "-d", str(library)], capture_output=True, text=True, check=True).stdout


def test_d8_everything_is_bound_when_the_library_is_loaded(library):
    assert "BIND_NOW" in read_dynamic(library) or "NOW" in read_dynamic(library)


def test_d9_the_log_is_the_compilers_alone():
    said = message(jitload.errors.CompileError, kernel("k", "x[0] = nothing;"))
    assert "ninja" not in said
    assert "FAILED:" not in said


def test_d11_no_cuda_library_is_linked(library):
    assert "NEEDED" not in read_dynamic(library)
    assert "RPATH" not in read_dynamic(library)
    assert "RUNPATH" not in read_dynamic(library)


def test_d13_an_integer_that_does_not_fit_is_refused():
    module = load('extern "C" __global__ void k(int n) {}', functions={"k": Launch(grid=1, block=1)})
    with pytest.raises(ValueError, match=rf"k\(\): argument 'n' .*{2**40 + 5}"):
        module.k(2**40 + 5)


def test_d16_docs_and_types_are_there_for_upstream_too(library):
    tvm_ffi = pytest.importorskip("tvm_ffi")
    module = tvm_ffi.load_module(str(library))
    assert module.get_function_doc("add") == "Add one."
    assert "DLTensor*" in module.get_function_metadata("add")["type_schema"]


def test_d18_an_identical_cell_adds_no_library():
    def mapped() -> set[str]:
        return {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(".so")}

    load(ADD, "cell")
    before = mapped()
    for _ in range(3):
        load(ADD, "cell")
    assert mapped() == before
