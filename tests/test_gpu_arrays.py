"""Arrays of CuPy, JAX and Numba on a GPU."""

import importlib.util

import pytest
from support.gpu import run_program

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def needs(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


def test_cupy_arrays_and_streams():
    needs("cupy")
    program = """
import cupy
from support.kernels import load
mod = load("vector")
x = cupy.arange(1000, dtype=cupy.float32)
y = cupy.zeros_like(x)
mod.add_one(x, y)
cupy.cuda.Device().synchronize()
assert bool((y == x + 1).all())
side = cupy.cuda.Stream(non_blocking=True)
y.fill(0)
cupy.cuda.Device().synchronize()
with side:
    x.fill(41)
mod.add_one[4, 256, 0, side](x, y)
side.synchronize()
assert cupy.unique(y).tolist() == [42]
try:
    mod.add_one(x.astype(cupy.float16), y)
except TypeError as error:
    print(error)
"""
    assert run_program(program) == "add_one(): argument 'x' must be a float32 CUDA tensor, got float16\n"


def test_jax_arrays():
    needs("jax")
    program = """
import jax, jax.numpy as jnp, torch
from support.kernels import load
x = (jnp.arange(1000, dtype=jnp.float32) * 2).block_until_ready()
if x.device.platform != "gpu":
    print("skip: this JAX has no GPU")
    raise SystemExit
y = torch.zeros(1000, device="cuda")
load("vector").add_one(x, y)
assert torch.equal(y.cpu(), torch.arange(1000.0) * 2 + 1)
print("right")
"""
    printed = run_program(program, environment={"XLA_PYTHON_CLIENT_PREALLOCATE": "false"})
    if printed.startswith("skip"):
        pytest.skip(printed.strip())
    assert printed == "right\n"


def test_numba_arrays():
    """Numba's device arrays know the CUDA array interface, from which torch makes a tensor without a copy."""
    needs("numba")
    needs("numba_cuda")
    program = """
import numpy, torch
from numba import cuda
from support.kernels import load
x, y = cuda.to_device(numpy.arange(1000, dtype=numpy.float32)), cuda.device_array(1000, numpy.float32)
cuda.synchronize()
mod = load("vector")
x, y = (a if hasattr(a, "__dlpack__") else torch.as_tensor(a, device="cuda") for a in (x, y))
mod.add_one(x, y)
torch.cuda.synchronize()
assert torch.equal(torch.as_tensor(y, device="cuda").cpu(), torch.arange(1000.0) + 1)
print("right")
"""
    assert run_program(program) == "right\n"
