"""`jitload.jax_call` on the CPU and on a GPU. It is skipped without JAX, which is no requirement of the tests."""

import numpy as np
import pytest
from support.gpu import run_program

import jitload

jax = pytest.importorskip("jax")
pytest.importorskip("jax_tvm_ffi")
# On a GPU, JAX's threads would invalidate CUDA graphs that other tests capture in this process.
jax.config.update("jax_platforms", "cpu")

SOURCE = """
__global__ void scale(const float* x, float* y, float factor, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i] * factor;
}
__global__ void mixed(int shift, const int* x, int* low, const int* y, int* high, int n) {
  for (int i = 0; i < n; ++i) { low[i] = min(x[i], y[i]) + shift; high[i] = max(x[i], y[i]) + shift; }
}
__global__ void add(const float* x, const float* y, float* z, int n) {
  for (int i = 0; i < n; ++i) z[i] = x[i] + (y ? y[i] : 0);
}
__global__ void in_place(float* x, int n) {}
struct Pair { int a, b; };
__global__ void by_value(const float* x, float* y, Pair pair) {}
"""


def load(arch):
    launch = jitload.Launch(grid="ceil_div(n, 128)", block=128, args={"n": "x.numel()"})
    once = jitload.Launch(grid=1, block=1, args={"n": "x.numel()"})
    functions = {"scale": launch, "mixed": once, "in_place": once, "by_value": jitload.Launch(grid=1, block=1)}
    functions["bare"] = jitload.Launch(kernel="scale")
    functions["add"] = jitload.Launch(grid=1, block=1, args={"n": "x.numel()"}, nullable="y")
    return jitload.load_inline("jax_call", cuda_sources=SOURCE, functions=functions, arch=arch)


@pytest.fixture(scope="module")
def mod():
    return load("cpu")


def test_kernels_run_in_jitted_functions(mod):
    x = jax.numpy.arange(300.0)

    @jax.jit
    def program(x):
        return jitload.jax_call(mod.scale, x, 2.5, out={"y": x}) + 1

    assert np.array_equal(program(x), np.arange(300) * np.float32(2.5) + 1)
    assert np.array_equal(jitload.jax_call(mod.scale, x[:7], -1.0, out={"y": x[:7]}), -np.arange(7.0))


def test_outputs_may_be_anywhere_among_the_parameters(mod):
    x, y = jax.numpy.array([1, 5]), jax.numpy.array([3, 2])
    result = jax.ShapeDtypeStruct((2,), "int32")
    low, high = jitload.jax_call(mod.mixed, 10, x, y, out={"low": result, "high": result})
    assert low.tolist() == [11, 12]
    assert high.tolist() == [13, 15]
    high, low = jitload.jax_call(mod.mixed, 10, x, y, out={"high": result, "low": result})
    assert low.tolist() == [11, 12]


def test_gradients_are_given_as_to_any_function_of_jax(mod):
    @jax.custom_vjp
    def triple(x):
        return jitload.jax_call(mod.scale, x, 3.0, out={"y": x})

    triple.defvjp(lambda x: (triple(x), None), lambda _, grad: (triple(grad),))
    x = jax.numpy.arange(4.0)
    assert jax.grad(lambda x: triple(x).sum())(x).tolist() == [3] * 4


def test_numbers_may_be_arrays_and_nothing_else(mod):
    x = jax.numpy.arange(4.0)
    for factor in (2.5, np.float32(2.5), jax.numpy.array(2.5)):
        assert jitload.jax_call(mod.scale, x, factor, out={"y": x}).tolist() == [0, 2.5, 5, 7.5]
    for wrong in (None, "2", 2**64, np.ones((2, 2))):
        with pytest.raises(TypeError, match="argument 'factor' must be a number that int64 or float64 can hold"):
            jitload.jax_call(mod.scale, x, wrong, out={"y": x})


def test_numbers_are_constants_of_the_program(mod):
    x = jax.numpy.arange(4.0)
    program = jax.jit(lambda x, factor: jitload.jax_call(mod.scale, x, factor, out={"y": x}))
    with pytest.raises(TypeError, match="argument 'factor' must be a number that is known while JAX traces"):
        program(x, 2.0)


def test_pointers_may_be_absent(mod):
    x = jax.numpy.arange(4.0)
    program = jax.jit(lambda x, y: jitload.jax_call(mod.add, x, y, out={"z": x}))
    assert program(x, None).tolist() == [0, 1, 2, 3]
    assert program(x, x).tolist() == [0, 2, 4, 6]


def test_vmap_follows_the_method(mod):
    def scale(x, method=None):
        return jitload.jax_call(mod.scale, x, 2.0, out={"y": x}, vmap_method=method)

    x = jax.numpy.arange(6.0).reshape(2, 3)
    assert np.array_equal(jax.vmap(lambda x: scale(x, "sequential"))(x), 2 * x)
    with pytest.raises(NotImplementedError, match="vmap"):
        jax.vmap(scale)(x)


@pytest.mark.parametrize(
    ("name", "args", "out", "message"),
    [
        ("scale", (1.0,), ["y"], "scale\\(\\) takes x, factor; got 1 argument"),
        ("scale", ("x", 1.0), ["z"], "there is no tensor 'z'"),
        ("scale", ("x", 1.0), ["x", "y"], "'x' .* is const, so it is an input"),
        ("in_place", ("x",), ["x"][1:], "writes to 'x'.*arrays of JAX cannot be written to"),
        ("bare", ("x", 1.0), ["y"], "'bare': it has no grid and block"),
        ("by_value", ("x", 1), ["y"], "argument 'pair' .* is a structure"),
    ],
)
def test_wrong_calls_are_refused(mod, name, args, out, message):
    x = jax.numpy.arange(4.0)
    args = [x if arg == "x" else arg for arg in args]
    with pytest.raises((TypeError, jitload.errors.LaunchSpecError), match=message):
        jitload.jax_call(mod[name], *args, out=dict.fromkeys(out, x))
    with pytest.raises(jitload.errors.LaunchSpecError, match="out: must be a dict from names to arrays"):
        jitload.jax_call(mod.scale, x, 2.0, out={"y": (4,)})


def test_errors_of_the_call_reach_jax(mod):
    x = jax.numpy.arange(4)
    with pytest.raises(Exception, match="argument 'x' must be a float32 CPU tensor, got int32"):
        jitload.jax_call(mod.scale, x, 1.0, out={"y": x}).block_until_ready()


GPU_PROGRAM = """
import jax, jitload, numpy as np
from test_jax_call import load
jax.config.update("jax_platforms", None)
mod = load(("native", "cpu"))
x = jax.numpy.arange(100_000.0)

@jax.jit
def program(x):
    return jitload.jax_call(mod.scale, x * 2, 0.5, out={"y": x}) + 1

for _ in range(3):
    assert np.array_equal(program(x), np.arange(100_000, dtype=np.float32) + 1)
y = jax.numpy.array([3, 2])
result = jax.ShapeDtypeStruct((2,), "int32")
low, high = jax.jit(lambda x: jitload.jax_call(mod.mixed, 10, x, y, out={"low": result, "high": result}))(y[::-1])
assert (low.tolist(), high.tolist()) == ([12, 12], [13, 13])
with jax.default_device(jax.devices("cpu")[0]):
    assert jitload.jax_call(mod.scale, np.ones(4, np.float32), 3.0, out={"y": x[:4]}).tolist() == [3] * 4
print(x.device.platform)
"""


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_kernels_run_on_a_gpu():
    environment = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}  # other tests share the GPU
    assert run_program(GPU_PROGRAM, environment=environment) == "gpu\n"
