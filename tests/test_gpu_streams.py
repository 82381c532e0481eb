"""Streams, graphs, devices and threads: where a launch goes, shown by results that are wrong elsewhere."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import tvm_ffi
from support.gpu import keep_busy, new_stream, run_program, values, variable
from support.kernels import build, load

import jitload

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


@pytest.fixture(scope="module")
def mod(gpu: None) -> jitload.Module:
    module = load("vector")
    module.add_one(torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda"))  # a first launch takes its time
    return module


@pytest.fixture
def side(gpu: None) -> torch.cuda.Stream:
    return new_stream()


def delayed_seven(stream: torch.cuda.Stream) -> tuple[torch.Tensor, torch.Tensor]:
    """Return x, which is 7 only after what `stream` is busy with, and y."""
    x, y = torch.zeros(1000, device="cuda"), torch.zeros(1000, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        keep_busy()
        x.fill_(7)
    return x, y


def test_a_launch_follows_the_work_of_torchs_current_stream(mod, side):
    x, y = delayed_seven(side)
    with torch.cuda.stream(side):
        mod.add_one(x, y)
    side.synchronize()
    assert values(y) == [8]


def test_arrays_of_others_beside_torchs_follow_torchs_stream(mod, side):
    x, y = delayed_seven(side)
    with torch.cuda.stream(side):
        mod.add_one(x, tvm_ffi.from_dlpack(y))
    side.synchronize()
    assert values(y) == [8]


def test_the_stream_of_the_call_wins(mod, side):
    x, y = delayed_seven(side)
    mod.add_one[4, 256, 0, side](x, y)
    side.synchronize()
    assert values(y) == [8]


def test_a_kernel_without_tensors_runs_on_torchs_current_stream(side):
    functions = load("streams")
    flag, seen = (variable(functions, name, "int32", 1) for name in ("flag", "seen"))
    flag.zero_()
    seen.fill_(-1)
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        keep_busy()
        flag.fill_(7)
        functions.look()
    side.synchronize()
    assert seen.item() == 7


def test_a_kernel_resolved_inside_capture(tmp_path):
    program = """
import sys, jitload
mod = jitload.load_module(sys.argv[1])   # before CUDA starts: no kernel is resolved yet
import torch
x, y = torch.zeros(50_000, device="cuda"), torch.zeros(50_000, device="cuda")
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    mod.reverse(x, y)                    # it also raises the limit of shared memory
x.copy_(torch.arange(50_000))
graph.replay()
assert torch.equal(y, x.flip(0))
print("right")
"""
    assert run_program(program, build("shared", str(tmp_path / "shared.so"))) == "right\n"


def test_two_devices_alternating(mod, two_gpus):
    pairs = [(torch.full((1000,), 1.0 * d, device=f"cuda:{d}"), torch.zeros(1000, device=f"cuda:{d}")) for d in (0, 1)]
    for _ in range(10):
        for x, y in pairs:
            mod.add_one(x, y)
            assert torch.cuda.current_device() == 0
    for device, (_, y) in enumerate(pairs):
        assert values(y) == [device + 1]
    with pytest.raises(ValueError, match=r"argument 'y' is on cuda:1, but 'x' is on cuda:0"):
        mod.add_one(pairs[0][0], pairs[1][1])


def test_eight_threads_with_streams_of_their_own(mod):
    start = threading.Barrier(8)

    def work(number: int) -> bool:
        stream = new_stream()
        with torch.cuda.stream(stream):
            x = torch.full((4096,), float(number), device="cuda")
            y = torch.zeros_like(x)
            start.wait()
            for _ in range(300):
                mod.add_one(x, y)
                mod.add_one[16, 256](y, x)
            stream.synchronize()
            return values(x) == [number + 600]

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


def longest_pause(stop: threading.Event, pauses: list[float]) -> None:
    """Note the longest time that this thread did not get to run."""
    before, longest = time.perf_counter(), 0.0
    while not stop.is_set():
        time.sleep(0.001)
        now = time.perf_counter()
        before, longest = now, max(longest, now - before)
    pauses.append(longest)


def test_other_threads_run_while_a_launch_waits(mod):
    x, y = torch.zeros(1, device="cuda"), torch.zeros(1, device="cuda")
    function = mod.add_one[1, 32]
    function(x, y)
    torch.cuda.synchronize()
    stop, pauses = threading.Event(), list[float]()
    watcher = threading.Thread(target=longest_pause, args=(stop, pauses))
    watcher.start()
    keep_busy(3_000_000_000)  # more than a second
    begin, waited = time.perf_counter(), 0.0
    for _ in range(5000):  # the queue takes about a thousand; then a launch waits for the sleeping kernel
        before = time.perf_counter()
        function(x, y)
        waited = max(waited, time.perf_counter() - before)
    stop.set()
    watcher.join()
    torch.cuda.synchronize()
    if waited < 0.5:
        pytest.skip(f"no launch waited: the queue took all in {time.perf_counter() - begin:.2f} s")
    assert pauses[0] < waited / 2
