"""Modules around calls: preloading, life times, odd names, tvm-ffi's own view of a library, and global variables."""

import copy
import ctypes
import gc
import json
import pickle
import shutil
from typing import Any

import numpy as np
import pytest
import torch
import tvm_ffi
from support.calls import array, assert_refused, fresh

import jitload
from jitload import Launch

NAMES = (
    "kernel", "_x", "imports", "get_function", "module", "images", "kernels", "state", "params", "linux", "unix", "e",
    "plan", "variables", "x_params", "self", "args", "result", "call", "doc", "errno", "stdout", "__dict__",
    "int32_t", "TVMFFIAny", "import_module", "keys", "jitload_plan",
)  # fmt: skip
SOURCE = """
__constant__ float coeffs[4] = {1.0f, 2.0f, 3.0f, 4.0f};
__device__ int counter;
namespace ns { __device__ double table[2][3]; }
extern "C" __global__ void twice(const float* x, float* y, int n) {
    if (threadIdx.x < n) y[threadIdx.x] = coeffs[0] * x[threadIdx.x] + counter + ns::table[1][2];
}
extern "C" __global__ void tick() { ++counter; ns::table[0][0] += 1; }
"""
EACH = {
    "twice": Launch(grid="ceil_div(n, 128)", block=128, doc="Doubles x."),
    "tick": Launch(grid=1, block=1),
    "main": Launch(kernel="tick"),
}


@pytest.fixture(scope="module")
def path() -> str:
    return jitload.build_inline("modules", cuda_sources=SOURCE, functions=EACH, arch="sm_90a")


@pytest.fixture(scope="module")
def mod(path: str) -> jitload.Module:
    return jitload.load_module(path)


def test_loading_resolves_kernels_where_a_context_is_in_use(path, stub_driver):
    stub_driver.set_initialized(True)
    stub_driver.set_primary_active(1, True)
    mod = fresh(path)
    loaded = [(call["kernel"], call["device"]) for call in stub_driver.calls("cuFuncLoad")]
    assert loaded == [("twice", "1"), ("tick", "1"), ("tick", "1")]
    assert {call["device"] for call in stub_driver.calls("cuDevicePrimaryCtxRetain")} == {"1"}
    assert stub_driver.current_device() is None
    stub_driver.use_device(1)
    stub_driver.clear()
    mod.tick()
    assert [call.name for call in stub_driver.calls()] == ["cuCtxGetDevice", "cuLaunchKernel"]


def test_loading_leaves_the_current_context_alone(path, stub_driver):
    stub_driver.use_device(0)
    stub_driver.set_primary_active(1, True)
    fresh(path)
    assert stub_driver.current_device() == 0
    assert [call["device"] for call in stub_driver.calls("cuFuncLoad")] == ["0"] * 3 + ["1"] * 3


def test_loading_touches_nothing_before_somebody_uses_cuda(path, stub_driver):
    stub_driver.set_initialized(False)
    fresh(path)
    assert [(call.name, call.result) for call in stub_driver.calls()] == [("cuDeviceGetCount", 3)]
    stub_driver.set_initialized(True)
    stub_driver.clear()
    fresh(path)
    calls = {call.name for call in stub_driver.calls()}
    assert calls == {"cuDeviceGetCount", "cuInit", "cuDevicePrimaryCtxGetState"}


def test_exports_are_cpp_where_our_assembler_does_not_fit(monkeypatch, stub_driver, tmp_path):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("JITLOAD_CXX", "c++ -U__ELF__")
    monkeypatch.setenv("JITLOAD_LIBRARY", "now")
    stub_driver.use_device(0)
    mod = jitload.load_inline("plain", cuda_sources=SOURCE, functions=EACH, arch="sm_90a")
    tvm_ffi.Module.get_function(mod, "tick")()
    mod["twice"](array(), array(), 5)
    assert [call["kernel"] for call in stub_driver.calls("cuLaunchKernel")] == ["tick", "twice"]
    assert "Doubles x." in (mod.get_function_doc("twice") or "")
    assert "ffi.Function" in str(mod.get_function_metadata("twice"))


@pytest.mark.parametrize("keeps", [True, False])
def test_a_function_outlives_its_module(path, stub_driver, tmp_path, *, keeps):
    alone = shutil.copyfile(path, tmp_path / "alone.so")
    mod = jitload.load_module(alone, keep_module_alive=keeps)
    function, configured = mod.twice, mod.twice[3, 4]
    del mod
    gc.collect()
    function(array(), array(), 8)
    configured(array(), array(), 8)
    del function
    gc.collect()
    configured(array(), array(), 8)
    assert [launch.grid[0] for launch in stub_driver.launches()] == [1, 3, 3]


def test_functions_and_modules_are_not_pickled(mod):
    rule = "cannot be pickled: it is code loaded into this process. Build or load the module in the other process."
    for make in (pickle.dumps, copy.copy, copy.deepcopy):
        assert_refused(TypeError, f"twice() {rule}", make, mod.twice)
        assert_refused(TypeError, f"twice() {rule}", make, mod.twice[1, 1])
        text = "a jitload.Module cannot be pickled: load its library in the other process (jitload.load_module)"
        assert_refused(TypeError, text, make, mod)


@pytest.fixture(scope="module")
def odd() -> jitload.Module:
    source = "\n".join(f'extern "C" __global__ void {name}(int n) {{}}' for name in NAMES)
    functions = {name: Launch(grid="n", block=1) for name in NAMES}
    return jitload.load_inline("odd names", cuda_sources=source, functions=functions, arch="sm_90a")


@pytest.mark.parametrize("name", NAMES)
def test_a_kernel_may_have_any_name(odd, stub_driver, name):
    odd[name](2)
    odd[name][3, 1](2)
    assert [(launch.kernel, launch.grid[0]) for launch in stub_driver.launches()] == [(name, 2), (name, 3)]
    assert_refused(TypeError, f"{name}() takes 1 argument (n), got 0", odd[name])


def test_a_function_may_be_called_main(mod, stub_driver):
    mod.main[5, 1]()
    assert [(launch.kernel, launch.grid[0]) for launch in stub_driver.launches()] == [("tick", 5)]


def test_tvm_ffi_loads_and_calls_the_library(path, stub_driver):
    mod = tvm_ffi.load_module(path)
    assert type(mod.twice) is tvm_ffi.Function
    x = array()
    mod.twice(x, x, 300)
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid) == ("twice", (3, 1, 1))
    with pytest.raises(TypeError, match=r"^twice\(\) takes 3 arguments \(x, y, n\), got 1$"):
        mod.twice(x)
    with pytest.raises(AttributeError):
        mod["absent"]


def test_metadata_and_doc_are_those_of_the_library(path):
    mod = tvm_ffi.load_module(path)
    assert mod.get_function_doc("twice") == "Doubles x."
    schema = json.loads(mod.get_function_metadata("twice")["type_schema"])
    assert [argument["type"] for argument in schema["args"]] == ["None", "DLTensor*", "DLTensor*", "int"]
    assert mod.get_function_doc("tick") is None
    assert jitload.load_module(path).twice.__doc__ == "Doubles x.\n\ntwice(const float* x, float* y, int n)"


def test_a_variable_is_a_tensor_to_read_and_to_write(mod, stub_driver):
    stub_driver.use_device(0)
    coeffs = jitload.global_tensor(mod, "coeffs", torch.float32, (2, 2))
    assert (tuple(coeffs.shape), str(coeffs.dtype), str(coeffs.device)) == ((2, 2), "float32", "cuda:0")
    memory = on_the_host(coeffs, np.float32, 4)
    assert memory.tolist() == [1.0, 2.0, 3.0, 4.0]
    memory[2] = 7.5
    again = jitload.global_tensor(mod, "coeffs", "float32", 4)
    assert on_the_host(again, np.float32, 4).tolist() == [1.0, 2.0, 7.5, 4.0]
    memory[2] = 3.0


def on_the_host(tensor: Any, dtype: type[np.generic], count: int) -> np.ndarray[Any, Any]:
    """Return the memory of a tensor: the stub driver's variables are in host memory."""
    memory = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(tensor.data_ptr())
    return np.ctypeslib.as_array(memory).view(dtype)


def test_a_variable_is_there_once_a_device(path, stub_driver):
    mod = fresh(path)
    pointers = []
    for device in (0, 1):
        stub_driver.use_device(device)
        tensor = jitload.global_tensor(mod, "ns::table", np.float64, (2, 3))
        assert (str(tensor.device), stub_driver.current_device()) == (f"cuda:{device}", device)
        pointers.append(tensor.data_ptr())
    assert pointers[0] != pointers[1]
    stub_driver.use_device(None)
    assert jitload.global_tensor(mod, "ns::table", "float64", 6).data_ptr() == pointers[0]


HAS = "variable 'coeffs' has 16 bytes; "
HAS_NO = "module 'modules' has no __device__ or __constant__ variable"


@pytest.mark.parametrize(
    ("name", "dtype", "shape", "kind", "text"),
    [
        ("coeffs", "float32", 5, ValueError, f"{HAS}float32 with shape (5,) would have 20"),
        ("coeffs", "float64", (2,), ValueError, "variable 'coeffs' has elements of float32, not float64"),
        ("table", "float64", 6, jitload.errors.LoadError, f"{HAS_NO} 'table'; it has: coeffs, counter, ns::table"),
        ("counter", "int31x", 1, ValueError, "dtype 'int31x' is unknown; write 'float32', torch.float32 or the like"),
    ],
)  # fmt: skip
def test_a_variable_that_does_not_fit(  # noqa: PLR0913, PLR0917  a row of the table
    mod, stub_driver, name, dtype, shape, kind, text
):
    with pytest.raises(kind) as caught:
        jitload.global_tensor(mod, name, dtype, shape)
    assert str(caught.value) == text
    assert stub_driver.calls() == []


def test_the_driver_may_not_know_the_variable(mod, stub_driver):
    stub_driver.use_device(0)
    stub_driver.fail("cuLibraryGetGlobal", 500)
    with pytest.raises(RuntimeError, match=r"^modules\(\): coeffs: CUDA_ERROR_NOT_FOUND"):
        jitload.global_tensor(mod, "coeffs", "float32", 4)


def test_a_module_may_have_variables_alone(stub_driver):
    text = "__device__ float v[4]; __constant__ int c;"
    module = jitload.load_inline("alone", cuda_sources=text, arch="sm_90a")
    assert list(module) == []
    assert repr(module) == "<jitload.Module 'alone' (sm_90a): no functions>"
    for _ in range(2):
        assert tuple(jitload.global_tensor(module, "v", "float32", 4).shape) == (4,)
    assert len(stub_driver.calls("cuLibraryLoadData")) == 1
    with pytest.raises(jitload.errors.LaunchSpecError, match="no kernel 'k'"):
        jitload.load_inline("alone", cuda_sources=text, arch="sm_90a", functions=["k"])
