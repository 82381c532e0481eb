"""CUTLASS for kernels: where its headers are found, and its functions that lack `__device__`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jitload
from jitload.errors import CompileError, ToolchainError
from jitload.settings import read_settings
from jitload.toolchain import cutlass
from jitload.toolchain.cuda import find_cuda_toolchain

KERNEL = """
#include <cute/tensor.hpp>
__global__ void k(int* x) { *x = twice(CUTLASS_MINOR); }
"""
TENSOR = "#pragma once\n#include <cutlass/version.h>\nconstexpr int twice(int x) { return 2 * x; }\n"
OPTIONS = {"arch": "sm_90a"}


def make_cutlass(root: Path, minor: int) -> None:
    version = f"#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR {minor}\n#define CUTLASS_PATCH 0\n"
    for name, text in {"cutlass/version.h": version, "cute/tensor.hpp": TENSOR}.items():
        (root / "include" / name).parent.mkdir(parents=True, exist_ok=True)
        (root / "include" / name).write_text(text)


@pytest.fixture
def wheels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Wheels with CUTLASS 4.2 and 4.10, in place of those of this machine."""
    make_cutlass(tmp_path / "cutlass_library/source", 2)
    make_cutlass(tmp_path / "flashinfer/data/cutlass", 10)
    monkeypatch.setattr(cutlass, "package_dirs", lambda name: [tmp_path / name])
    return tmp_path


def constant(source: str, **options: object) -> int:
    """Return the number that the kernel stores."""
    ptx = jitload.load_inline("m", cuda_sources=source, **OPTIONS, **options).k.ptx()
    line = next(line for line in str(ptx).splitlines() if "mov.b32" in line or "mov.u32" in line)
    return int(line.rstrip(";").split()[-1])


def test_the_newest_cutlass_in_a_wheel_is_found(wheels: Path):
    assert constant(KERNEL) == 20


def test_the_user_chooses_another_cutlass(wheels: Path, monkeypatch: pytest.MonkeyPatch):
    make_cutlass(wheels / "mine", 7)
    assert constant(KERNEL, extra_include_paths=[wheels / "cutlass_library/source/include"]) == 4
    monkeypatch.setenv("JITLOAD_CUTLASS", str(wheels / "mine"))
    assert constant(KERNEL) == 14
    monkeypatch.setenv("JITLOAD_CUTLASS", str(wheels))
    with pytest.raises(ToolchainError, match="there is no include/cutlass"):
        constant(KERNEL)


def test_kernels_call_functions_of_headers_that_lack_device(tmp_path: Path):
    (tmp_path / "sizes.h").write_text("constexpr int width() { return 33; }\n")
    source = '#include "sizes.h"\n__global__ void k(int* x) { *x = width(); }'
    assert constant(source, extra_include_paths=[tmp_path]) == 33


def test_complex_numbers_of_thrust():
    version = re.compile(r"#define CCCL_VERSION (\d+)")
    texts = (path / "cuda/std/__cccl/version.h" for path in find_cuda_toolchain(read_settings()).include_dirs)
    if not any(int(version.search(path.read_text())[1]) >= 3002000 for path in texts if path.is_file()):
        pytest.skip("<thrust/complex.h> of CCCL before 3.2 has functions for the host")
    source = "#include <thrust/complex.h>\n__global__ void k(thrust::complex<float>* x) { *x = *x * *x; }"
    (kernel,) = jitload.compile_cubin(source, arch="sm_90a").kernels
    assert kernel.name == "k"


def test_a_missing_header_names_the_wheel():
    with pytest.raises(CompileError, match="pip install nvidia-cutlass, or set JITLOAD_CUTLASS"):
        jitload.compile_cubin("#include <cute/nothing.hpp>\n__global__ void k() {}", arch="sm_90a")
