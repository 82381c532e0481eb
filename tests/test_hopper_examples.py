"""The examples for Hopper: NVRTC compiles them without a warning, and on such a GPU they check themselves."""

import runpy
import subprocess
import sys
from typing import Any

import pytest
import torch
from builds import ROOT
from support.arrays import CudaArray
from support.triton import aligned_array

import jitload

pytest_plugins = ["support.gpu_fixtures"]

EXAMPLES = sorted((ROOT / "examples" / "hopper").glob("*.py"))


def tensor(*shape: int) -> CudaArray:
    return CudaArray(aligned_array(0).array, dtype="bfloat16", shape=shape)


# For each function, the arguments of a call and what it launches: grid, shared memory, numbers, and sizes of the maps.
CALLS: dict[str, tuple[tuple[CudaArray, ...], tuple[Any, ...]]] = {
    "gemm": (
        (tensor(1000, 512), tensor(520, 512), tensor(1000, 520)),
        ((132, 1, 1), 4 * 384 * 128 + 1024, [1000, 520, 512, 8], ["512,1000", "512,520"]),
    ),
    "attention": ((tensor(2, 300, 128),) * 4, ((3, 2, 1), 7 * 32768 + 1024, [300], ["128,300,2"] * 3)),
}


@pytest.mark.usefixtures("empty_cache")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_compiles_and_launches(path, caplog, stub_driver):
    names = runpy.run_path(str(path))
    mod = jitload.load_inline(path.stem, cuda_sources=names["SOURCE"], functions=names["FUNCTIONS"], arch="sm_90a")
    assert caplog.text == ""  # ptxas would say that it serializes wgmma, or that it ignores setmaxnreg
    assert {mod[name].kernels["sm_90a"].local_bytes for name in names["FUNCTIONS"]} == {0}
    assert len(path.read_text().splitlines()) < 200
    args, expected = CALLS[path.stem]
    mod[path.stem](*args)
    (launch,) = stub_driver.launches()
    numbers = [int.from_bytes(argument, "little") for argument in launch.arguments if len(argument) == 4]
    maps = [dict(call.fields) for call in stub_driver.calls("cuTensorMapEncodeTiled")]
    assert (launch.grid, launch.shared_bytes, numbers, [each["extents"] for each in maps]) == expected
    assert {(each["box"].removesuffix(",1"), each["swizzle"]) for each in maps} == {("64,128", "3")}


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_it_runs(path):
    assert torch.cuda.is_available()
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, check=False, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "equal to torch's result" in done.stdout
