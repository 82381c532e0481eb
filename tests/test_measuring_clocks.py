"""Tests of the clock of a GPU, with a driver that only records and on a GPU."""

import textwrap
import time
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
from builds import run_python

import jitload
from jitload.errors import JitLoadError
from jitload.measuring import clocks
from jitload.measuring.clocks import CudaClock, Sample
from jitload.measuring.memory import Extent, merge_extents

FAST = {"seconds": 0.01}


class RecordingDriver:
    """A driver whose functions succeed and are recorded; each pair of events is 100 µs apart."""

    def __init__(self):
        self.calls = []
        self.CUdevice_attribute = SimpleNamespace(
            CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE=3_201_000,
            CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH=6144,
            CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE=60 << 20,
        )
        self.answers = {
            "cuDeviceGetAttribute": lambda attribute, _: (0, attribute),
            "cuDeviceGetName": lambda size, _: (0, b"GPU".ljust(size, b"\0")),
            "cuEventElapsedTime": lambda *_: (0, 0.1),
            "cuDriverGetVersion": lambda: (0, 13000),
        }

    def __getattr__(self, name):
        def call(*_):
            self.calls.append(name)
            return 0, len(self.calls)

        return self.answers.get(name, call)


@pytest.mark.parametrize("flushes_l2", [False, True])
def test_the_gpu_is_kept_busy_and_warm_or_its_cache_emptied(flushes_l2, monkeypatch):
    driver, host_ns = RecordingDriver(), [0]
    monkeypatch.setattr(clocks, "perf_counter_ns", lambda: sum(host_ns))
    resources = ExitStack()
    clock = CudaClock(driver, 0, 5, flushes_l2=flushes_l2, resources=resources)
    assert clock.device == "cuda:0 (GPU)"
    assert clock.peak_bytes_per_s == pytest.approx(4.917e12, rel=1e-3)  # an H200
    extent = Extent(4096, 64, 64, 0)
    copy_of = clock.save(extent)

    def launch() -> None:
        driver.calls.append("launch")
        host_ns.append(25_000)

    driver.calls.clear()
    host_us = clock.time_host(Sample(launch))
    assert host_us == 25
    assert driver.calls == ["cuCtxSynchronize", "launch"]
    clear, start, stop = ["cuMemsetD8Async"], ["cuEventRecord"], ["cuEventRecord", "cuEventSynchronize"]
    copy = "cuMemcpyDtoDAsync"
    # A clear takes 10 µs. With flushes_l2, no launches warm the cache.
    for sample, busy, warm, restoring in (
        (Sample(launch, 3, None, host_us), 20, ["launch"] * 2, []),
        (Sample(launch, 1, lambda: clock.restore(extent, copy_of), host_us), 13, [copy, "launch"] * 2, [copy]),
    ):
        driver.calls.clear()
        assert clock.time(sample) == pytest.approx(100 / sample.launches)
        prepared = restoring + clear if flushes_l2 else warm + restoring
        assert driver.calls == clear * busy + prepared + start + ["launch"] * sample.launches + stop
    assert clock.batch(1, 50) == (1 if flushes_l2 else 11)  # 100 clears take longer than 13 launches
    resources.close()
    assert driver.calls[-4:] == ["cuMemFree", *["cuEventDestroy"] * 2, "cuMemFree"]


SPIN = r"""
extern "C" __global__ void spin(float* x, long long ns) {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - start < ns);
}
extern "C" __global__ void read(const float4* x, float4* y, int n) {
    float4 sum = make_float4(0, 0, 0, 0);
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) sum.x += x[i].x + x[i].w;
    if (sum.x == 1.5f) y[0] = sum;
}
"""


@pytest.fixture(scope="module")
def spinning(gpu, tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield jitload.load_inline("spinning", cuda_sources=SPIN)


def test_adjacent_allocations_are_copied_separately():
    extents = [Extent(4096, 64, 64, 0), Extent(4160, 64, 64, 0), Extent(4192, 64, 64, 0)]
    assert merge_extents(extents) == [Extent(4096, 64, 64, 0), Extent(4160, 96, 64, 0)]


@pytest.mark.gpu
@pytest.mark.parametrize("microseconds", [20, 100, 1000])
def test_device_time_is_that_of_the_device(spinning, microseconds):
    record = spinning.spin[1, 32].benchmark(torch.zeros(1, device="cuda"), 1000 * microseconds)
    assert microseconds - 2 <= record.median_us <= 1.1 * microseconds + 8
    assert record.host_us < 50


@pytest.mark.gpu
@pytest.mark.parametrize("flush_l2", [False, True])
def test_the_time_that_python_needs_is_not_that_of_the_device(spinning, flush_l2):
    def slow(x, ns):
        end = time.perf_counter() + 3e-4
        while time.perf_counter() < end:
            pass
        return spinning.spin[1, 32](x, ns)

    functions = {"slow": slow, "fast": spinning.spin[1, 32]}
    comparison = jitload.compare(functions, torch.zeros(1, device="cuda"), 20_000, flush_l2=flush_l2)
    for name in functions:
        assert 18 <= comparison[name].median_us <= 40, comparison


@pytest.mark.gpu
def test_a_short_kernel_is_not_measured_by_its_launch_from_python(spinning):
    record = spinning.spin[1, 32].benchmark(torch.zeros(1, device="cuda"), 0)
    assert record.launches > 10
    assert 0 < record.median_us < 6


@pytest.mark.gpu
def test_flushing_the_cache_shows_the_bandwidth_of_the_memory(spinning):
    x, y = torch.zeros(4 << 20, device="cuda"), torch.zeros(4, device="cuda")  # 16 MiB fit into the L2 cache
    warm = spinning.read[1024, 256].benchmark(x, y, x.numel() // 4)
    cold = spinning.read[1024, 256].benchmark(x, y, x.numel() // 4, flush_l2=True)
    assert (cold.flushed_l2, warm.flushed_l2) == (True, False)
    assert cold.median_us > warm.median_us
    restored = spinning.read[1024, 256].benchmark(x, y, x.numel() // 4, restore=True)
    assert (restored.launches, restored.restored) == (1, True)
    assert cold.median_us > restored.median_us  # restoring a small result leaves the argument in the cache
    assert cold.peak_share is None or cold.peak_share < 1.05


@pytest.mark.gpu
def test_nothing_is_measured_during_a_capture_which_goes_on(spinning):
    x = torch.zeros(1, device="cuda")
    spinning.spin[1, 1](x, 0)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x += 1
        with pytest.raises(JitLoadError, match="while a CUDA graph is captured"):
            spinning.spin[1, 1].benchmark(x, 0)
    graph.replay()
    assert x.item() == 1


@pytest.mark.gpu
def test_another_stream(spinning):
    stream = torch.cuda.Stream()
    x = torch.zeros(1, device="cuda")
    for function in (spinning.spin[1, 32, 0, stream], spinning.spin[1, 32, 0, stream.cuda_stream]):
        assert 95 < function.benchmark(x, 100_000).median_us < 120
    with torch.cuda.stream(stream):
        assert 95 < spinning.spin[1, 32].benchmark(x, 100_000).median_us < 120
        assert 95 < spinning.spin[1, 32, 0, 0].benchmark(x, 100_000).median_us < 120  # the default stream
    assert 95 < spinning.spin[1, 32, 0, stream].benchmark(x, 100_000).median_us < 120


@pytest.mark.gpu
def test_another_device(two_gpus, spinning):
    record = spinning.spin[1, 32].benchmark(torch.zeros(1, device="cuda:1"), 100_000)
    assert record.device.startswith("cuda:1 (")
    assert 95 < record.median_us < 120
    assert torch.cuda.current_device() == 0


@pytest.mark.gpu
def test_graphs_on_one_device_after_another(two_gpus):
    """Each variant runs for at least 100 µs. That no graph is empty shows in its time."""
    launch = jitload.Launch("spin", grid=1, block="B", tune=jitload.Tune(B=(32, 64), key="x.numel()"))
    mod = jitload.load_inline("spinning", cuda_sources=SPIN, functions={"f": launch})
    for device in ("cuda:1", "cuda:0"):
        tuning = mod.f.tune(torch.zeros(1, device=device), 100_000, graph=True, restore=True, seconds=0.05)
        assert all(95 < row.median_us < 130 for row in tuning.rows), tuning


@pytest.mark.gpu
def test_kernels_without_tensors_and_tensors_of_the_cpu(spinning, gpu, tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    plain = jitload.load_inline("plain", cuda_sources='extern "C" __global__ void k(int n) {}')
    assert plain.k[1, 32].benchmark(5, **FAST).device.startswith("cuda:0 (")
    with pytest.raises(ValueError, match="argument 'x' must be a CUDA tensor"):
        spinning.spin[1, 32].benchmark(torch.zeros(1), 0)


@pytest.mark.gpu
def test_a_kernel_that_fails_is_an_error(gpu):
    code = """
        import jitload, torch
        mod = jitload.load_inline("m", cuda_sources='extern "C" __global__ void k(float* x) { x[1ll << 40] = 1; }')
        x = torch.zeros(1, device="cuda")
        try:
            mod.k[1, 1].benchmark(x)
        except RuntimeError as error:
            print("error:", error)
    """
    result = run_python(textwrap.dedent(code), timeout=300)
    assert "error: " in result.stdout, result.stderr
    assert "ILLEGAL_ADDRESS" in result.stdout
