"""`f.check(…, on="gpu")` runs a call under compute-sanitizer and words its findings as the checks on the CPU do.

compute-sanitizer is replaced by a program that prints what it printed on a GPU, except for tests with the mark `gpu`.
"""

import pickle
from typing import Any

import pytest
import torch
from support.kernels import CHECKED

import jitload
from jitload import checking
from jitload.checking import describe, run_call
from jitload.errors import ToolchainError
from jitload.measuring.memory import Extent
from jitload.settings import read_settings
from jitload.toolchain import nvcc

ACCESS = """========= COMPUTE-SANITIZER
========= Invalid __{space}__ {kind} of size 4 bytes
=========     at shift(const float *, float *, int)+0x90 in checked.cu:9
=========     by thread (7,0,0) in block (1,2,0)
=========     Address {address} is {problem}
=========     and is 1 bytes after the nearest allocation at 0x7f0000200000 of size 28 bytes
=========
========= Program hit CUDA_ERROR_LAUNCH_FAILED (error 719) due to "unspecified launch failure" on CUDA API call.
=========
========= ERROR SUMMARY: 2 errors
"""
OLDER_ACCESS = """========= Invalid __global__ read of size 16 bytes
=========     at 0xda0 in /src/checked.cu:175:shift(const float *, float *, int)
=========     by thread (96,0,0) in block (44,0,0)
=========     Access to 0x7f0000200000 is out of bounds
"""
RACE = """========= COMPUTE-SANITIZER
========= Error: Potential RAW hazard detected at __shared__ 0x3c in block (0,0,0) :
=========     Write Thread (15,0,0) at reverse(const float *, float *)+0x80 in checked.cu:4
=========     Read Thread (48,0,0) at reverse(const float *, float *)+0xb0 in checked.cu:5
=========     Current Value : 0
=========
========= RACECHECK SUMMARY: 4 hazards displayed (4 errors, 0 warnings)
"""
MANUAL = """========= COMPUTE-SANITIZER
========= Invalid __global__ write of size 4 bytes
=========     at unaligned_kernel()+0x100 in memcheck_demo.cu:34
=========     by thread (0,0,0) in block (0,0,0)
=========     Address 0x7f0000200001 is misaligned
=========     and is inside the nearest allocation at 0x7cc43aa00000 of size 4 bytes
=========     Saved host backtrace up to driver entry point at kernel launch time
"""
MANUAL_RACE = """========= COMPUTE-SANITIZER
========= Warning: (Warp Level Programming) Potential RAW hazard detected at __shared__ 0x8c in block (0,0,0) :
=========     Write Thread (35,0,0) at sumKernel(int *, int *)+0x90 in /home/cuda/Racecheck/warp_error.cu:44
=========     Read Thread (32,0,0) at sumKernel(int *, int *)+0x120 in /home/cuda/Racecheck/warp_error.cu:56
=========     Current Value : 35
"""
NOTHING = {"memcheck": "========= ERROR SUMMARY: 0 errors\n", "racecheck": "========= RACECHECK SUMMARY: 0 hazards\n"}
X, Y = 0x7F0000100000, 0x7F0000200000
TENSORS = {"x": Extent(X, 32, 32, 0), "y": Extent(Y, 28, 28, 0)}
# A program that keeps the call, and writes the log for the tool and what the process of the call would have written.
STUB = """#!{python}
import os, pickle, shutil, sys
log, directory = sys.argv[sys.argv.index("--log-file") + 1], sys.argv[sys.argv.index("-c") + 2]
logs, *outcome = pickle.load(open({answers!r}, "rb"))
shutil.copy(os.path.join(directory, "call"), os.path.dirname({answers!r}))
open(log, "w").write(logs[sys.argv[sys.argv.index("--tool") + 1]])
open(os.path.join(directory, "outcome"), "wb").write(pickle.dumps(outcome))
"""


def access(address: int, space: str = "global", kind: str = "write", problem: str = "out of bounds") -> str:
    return ACCESS.format(address=hex(address), space=space, kind=kind, problem=problem)


def without_margin(text: str) -> str:
    return text.replace("========= ", "")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (access(Y + 28), "a write of 4 bytes at byte 28 of 'y', which has 28 bytes, in block (1, 2, 0)"),
        (access(Y - 4, kind="read"), "a read of 4 bytes at byte -4 of 'y', which has 28 bytes, in block"),
        (access(X + 1, problem="misaligned"), "a misaligned write of 4 bytes at byte 1 of 'x', which"),
        (access(16, kind="atomic"), "an atomic operation of 4 bytes at address 0x10, which is in no tensor, in block"),
        (access(0x1BC20, "shared"), "a write of 4 bytes at address 0x1bc20 of shared memory, in block (1, 2, 0)"),
        (OLDER_ACCESS, "a read of 16 bytes at byte 0 of 'y', which has 28 bytes, in block (44, 0, 0)"),
        (
            RACE,
            "a race: a read at address 0x3c of shared memory and another access are not ordered, in block (0, 0, 0)",
        ),
        (NOTHING["memcheck"], ""),
    ],
)
def test_findings_are_worded_as_on_the_cpu(text, expected):
    findings = describe(without_margin(text), TENSORS)
    assert findings.startswith(expected)
    if "shift" in text:
        assert findings.endswith(("thread (7, 0, 0), at checked.cu:9", "thread (96, 0, 0), at /src/checked.cu:175"))
    if "hazard detected" in text:
        write = "a write in block (0, 0, 0), thread (15, 0, 0), at checked.cu:4"
        assert findings.endswith(f"thread (48, 0, 0), at checked.cu:5; the other is {write}")


def test_findings_in_outputs_of_the_manual_of_compute_sanitizer():
    assert describe(without_margin(MANUAL), TENSORS) == (
        "a misaligned write of 4 bytes at byte 1 of 'y', which has 28 bytes, in block (0, 0, 0), thread (0, 0, 0), at "
        "memcheck_demo.cu:34"
    )
    without_line = MANUAL.replace(" in memcheck_demo.cu:34", "").replace("misaligned", "out of bounds")
    assert describe(without_margin(without_line), {}) == (
        "a write of 4 bytes at address 0x7f0000200001, which is in no tensor, in block (0, 0, 0), thread (0, 0, 0)"
    )
    assert describe(without_margin(MANUAL_RACE), TENSORS) == (
        "a race: a read at address 0x8c of shared memory and another access are not ordered, in block (0, 0, 0), "
        "thread (32, 0, 0), at /home/cuda/Racecheck/warp_error.cu:56; the other is a write in block (0, 0, 0), "
        "thread (35, 0, 0), at "
        "/home/cuda/Racecheck/warp_error.cu:44"
    )


@pytest.fixture(scope="module")
def mod() -> jitload.Module:
    return jitload.load_inline("checked", cuda_sources=CHECKED, arch="sm_90a")


@pytest.fixture
def sanitizer(tmp_path, monkeypatch):
    """Return a function that says what compute-sanitizer finds, and how the process of the call ends."""
    import sys

    program, answers = tmp_path / "bin" / "compute-sanitizer", tmp_path / "answers"
    program.parent.mkdir()
    program.write_text(STUB.format(python=sys.executable, answers=str(answers)))
    program.chmod(0o755)
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))

    def answer(outcome: Exception | None = None, **logs: str) -> None:
        answers.write_bytes(pickle.dumps(({**NOTHING, **logs}, TENSORS, outcome)))

    return answer


def test_the_first_finding_of_a_call_is_raised(mod, sanitizer):
    x, y = torch.ones(8), torch.zeros(7)
    sanitizer()
    mod.shift[1, 64].check(x, y, 8, on="gpu")
    for logs, message in (
        ({"memcheck": access(Y + 32)}, r"^shift\(\): a write .* at byte 32 of ('x', .* 32|'y', .* 28) bytes"),
        ({"racecheck": RACE}, r"^shift\(\): a race: .*; the other is .* thread \(15, 0, 0\), at checked.cu:4$"),
        ({"memcheck": "========= Barrier error\n========= ERROR SUMMARY: 1 error"}, r"reports:\nBarrier error\nERROR"),
    ):
        sanitizer(RuntimeError("unspecified launch failure") if "memcheck" in logs else None, **logs)
        with pytest.raises(RuntimeError, match=message):
            jitload.check(mod.shift[1, 64], x, y, 8, on="gpu")
    sanitizer(outcome=TypeError("shift() takes 3 arguments"))
    with pytest.raises(TypeError, match="takes 3 arguments"):
        mod.shift[1, 64].check(x, y, 8, on="gpu")


def test_what_prevents_a_check_is_an_error(mod, sanitizer, monkeypatch):
    x = torch.ones(8)
    sanitizer(memcheck="========= Error: Target application terminated\n")
    with pytest.raises(ToolchainError, match=r"could not check shift\(\):\nError: Target application terminated"):
        mod.shift[1, 64].check(x, x, 8, on="gpu")
    with pytest.raises(ValueError, match="on= must be 'cpu' or 'gpu', got 'cuda'"):
        mod.shift[1, 64].check(x, x, 8, on="cuda")
    monkeypatch.setattr(nvcc, "_candidates", lambda *_: iter(()))
    with pytest.raises(ToolchainError, match=r"was not found\. Install it with: pip install nvidia-cuda-sanitizer-api"):
        mod.shift[1, 64].check(x, x, 8, on="gpu")


def test_the_process_of_the_call_gets_its_arguments_and_returns_its_error(mod, sanitizer, tmp_path):
    def outcome_of(function: Any, *args: Any) -> tuple[list[Any], Exception | None]:
        sanitizer()
        function.check(*args, on="gpu")  # the program keeps the call, which then runs on the CPU
        _, *call = torch.load(tmp_path / "call", weights_only=False)
        on_cpu = checking._load_on_cpu(checking._request_of(function), function)._jitload_library.request
        torch.save((on_cpu, *call), tmp_path / "call")
        run_call(str(tmp_path), "cpu")
        tensors, error = pickle.loads((tmp_path / "outcome").read_bytes())
        return [(tensor.address, tensor.span) for tensor in tensors.values()], error

    memory = torch.zeros(100)
    (x, y), error = outcome_of(mod.shift[1, 64], memory[1:51], memory[51:], 49)
    assert (x[1], y[1], error) == (200, 196, None)
    assert [x[0] % 64, y[0] % 64] == [memory[n:].data_ptr() % 64 for n in (1, 51)]
    (x, y), error = outcome_of(mod.shift[1, 64], memory[:50], memory[1:51].numpy(), 50)
    assert y[0] - x[0] == 4
    assert "a race" in str(error)
    _, error = outcome_of(mod.shift[1, 64], torch.ones(8), torch.zeros(0), 8)
    assert "a write of 4 bytes" in str(error)
    _, error = outcome_of(mod.shift[1, 64], torch.ones(8))
    assert isinstance(error, TypeError)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_compute_sanitizer_finds_what_a_call_on_the_gpu_does():
    try:
        nvcc.find_compute_sanitizer(read_settings())
    except ToolchainError as error:
        pytest.skip(str(error))
    mod = jitload.load_inline("checked", cuda_sources=CHECKED)
    x, y = torch.ones(64, device="cuda"), torch.zeros(64, device="cuda")
    mod.shift[1, 64].check(x, y, 64, on="gpu")
    assert not y.any()
    with pytest.raises(
        RuntimeError, match=r"^shift\(\): a write of 4 bytes at byte 28 of 'y', which has 28 bytes, in "
    ):
        mod.shift[1, 64].check(x, y[:7], 8, on="gpu")
    with pytest.raises(
        RuntimeError, match=r"^reverse\(\): a race: .*, at checked\.cu:\d; the other is .*checked\.cu:\d$"
    ):
        mod.reverse[1, 64].check(x, y, on="gpu")
