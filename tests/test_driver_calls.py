"""C++ by hand that calls the driver by name: it builds and loads without one, and calls the one there is."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builds import run_python
from support.wrappers import undefined_symbols

import jitload
from jitload.host_cpp.driver_calls import driver_calls_text, find_driver_calls

if TYPE_CHECKING:
    from support.driver import StubDriver

pytest_plugins = ["support.gpu_fixtures"]


def has_driver_header() -> bool:
    """Return whether a wheel of NVIDIA's has the driver's header."""
    spec = importlib.util.find_spec("nvidia")
    roots = spec.submodule_search_locations or () if spec else ()
    return any(True for root in roots for _ in Path(root).glob("*/include/cuda.h"))


SOURCE = """
#include <cuda.h>
int64_t count_devices() {
  int count = -1;
  TVM_FFI_CHECK(cuInit(0) == CUDA_SUCCESS, RuntimeError) << "no driver";
  TVM_FFI_CHECK(cuDeviceGetCount(&count) == CUDA_SUCCESS, RuntimeError) << "no count";
  return count;
}
int64_t result_of_init() { return cuInit(0); }
int64_t retain() {
  CUcontext context = nullptr;
  return cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS && cuDevicePrimaryCtxRelease(0) == CUDA_SUCCESS;
}
"""
FUNCTIONS = ["count_devices", "result_of_init", "retain"]
needs_headers = pytest.mark.skipif(not has_driver_header(), reason="cuda.h is not installed: nvidia-cuda-runtime")


def build(**options: Any) -> str:
    return jitload.build_inline("calls", cuda_sources=SOURCE, functions=FUNCTIONS, **options)


@needs_headers
@pytest.mark.parametrize("flags", [(), ("-lcuda",)])
def test_calls_reach_the_driver(flags: tuple[str, ...], stub_driver: StubDriver) -> None:
    stub_driver.set_device_count(2)
    module = jitload.load_module(build(extra_ldflags=flags))
    assert module.count_devices() == 2
    assert module.retain() == 1
    assert "cuDevicePrimaryCtxRelease" in {call.name for call in stub_driver.calls()}


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@needs_headers
@pytest.mark.parametrize("flags", [(), ("-lcuda",)])
def test_calls_reach_the_real_driver(flags: tuple[str, ...]) -> None:
    import torch

    module = jitload.load_module(build(extra_ldflags=flags))
    assert module.count_devices() == torch.cuda.device_count()
    assert module.retain() == 1


@needs_headers
def test_without_a_driver_it_loads_and_calls_say_so() -> None:
    path = build()
    assert not {name for name in undefined_symbols(Path(path)) if name.startswith("cu")}
    code = f"""
import ctypes, jitload
try:
    ctypes.CDLL("libcuda.so.1")
    print("there is a driver")
except OSError:
    print(jitload.load_module({path!r}).result_of_init())
"""
    assert run_python(code).stdout.strip() in ("100", "there is a driver")


def test_only_the_drivers_own_functions_are_defined(tmp_path: Path) -> None:
    (tmp_path / "cuda.h").write_text(
        "#define cuMemAlloc cuMemAlloc_v2\nCUresult CUDAAPI cuMemAlloc(void);\nCUresult CUDAAPI cuInit(unsigned);\n",
        encoding="utf-8",
    )
    symbols = ["cuInit", "cuMemAlloc_v2", "cuFileRead", "cublasCreate_v2", "cudaMalloc", "cuInit_ptsz", "_ZN2cuIxE"]
    assert find_driver_calls(symbols, [tmp_path]) == ("cuInit", "cuInit_ptsz", "cuMemAlloc_v2")
    assert find_driver_calls(symbols, [tmp_path / "absent"]) == ()


def test_the_text_has_a_slot_for_each() -> None:
    text = driver_calls_text(["cuInit", "cuMemAlloc_v2"])
    assert text.endswith("CALL(cuInit, 0);\nCALL(cuMemAlloc_v2, 8);\n")
    assert '    "cuInit",\n    "cuMemAlloc_v2",\n};' in text
