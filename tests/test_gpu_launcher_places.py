"""The launcher header on a GPU: graph capture, devices, threads, and contexts that are not the launcher's own."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from support.gpu import run_program, values
from support.hopper import How, compile_kernels, launch, load_wrapper

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("hopper")]


def test_a_module_loaded_and_first_launched_inside_capture():
    wrapper, size = load_wrapper(), 50_000
    x = torch.zeros(size, device="cuda")
    wrapper.replace(compile_kernels())
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        wrapper.replace(compile_kernels())  # also unloads the one before
        launch("plain", "reverse", x, size, How(block=1024, shared_bytes=4 * size))
    x.copy_(torch.arange(float(size)))
    graph.replay()
    assert torch.equal(x, torch.arange(float(size), device="cuda").flip(0))


def test_a_captured_pair_of_dependent_launches():
    times = torch.zeros(4, dtype=torch.int64, device="cuda")
    for _ in range(2):
        launch("driver", "begin_early", times, 1000, How())
        launch("driver", "follow", times, 0, How(pdl=True))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        launch("driver", "begin_early", times, 100_000, How())
        launch("driver", "follow", times, 0, How(pdl=True))
    for _ in range(3):
        graph.replay()
        first_ended, _, had_waited, seen = times.tolist()
        assert had_waited >= first_ended == seen


@pytest.mark.parametrize("way", ["plain", "driver", "builder"])
@pytest.mark.parametrize("stream_kind", ["null", "own"])
def test_two_devices_in_turn(way, stream_kind, two_gpus):
    """The null stream is any device's, so the tensors tell where the launch belongs."""
    tensors = [torch.zeros(4, device=f"cuda:{device}") for device in (0, 1)]
    streams = [torch.cuda.Stream(device) for device in (0, 1)]
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    for current in (0, 1):
        with torch.cuda.device(current):
            for _ in range(10):
                for device, x in enumerate(tensors):
                    stream = 0 if stream_kind == "null" else streams[device].cuda_stream
                    launch(way, "add", x, 1 + device, How(grid=(4, 1, 1), stream=stream))
                    assert torch.cuda.current_device() == current
    for device, x in enumerate(tensors):
        torch.cuda.synchronize(device)
        assert values(x) == [20 * (1 + device)]


@pytest.mark.parametrize("stream_kind", ["null", "own"])
def test_two_devices_from_two_threads(stream_kind, two_gpus):
    load_wrapper().replace(compile_kernels())  # so that both threads meet a kernel that is nowhere loaded

    def work(device: int) -> list[float]:
        x = torch.zeros(4, device=f"cuda:{device}")
        torch.cuda.synchronize(device)
        stream = 0 if stream_kind == "null" else torch.cuda.Stream(device).cuda_stream
        for _ in range(500):
            launch("plain", "add", x, 1, How(grid=(4, 1, 1), stream=stream))
        torch.cuda.synchronize(device)
        return values(x)

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(work, (0, 1))) == [[500.0], [500.0]]


GREEN = """
import ctypes, torch
from support.hopper import How, call, launch, load_wrapper

x = torch.full((256,), -1, dtype=torch.int32, device="cuda")
how = How(grid=(256, 1, 1), stream=0)
launch("plain", "where", x, 100_000, how)
torch.cuda.synchronize()
print(len(set(x.tolist())))

whole, part, rest = ((ctypes.c_char * 256)() for _ in range(3))
description, green, context, current, primary = (ctypes.c_void_p() for _ in range(5))
groups = ctypes.c_uint(1)
call("cuDeviceGetDevResource", 0, whole, 1)  # CU_DEV_RESOURCE_TYPE_SM
call("cuDevSmResourceSplitByCount", part, ctypes.byref(groups), whole, rest, 0, 16)
call("cuDevResourceGenerateDesc", ctypes.byref(description), part, 1)
call("cuGreenCtxCreate", ctypes.byref(green), description, 0, 1)  # CU_GREEN_CTX_DEFAULT_STREAM
call("cuCtxFromGreenCtx", ctypes.byref(context), green)
x.fill_(-1)
torch.cuda.synchronize()
call("cuCtxGetCurrent", ctypes.byref(primary))
call("cuCtxSetCurrent", context)
print(ctypes.c_uint.from_buffer(part, 96).value)

def look():
    call("cuCtxGetCurrent", ctypes.byref(current))
    return current.value == context.value

inside = []
load_wrapper().guarded(0, lambda: inside.append(look()))
launch("plain", "where", x, 100_000, how)
call("cuCtxSynchronize")
print(inside, look())
call("cuCtxSetCurrent", primary)
print(len(set(x.tolist())))
"""


def test_a_green_context_is_left_alone():
    """What runs in a green context runs on its multiprocessors alone."""
    everywhere, reserved, kept, used = run_program(GREEN).splitlines()
    assert 8 <= int(reserved) <= 32 < int(everywhere)
    assert kept == "[True] True"
    assert int(used) <= int(reserved)  # 100,000 blocks use every multiprocessor of another context


THREAD = """
import threading, torch
from support.hopper import How, launch
x = torch.zeros(4, device="cuda")
torch.cuda.synchronize()
def work():  # a thread that CUDA has not seen yet
    launch("plain", "add", x, 5, How(grid=(4, 1, 1), stream=0))
thread = threading.Thread(target=work)
thread.start()
thread.join()
torch.cuda.synchronize()
print(x.tolist())
"""


def test_a_thread_without_a_context():
    assert run_program(THREAD) == "[5.0, 5.0, 5.0, 5.0]\n"
