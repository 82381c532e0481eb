"""Type stubs of modules, as a type checker reads them."""

import subprocess
import sys

import pytest
from builds import load

import jitload
from jitload.loader.stub import UNKNOWN, pybind_signatures

SOURCE = r"""
// Scales x; "in place" \ '''.
extern "C" __global__ void scale(float* x, float factor, int n, bool is_fast) {}
// Moves x "by a vector"
extern "C" __global__ void shift(const float4* x, float3 by) {}
extern "C" __global__ void lambda(int* in) {}
extern "C" __global__ void odd(int* self) {}
"""
CPP = r"""
#include <string>
namespace ffi = tvm::ffi;
namespace ops {
// Counts \ "things".
int64_t count(const tvm::ffi::Optional<ffi::Tensor>& x, unsigned long n, double) { return n; }
template <class T> T same(T x) { return x; }
auto trailing(int from) -> double { return from; }
}
std::string name_of(ffi::Array<ffi::Tensor> in, DLDevice d) { return "x"; }
float add(const float* x, int n) { return x[0] + n; }
void run(ffi::PackedArgs args, ffi::Any* result) {}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(count, ops::count);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(same, ops::same<int>);
const auto double_it = [](int x) { return 2 * x; };
TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, double_it);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(trailing, ops::trailing);
"""
METADATA = ["-DTVM_FFI_DLL_EXPORT_INCLUDE_METADATA=1"]
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
reveal_type(cpp.count(None, 1, 2.0))
reveal_type(cpp.name_of([x], object()))
reveal_type(cpp.add(x, 1))
reveal_type(cpp.same(1))
reveal_type(cpp.sums([x], 1))
reveal_type(cpp.pick(x))
reveal_type(cpp.pick(1))
cpp.name_of(x)
cpp.add[1, 1](x, 1)
cpp.sums([1])
"""
SUMS = """\
sums(arg0: collections.abc.Sequence[torch.Tensor], scale: typing.SupportsFloat | typing.SupportsIndex = 1.0, \
kind: at::Kind = <Kind.A: 0>) -> tuple[torch.Tensor, List[int]]

sums
"""
PICK = """\
pick(*args, **kwargs)
Overloaded function.

1. pick(x: torch.Tensor) -> torch.Tensor

2. pick(x: typing.SupportsInt) -> int
"""


def sums() -> None: ...


def pick() -> None: ...


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return what a type checker says about a program that uses stubs of kernels and of C++."""
    directory = tmp_path_factory.mktemp("stubs")
    load(SOURCE, arch="cpu").write_stub(directory / "vec.pyi")
    module = jitload.load_inline("cpp", cpp_sources=CPP, functions=["add", "name_of"], extra_cflags=METADATA)
    sums.__doc__, pick.__doc__ = SUMS.replace("at::Kind", "at.Kind"), PICK
    module.__dict__["_jitload_torch"] = sys.modules[__name__]  # as in the library of a PyTorch extension source
    module.__dict__["_jitload_exports"] += ("sums", "pick", "SOURCE")
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
    assert "def count(arg0: torch.Tensor | None, arg1: int, arg2: float, /) -> int: ..." in cpp
    assert "SOURCE: Any" in cpp


def test_a_type_checker_reads_the_stubs(checked):
    lines = [line.removeprefix("program.py:") for line in checked[2:]]
    assert [line.partition(": note: Revealed type is ")[::2] for line in lines if "Revealed" in line] == [
        ("10", '"None"'),
        ("13", '"int"'),
        ("14", '"str"'),
        ("15", '"float"'),
        ("16", '"int"'),
        ("17", '"tuple[torch.Tensor, list[int]]"'),
        ("18", '"torch.Tensor"'),
        ("19", '"int"'),
    ]
    assert [line.partition(" [")[0].strip() for line in lines if "error: " in line] == [
        '11: error: Argument 2 to "__call__" of "_scale" has incompatible type "str"; expected "float"',
        '12: error: Too few arguments for "__call__" of "_shift"',
        '20: error: Too few arguments for "name_of"',
        '20: error: Argument 1 to "name_of" has incompatible type "Tensor"; expected "Sequence[Tensor]"',
        '21: error: Value of type "_add" is not indexable',
        '22: error: List item 0 has incompatible type "int"; expected "Tensor"',
    ]


def test_without_tvm_ffis_metadata_types_are_unknown(tmp_path):
    text = "int f(int64_t n, tvm::ffi::Array<tvm::ffi::Tensor> m) { return 1; }\n"
    module = jitload.load_inline("m", cpp_sources=text, functions={"f": "Counts."})
    stub = module.write_stub(tmp_path / "m.pyi").read_text()
    assert 'def f(*args: Any) -> Any:\n    """Counts."""' in stub


@pytest.mark.parametrize("doc", ["", "f(", "g(x: int) -> int", "f(*args, **kwargs)\nNothing.", "f(x: ) -> int"])
def test_docstrings_without_a_signature(doc):
    assert pybind_signatures("f", doc) == [UNKNOWN]
