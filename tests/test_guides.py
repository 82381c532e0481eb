"""The guides' examples, afresh: the NVRTC example in both spellings, and all kinds of launches."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from guides.affine import SPELLINGS, load_affine
from guides.launches import compile_kernels, load_launches, load_square
from support.arrays import CudaArray, tensor_of
from support.driver import StubDriver
from support.records import LAUNCH_PDL
from support.wrappers import refusal

pytest_plugins = ["support.gpu_fixtures"]


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_guides_nvrtc_example_launches_its_kernel(spelling: str, stub_driver: StubDriver) -> None:
    module = load_affine(spelling, arch="sm_90")
    assert list(module) == ["affine"]
    x, y = CudaArray(np.zeros(300, np.float32)), CudaArray(np.zeros(300, np.float32))
    module.affine(tensor_of(x), tensor_of(y), 2.0, 0.5)
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.block) == ("affine", (3, 1, 1), (128, 1, 1))
    assert launch.arguments == (
        struct.pack("Q", x.address),
        struct.pack("Q", y.address),
        struct.pack("f", 2),
        struct.pack("f", 0.5),
        struct.pack("q", 300),
    )


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_the_result_is_torchs(spelling: str) -> None:
    import torch

    x = torch.randn(100_003, device="cuda")
    y = torch.empty_like(x)
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        load_affine(spelling).affine(x, y, 2.0, 0.5)
    stream.synchronize()
    torch.testing.assert_close(y, x * 2 + 0.5)


# ---- launches without a GPU ----------------------------------------------------------------------------------------

CLUSTER_POLICY = 5


@pytest.fixture
def launches(stub_driver: StubDriver) -> Any:
    stub_driver.use_device(0)
    module = load_launches("sm_90a")
    stub_driver.clear()
    return module


def floats(size: int = 300, device: int = 0) -> Any:
    return tensor_of(CudaArray(np.zeros(size, np.float32), device))


def test_bytes_loaded_at_run_time(launches: Any, stub_driver: StubDriver) -> None:
    launches.load(compile_kernels("sm_90a"))
    launches.run_loaded("negate", floats(), floats())
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid, launch.block) == ("negate", (5, 1, 1), (64, 1, 1))
    assert launch.arguments[2] == struct.pack("i", 300)
    assert refusal(launches.run_loaded, "missing", floats(), floats()).startswith(
        "RuntimeError: the cubin has no kernel named 'missing'; it has: "
    )


def test_one_call_launches_twice(launches: Any, stub_driver: StubDriver) -> None:
    launches.negate(floats(), floats(), floats(100), floats(100))
    assert [launch.grid for launch in stub_driver.launches()] == [(3, 1, 1), (1, 1, 1)]


def test_shared_memory_of_the_launch(launches: Any, stub_driver: StubDriver) -> None:
    launches.block_sums(floats(4096), floats(4), 1024)
    (launch,) = stub_driver.launches()
    assert (launch.grid, launch.shared_bytes) == ((4, 1, 1), 4096)


def test_a_cluster_its_policy_and_an_early_start(launches: Any, stub_driver: StubDriver) -> None:
    launches.clustered(floats(), floats(), 4, 2, 2)
    (launch,) = stub_driver.launches()
    assert (launch.call, launch.grid, launch.cluster) == ("cuLaunchKernelEx", (8, 2, 2), (4, 2, 2))
    assert (launch.attribute(CLUSTER_POLICY), launch.attribute(LAUNCH_PDL)) == (1, 1)


def test_a_kernel_with_arguments_that_its_text_does_not_have(stub_driver: StubDriver) -> None:
    stub_driver.use_device(0)
    load_square(compile_kernels("sm_90a")).square(floats(3000), floats(3000))
    (launch,) = stub_driver.launches()
    assert (launch.kernel, launch.grid) == ("square", (3, 1, 1))
    assert launch.arguments[2:] == (struct.pack("i", 3000), bytes(8), bytes(8))


# ---- with a Hopper GPU: the kernels have clusters and dependent launches ---------------------------------------------


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_results_of_bytes_loaded_at_run_time() -> None:
    import torch

    launches = load_launches()
    x = torch.randn(10_001, device="cuda")
    y = torch.zeros_like(x)
    for _ in range(3):
        launches.load(compile_kernels())
        launches.run_loaded("negate", x, y.zero_())
        assert torch.equal(y, -x)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("threads", [32, 256, 1024])
def test_results_with_shared_memory(threads: int) -> None:
    import torch

    x = torch.ones(4096, device="cuda")
    sums = torch.zeros(4096 // threads, device="cuda")
    load_launches().block_sums(x, sums, threads)
    assert set(sums.tolist()) == {float(threads)}


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("cluster", [(2, 1, 1), (1, 2, 1), (1, 1, 4), (2, 2, 2), (4, 2, 2)])
def test_results_of_a_cluster(cluster: tuple[int, int, int]) -> None:
    import torch

    launches = load_launches()
    x = torch.ones(100_000, device="cuda")
    y = torch.zeros_like(x)
    out = torch.zeros(2 * cluster[0] * cluster[1] * cluster[2], dtype=torch.int32, device="cuda")
    launches.negate(x, y, x, y)
    launches.clustered(y, out, *cluster)
    assert set(out.tolist()) == {1000 + cluster[0] + 10 * cluster[1] + 100 * cluster[2]}


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper", "two_gpus")
def test_results_on_two_gpus() -> None:
    import torch

    tensors = [torch.randn(10_000, device=f"cuda:{device}") for device in (0, 1)]
    results = [torch.zeros_like(x) for x in tensors]
    for current in (0, 1):
        with torch.cuda.device(current):
            load_launches().negate(tensors[0], results[0].zero_(), tensors[1], results[1].zero_())
            assert torch.cuda.current_device() == current
        for x, y in zip(tensors, results, strict=True):
            torch.cuda.synchronize(x.device)
            assert torch.equal(y, -x)


@pytest.mark.gpu
@pytest.mark.usefixtures("hopper")
def test_results_of_a_triton_kernel() -> None:
    import torch

    pytest.importorskip("triton")
    from guides.triton_square import square

    x = torch.randn(5000, device="cuda")
    y = torch.zeros_like(x)
    compiled = square[(5,)](x, y, 5000, BLOCK=1024)
    assert torch.equal(y, x * x)
    load_square(compiled.kernel).square(x, y.zero_())
    assert torch.equal(y, x * x)
