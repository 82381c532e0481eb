"""CUDA's libraries in C++: their headers are found in wheels, and they are linked when they are called."""

import ctypes
import subprocess
from pathlib import Path

import pytest

import jitload
from jitload.errors import CompileError, ToolchainError
from jitload.host_cpp.link import missing_libraries
from jitload.toolchain import cutlass, libraries
from jitload.toolchain.cuda import Nvcc
from jitload.toolchain.libraries import header_hint

HEADERS = {
    "nvidia/cu13/include/cublas_v2.h": '#pragma once\nextern "C" int cublasGetVersion_v2(int);',
    "nvidia/cu13/include/curand.h": '#pragma once\nextern "C" int curandGetVersion(int);',
    "nvidia/cu13/include/stdlib.h": "#error the headers of wheels come last",
    "nvidia/cudnn/include/cudnn.h": "#pragma once\n#define CUDNN_MAJOR 9",
    "cutlass_library/source/include/cutlass/version.h": "#define CUTLASS_MAJOR 4",
    "cutlass_library/source/include/cutlass/cutlass.h": "#pragma once\n#define CUTLASS_HOST_DEVICE",
}
LIBRARIES = {
    "nvidia/cu13/lib/libcublas.so.13": "cublasGetVersion_v2",
    "nvidia/cu13/lib/libcurand.so.10": "curandGetVersion",
}
TEXT = """
#include <cublas_v2.h>
#include <cudnn.h>
#include <curand.h>
#include <cutlass/cutlass.h>
#include <stdlib.h>
int blas(int x) { return cublasGetVersion_v2(x); }
int random_numbers(int x) { return curandGetVersion(x) + CUDNN_MAJOR; }
"""


def make_library(path: Path, function: str, added: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    text = f'extern "C" int {function}(int x) {{ return x + {added}; }}'
    command = ["g++", "-shared", "-fPIC", "-x", "c++", "-", f"-Wl,-soname,{path.name}", "-o", str(path)]
    subprocess.run(command, input=text, text=True, check=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    site = tmp_path_factory.mktemp("site")
    for name, text in HEADERS.items():
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        (site / name).write_text(text + "\n")
    for name, function in LIBRARIES.items():
        make_library(site / name, function, 7)
    return site


@pytest.fixture
def wheels(site: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels of CUDA 13 with libraries, in place of those of this machine."""
    for module in (cutlass, libraries):
        monkeypatch.setattr(module, "package_dirs", lambda name: [site / name])
    return site


def nvcc(tmp_path: Path, major: int = 13) -> Nvcc:
    return Nvcc(
        major=major, version=(major, 0), path=tmp_path / "nvcc", include_dirs=(tmp_path / "include",), identity=""
    )


def test_libraries_of_wheels_are_found_and_the_loaded_one_is_called(wheels, tmp_path):
    library = tmp_path / "libcurand.so.10"
    make_library(library, "curandGetVersion", 100)
    ctypes.CDLL(str(library))  # as torch has loaded its own
    module = jitload.load_inline(
        "calls", cpp_sources=TEXT, functions=["blas", "random_numbers"], extra_ldflags=["-lcublas", "-lcurand"]
    )
    assert module.blas(1) == 8
    assert module.random_numbers(1) == 110


def test_a_library_of_the_toolkit_or_one_named_by_the_user_is_linked(wheels, tmp_path):
    make_library(tmp_path / "lib64" / "libcusparse.so", "cusparseCreate", 1)
    path = tmp_path / "lib64" / "libcusparse.so"
    undefined = ["cusparseCreate", "cublasLtCreate", "malloc"]
    options = missing_libraries(undefined, nvcc(tmp_path), ["/opt/libcublasLt.so.13"], "m")
    assert options == (str(path), f"-Wl,-rpath,{path.parent}")
    assert missing_libraries(["cublasLtCreate"], nvcc(tmp_path), ["-lmine"], "m") == ()  # which may bring it
    with pytest.raises(
        ToolchainError, match=r"calls cublasLtCreate, but libcublasLt was not found.* pip install nvidia-cublas, "
    ):
        missing_libraries(undefined, nvcc(tmp_path), [], "m")


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("x.cu:1:10: fatal error: cublas_v2.h: No such file or directory", "pip install nvidia-cublas"),
        (
            'x.cu(3): catastrophic error: cannot open source file "cuda/std/__tuple_dir/structured_bindings.h"',
            "pip install 'nvidia-cuda-cccl==13.0.*'",
        ),
        ("x.cpp:1:10: fatal error: cutlass/gemm/gemm.h: No such file or directory", "pip install nvidia-cutlass"),
        ("x.cpp:1:10: fatal error: my-own.h: No such file or directory", "extra_include_paths=[…]"),
        ("x.cpp:1:10: error: cannot convert \u2018int\u2019 to \u2018cublasHandle_t\u2019", ""),
    ],
)
def test_what_is_missing_is_named_with_its_wheel(line, hint):
    assert hint in header_hint(line, 13)
    assert bool(header_hint(line, 13)) is bool(hint)


def test_the_error_of_a_missing_header_ends_with_the_command(monkeypatch):
    monkeypatch.setattr(libraries, "package_dirs", lambda name: [])
    with pytest.raises(CompileError, match=r"(?m)nccl\.h was not found; it comes with: pip install nvidia-nccl-cu13$"):
        jitload.load_inline("lacks", cpp_sources="#include <nccl.h>\nint f(int x) { return x; }", functions=["f"])
