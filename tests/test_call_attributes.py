"""Dynamic shared memory beyond the default limit, and launch attributes: clusters, cooperation, priority."""

import pytest
from support.calls import assert_refused
from support.driver import StubDriver
from support.records import LAUNCH_CLUSTER, LAUNCH_COOPERATIVE, LAUNCH_PDL, LAUNCH_PRIORITY

import jitload
from jitload import Launch
from jitload.request.launch import LAUNCH_ATTRIBUTES

SOURCE = """
extern "C" __global__ void tick(int n) {}
extern "C" __global__ void tiles(int n) { extern __shared__ float tile[]; tile[threadIdx.x] = n; }
extern "C" __global__ void half_static(int n, float* out) {
    __shared__ float fixed[4096];
    extern __shared__ float tile[];
    fixed[threadIdx.x] = tile[threadIdx.x] = n;
    __syncthreads();
    out[0] = fixed[n] + tile[n];
}
extern "C" __global__ void __cluster_dims__(2, 1, 1) paired(int n) {}
extern "C" __global__ void __cluster_dims__(16, 1, 1) many(int n) {}
"""
# Each field that is a launch attribute, except for the cluster, with each of its values and what the driver gets.
SETTINGS = [
    (name, value, setting)
    for name, attribute in LAUNCH_ATTRIBUTES.items()
    if name != "cluster"
    for value, setting in (attribute.settings or {3: 3}).items()
]
EACH = {
    "tick": Launch(grid="n", block=1),
    "tiles": Launch(grid=1, block=1, shared_bytes="n"),
    "half_static": Launch(grid=1, block=1, shared_bytes="n", raw_pointers="out"),
    "paired": Launch(grid="n", block=1),
    "many": Launch(grid="n", block=1),
    "clustered": Launch(kernel="tick", grid=("n", 6, 2), block=1, cluster=(2, 3)),
    "sized": Launch(kernel="tick", grid=8, block=1, cluster="n"),
    **{f"{name}_{value}": Launch(kernel="tick", grid="n", block=1, **{name: value}) for name, value, _ in SETTINGS},
    "everything": Launch(
        kernel="tick",
        grid="n",
        block=2,
        cluster=2,
        cooperative=True,
        pdl=True,
        priority=-3,
        shared_bytes=16,
        cluster_policy="load_balancing",
    ),
}
MAX_DYNAMIC_SHARED = 8
NON_PORTABLE_CLUSTER = 14
LAUNCH_CLUSTER_POLICY = 5
CLUSTER_LAUNCH = 120  # CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH


@pytest.fixture(scope="module")
def path() -> str:
    return jitload.build_inline("attributes", cuda_sources=SOURCE, functions=EACH, arch="sm_90a")


@pytest.fixture(scope="module")
def mod(path: str) -> jitload.Module:
    return jitload.load_module(path)


FIXED = 4 * 4096


def raised(driver: StubDriver) -> list[tuple[str, int, str]]:
    """Return kernel, value and device of each raise of the limit."""
    calls = driver.calls("cuKernelSetAttribute")
    return [(c["kernel"], c.number("value"), c["device"]) for c in calls if c.number("attribute") == MAX_DYNAMIC_SHARED]


def test_the_limit_is_raised_once_to_the_most_the_device_gives(unused, stub_driver):
    stub_driver.use_device(0)
    unused.half_static(48 * 1024 - FIXED, 0)
    assert raised(stub_driver) == []
    for shared_bytes in (48 * 1024 - FIXED + 1, 232448 - FIXED, 100, 200_000):
        unused.half_static(shared_bytes, 0)
    unused.tiles(48 * 1024)
    assert raised(stub_driver) == [("half_static", 232448 - FIXED, "0")]
    stub_driver.use_device(1)
    unused.half_static(200_000, 0)
    unused.tiles(48 * 1024 + 1)
    assert raised(stub_driver)[1:] == [("half_static", 232448 - FIXED, "1"), ("tiles", 232448, "1")]


def test_more_than_the_device_gives(unused, stub_driver):
    stub_driver.use_device(0)
    size = 232448 - FIXED + 1
    text = (
        f"half_static(): {size} bytes of dynamic shared memory requested, but cuda:0 gives a block at most 232448 "
        f"bytes, and the kernel's own static shared memory takes {FIXED} of them"
    )
    assert_refused(ValueError, text, unused.half_static, size, 0)
    stub_driver.set_attribute(1, 97, 101376)
    text = text.replace("cuda:0", "cuda:1").replace("232448 bytes", "101376 bytes")
    stub_driver.use_device(1)
    assert_refused(ValueError, text, unused.half_static, size, 0)
    assert raised(stub_driver) == []
    assert stub_driver.launches() == []


def test_a_limit_that_cannot_be_raised_stops_only_this_call(unused, stub_driver):
    stub_driver.use_device(0)
    stub_driver.fail("cuKernelSetAttribute", 801)
    text = "tiles(): cannot raise the shared memory limit: CUDA_ERROR_NOT_SUPPORTED (operation not supported)"
    for _ in range(2):  # no lock is left behind
        assert_refused(RuntimeError, text, unused.tiles, 50_000)
    unused.tiles(49152)
    assert len(stub_driver.launches()) == 1


@pytest.mark.parametrize(("name", "value", "setting"), SETTINGS)
def test_each_attribute_goes_through_the_extended_launch(mod, stub_driver, name, value, setting):
    mod[f"{name}_{value}"](4)
    (launch,) = stub_driver.launches()
    assert launch.call == "cuLaunchKernelEx"
    assert {number: launch.attribute(number) for number in launch.attributes} == {
        LAUNCH_ATTRIBUTES[name].number: setting
    }


def test_all_attributes_are_passed_at_once(mod, stub_driver):
    mod.everything[4, 3, 32, 0x66](9)
    (launch,) = stub_driver.launches()
    assert (launch.grid, launch.block, launch.shared_bytes, launch.stream) == ((4, 1, 1), (3, 1, 1), 32, 0x66)
    assert launch.cluster == (2, 1, 1)
    assert launch.arguments == ((9).to_bytes(4, "little"),)
    numbers = {LAUNCH_COOPERATIVE: 1, LAUNCH_CLUSTER_POLICY: 2, LAUNCH_PDL: 1, LAUNCH_PRIORITY: -3}
    assert sorted(launch.attributes) == sorted((*numbers, LAUNCH_CLUSTER))
    assert {number: launch.attribute(number) for number in numbers} == numbers


def test_a_cluster_divides_the_grid_that_counts_blocks(mod, stub_driver):
    mod.clustered(4)
    (launch,) = stub_driver.launches()
    assert (launch.grid, launch.cluster) == ((4, 6, 2), (2, 3, 1))
    assert_refused(ValueError, "clustered(): grid.x (3) is not a multiple of cluster.x (2)", mod.clustered, 3)
    for grid, text in (
        ((4, 4, 1), "grid.y (4) is not a multiple of cluster.y (3)"),
        ((1, 4, 1), "grid.x (1) is not a multiple of cluster.x (2)"),
    ):
        assert_refused(ValueError, f"clustered(): {text}", mod.clustered[grid, 1], 4)
    assert_refused(ValueError, "sized(): cluster (0, 1, 1) must be positive", mod.sized, 0)
    assert_refused(ValueError, "sized(): cluster (-2, 1, 1) must be positive", mod.sized, -2)
    assert len(stub_driver.launches()) == 1
    mod.clustered(0)
    assert len(stub_driver.launches()) == 1


def test_a_cluster_of_sixteen_is_allowed_and_larger_ones_are_refused_with_the_limit(mod, stub_driver):
    mod.sized[32, 1](16)
    assert [launch.cluster for launch in stub_driver.launches()] == [(16, 1, 1)]
    limit = r"; a cluster of \(32, 1, 1\), 32 blocks, is not possible here: the limit is 16 blocks$"
    with pytest.raises(RuntimeError, match=rf"CUDA_ERROR_INVALID_CLUSTER_SIZE .*{limit}"):
        mod.sized[32, 1](32)
    stub_driver.set_attribute(0, CLUSTER_LAUNCH, 0)
    with pytest.raises(
        RuntimeError, match=r"CUDA_ERROR_INVALID_CLUSTER_SIZE .*; use a smaller cluster or smaller blocks$"
    ):
        mod.sized[8, 1](8)


def test_a_compiled_in_cluster_needs_no_attribute(mod, stub_driver):
    mod.paired(4)
    (launch,) = stub_driver.launches()
    assert (launch.call, launch.cluster) == ("cuLaunchKernel", (2, 1, 1))
    text = r"; grid.x \(3\) is not a multiple of the kernel's own cluster.x \(2\)$"
    with pytest.raises(RuntimeError, match=rf"^paired\(\): the launch failed: CUDA_ERROR_INVALID_VALUE.*{text}"):
        mod.paired(3)


def test_a_compiled_in_cluster_over_the_portable_size_is_allowed(unused, stub_driver):
    unused.many(32)
    (launch,) = stub_driver.launches()
    assert (launch.call, launch.cluster) == ("cuLaunchKernel", (16, 1, 1))
    allowed = [call for call in stub_driver.calls("cuKernelSetAttribute") if call["kernel"] == "many"]
    assert [(call["attribute"], call["value"]) for call in allowed] == [(str(NON_PORTABLE_CLUSTER), "1")]
