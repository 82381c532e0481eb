"""Type stubs of modules, as a type checker reads them."""

import subprocess
import sys

import pytest
from builds import load

import jitload

SOURCE = r"""
// Scales x; "in place" \ '''.
extern "C" __global__ void scale(float* x, float factor, int n, bool is_fast) {}
// Moves x "by a vector"
extern "C" __global__ void shift(const float4* x, float3 by) {}
extern "C" __global__ void lambda(int* in) {}
extern "C" __global__ void odd(int* self) {}
"""
CPP = r"""
float add(const float* x, int n) { return x[0] + n; }
void run(tvm::ffi::Array<tvm::ffi::Tensor> x) {}
"""
PROGRAM = """
import torch
from vec import scale, shift
import cpp

x = torch.zeros(3)
scale(x, 2.0, 3, True)
scale[1, 32](x, 2.0, 3, True)
scale.call(x, factor=2.0, n=3, is_fast=True)
reveal_type(scale(x, 2.0, 3, True))
scale(x, "2", 3, True)
shift(x)
reveal_type(cpp.add(x, 1))
reveal_type(cpp.run([x]))
cpp.add[1, 1](x, 1)
"""


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what a type checker says about a program that uses stubs of kernels and of C++."""
    directory = tmp_path_factory.mktemp("stubs")
    load(SOURCE, arch="cpu").write_stub(directory / "vec.pyi")
    module = jitload.load_inline("cpp", cpp_sources=CPP, functions=["add", "run"])
    module.write_stub(directory / "cpp.pyi")
    (directory / "program.py").write_text(PROGRAM)
    (directory / "torch.pyi").write_text("class Tensor: ...\ndef zeros(*args: int) -> Tensor: ...\n")  # takes seconds
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(directory / "cache"), "program.py"]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    return [(directory / "vec.pyi").read_text(), (directory / "cpp.pyi").read_text(), *done.stdout.splitlines()]


def test_stubs_have_types_and_comments(checked):
    kernels, cpp, *_ = checked
    assert "shift: _shift" in kernels
    assert "lambda" not in kernels  # a keyword: it is called as getattr(mod, "lambda")
    assert "def __call__(_self, self: torch.Tensor, /) -> None" in kernels
    assert "run: Any" in cpp


def test_a_type_checker_reads_the_stubs(checked):
    lines = [line.removeprefix("program.py:") for line in checked[2:]]
    revealed = [line.partition(": note: Revealed type is ")[::2] for line in lines if "Revealed" in line]
    assert revealed == [("10", '"None"'), ("13", '"float"'), ("14", '"Any"')]
    assert [line.partition(" [")[0].strip() for line in lines if "error: " in line] == [
        '11: error: Argument 2 to "__call__" of "_scale" has incompatible type "str"; expected "float"',
        '12: error: Too few arguments for "__call__" of "_shift"',
        '15: error: Value of type "_add" is not indexable',
    ]
