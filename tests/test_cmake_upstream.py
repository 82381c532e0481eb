"""tvm-ffi's CMake functions under its names: whichever package is found first, ours answer."""

import subprocess
from pathlib import Path

import pytest
from builds import ARCH
from support.cmake import CMAKE, MACRO, USER, change, configure, make, write_project
from support.fatbins import symbols_in
from tvm_ffi import libinfo

import jitload
from jitload.building.files_read import read_depfile
from jitload.cmake.generate_cubin import main
from jitload.cuda.fatbin import read_fatbin
from jitload.elf.cubin import read_cubin

pytestmark = pytest.mark.skipif(CMAKE is None, reason="cmake is not installed: pip install cmake")


UPSTREAM = """
tvm_ffi_generate_cubin(
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/kernel.cubin
  SOURCE k.cu
  ARCH sm_90
  OPTIONS -O3 --use_fast_math -DN=1 -DM=2
)
add_custom_target(cubin ALL DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/kernel.cubin)
tvm_ffi_embed_cubin(
  OUTPUT ${CMAKE_CURRENT_BINARY_DIR}/with_cubin.o
  SOURCE w.cc
  CUBIN ${CMAKE_CURRENT_BINARY_DIR}/kernel.cubin
  NAME env
)
add_library(lib SHARED ${CMAKE_CURRENT_BINARY_DIR}/with_cubin.o)
target_link_libraries(lib PRIVATE tvm_ffi_header tvm_ffi_shared)
set_target_properties(lib PROPERTIES PREFIX "" LINKER_LANGUAGE CXX)
"""
WRAPPER = """
#include <tvm/ffi/extra/cuda/cubin_launcher.h>
#include <tvm/ffi/function.h>
TVM_FFI_EMBED_CUBIN(env);
void Run() { static auto kernel = TVM_FFI_EMBED_CUBIN_GET_KERNEL(env, "k"); }
TVM_FFI_DLL_EXPORT_TYPED_FUNC(run, Run);
"""
OLD_PACKAGE = """
add_library(tvm_ffi::header INTERFACE IMPORTED)
add_library(tvm_ffi::shared INTERFACE IMPORTED)
function(tvm_ffi_generate_cubin)
  message(FATAL_ERROR "this needs nvcc")
endfunction()
"""
PACKAGES = [("tvm_ffi", "jitload"), ("jitload", "old")]


@pytest.mark.parametrize("order", PACKAGES, ids="-".join)
def test_upstreams_functions_in_upstreams_form(order, tmp_path):
    """Whatever package is found first, old releases of tvm-ffi that have the functions themselves among them."""
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "tvm_ffi-config.cmake").write_text(OLD_PACKAGE)
    root = tmp_path / "old" if "old" in order else libinfo.find_cmake_path()
    lines = ["cmake_minimum_required(VERSION 3.18)", "project(upstream LANGUAGES CXX)"]
    lines += [f"find_package({'jitload' if name == 'jitload' else 'tvm_ffi'} CONFIG REQUIRED)" for name in order]
    kernel = 'extern "C" __global__ void k(int* x) { *x = N + M; }\n'
    source = write_project(tmp_path / "p", "\n".join([*lines, UPSTREAM]), k_cu=kernel, w_cc=WRAPPER)
    done = configure(source, tmp_path / "b", f"-Dtvm_ffi_ROOT={root}")
    assert done.returncode == 0, done.stderr
    if "old" in order:  # its function would have ended the configuration
        assert "-m jitload.cmake.generate_cubin " in (tmp_path / "b" / "build.ninja").read_text()
        return
    make(tmp_path / "b")
    assert list(jitload.load_module(tmp_path / "b" / "lib.so")) == ["run"]
    commands = subprocess.run(["nm", str(tmp_path / "b" / "with_cubin.o")], capture_output=True, text=True, check=True)
    assert " r __tvm_ffi__cubin_env\n" in commands.stdout
    assert "cudaLibrary" not in commands.stdout  # our header, which needs no runtime


BINARIES = """
cmake_minimum_required(VERSION 3.18)
project(newer LANGUAGES CXX)
find_package(tvm_ffi CONFIG REQUIRED)
find_package(jitload CONFIG REQUIRED)
set(CMAKE_CUDA_ARCHITECTURES 90a 80-real 86 90-virtual)
add_tvm_ffi_fatbin(one_fatbin CUDA k.cu)
target_compile_definitions(one_fatbin PRIVATE N=4 "M=(2 + 3)")
target_include_directories(one_fatbin PRIVATE in)
target_compile_options(one_fatbin PRIVATE --use_fast_math)
set(CMAKE_CUDA_ARCHITECTURES 90)
add_tvm_ffi_cubin(two_cubin CUDA k.cu)
target_compile_definitions(two_cubin PRIVATE N=1 M=1 k=empty)
target_include_directories(two_cubin PRIVATE in)
add_library(lib SHARED w.cc)
target_link_libraries(lib PRIVATE tvm_ffi::header tvm_ffi::shared)
target_compile_definitions(lib PRIVATE BLOCKS=3)
set_target_properties(lib PROPERTIES PREFIX "")
add_dependencies(lib one_fatbin)
tvm_ffi_embed_bin_into(lib SYMBOL one BIN "$<TARGET_OBJECTS:one_fatbin>")
tvm_ffi_embed_bin_into(lib SYMBOL two BIN ${CMAKE_CURRENT_BINARY_DIR}/two_cubin/k.cubin)
"""


def test_upstreams_newer_functions(tmp_path, stub_driver):
    """A fatbin of two architectures and a cubin, by the names and arguments of tvm-ffi 0.1.8 on, without CUDA's own."""
    (tmp_path / "p" / "in").mkdir(parents=True)
    (tmp_path / "p" / "in" / "n.h").write_text("")
    source = write_project(tmp_path / "p", BINARIES, k_cu=MACRO, w_cc=USER, text_h="")
    done = configure(source, tmp_path / "b", f"-Dtvm_ffi_ROOT={libinfo.find_cmake_path()}")
    assert done.returncode == 0, done.stderr
    make(tmp_path / "b")
    fatbin = (tmp_path / "b" / "one_fatbin" / "k.fatbin").read_bytes()
    assert symbols_in(fatbin) == [("sm_90a", ["k"]), ("sm_80", ["k"]), ("sm_86", ["k"])]
    assert [entry.arch for entry in read_fatbin(fatbin) if entry.is_ptx] == ["compute_86", "compute_90"]
    assert read_cubin((tmp_path / "b" / "two_cubin" / "k.cubin").read_bytes()).arch == "sm_90"
    stub_driver.use_device(0)
    jitload.load_module(tmp_path / "b" / "lib.so").run()
    assert [(launch.kernel, launch.grid[0]) for launch in stub_driver.launches()] == [("k", 3), ("empty", 9)]
    assert "Compiling" not in make(tmp_path / "b")
    change(source / "in" / "n.h", "// changed\n")
    assert make(tmp_path / "b").count("Compiling k.cu to a") == 2


def test_templates_options_and_the_list_of_headers(tmp_path):
    """In a directory whose name a makefile must not read as it stands."""
    source = tmp_path / "a $b #c" / "k.cu"
    source.parent.mkdir()
    (source.parent / "n.h").write_text("#define N 2\n")
    text = '#include "n.h"\ntemplate <class T> __global__ void scale(T* x) { x[0] *= N; }\n'
    source.write_text(text + 'extern "C" __global__ void plain(float* x) { x[0] = N; }\n')
    output = source.parent / "out" / "k.cubin"
    arguments = ["--source", str(source), "--output", str(output), "--arch", ARCH, "--depfile", str(output) + ".d"]
    assert main([*arguments, "--kernel", "scale<float>", "--kernel", "scale<int>", "--", "-O3", "-DM=1"]) == 0
    symbols = {kernel.symbol for kernel in read_cubin(output.read_bytes()).kernels}
    assert symbols == {"plain", "_Z5scaleIfEvPT_", "_Z5scaleIiEvPT_"}
    rule = Path(f"{output}.d").read_text()
    assert rule.startswith(str(output).replace("$", "$$").replace("#", "\\#").replace(" ", "\\ ") + ": ")
    read = read_depfile(rule)
    assert read[:2] == [source, source.parent / "n.h"]
    assert "nvrtc" in read[2].name
