"""Calls of kernels on the CPU: which tensors they take, what they refuse, threads, processes and Ctrl-C."""

import ctypes
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
import tvm_ffi

import jitload
from jitload import Launch

SOURCE = r"""
extern "C" __global__ void add_one(const float* x, float* y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] + 1.0f;
}
extern "C" __global__ void slow(float* x, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum = sum * 0.5f + x[i & 1023];
  x[threadIdx.x] = sum;
}
__device__ int counter;
static __device__ int hidden;
namespace ns { __constant__ float coeffs[4] = {1, 2, 3, 4}; }
extern "C" __global__ void bump(int by) {
  counter += by + (int)ns::coeffs[1];
  hidden += by;
}
extern "C" __global__ void shared(float* x) {
  extern __shared__ float s[];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[blockDim.x - 1 - threadIdx.x];
}
"""
ADD = Launch(grid="ceil_div(n, 256)", block=256, args={"n": "x.numel()"})
FUNCTIONS = {
    "add_one": ADD,
    "slow": Launch(grid=20000, block=256),
    "bump": Launch(grid=1, block=1),
    "shared": Launch(grid=1, block="x.numel()", shared_bytes="4 * x.numel()"),
    "clustered": Launch(kernel="bump", grid=2, block=1, cluster=2),
    "cooperative": Launch(kernel="bump", grid=1, block=1, cooperative=True),
    "hinted": Launch(kernel="bump", grid=1, block=1, pdl=True, priority=1),
    "maybe": Launch(kernel="add_one", grid=1, block=1, nullable=("x", "y")),
    "raw": Launch(kernel="add_one", grid=1, block=4, raw_pointers=("x",)),
}


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("calls", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu")


def test_every_way_to_call(mod, tmp_path):
    x, y = torch.arange(1000.0), torch.empty(1000)
    for call in (mod.add_one, mod["add_one"], lambda *a: mod.add_one.call(x=a[0], y=a[1]), mod.add_one[10, 128]):
        y.zero_()
        call(x, y)
        assert torch.equal(y, x + 1)
    a, b = np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    mod.add_one(a, b)
    assert (b == a + 1).all()
    mod.add_one(tvm_ffi.from_dlpack(x), tvm_ffi.from_dlpack(y.zero_()))
    assert torch.equal(y, x + 1)
    mod.raw(ctypes.c_void_p(a.ctypes.data), b, 4)
    mod.raw(a.ctypes.data, b, 4)
    path = jitload.build_inline(
        "calls", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu", output=tmp_path / "calls.so"
    )
    plain = tvm_ffi.load_module(path)
    plain.add_one(x, y.zero_())
    assert torch.equal(y, x + 1)
    assert "cpu" in repr(jitload.load_module(path))


REFUSED = [
    ("add_one", (torch.zeros(3).half(), torch.zeros(3)), "x' must be a float32 CPU tensor, got float16"),
    ("add_one", (3, torch.zeros(3)), "x' must be a float32 CPU tensor, got int"),
    ("maybe", (3, None, 1), "x' must be a float32 CPU tensor or None, got int"),
    ("add_one", (torch.zeros(6)[::2], torch.zeros(3)), "x' must be contiguous, got shape"),
    ("clustered", (1,), r"cluster \(2, 1, 1\) must be \(1, 1, 1\) on the CPU; clusters are GPU only"),
    ("cooperative", (1,), "a cooperative launch is GPU only: on the CPU the blocks of a grid do not run at the same"),
]


@pytest.mark.parametrize(("name", "arguments", "said"), REFUSED)
def test_wrong_arguments_are_refused(mod, name, arguments, said):
    with pytest.raises((TypeError, ValueError, RuntimeError), match=said):
        mod[name](*arguments)


def test_blocks_have_the_limits_of_a_gpu(mod):
    with pytest.raises(ValueError, match=r"block \(2000, 1, 1\) is over CUDA's limit"):
        mod.bump[1, 2000](1)
    with pytest.raises(ValueError, match="shared_bytes is 232449, and no GPU gives a block more than 232448"):
        mod.shared[1, 32, 232449](torch.zeros(32))
    x = torch.arange(32.0)
    mod.shared[1, 32, 232448](x)
    assert torch.equal(x, torch.arange(32.0).flip(0))


def test_a_library_for_both(mod):
    both = jitload.load_inline("both", cuda_sources=SOURCE, functions=["add_one", "bump"], arch=("sm_90", "cpu"))
    assert "sm_90, cpu" in repr(both)
    with pytest.raises(TypeError, match="x' must be a float32 CUDA or CPU tensor, got float16"):
        both.add_one[1, 32](torch.zeros(3).half(), torch.zeros(3), 3)
    x, y = torch.arange(5.0), torch.empty(5)
    both.add_one[1, 32](x, y, 5)
    assert torch.equal(y, x + 1)


def test_variables_are_read_and_written(mod):
    counter = torch.from_dlpack(jitload.global_tensor(mod, "counter", "int32", 1))
    before = int(counter)
    torch.from_dlpack(jitload.global_tensor(mod, "ns::coeffs", torch.float32, 4))[1] = 10.0
    mod.bump(5)
    mod.hinted(5)
    assert int(counter) == before + 30
    with pytest.raises(jitload.errors.LoadError, match="no __device__ or __constant__ variable 'hidden'"):
        jitload.global_tensor(mod, "hidden", "int32", 1)


def test_an_array_that_is_read_only(mod):
    x, y = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
    x.flags.writeable = False
    mod.add_one(x, y)  # `const float* x`
    assert (y == x + 1).all()
    with pytest.raises(TypeError, match=r"^add_one\(\) takes 2 arguments \(x, y\), got 3$"):
        mod.add_one(x, y, x)
    y.flags.writeable = False
    with pytest.raises(
        BufferError,
        match=r"^add_one\(\): argument 'y' is read-only, but the kernel may write to it \(float\*\): pass a copy$",
    ):
        mod.add_one(x, y)
    with pytest.raises(TypeError, match=r"x' must be a float32 CPU tensor, got float64"):
        mod.add_one(np.broadcast_to(1.0, 4), y.copy())


def test_an_array_at_an_odd_address_is_refused(mod):
    """The kernel's code may rely on aligned addresses, on the CPU as on a GPU."""
    memory = bytearray(33)
    odd, aligned = np.frombuffer(memory, np.float32, offset=1), np.zeros(8, np.float32)
    for x in (odd, torch.frombuffer(memory, dtype=torch.float32, offset=1)):
        with pytest.raises(
            ValueError, match=r"'x' \(const float\*\) must be aligned to 4 bytes, .*; pass x.clone\(\)$"
        ):
            mod.add_one(x, aligned)
    mod.add_one(odd.copy(), aligned)
    assert aligned.tolist() == [1.0] * 8


def test_other_threads_run_meanwhile(mod):
    ticks = []
    thread = threading.Thread(target=mod.slow[64, 256], args=(torch.zeros(1024), 20_000))
    thread.start()
    while thread.is_alive():
        ticks.append(1)
        thread.join(0.001)
    assert len(ticks) > 3


def test_several_threads_at_once(mod):
    def work(number: int) -> None:
        x, y = np.full(100_000, number, np.float32), np.zeros(100_000, np.float32)
        for _ in range(20):
            y.fill(0)
            mod.add_one(x, y)
            if not (y == number + 1).all():
                wrong.append(number)

    wrong: list[int] = []
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert not wrong


FORK = """
import multiprocessing, sys
sys.modules["torch"] = None  # tvm-ffi would take seconds to import it
import numpy as np
import jitload
mod = jitload.load_module(sys.argv[1])
x = np.ones(1 << 20, np.float32)
def work(_=0):
    y = np.zeros(1 << 20, np.float32)
    mod.add_one(x, y)
    return float(y.sum())
if __name__ == "__main__":
    assert work() == 2 << 20
    for method, count in (("fork", 2), ("spawn", 1)):
        with multiprocessing.get_context(method).Pool(count) as pool:
            print(method, pool.map(work, range(4), chunksize=1) == [2 << 20] * 4)
"""


def test_processes_that_fork_and_spawn(mod, tmp_path):
    path = jitload.build_inline("calls", cuda_sources=SOURCE, functions=FUNCTIONS, arch="cpu")
    script = tmp_path / "forks.py"
    script.write_text(FORK)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", script, path],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert (done.stdout, done.returncode) == ("fork True\nspawn True\n", 0), done.stderr
