"""CUTLASS, CUB and cuRAND in kernels."""

from pathlib import Path

import numpy as np
import pytest
import torch

import jitload
from jitload.errors import CompileError, ToolchainError
from jitload.settings import read_settings
from jitload.toolchain import cutlass
from jitload.toolchain.cuda import find_cuda_headers

KERNEL = """
#include <cute/tensor.hpp>
__global__ void k(int* x) { *x = twice(CUTLASS_MINOR); }
"""
TENSOR = "#pragma once\n#include <cutlass/version.h>\nconstexpr int twice(int x) { return 2 * x; }\n"
OPTIONS = {"arch": "sm_90a"}


def has_header(name: str) -> bool:
    """Return whether a header of CUDA is installed."""
    kit = find_cuda_headers(read_settings())
    return kit is not None and any((path / name).is_file() for path in kit.include_dirs)


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


def test_the_newest_cutlass_in_a_wheel_is_found(wheels):
    assert constant(KERNEL) == 20


def test_the_user_chooses_another_cutlass(wheels, monkeypatch):
    make_cutlass(wheels / "mine", 7)
    assert constant(KERNEL, extra_include_paths=[wheels / "cutlass_library/source/include"]) == 4
    monkeypatch.setenv("JITLOAD_CUTLASS", str(wheels / "mine"))
    assert constant(KERNEL) == 14
    monkeypatch.setenv("JITLOAD_CUTLASS", str(wheels))  # which has no headers
    with pytest.raises(ToolchainError, match="this directory has no include/cutlass"):
        constant(KERNEL)


@pytest.mark.parametrize(("order", "quotes"), [((0, 1), "<>"), ((1, 0), '""')])
def test_cutlass_and_the_math_header_declare_the_same_names(tmp_path, order, quotes):
    names = [f"FP_{name}" for name in ("NAN", "INFINITE", "ZERO", "SUBNORMAL", "NORMAL")]
    rows = ",\n".join(f"{name} =\n#define {name} {number}\n{name}" for number, name in enumerate(names))
    (tmp_path / "cutlass/platform").mkdir(parents=True)
    (tmp_path / "cutlass/platform/platform.h").write_text("#pragma once\n#include <cmath>\n")
    text = f'#pragma once\n#include "cutlass/platform/platform.h"\nnamespace cutlass {{ enum {{ {rows} }}; }}\n'
    (tmp_path / "cutlass/floating_point_nvrtc.h").write_text(text)
    includes = ("#include <math.h>\n", f"#include {quotes[0]}cutlass/floating_point_nvrtc.h{quotes[1]}\n")
    values = "".join(f"{name} * {10**number} + " for number, name in enumerate(names))
    source = "".join(includes[number] for number in order) + f"__global__ void k(int* x) {{ *x = {values} 0; }}"
    assert constant(source, extra_include_paths=[tmp_path]) == 43210


def test_kernels_call_functions_of_headers_that_lack_device(tmp_path):
    (tmp_path / "sizes.h").write_text("constexpr int width() { return 33; }\n")
    source = '#include "sizes.h"\n__global__ void k(int* x) { *x = width(); }'
    assert constant(source, extra_include_paths=[tmp_path]) == 33


def test_headers_of_thrust_with_only_macros_compile_for_the_cpu(tmp_path):
    """CuPy's complex.cuh includes them."""
    if not has_header("thrust/version.h"):
        pytest.skip("Thrust is not installed")
    (tmp_path / "complex.cuh").write_text("#include <thrust/detail/config/namespace.h>\n#include <thrust/version.h>\n")
    text = '#include <complex.cuh>\nextern "C" __global__ void k(int* x) { *x = THRUST_VERSION; }'
    x = np.zeros(1, np.int32)
    jitload.load_inline("macros", cuda_sources=text, arch="cpu", extra_include_paths=[tmp_path]).k[1, 1](x)
    assert x[0] >= 200_000


def test_a_missing_header_names_the_wheel():
    with pytest.raises(CompileError, match="pip install nvidia-cutlass, or set JITLOAD_CUTLASS"):
        jitload.compile_cubin("#include <cute/nothing.hpp>\n__global__ void k() {}", arch="sm_90a")


SORT = """
#include <cub/cub.cuh>
extern "C" __global__ void sort(const int* x, int* sorted, int* sum) {
  using Sort = cub::BlockRadixSort<int, 128, 4>;
  __shared__ union {
    typename Sort::TempStorage sort;
    typename cub::BlockReduce<int, 128>::TempStorage reduce;
  } memory;
  int items[4];
  cub::LoadDirectBlocked(threadIdx.x, x, items);
  Sort(memory.sort).Sort(items);
  cub::StoreDirectBlocked(threadIdx.x, sorted, items);
  __syncthreads();
  int total = cub::BlockReduce<int, 128>(memory.reduce).Sum(items[0] + items[1] + items[2] + items[3]);
  if (threadIdx.x == 0) *sum = total;
}"""


NAMES = """BlockAdjacentDifference BlockDiscontinuity BlockExchange BlockHistogram BlockLoad BlockMergeSort
BlockRadixSort BlockReduce BlockRunLengthDecode BlockScan BlockShuffle BlockStore WarpExchange WarpLoad WarpMergeSort
WarpReduce WarpScan WarpStore CacheModifiedInputIterator CacheModifiedOutputIterator ThreadLoad ThreadStore
LowerBound"""


@pytest.mark.skipif(not has_header("cub/cub.cuh"), reason="needs the headers of CCCL")
def test_the_header_of_all_of_cub_compiles_for_kernels():
    names = "".join(f"\nusing cub::{name};" for name in NAMES.split())
    (kernel,) = jitload.compile_cubin(SORT + names, arch="sm_90a").kernels
    assert kernel.name == "sort"


@pytest.mark.gpu
@pytest.mark.skipif(not has_header("cub/cub.cuh"), reason="needs the headers of CCCL")
def test_a_block_sorts_with_the_header_of_all_of_cub(gpu):
    module = jitload.load_inline("sort", cuda_sources=SORT)
    x = torch.randint(-1000, 1000, (512,), dtype=torch.int32, device="cuda")
    results, total = torch.zeros_like(x), torch.zeros(1, dtype=torch.int32, device="cuda")
    module.sort[1, 128](x, results, total)
    assert torch.equal(results, x.sort().values)
    assert total.item() == x.sum().item()


SOURCE = """
#include <curand_kernel.h>
extern "C" __global__ void draw(unsigned* bits, float* uniform, float* normal, unsigned long long seed) {
  int i = threadIdx.x;
  curandStatePhilox4_32_10_t state;
  curand_init(seed, i, 0, &state);
  for (int k = 0; k < 5; ++k) bits[5 * i + k] = curand(&state);
  curand_init(seed, i, 0, &state);
  uniform[i] = curand_uniform(&state);
  curandState other;
  curand_init(seed, i, 0, &other);
  normal[2 * i] = curand_normal(&other);
  normal[2 * i + 1] = curand_log_normal(&other, 0.0f, 1.0f);
}"""
M32 = 2**32 - 1
HAS_CURAND = has_header("curand_kernel.h")


def philox(counter: list[int], key: list[int]) -> list[int]:
    """Return four random numbers of Philox4x32-10 (Salmon and others, 2011)."""
    a, b, c, d = counter
    for step in range(10):
        k0, k1 = (key[0] + step * 0x9E3779B9) & M32, (key[1] + step * 0xBB67AE85) & M32
        first, second = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = second >> 32 ^ b ^ k0, second & M32, first >> 32 ^ d ^ k1, first & M32
    return [a, b, c, d]


@pytest.mark.skipif(HAS_CURAND, reason="cuRAND is installed")
@pytest.mark.parametrize("arch", ["sm_90", "cpu"])
def test_the_package_to_install_is_named(arch):
    with pytest.raises(CompileError, match="pip install nvidia-curand"):
        jitload.build_inline("draw", cuda_sources=SOURCE, arch=arch)


@pytest.mark.skipif(not HAS_CURAND, reason="needs pip install nvidia-curand")
@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_random_numbers_are_those_of_philox(device, request):
    if device == "cuda":
        request.getfixturevalue("gpu")
    module = jitload.load_inline("draw", cuda_sources=SOURCE, arch="native" if device == "cuda" else "cpu")
    bits = torch.zeros(64, 5, dtype=torch.uint32, device=device)
    uniform, normal = torch.zeros(64, device=device), torch.zeros(64, 2, device=device)
    seed = 0x123456789ABCDEF
    module.draw[1, 64](bits, uniform, normal, seed)
    expected = [
        philox([0, 0, i, 0], [seed & M32, seed >> 32]) + philox([1, 0, i, 0], [seed & M32, seed >> 32])[:1]
        for i in range(64)
    ]
    assert bits.cpu().tolist() == expected
    first = np.array([row[0] for row in expected], np.uint32).astype(np.float32)
    np.testing.assert_array_equal(uniform.cpu().numpy(), first * np.float32(2**-32) + np.float32(2**-33))
    assert abs(normal[:, 0].mean().item()) < 0.5
    assert 0.7 < normal[:, 0].std().item() < 1.3
    assert 0.7 < normal[:, 1].log().std().item() < 1.3
