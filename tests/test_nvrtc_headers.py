"""The headers that stand in for the C and C++ library under NVRTC, alone, in their meaning, and beside CUDA's own."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import nvrtc_matrix as matrix
import pytest
from nvrtc_matrix import Case, Kit

import jitload
from jitload.cuda.headers import BUILT_IN, headers_in_memory
from jitload.cuda.nvrtc import NvrtcJob, run_nvrtc
from jitload.errors import CompileError
from jitload.nvrtc import nvrtc_compile

if TYPE_CHECKING:
    import ctypes
    from collections.abc import Callable


@pytest.fixture(scope="module")
def kit() -> Kit:
    """The NVRTC and headers of this environment."""
    found = matrix.installed_kit()
    if found is None:
        pytest.skip("there is no NVRTC wheel in this environment")
    return found


@pytest.fixture(scope="module")
def nvrtc(kit: Kit) -> ctypes.CDLL:
    """The NVRTC library, opened."""
    return matrix.load_library(kit)


def compile_source(nvrtc: ctypes.CDLL, kit: Kit, source: str, *user_dirs: Path) -> matrix.Answer:
    """Compile a source in C++17 with the include path of jitload."""
    return matrix.compile_case(nvrtc, Case("source", source), matrix.include_dirs(kit, user_dirs))


@pytest.mark.parametrize("case", matrix.quick_cases(), ids=lambda case: case.name)
def test_compiles_silently(nvrtc: ctypes.CDLL, kit: Kit, case: Case) -> None:
    """No error, and no warning either: a user did not write these headers."""
    status, answer = matrix.run_case(nvrtc, kit, case)
    if answer is None:
        pytest.skip(f"this kit has {status}")
    assert not matrix.complaint(answer)


LAST_CASES = r"""
#include <climits>
#include <cmath>
#include <numeric>
#include <type_traits>
constexpr float kMost = 0x1.fffffep127f, kLeast = 0x1p-149f;
static_assert(std::lerp(-kMost, kMost, 0.5f) == 0 && std::lerp(kMost, -kMost, 1.0f) == -kMost, "");
static_assert(std::lerp(0.1f, 0.9f, 1.0f) == 0.9f && std::lerp(0.1f, 0.9f, 0.0f) == 0.1f, "");
static_assert(std::lerp(1.0f, 1.0f + 0x1p-23f, 0x1.fffffep-1f) <= 1.0f + 0x1p-23f, "");
static_assert(std::lerp(3.0, 5.0, 2.0) == 7 && std::lerp(5.0, 3.0, -1.0) == 7, "");
static_assert(std::lerp(0, 10, 0.5f) == 5 && std::lerp(1.0f, 2.0, 0.5f) == 1.5, "");
static_assert(std::is_same_v<decltype(std::lerp(1, 2, 3)), double>, "");
static_assert(std::is_same_v<decltype(std::lerp(1.0f, 2.0f, 0.5f)), float>, "");
static_assert(std::midpoint(kLeast, kLeast) == kLeast && std::midpoint(kMost, kMost) == kMost, "");
static_assert(std::midpoint(-kMost, kMost) == 0 && std::midpoint(kMost, kLeast) == kMost / 2, "");
static_assert(std::midpoint(3.0, 4.0) == 3.5 && std::midpoint(0x1p-1074, 0x1p-1073) == 0x1p-1073, "");
static_assert(std::midpoint(INT_MAX, INT_MIN) == 0 && std::midpoint(INT_MIN, INT_MAX) == -1, "");
static_assert(std::midpoint((signed char)-128, (signed char)127) == -1 && std::midpoint(~0u, ~0u - 2) == ~0u - 1, "");
constexpr int kFour[4] = {};
static_assert(std::midpoint(kFour, kFour + 3) == kFour + 1 && std::midpoint(kFour + 3, kFour) == kFour + 2, "");
"""


def test_last_cases_are_those_of_the_hosts_library(nvrtc: ctypes.CDLL, kit: Kit) -> None:
    """What NVRTC works out with our headers is what g++ does with its own."""
    answer = matrix.compile_case(nvrtc, Case("last", LAST_CASES, "c++20"), matrix.include_dirs(kit))
    assert (answer.code, answer.log) == (0, "")
    command = ["c++", "-std=c++20", "-fsyntax-only", "-x", "c++", "-"]
    done = subprocess.run(command, input=LAST_CASES, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_mangled_types_are_those_of_linux(nvrtc: ctypes.CDLL, kit: Kit) -> None:
    """A kernel's symbol says `l` and `m`, long and unsigned long, as nvcc's does."""
    source = "#include <cstdint>\n__global__ void wide(int64_t* x, uint64_t y, std::size_t n) { x[n] = y; }"
    assert b"_Z4widePlmm\0" in compile_source(nvrtc, kit, source).cubin


def test_cuda_h_gives_tensor_maps(nvrtc: ctypes.CDLL, kit: Kit) -> None:
    """A CUtensorMap parameter has the size and the alignment of the kit's CUDA."""
    source = """#include <cuda.h>
    static_assert(sizeof(CUtensorMap) == 128 && alignof(CUtensorMap) == (CUDA_VERSION >= 13000 ? 128 : 64), "");
    static_assert(CUDA_VERSION / 1000 == __CUDACC_VER_MAJOR__ && sizeof(CUdeviceptr) == 8, "");
    __global__ void load(const __grid_constant__ CUtensorMap map, CUdeviceptr p, cuuint64_t n) {}"""
    answer = compile_source(nvrtc, kit, source)
    assert (answer.code, answer.log) == (0, "")
    assert b"_Z4load14CUtensorMap_stym\0" in answer.cubin


def test_stand_ins_need_no_cuda_headers(nvrtc: ctypes.CDLL, kit: Kit) -> None:
    """With NVRTC and nothing else a kernel file's usual first lines compile."""
    source = matrix.includes(*BUILT_IN.split(), "cuda.h", "iostream", "vector")
    source += "__global__ void k(CUtensorMap m, float4* x, cudaTextureObject_t t) { *x = make_float4(1, 2, 3, 4); }"
    answer = compile_source(nvrtc, Kit(kit.library, ()), source)
    assert (answer.code, answer.log) == (0, "")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("#include <vector>\n__device__ std::vector<int> v;", 'namespace "std" has no member "vector"'),
        ("#include <string>\n__global__ void k(std::string s) {}", 'namespace "std" has no member "string"'),
        (
            "#include <array>\n__device__ int x = std::get<2>(std::array<int, 2>{});",
            "std::get: the index is out of range",
        ),
    ],
)
def test_what_cannot_work_says_so(nvrtc: ctypes.CDLL, kit: Kit, source: str, message: str) -> None:
    """Host-only parts of the library end in an ordinary error of the compiler."""
    answer = compile_source(nvrtc, kit, source)
    assert answer.code != 0
    assert message in answer.log


def test_a_correction_without_the_header_that_it_corrects(kit: Kit) -> None:
    """The error names that header, as the user knows it."""
    source = "#include <cuda/std/cfloat>\n"
    job = NvrtcJob(name="k.cu", source=source, options=("-arch=sm_90",), headers=headers_in_memory(()))
    with pytest.raises(CompileError) as caught:
        run_nvrtc(kit.library, job)
    assert caught.value.hint.startswith("NVRTC has no 'cuda/std/cfloat': ")


def test_shims_come_before_the_users_include_paths(nvrtc: ctypes.CDLL, kit: Kit, tmp_path: Path) -> None:
    """A system directory among the user's include paths hides no shim, and its other headers are found."""
    (tmp_path / "stdint.h").write_text("#error not for device code\n")
    (tmp_path / "users.h").write_text("#include <stdint.h>\ntypedef int64_t users;\n")
    answer = compile_source(nvrtc, kit, "#include <cstdint>\n#include <users.h>\n__device__ users x;", tmp_path)
    assert (answer.code, answer.log) == (0, "")


def test_no_header_in_memory_hides_one_of_the_kit(kit: Kit) -> None:
    """NVRTC would prefer it to the file that a header of the kit means, which lies beside that header."""
    names = {name for name, text in headers_in_memory(kit.include_dirs) if "<./" not in text}
    folders = {folder for directory in kit.include_dirs for folder, _, _ in os.walk(directory)}
    hidden = [(name, folder) for folder in folders for name in names if os.path.isfile(f"{folder}/{name}")]
    for name, folder in hidden:
        for path in filter(Path.is_file, Path(folder).iterdir()):
            assert not re.search(rf'include\s*"{name}"', path.read_text(errors="replace")), path


@pytest.mark.parametrize("compile_source", [jitload.compile_cubin, nvrtc_compile])
def test_every_way_to_nvrtc_has_the_headers(compile_source: Callable[..., object]) -> None:
    text = "#include <vector>\n#include <cstdio>\n#include <cuda_runtime.h>\n#include <stdint.h>\n"
    assert compile_source(text + '__global__ void k(int64_t* x) { std::printf("%ld", *x); }', arch="sm_90")


def test_corrections_come_before_the_users_cccl(nvrtc: ctypes.CDLL, kit: Kit) -> None:
    """A user who names a CCCL of their own still gets one int64_t for it and for <stdint.h>."""
    if not kit.has("cuda/std/cstdint"):
        pytest.skip("this kit has no cuda/std/cstdint")
    source = "#include <cuda/std/cstdint>\n#include <stdint.h>\n__global__ void k(int64_t*, cuda::std::int64_t*) {}"
    answer = matrix.compile_case(
        nvrtc, Case("own", source), matrix.include_dirs(Kit(kit.library, ()), kit.include_dirs)
    )
    assert (answer.code, answer.log) == (0, "")
    assert b"_Z1kPlS_\0" in answer.cubin


def test_cheap_headers_stay_cheap(nvrtc: ctypes.CDLL, kit: Kit) -> None:
    """The everyday headers together cost less than a fifth of what CCCL's type_traits alone would cost."""

    def fastest_s(source: str) -> float:
        return min(compile_source(nvrtc, kit, source).seconds for _ in range(5))

    everyday = matrix.includes(
        "stdint.h", "cstdint", "stddef.h", "cmath", "cstdio", "assert.h", "limits", "type_traits"
    )
    assert fastest_s(everyday + matrix.EMPTY_KERNEL) - fastest_s(matrix.EMPTY_KERNEL) < 0.08
