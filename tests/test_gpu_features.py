"""What a launch can ask of the device, a module's variables, and errors that leave the process in order."""

import pytest
import torch
from support.gpu import run_program, variable
from support.kernels import load

import jitload

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]


def test_variables_are_read_and_written():
    mod = load("variables")
    coefficients = variable(mod, "filter::coefficients", torch.float32, (2, 2))
    counter = variable(mod, "counter", "int64", ())
    x, out = torch.tensor([1.0, 10, 100, 1000], device="cuda"), torch.zeros((), device="cuda")
    assert coefficients.tolist() == [[1, 2], [3, 4]]
    before = counter.item()
    mod.apply(x, out)
    assert out.item() == 4321
    coefficients.copy_(torch.tensor([[5.0, 6], [7, 8]]))
    mod.apply(x, out)
    assert out.item() == 8765
    assert counter.item() == before + 20
    coefficients.copy_(torch.tensor([[1.0, 2], [3, 4]]))


def test_a_variable_is_an_argument_as_it_is():
    mod = load("variables")
    out = torch.zeros((), device="cuda")
    mod.apply(None, out)
    assert out.item() == 4321
    mod.apply(jitload.global_tensor(mod, "samples", "float32", 4), out)
    torch.cuda.synchronize()
    assert out.item() == 4321


def test_a_refused_launch_leaves_torch_alone():
    x = torch.zeros(128, device="cuda")
    mod = load("bounded")
    with pytest.raises(RuntimeError, match=r"bounded\(\): the launch failed: CUDA_ERROR_.*at most 64 threads.*not 128"):
        mod.bounded[1, 128](x)
    assert torch.ones(3, device="cuda").sum().item() == 3
    mod.bounded[1, 64](x)
    assert x.tolist() == [*range(64), *[0] * 64]


def test_an_error_of_earlier_work_is_not_blamed_on_the_next_launch():
    program = """
import os, time, torch
from support.kernels import load
mod = load("bounded")
x = torch.zeros(1, device="cuda")
mod.fine(x)
torch.cuda.synchronize()
mod.wild(8)
for _ in range(1000):
    time.sleep(0.01)
    try:
        mod.fine(x)
    except RuntimeError as error:
        print(error, flush=True)
        break
os._exit(0)  # the context is lost, and nothing can be freed
"""
    message = run_program(program)
    assert message.startswith("fine(): ")
    assert "earlier work had failed with CUDA_ERROR_ILLEGAL_ADDRESS" in message
    assert "the launch failed" not in message


def test_a_kernel_prints():
    program = """
import torch
from support.kernels import load
load("talk").talk(42, 1.5)
torch.cuda.synchronize()
"""
    assert run_program(program) == "number 42, value 1.50\n"


def test_a_failed_assertion_names_its_line():
    program = """
import os, sys, torch
from support.kernels import load
demand = load("talk").demand
x, out = torch.tensor([5], dtype=torch.int32, device="cuda"), torch.zeros(1, dtype=torch.int32, device="cuda")
demand(x, out, 5)
print(out.item(), flush=True)
os.dup2(1, 2)
demand(x, out, 6)
try:
    torch.cuda.synchronize()
except RuntimeError:
    print("caught", flush=True)
os._exit(0)
"""
    first, *remaining = run_program(program).splitlines()
    assert first == "5"
    assert any("talk.cu:8" in line and "*x >= least" in line for line in remaining)
    assert remaining[-1] == "caught"
