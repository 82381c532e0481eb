"""With `sanitize="race"`, launches whose threads are proved to be separate run without checks, and no others."""

import numpy as np
import pytest
import torch
from support.headers import SANITIZED

import jitload
from jitload.kernels.bounds import find_separation
from jitload.kernels.source import device_source
from jitload.loader.function import TypedFunction
from jitload.toolchain.cuda import find_cuda_toolchain

BODIES = {
    "elements": "if (i < n) y[i] = x[i] + 1;",
    "in_place": "if (i < n) y[i] += x[n - 1 - i];",
    "blur": "if (i > 0 && i < n - 1) y[i] = x[i - 1] + x[i + 1];",
    "reversed": "if (i < n) y[n - 1 - i] = x[i];",
    "vectors": "if (i < n / 4) ((float4*)y)[i] = ((const float4*)x)[i];",
    "pairs": "if (i < n / 2) { y[2 * i] = x[i]; y[2 * i + 1] = x[i]; }",
    "aligned": "if (i < n && (long long)x % 4 == 0) y[i] = 1;",
    "rows": "int k = blockIdx.y * blockDim.y + threadIdx.y; if (i < n && k < 4) y[k * n + i] = x[k * n + i];",
}
CHECKED = {
    "neighbour": "if (i < n - 1) y[i] = y[i + 1];",
    "halves": "if (i < n) y[i / 2] = x[i];",
    "scatter": "if (i < n) y[(int)x[i]] = 1;",
    "stride": "for (; i < n; i += gridDim.x * blockDim.x) y[i] = x[i];",
    "variable": "if (i < n) { y[i] = x[i]; total = 1; }",
    "constant": "if (i < n) y[i] = factor * x[i];",
    "atomic": "if (i < n) atomicAdd(&y[i], 1.0f);",
    "barrier": "if (i < n) y[i] = x[i]; __syncthreads(); if (i < n) y[i] += 1;",
    "shared": "__shared__ float s[256]; s[threadIdx.x] = 1; if (i < n) y[i] = s[threadIdx.x];",
    "wide": "if (i < n - 1) *(float2*)(y + (i | 1) - 1) = float2{};",
    "overlapping": "if (i < n - 1) { y[i] = 1; y[i + 1] = 2; }",
    "called": "if (i < n) put(y, i);",
}
HEAD = (
    "__device__ int total; __constant__ float factor; __device__ __noinline__ void put(float* y, int i) { *y = i; }\n"
)
SOURCE = HEAD + "\n".join(
    f'extern "C" __global__ void {name}(const float* x, float* y, int n) '
    f"{{ int i = blockIdx.x * blockDim.x + threadIdx.x; {body} }}"
    for name, body in {**BODIES, **CHECKED}.items()
)
OPTIONS = {"arch": "cpu", "sanitize": "race", "gpu_check": False, "extra_cflags": SANITIZED}


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("separate", cuda_sources=SOURCE, **OPTIONS)


def separate_kernels(mod: jitload.Module) -> set[str]:
    request = mod.elements._jitload_library.request
    return {*find_separation(device_source(request), find_cuda_toolchain(request.settings))}


def test_the_kernels_of_which_it_is_proved(mod):
    assert separate_kernels(mod) - {"barrier"} == {*BODIES}  # kernels that wait never run as loops


@pytest.mark.parametrize("name", BODIES)
def test_results_are_the_same_without_checks(mod, name):
    plain = jitload.load_inline("separate", cuda_sources=SOURCE, arch="cpu", gpu_check=False)
    results = []
    for module in (plain, mod):
        x, y = torch.arange(1024.0), torch.zeros(1024)
        function = module[name][(4, 4 if name == "rows" else 1), 64]
        for size in (256, 255, 256):
            function(x, y, size)
        results.append(y)
    assert results[1].any()
    assert torch.equal(*results)


def check_refusals(function: TypedFunction, x: object, y: object, message: str) -> None:
    for _ in range(3):  # the second time with the plan of a recent launch
        with pytest.raises(RuntimeError, match=message):
            function(x, y, 256)


def test_launches_that_are_not_separate_are_checked(mod):
    x, y = torch.ones(256), torch.zeros(256)
    elements = mod.elements
    elements[4, 64](x, y, 256)
    check_refusals(elements[4, 64], x, y[:255], "a write of 4 bytes at byte 1020 of 'y', which has 1020 bytes")
    check_refusals(elements[4, (64, 2)], x, y, "a race: a write of 4 bytes at byte 0 of 'y'")
    check_refusals(elements[(4, 1, 2), 64], x, y, r"a race: .* other is .* in block \(0, 0, [01]\)")
    check_refusals(mod.in_place[4, 64], y, y, "a race")
    check_refusals(mod.rows[(8, 1), (64, 4)], torch.ones(512), torch.zeros(512), "of 'x', which has 2048 bytes")
    memory = torch.zeros(257)
    check_refusals(elements[4, 64], memory[:256], memory[1:], "a race")
    backwards = np.zeros(256, "f")[::-1]
    strided = jitload.load_inline(
        "backwards", cuda_sources=SOURCE, functions={"elements": jitload.Launch(strided=("x", "y"))}, **OPTIONS
    )
    check_refusals(strided.elements[4, 64], x, backwards, "'y'")


@pytest.mark.parametrize("condition", ["ifdef JITLOAD_CPU", "ifdef __x86_64__", "if 1 && \\\n defined(__linux__)", ""])
def test_code_that_may_differ_on_a_gpu_is_checked(condition):
    head = condition and f"#{condition}\n#define N 0\n#else\n#define N 1\n#endif\n"
    text = head + 'extern "C" __global__ void f(float* y) { y[N * threadIdx.x] = 1; }'
    options = (
        OPTIONS if head else {**OPTIONS, "extra_cuda_cflags": ["-DN=1"], "extra_cflags": [*SANITIZED, "-UN", "-DN=0"]}
    )
    mod = jitload.load_inline("differs", cuda_sources=text, **options)
    with pytest.raises(RuntimeError, match="a race"):
        mod.f[1, 32](torch.zeros(32))
