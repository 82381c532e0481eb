"""CUDA sources of PyTorch extensions: each is built here, its checks run, and on a GPU so do its kernels."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension
from jitload.errors import CompileError, ToolchainError
from torch_cuda_texts import CASES, CudaCase

pytest_plugins = ["support.gpu_fixtures"]
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, and there is none on the PATH")


def load(case: CudaCase) -> ModuleType:
    functions = [case.name] if case.cpp else None
    return cpp_extension.load_inline(
        name=case.name, cpp_sources=case.cpp, cuda_sources=case.cuda, functions=functions, verbose=True,
        extra_cflags=[""], extra_ldflags=[""], extra_cuda_cflags=["-O3", "--use_fast_math"] if "half" in case.name else None,
    )  # fmt: skip


HEADERS = r"""
#include <c10/cuda/CUDAMathCompat.h>
#include <ATen/cuda/CUDAApplyUtils.cuh>
#include <ATen/cuda/CUDAEvent.h>
#include <ATen/cuda/NumericLimits.cuh>
float between(torch::Tensor x) {
  at::cuda::CUDAEvent start(cudaEventDefault), stop(cudaEventDefault);
  start.record();
  stop.record(at::cuda::getCurrentCUDAStream());
  stop.block(at::cuda::getStreamFromPool());
  at::cuda::CUDAEvent moved(std::move(stop));
  moved.synchronize();
  return moved.query() ? start.elapsed_time(moved) : -1;
}
template <class T> __global__ void sum(const T* x, T* y, int n) {
  CUDA_KERNEL_LOOP(i, n) { gpuAtomicAdd(y, x[i]); }
}
template <class T> __global__ void bound(T* x) {
  x[0] = at::numeric_limits<T>::lower_bound();
  x[1] = c10::cuda::compat::exp(static_cast<float>(x[0])) + c10::cuda::compat::pow(2.0f, 3.0f);
}
torch::Tensor bounds(torch::Tensor x) {
  AT_DISPATCH_FLOATING_TYPES_AND2(torch::kHalf, torch::kBFloat16, x.scalar_type(), "bounds", [&] {
    bound<scalar_t><<<1, 1, 0, torch::cuda::getCurrentCUDAStream()>>>(x.data_ptr<scalar_t>());
    sum<scalar_t><<<at::cuda::detail::GET_BLOCKS(2), 32>>>(x.data_ptr<scalar_t>(), x.data_ptr<scalar_t>(), 0);
  });
  return x;
}
"""


@pytest.fixture(scope="module")
def functions() -> dict[str, Any]:
    """Return the functions of all texts. Those that can share a unit are built together, and each alone for a GPU."""
    shared = [case for case in CASES if case.cpp and "half" not in case.name]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_ARCH", "sm_90a")
        patch.setattr(cpp_extension, "_build_with_torch", lambda *call: pytest.fail(str(call)))
        together = cpp_extension.load_inline(
            name="together",
            cpp_sources=[*(case.cpp for case in shared), "torch::Tensor bounds(torch::Tensor x);"],
            cuda_sources=[*(case.cuda for case in shared), HEADERS],
            functions=[*(case.name for case in shared), "bounds"],
            extra_cuda_cflags=["-Xcicc", "-O0", "-Xptxas", "-O0"],  # no kernel runs
        )
        functions = {case.name: getattr(together if case in shared else load(case), case.name) for case in CASES}
        return {**functions, "bounds": together.bounds}


def on_gpu(value: Any) -> Any:
    """Return a value with its tensors on the GPU."""
    if isinstance(value, list):
        return [on_gpu(item) for item in value]
    return value.cuda() if isinstance(value, torch.Tensor) else value


@needs_nvcc
def test_texts_with_kernels_are_built(functions: dict[str, Any]):
    for function in functions.values():
        with pytest.raises(TypeError, match="incompatible function arguments"):
            function("not a tensor")
    with pytest.raises(NotImplementedError, match="not implemented for 'Int'"):
        functions["bounds"](torch.zeros(2, dtype=torch.int32))


@needs_nvcc
def test_without_a_gpu_a_text_with_kernels_needs_an_architecture(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    monkeypatch.delenv("JITLOAD_ARCH", raising=False)
    kernel = "__global__ void k() {} torch::Tensor f(torch::Tensor x) { k<<<1, 1>>>(); return x; }"

    def load_kernel(**options: Any) -> Any:
        return cpp_extension.load_inline(
            "native", "torch::Tensor f(torch::Tensor x);", kernel, functions=["f"], **options
        )

    with pytest.raises(ToolchainError, match=r"Set JITLOAD_ARCH=sm_90a, or pass extra_cuda_cflags=\['-arch=sm_90a'\]"):
        load_kernel()
    monkeypatch.setenv("JITLOAD_ARCH", "cpu")
    with pytest.raises(ToolchainError, match=r"only for GPUs, not for 'cpu'\. Set JITLOAD_ARCH=sm_90a, or pass extra_"):
        load_kernel()
    monkeypatch.delenv("JITLOAD_ARCH")
    assert load_kernel(extra_cuda_cflags=["-arch=sm_90a"]).f
    monkeypatch.setenv("JITLOAD_ARCH", "sm_90a")
    assert load_kernel().f


@needs_nvcc
def test_the_checks_of_a_text_run_before_its_kernels(functions: dict[str, Any]):
    with pytest.raises(RuntimeError, match=r"^x must be a CUDA tensor$"):
        functions["relu_any"](torch.ones(3))
    with pytest.raises(RuntimeError, match=r"^shapes \[2, 3\] and \[2, 3\] do not match$"):
        functions["matmul_tiled"](torch.ones(2, 3), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match=r"^expected scalar type Half but found Float$"):
        functions["scale_half"](torch.ones(2, 3), 1.0)


@needs_nvcc
@pytest.mark.parametrize(
    ("line", "message"),
    [("  int y = 3 +;", "expected an expression"), ("  k<<<1, 1>>>(x.data_ptr<float>(), 3);", "too many arguments")],
)
def test_an_error_in_a_text_with_kernels_is_at_its_line(line: str, message: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JITLOAD_ARCH", "sm_90a")
    kernel = "__global__ void k(float* x) { *x = 1; }"
    host = f"torch::Tensor f(torch::Tensor x) {{\n{line}\n  return x;\n}}"
    with pytest.raises(CompileError, match=rf"cuda_sources\[1\]:2: {message}") as caught:
        cpp_extension.load_inline("wrong", "torch::Tensor f(torch::Tensor x);", [kernel, host], functions=["f"])
    assert [(each.file, each.line) for each in caught.value.diagnostics] == [("cuda_sources[1]", 2)]


@needs_nvcc
def test_an_error_of_cuda_can_be_a_warning_or_ignored():
    text = """
    #include <c10/cuda/CUDAException.h>
    bool set_device(bool warns) {
      if (warns) C10_CUDA_CHECK_WARN(cudaSetDevice(1000));
      if (!warns) C10_CUDA_IGNORE_ERROR(cudaSetDevice(1000));
      return cudaPeekAtLastError() == cudaSuccess;
    }"""
    module = cpp_extension.load_inline("warned", text, functions=["set_device"])
    with pytest.warns(UserWarning, match="CUDA warning: "):
        results = [module.set_device(True)]
    results.append(module.set_device(False))
    assert all(results) or not torch.cuda.is_available()  # without a GPU, CUDA's error stays


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_kernel_computes_what_torch_computes(case: CudaCase):
    function = getattr(load(case), case.name)
    for dtype in case.dtypes:
        tensors = [torch.randn(shape, device="cuda").to(dtype) for shape in case.shapes]
        extra = [on_gpu(value) for value in case.extra]
        result, expected = function(*tensors, *extra), case.reference(*tensors, *extra)
        pairs = zip(result, expected, strict=True) if isinstance(result, list) else [(result, expected)]
        for got, wanted in pairs:
            assert got.stride() == wanted.stride()
            torch.testing.assert_close(got, wanted)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_kernels_run_on_the_current_stream_and_a_failed_launch_is_reported():
    relu = load(next(case for case in CASES if case.name == "relu_any")).relu_any
    stream = torch.cuda.Stream()
    x = torch.randn(1 << 20, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        relu(x)  # CUDA loads the kernel, and torch allocates memory for the stream: either may wait for the GPU
        stream.synchronize()
        torch.cuda._sleep(1_000_000_000)  # half a second
        y = relu(x)
    assert not stream.query()
    stream.synchronize()
    torch.testing.assert_close(y, torch.relu(x) * 2)
    with pytest.raises(RuntimeError, match=r"CUDA error: invalid (configuration )?argument"):
        relu(torch.empty(0, device="cuda"))


LIBRARIES = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
#include <ATen/cudnn/Handle.h>
#include <cublas_v2.h>
#include <curand_kernel.h>
#include <cusparse.h>

torch::Tensor product(torch::Tensor a, torch::Tensor b) {
  int m = a.size(0), k = a.size(1), n = b.size(1);
  torch::Tensor c = torch::empty({m, n}, a.options());
  const float one = 1, zero = 0;
  cublasHandle_t handle = at::cuda::getCurrentCUDABlasHandle();
  TORCH_CUDABLAS_CHECK(cublasSgemm(handle, CUBLAS_OP_N, CUBLAS_OP_N, n, m, k, &one, b.data_ptr<float>(), n,
                                   a.data_ptr<float>(), k, &zero, c.data_ptr<float>(), n));
  return c;
}
std::vector<int64_t> have_the_stream() {
  cudaStream_t current = at::cuda::getCurrentCUDAStream(), blas = nullptr, sparse = nullptr;
  TORCH_CUDABLAS_CHECK(cublasGetStream(at::cuda::getCurrentCUDABlasHandle(), &blas));
  TORCH_CUDASPARSE_CHECK(cusparseGetStream(at::cuda::getCurrentCUDASparseHandle(), &sparse));
  return {blas == current, sparse == current, at::native::getCudnnHandle() != nullptr,
          at::cuda::getCurrentCUDABlasLtHandle() != nullptr, at::cuda::getCurrentCUDASolverDnHandle() != nullptr};
}
__global__ void fill(float* x, int n) {
  curandStatePhilox4_32_10_t state;
  curand_init(1, threadIdx.x, 0, &state);
  if (threadIdx.x < n) x[threadIdx.x] = curand_uniform(&state);
}
void noise(torch::Tensor x) { fill<<<1, 32>>>(x.data_ptr<float>(), x.numel()); }
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.def("product", &product);
  m.def("have_the_stream", &have_the_stream);
  m.def("noise", &noise);
}
"""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("flags", [[], ["-lcublas", "-lcusparse", "-lcurand"]], ids=["", "with flags"])
def test_texts_call_the_libraries_that_torch_has_loaded(flags: list[str]):
    module = cpp_extension.load_inline("libraries", [""], [LIBRARIES], extra_ldflags=flags)
    a, b, x = torch.randn(5, 7, device="cuda"), torch.randn(7, 3, device="cuda"), torch.zeros(32, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        assert module.have_the_stream() == [1] * 5
    torch.testing.assert_close(module.product(a, b), a @ b)
    module.noise(x)
    assert len(x.unique()) == 32
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcublas.so" in line}
    assert len(loaded) == 1  # torch's copy
