"""The 21 defects found in the loader that jitload replaces: each has a test, here or where this file points to."""

from __future__ import annotations

import importlib
import subprocess
from pathlib import Path

import pytest
from builds import ADD, build, kernel, load, message

import jitload
from jitload import Launch

WHERE = {
    "D1 stale code": "test_api.test_the_same_name_in_a_build_directory_gives_the_new_code",
    "D1 an edited header": "test_cpptext_includes.test_a_changed_header_gives_a_new_build",
    "D1 changed environment": "test_api.test_the_environment_is_read_at_each_call",
    "D2 the cubin is an input of the link": "test_codegen.test_the_build_file_is_as_it_was",
    "D3 a read-only cache hangs": "test_cache_store.test_a_read_only_cache_with_the_entry_works",
    "D3 a cold one": "test_cache_store.test_a_read_only_cache_without_the_entry_builds_in_private_and_says_so",
    "D4 a truncated library": "test_cache.test_a_damaged_entry_is_set_aside_and_built_again",
    "D5 an empty library": "test_cache.test_a_damaged_entry_is_set_aside_and_built_again",
    "D6 a moved cache": "test_cache.test_a_moved_cache_still_hits",
    "D7 names and paths": "test_api.test_include_paths_may_have_any_letters",
    "D7 the cache's path": "test_cache.cache",
    "D8 an undefined symbol": "test_upstream_defects.test_d8_everything_is_bound_when_the_library_is_loaded",
    "D9 messages": "test_errors_user.test_an_error_in_line_7_says_line_7_and_shows_it",
    "D10 no sources": "test_errors_user.test_a_source_that_is_none",
    "D11 the CUDA home": "test_upstream_defects.test_d11_no_cuda_library_is_linked",
    "D12 hidden names": "test_loader.test_kernels_named_like_its_attributes_are_reached_by_name",
    "D13 integers out of range": "test_upstream_defects.test_d13_an_integer_that_does_not_fit_is_refused",
    "D3 a full disk": "test_cache_faults.test_a_full_disk_is_no_failure_of_a_call",
    "D7 hostile names": "test_cache_entry.test_a_strange_name_works_and_stays_inside_the_cache",
    "D1 environment of the compilers": "test_cache_key.test_what_compilers_read_of_the_environment_is_in_the_key",
    "D14 a library half written": "test_cache_store.test_a_builder_killed_half_way_leaves_the_cache_usable",
    "D15 needed libraries and weak symbols": "test_codegen.test_the_library_exports_its_functions_and_nothing_else",
    "D16 docs and types": "test_upstream_defects.test_d16_docs_and_types_are_there_for_upstream_too",
    "D17 warnings": "test_api.test_a_warning_is_shown_though_the_build_succeeds",
    "D18 modules pile up": "test_upstream_defects.test_d18_an_identical_cell_adds_no_library",
    "D19 Windows": "a later issue: platforms",
    "D20 HIP": "a later issue: nothing here is for AMD's GPUs",
    "D21 CUDA headers for C++": "test_host_cpp_library.test_cpp_sources_and_cuda_sources_are_one_library",
}


def test_every_defect_is_named():
    assert {name.split()[0] for name in WHERE} == {f"D{number}" for number in range(1, 22)}


@pytest.mark.parametrize("defect", [name for name, place in WHERE.items() if place.startswith("test_")])
def test_the_pointers_point_at_something(defect):
    module, name = WHERE[defect].split(".")
    assert callable(getattr(importlib.import_module(module), name))


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
