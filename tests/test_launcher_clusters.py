"""Launch attributes by the C++ launcher, by each of its ways, over kernels that nothing was done for yet."""

from typing import Any

import numpy as np
import pytest
from support.arrays import CudaArray, tensor_of
from support.driver import StubDriver
from support.hopper import WAYS, How, compile_kernels, load_wrapper
from support.records import LAUNCH_CLUSTER, LAUNCH_COOPERATIVE, LAUNCH_PDL, LAUNCH_PRIORITY
from support.wrappers import SOURCES, refusal

import jitload

CLUSTER_POLICY = 5

NON_PORTABLE_CLUSTER = "14"  # cuda.h's number, as the log has it


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, stub_driver: StubDriver) -> str:
    chosen: str = request.param
    wrapper = load_wrapper("sm_90a")
    if chosen == "runtime" and not wrapper.has_runtime():
        pytest.skip("the CUDA runtime's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    stub_driver.use_device(0)
    wrapper.replace(compile_kernels("sm_90a"))
    return chosen


def launch(way: str, kernel: str = "ask_neighbour", **options: Any) -> None:
    out = tensor_of(CudaArray(np.zeros(64, np.int32)))
    load_wrapper("sm_90a").launch(way, kernel, out, 0, How(stream=0, **options).numbers())


def allowed(stub_driver: StubDriver) -> list[str]:
    """Return the devices on which a kernel was allowed large clusters, in order."""
    calls = stub_driver.calls("cuKernelSetAttribute")
    return [call["device"] for call in calls if call["attribute"] == NON_PORTABLE_CLUSTER]


def test_each_attribute_is_passed(way, stub_driver):
    launch(way, grid=(8, 4, 4), block=64, cluster=(4, 2, 2), policy=1, pdl=True, priority=-3, shared_bytes=1000)
    launch(way, grid=(4, 1, 1), cooperative=True)
    first, second = stub_driver.launches()
    assert (first.grid, first.block, first.cluster, first.shared_bytes) == ((8, 4, 4), (64, 1, 1), (4, 2, 2), 1000)
    numbers = {CLUSTER_POLICY: 1, LAUNCH_PDL: 1, LAUNCH_PRIORITY: -3}
    assert first.attributes.keys() == {*numbers, LAUNCH_CLUSTER}
    assert {number: first.attribute(number) for number in numbers} == numbers
    assert {number: second.attribute(number) for number in second.attributes} == {LAUNCH_COOPERATIVE: 1}


def test_a_large_cluster_is_allowed_for_once(way, stub_driver):
    launch(way, grid=(8, 1, 1), cluster=(8, 1, 1))
    assert allowed(stub_driver) == []
    for _ in range(3):
        launch(way, grid=(16, 2, 2), cluster=(4, 2, 2))
    assert allowed(stub_driver) == ["0"]
    assert stub_driver.launches()[-1].cluster == (4, 2, 2)


def test_a_large_cluster_during_capture(way, stub_driver):
    stub_driver.set_capturing(is_capturing=True)
    launch(way, grid=(16, 1, 1), cluster=(16, 1, 1))
    assert allowed(stub_driver) == ["0"]


def test_a_cluster_that_the_kernel_declares(stub_driver):
    stub_driver.use_device(0)
    load_wrapper("sm_90a").replace(compile_kernels("sm_90a"))
    launch("plain", "declared_cluster", grid=(32, 1, 1))
    assert allowed(stub_driver) == ["0"]
    assert stub_driver.launches()[0].cluster == (16, 1, 1)


LAUNCH = "ask_neighbour on cuda:0, grid (%d, 1, 1), block (32, 1, 1), 0 bytes of dynamic shared memory"
REASONS = [(32, 32, ": the limit is 16 blocks in a cluster"), (6, 4, ": grid.x is not a multiple of cluster.x")]


@pytest.mark.parametrize(("grid", "cluster", "reason"), REASONS)
def test_a_cluster_that_is_too_large_or_does_not_divide_the_grid(way, stub_driver, grid, cluster, reason):
    said = refusal(launch, way, grid=(grid, 1, 1), cluster=(cluster, 1, 1))
    assert said.endswith(f"{LAUNCH % grid}, cluster ({cluster}, 1, 1){reason}")
    assert ("CUDA_ERROR_INVALID_CLUSTER_SIZE (912)" in said) == (cluster == 32)
    assert stub_driver.launches() == []


def test_a_refusal_for_another_reason_blames_no_cluster(way, stub_driver):
    stub_driver.fail("cuLaunchKernelEx", 701, count=1)
    said = refusal(launch, way, grid=(4, 1, 1), cluster=(4, 1, 1))
    assert said.endswith(f"{LAUNCH % 4}, cluster (4, 1, 1)")


def test_two_wrappers_over_one_cubin_do_not_meet(stub_driver, tmp_path):
    """A second library with a wrapper of the same text has its own modules and kernels."""
    text, cubin, output = (SOURCES / "hopper.cc").read_text(), compile_kernels("sm_90a"), tmp_path / "other.so"
    jitload.build_inline("other", cuda_sources=text, embed_cubin={"hopper": cubin}, output=output)
    stub_driver.use_device(0)
    wrappers = [load_wrapper("sm_90a"), jitload.load_module(output)]
    for wrapper in wrappers:
        wrapper.replace(cubin)
    assert len({wrapper.handle("add") for wrapper in wrappers}) == 2
