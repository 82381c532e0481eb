"""The CMake package: the example project, tvm-ffi's names beside ours, what is built again, what is refused."""

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from builds import ROOT
from support.arrays import CudaArray, tensor_of
from support.cmake import CMAKE, MACRO, USER, change, cmake, configure, make, refused, write_project
from support.program import CUBIN

import jitload
from jitload.cmake import config

EXAMPLE = ROOT / "examples" / "cmake"

pytestmark = pytest.mark.skipif(CMAKE is None, reason="cmake is not installed: pip install cmake")


def install_example(directory: Path, arch: str) -> Path:
    done = configure(EXAMPLE, directory / "build", f"-DARCH={arch}")
    assert done.returncode == 0, done.stderr
    make(directory / "build")
    assert cmake("--install", directory / "build", "--prefix", directory / "dist").returncode == 0
    return directory / "dist" / "lib" / "example.so"


def test_the_example_builds_installs_and_launches(tmp_path, stub_driver):
    import tvm_ffi

    library = install_example(tmp_path, "sm_90")
    symbols = subprocess.run(["nm", "-D", str(library)], capture_output=True, text=True, check=True).stdout
    assert "cubin" not in symbols
    assert " cu" not in symbols  # neither the driver nor the CUDA runtime is asked for by the linker
    stub_driver.use_device(0)
    x = CudaArray(np.zeros(300, np.float32))
    for module in (tvm_ffi.load_module(str(library)), jitload.load_module(library)):
        module.add(tensor_of(x), tensor_of(x), 2.0)
        with pytest.raises(ValueError, match="x has 300 elements, y 3"):
            module.add(tensor_of(x), tensor_of(CudaArray(np.zeros(3, np.float32))), 2.0)
    first, second = stub_driver.launches()
    assert (first.kernel, first.grid, second.grid) == ("add", (2, 1, 1), (2, 1, 1))
    assert first.arguments[2:] == (np.float32(2).tobytes(), np.int64(300).tobytes())


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_the_example_on_a_gpu(tmp_path):
    import torch

    module = jitload.load_module(install_example(tmp_path, "native"))
    x = torch.randn(100_000, device="cuda")
    y = torch.empty_like(x)
    module.add(x, y, 2.0)
    torch.testing.assert_close(y, x + 2)


TWO = """
jitload_generate_cubin(OUTPUT "made here/k.cubin" SOURCE k.cu ARCH sm_90
                        INCLUDE_DIRECTORIES "in c" OPTIONS -O3 "-DM=(1 + 2)")
jitload_embed_cubin(OUTPUT w.o SOURCE w.cc CUBIN "made here/k.cubin" two.cubin NAME one two OPTIONS -DBLOCKS=3)
add_library(w MODULE ${one_EMBEDDED_OBJ})
set_target_properties(w PROPERTIES PREFIX "" LINKER_LANGUAGE CXX)
"""


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
def test_what_changed_is_built_again_by_make(tmp_path, stub_driver):
    """A header of the kernel, a cubin, a header of the C++; in directories with blanks."""
    source = write_project(tmp_path / "a project", TWO, k_cu=MACRO, w_cc=USER, text_h="", two_cubin="")
    header = source / "in c" / "n.h"
    header.parent.mkdir()
    header.write_text("#define N 1\n")
    shutil.copy(CUBIN, source / "two.cubin")
    build = tmp_path / "the build"
    done = configure(source, build, "-GUnix Makefiles")
    assert done.returncode == 0, done.stderr
    assert "Compiling k.cu to a cubin (sm_90)" in make(build)
    stub_driver.use_device(0)
    jitload.load_module(build / "w.so").run()
    assert [(launch.kernel, launch.grid[0]) for launch in stub_driver.launches()] == [("k", 3), ("empty", 9)]

    assert "Compiling k.cu" not in make(build)
    before = (build / "made here" / "k.cubin").read_bytes()
    change(header, "#define N 2222\n")
    assert "Embedding cubins into w (one" in make(build)
    after = (build / "made here" / "k.cubin").read_bytes()
    assert before != after
    assert after in (build / "w.so").read_bytes()
    change(source / "text.h", "#undef BLOCKS\n#define BLOCKS 5\n")
    said = make(build)
    assert "Embedding" in said
    assert "Compiling k.cu" not in said


REFUSED = [
    ("jitload_generate_cubin(SOURCE k.cu)", "jitload_generate_cubin: OUTPUT is required"),
    ("jitload_generate_cubin(OUT k.cubin)", "jitload_generate_cubin: unknown argument: 'OUT;k.cubin'"),
    ("jitload_generate_cubin(OUTPUT k SOURCE k.cu ARCH sm_80 sm_90)", "but ARCH has 2; use FATBIN for several"),
    ("add_tvm_ffi_fatbin(t)", "add_tvm_ffi_fatbin: CUDA is required"),
    (
        "set(CMAKE_CUDA_ARCHITECTURES 90-virtual)\nadd_tvm_ffi_cubin(t CUDA k.cu)",
        "has '90-virtual': name architectures",
    ),
    ("tvm_ffi_embed_bin_into(t BIN k.cubin)", "tvm_ffi_embed_bin_into: SYMBOL is required"),
    ("tvm_ffi_embed_bin_into(t SYMBOL k BIN k.cubin)", "tvm_ffi_embed_bin_into: there is no target 't'"),
    ("jitload_embed_cubin(TARGET t CUBIN a b NAME c)", "there are 2 cubins but 1 names: give one NAME for each cubin"),
    ("jitload_embed_cubin(TARGET t CUBIN a NAME a-b)", "jitload_embed_cubin: NAME 'a-b' is not a C++ name"),
]


def test_what_cannot_be_is_said_by_cmake(tmp_path, capsys):
    config.main(["--includedirs"])
    python = tmp_path / "python"  # starting a real one for each row takes longer than CMake
    python.write_text(f"#!/bin/sh\nprintf '%s' '{capsys.readouterr().out.strip()}'\n")
    python.chmod(0o755)
    for number, (text, words) in enumerate(REFUSED):
        lines = "cmake_minimum_required(VERSION 3.20)\nproject(p LANGUAGES NONE)\n"
        lines += "find_package(jitload CONFIG REQUIRED)\n" + text
        assert words in refused(tmp_path / str(number), lines, f"-DPython_EXECUTABLE={python}"), text


def test_a_python_without_jitload_is_named(tmp_path):
    source = write_project(tmp_path / "p", "")
    done = configure(source, tmp_path / "b", f"-DPython_EXECUTABLE={tmp_path}/python")
    assert done.returncode != 0
    assert f"the Python '{tmp_path}/python' has no working jitload:" in " ".join(done.stderr.split())


def test_nvrtcs_words_and_bad_cubins_are_shown_as_they_are(tmp_path):
    text = "jitload_generate_cubin(OUTPUT k.cubin SOURCE k.cu ARCH sm_90)\n"
    text += "jitload_embed_cubin(OUTPUT w.o SOURCE w.cc CUBIN bad.cubin NAME one)\n"
    text += "add_custom_target(first ALL DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/k.cubin)\n"
    text += "add_custom_target(second DEPENDS ${CMAKE_CURRENT_BINARY_DIR}/w.o)\n"
    broken = 'extern "C" __global__ void k(int* x) {\n  y[0] = 1;\n}\n'
    source = write_project(tmp_path / "p", text, k_cu=broken, w_cc="int f();", bad_cubin=".version 8.0\n")
    assert configure(source, tmp_path / "b").returncode == 0
    done = cmake("--build", tmp_path / "b")
    assert done.returncode != 0
    assert f'{source / "k.cu"}(2): error: identifier "y" is undefined' in done.stdout
    assert not (tmp_path / "b" / "k.cubin").exists()
    done = cmake("--build", tmp_path / "b", "--target", "second")
    assert done.returncode != 0
    assert f"Error: {source / 'bad.cubin'}: these bytes are PTX: compile it with compile_cubin(ptx)" in done.stdout
    assert not (tmp_path / "b" / "w.o").exists()


def test_the_command_names_what_is_there(capsys):
    assert config.main(["--cmakedir", "--includedir", "--version", "--libs", "--launcher-source"]) == 0
    version, cmake_dir, include, libs, launcher = capsys.readouterr().out.splitlines()
    assert (Path(cmake_dir) / "jitload-config.cmake").is_file()
    assert (Path(include) / "jitload" / "kernel_library.h").is_file()
    assert (version, libs, Path(launcher).is_file()) == (jitload.__version__, "-ldl -lpthread", True)
    assert config.main([]) == 0
    assert "--cxxflags" in capsys.readouterr().out
