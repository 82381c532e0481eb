"""One library for a GPU and the CPU, on a machine that has both."""

import pytest
import torch

import jitload
from jitload import Launch

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SOURCE = r"""
__device__ int counter;
extern "C" __global__ void sum(const float* x, float* out, int n) {
  __shared__ float part[8];
  float value = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) value += x[i];
  for (int by = 16; by > 0; by /= 2) value += __shfl_down_sync(0xffffffffu, value, by);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = value;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int warp = 1; warp < 8; ++warp) value += part[warp];
    *out = value;
  }
}
extern "C" __global__ void bump(int by) { atomicAdd(&counter, by); }
"""
FUNCTIONS = {"sum": Launch(grid=1, block=256, args={"n": "x.numel()"}), "bump": Launch(grid=1, block=1)}


@pytest.fixture(scope="module")
def mod(gpu: None) -> jitload.Module:
    return jitload.load_inline("both", cuda_sources=SOURCE, functions=FUNCTIONS, arch=("native", "cpu"))


def test_a_call_runs_where_its_tensors_are(mod):
    for device in ("cuda", "cpu", "cuda"):
        x, out = torch.ones(10_000, device=device), torch.zeros(1, device=device)
        mod.sum(x, out)
        assert out.item() == 10_000, device


def test_tensors_in_two_places(mod):
    x, out = torch.ones(10), torch.zeros(1, device="cuda")
    with pytest.raises(ValueError, match=r"'out' is on cuda:0, but 'x' is on cpu; all tensors must be on one device"):
        mod.sum(x, out)
    with pytest.raises(ValueError, match=r"'out' is on cpu, but 'x' is on cuda:0; all tensors must be on one device"):
        mod.sum(x.cuda(), out.cpu())
    with pytest.raises(TypeError, match="x' must be a float32 CUDA or CPU tensor, got float16"):
        mod.sum(x.half(), out)


def test_without_a_tensor_the_gpu_is_meant(mod):
    counter = torch.from_dlpack(jitload.global_tensor(mod, "counter", torch.int32, 1))
    assert counter.device.type == "cuda"
    before = counter.item()
    mod.bump(3)
    torch.cuda.synchronize()
    assert counter.item() == before + 3


def test_a_library_for_the_cpu_alone_names_the_other_one():
    mod = jitload.load_inline("cpu_alone", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu")
    with pytest.raises(ValueError) as caught:
        mod.sum(torch.ones(4, device="cuda"), torch.zeros(1, device="cuda"))
    assert str(caught.value) == (
        "sum(): argument 'x' must be a CPU tensor, but it is on cuda:0; to support both, build it with "
        'arch=("native", "cpu")'
    )
    mod.bump(1)
    assert torch.from_dlpack(jitload.global_tensor(mod, "counter", torch.int32, 1)).device.type == "cpu"


def test_powers_of_complex_numbers_are_those_of_the_hosts_library():
    source = """
    #include <complex>
    typedef std::complex<float> z;
    extern "C" __global__ void k(float* out) {
      z* to = (z*)out;
      const z of[] = {z(0), z(0), z(0, 2), z(-4), z(4), z(1, 1), z(0), z(0)};
      const z by[] = {z(2), z(0), z(1, 1), z(0.5f), z(0.5f), z(-2, 3), z(1, 1), z(0, 1)};
      for (int i = 0; i < 8; ++i) {
        *to++ = std::pow(of[i], by[i]);
        *to++ = std::pow(of[i], by[i].real());
        *to++ = std::pow(of[i].real(), by[i]);
        *to++ = z(std::pow(of[i], 2));
      }
    }"""
    powers = jitload.load_inline("powers", cuda_sources=source, arch=("native", "cpu"))
    results = []
    for device in ("cuda", "cpu"):
        out = torch.full((64,), 7.0, device=device)
        powers.k[1, 1](out)
        results.append(out.cpu())
    assert not (results[1] == 7).all()
    torch.testing.assert_close(*results, equal_nan=True, rtol=1e-5, atol=1e-6)
