"""CUDA sources of PyTorch extensions: architectures, errors, streams and CUDA's libraries. Others: torch_programs/."""

import shutil
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension
from jitload.errors import CompileError, ToolchainError

pytest_plugins = ["support.gpu_fixtures"]
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, and there is none on the PATH")


@needs_nvcc
def test_without_a_gpu_a_text_with_kernels_needs_an_architecture(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    monkeypatch.delenv("JITLOAD_ARCH", raising=False)
    kernel = "__global__ void k() {} torch::Tensor f(torch::Tensor x) { k<<<1, 1>>>(); return x; }"

    def load_kernel(**options: Any) -> Any:
        declaration = "torch::Tensor f(torch::Tensor);"
        return cpp_extension.load_inline("native", declaration, kernel, functions=["f"], **options)

    with pytest.raises(ToolchainError, match=r"Set JITLOAD_ARCH=sm_90a, or pass extra_cuda_cflags=\['-arch=sm_90a'\]"):
        load_kernel()
    monkeypatch.setenv("JITLOAD_ARCH", "cpu")
    with pytest.raises(ToolchainError, match=r"only for GPUs, not for 'cpu'\. Set JITLOAD_ARCH=sm_90a, or pass extra_"):
        load_kernel()
    monkeypatch.delenv("JITLOAD_ARCH")
    assert load_kernel(extra_cuda_cflags=["-arch=sm_90a"]).f


@needs_nvcc
def test_an_error_in_a_text_with_kernels_is_at_its_line(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("JITLOAD_ARCH", "sm_90a")
    kernel = "__global__ void k(float* x) { *x = 1; }"
    host = "torch::Tensor f(torch::Tensor x) {\n  k<<<1, 1>>>(x.data_ptr<float>(), 3);\n  return x;\n}"
    with pytest.raises(CompileError, match=r"cuda_sources\[1\]:2: too many arguments") as caught:
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


RELU = r"""
#include <ATen/cuda/CUDAContext.h>
__global__ void relu_kernel(const float* x, float* y, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += blockDim.x * gridDim.x) y[i] = fmaxf(x[i], 0);
}
torch::Tensor relu(torch::Tensor x) {
  auto y = torch::empty_like(x);
  const int blocks = (x.numel() + 127) / 128;
  relu_kernel<<<blocks, 128, 0, at::cuda::getCurrentCUDAStream()>>>(x.data_ptr<float>(), y.data_ptr<float>(), x.numel());
  C10_CUDA_KERNEL_LAUNCH_CHECK();
  return y;
}
"""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_kernels_run_on_the_current_stream_and_a_failed_launch_is_reported():
    relu = cpp_extension.load_inline("relu", "torch::Tensor relu(torch::Tensor x);", RELU, functions=["relu"]).relu
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
    torch.testing.assert_close(y, torch.relu(x))
    with pytest.raises(RuntimeError, match=r"CUDA error: invalid (configuration )?argument"):
        relu(torch.empty(0, device="cuda"))


LIBRARIES = """
#include <torch/extension.h>
#include <ATen/cuda/CUDAContext.h>
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
  return {blas == current, sparse == current, at::cuda::getCurrentCUDABlasLtHandle() != nullptr,
          at::cuda::getCurrentCUDASolverDnHandle() != nullptr};
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
def test_texts_call_the_libraries_that_torch_has_loaded():
    module = cpp_extension.load_inline("libraries", [""], [LIBRARIES], extra_ldflags=["-lcublas", "-lcusparse"])
    a, b, x = torch.randn(5, 7, device="cuda"), torch.randn(7, 3, device="cuda"), torch.zeros(32, device="cuda")
    with torch.cuda.stream(torch.cuda.Stream()):
        assert module.have_the_stream() == [1] * 4
    torch.testing.assert_close(module.product(a, b), a @ b)
    module.noise(x)
    assert len(x.unique()) == 32
    loaded = {line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/libcublas.so" in line}
    assert len(loaded) == 1  # torch's copy
