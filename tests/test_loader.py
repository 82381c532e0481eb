"""The module and its typed functions, libraries loaded where nothing else is there, and type stubs of modules."""

import inspect
import os
import shutil
import struct
import subprocess
import sys

import pytest
import torch
import tvm_ffi
from builds import ADD, EXPORT, build, kernel, load, run_python

import jitload
from jitload import Launch
from jitload.building.runtime import include_flags
from jitload.errors import LoadError
from jitload.loader.function import TypedFunction
from jitload.toolchain.host import tvm_ffi_include_dirs

HIDDEN = ("imports", "get_function", "__init__", "_x")
TEXT = """
struct S { int a[3]; };
extern "C" __global__ void much(const float* x, float* in, int n, float scale, bool flag, S s) {}
"""


MUCH = "much(const float* x, float* in_, int n, float scale, bool flag, S s)"


@pytest.fixture(scope="module")
def module():
    much = Launch(nullable="in", doc="Do much.\nIn two lines.")
    return load(TEXT + ADD, functions={"much": much, "add": Launch(grid=1, block=32)})


def test_a_module_is_a_tvm_ffi_module(module):
    assert isinstance(module, tvm_ffi.Module)
    assert isinstance(module, jitload.Module)
    of_tvm_ffi = module.get_function("add"), module.get_function("add", query_imports=True)
    for function in (module.add, module["add"], *of_tvm_ffi):
        assert isinstance(function, TypedFunction)
        assert isinstance(function, tvm_ffi.Function)
        assert function.__name__ == "add"
    assert module.implements_function("add")
    assert module.get_function_doc("much") == "Do much.\nIn two lines."
    schema = module.get_function_metadata("add")["type_schema"]
    assert "ffi.Function" in schema
    assert schema.count("DLTensor*") == 2


def test_a_module_lists_its_functions(module):
    assert list(module) == ["much", "add"]
    assert len(module) == 2
    assert "add" in module
    assert "other" not in module
    assert module
    assert {"add", "much", "get_function"} <= set(dir(module))
    title, much, add = str(module).splitlines()
    assert title == "jitload.Module 'm' (sm_90a):"
    assert (much, add) == (f"  {MUCH}", "  add(const float* x, float* y, int n)")
    assert repr(module) == f"<jitload.Module 'm' (sm_90a): {MUCH}; {add.strip()}>"
    with pytest.raises(AttributeError, match="has no function 'other'; it has: much, add"):
        module.other  # noqa: B018
    with pytest.raises(AttributeError, match="has no function 'other'; it has: much, add"):
        module["other"]
    with pytest.raises(TypeError, match="must be str, got int"):
        module[3]


def test_kernels_named_like_its_attributes_are_reached_by_name():
    functions = {name: Launch(kernel=f"k{number}", grid=1, block=1) for number, name in enumerate(HIDDEN)}
    hidden = load("".join(kernel(f"k{number}") for number in range(len(HIDDEN))), functions=functions)
    assert [hidden[name].__name__ for name in HIDDEN] == list(hidden) == list(HIDDEN)
    assert hidden.imports == ()
    assert repr(hidden._x) == "<jitload function _x(float* x)>"


def test_a_function_shows_its_type(module):
    signature = inspect.signature(module.much)
    assert {p.kind.name for p in signature.parameters.values()} == {"POSITIONAL_ONLY"}
    annotations = {"x": torch.Tensor, "in_": torch.Tensor | None, "n": int, "scale": float, "flag": bool, "s": bytes}
    assert [(name, p.annotation) for name, p in signature.parameters.items()] == list(annotations.items())
    assert repr(module.much) == f"<jitload function {MUCH}>"
    configured = module.much[(2, 3), 32]
    assert repr(configured) == f"<jitload function {MUCH}>".replace("much(", "much[(2, 3), 32](")
    assert configured.kernel is module.much.kernel and inspect.signature(configured) is signature  # made once
    assert module.much.__doc__ == f"Do much.\nIn two lines.\n\n{MUCH}"
    assert (module.much.__module__, module.much.__qualname__) == ("jitload", "much")


def test_a_file_that_is_not_a_library_is_told_what_to_do(tmp_path):
    for name, use in (("x.cu", r"load\(name, sources='x"), ("k.cubin", "embed_cubin="), ("k.ptx", "compile_cubin")):
        with pytest.raises(LoadError, match=rf"{name} is not a library: load_module\(\) loads .* use {use}"):
            jitload.load_module(tmp_path / name)


def test_a_library_that_changed_on_disk_is_the_new_one(tmp_path):
    path = tmp_path / "lib.so"
    names = []
    for name in ("first", "second", "third"):
        fresh = shutil.copyfile(build(kernel(name)), tmp_path / "fresh.so")
        os.replace(fresh, path)  # written over in place, the mapped code itself would change
        os.utime(path, ns=(10**18, 10**18))
        names += jitload.load_module(path)
    assert names == ["first", "second", "third"]


def test_a_missing_library_is_named(tmp_path):
    with pytest.raises(LoadError, match=f"no library at {tmp_path}/none.so"):
        jitload.load_module(tmp_path / "none.so")
    with pytest.raises(LoadError, match=f"no library at {tmp_path}"):
        jitload.load_module(tmp_path)


def test_a_library_cut_short_is_refused_before_it_is_mapped(tmp_path):
    whole = build(ADD).read_bytes()
    path = tmp_path / "lib.so"
    for size in (64, 1000, 4096, 8192, len(whole) * 3 // 4, len(whole) - 1):
        path.write_bytes(whole[: min(size, len(whole) - 1)])
        with pytest.raises(LoadError, match=rf"{path} (is truncated: .* Build or copy it again|cannot be loaded: )"):
            jitload.load_module(path)
    path.write_bytes(whole)
    assert list(jitload.load_module(str(path))) == ["add"]


def test_a_library_without_its_table_of_sections_is_loaded(tmp_path):
    """As `llvm-strip --strip-sections` leaves it."""
    library = bytearray(build(ADD).read_bytes())
    struct.pack_into("<Q", library, 40, 0)
    struct.pack_into("<HHH", library, 58, 0, 0, 0)
    path = tmp_path / "lib.so"
    path.write_bytes(library)
    assert list(jitload.load_module(path)) == ["add"]


BARE = """
import os, sys, shutil, subprocess
import tvm_ffi
hidden = {"nvidia", "ninja", "jinja2", "filelock", "elftools"}
class Hide:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in hidden:
            raise ModuleNotFoundError(name)
before = set(sys.modules)
sys.meta_path.insert(0, Hide())
def no(*_, **__): raise AssertionError("a process was started")
subprocess.Popen = no
import jitload
module = jitload.load_module(os.environ["LIBRARY"])
print(list(module), module.add)
try:
    module.add(1, 2, 3)
except TypeError as error:
    print(error)
assert not hidden & set(sys.modules) - before
"""


def test_a_library_needs_no_tools(tmp_path):
    path = build(ADD, functions={"add": Launch(grid=1, block=1)}, output=tmp_path / "moved.so")
    env = {"LIBRARY": str(path), "PATH": "/nowhere", "JITLOAD_CACHE_DIR": "/nowhere", "CUDA_VISIBLE_DEVICES": ""}
    done = run_python(BARE, env)
    assert done.stderr == ""
    assert done.stdout.splitlines() == [
        "['add'] <jitload function add(const float* x, float* y, int n)>",
        "add(): argument 'x' must be a float32 CUDA tensor, got int",
    ]


def test_a_library_needs_no_other_and_is_bound_when_it_is_loaded():
    done = subprocess.run(["readelf", "-d", str(build(ADD))], capture_output=True, text=True, check=True)
    assert "NOW" in done.stdout
    assert not any(tag in done.stdout for tag in ("NEEDED", "RPATH", "RUNPATH"))


def test_a_library_of_upstreams_is_a_module_without_types(tmp_path):
    source, library = tmp_path / "f.c", tmp_path / "f.so"
    source.write_text(EXPORT.replace("VALUE", "7"))
    subprocess.run(["cc", "-shared", "-fPIC", *include_flags(), str(source), "-o", str(library)], check=True)
    module = jitload.load_module(library)
    assert module.get() == 7
    assert (list(module), len(module), "get" in module, bool(module)) == (["get"], 1, True, True)
    assert repr(module) == "<jitload.Module 'f': get(…)>"


def test_a_library_whose_runtime_library_is_elsewhere_gets_an_installed_one(tmp_path, monkeypatch):
    """No library is built for it, because where a toolkit is installed the dynamic loader may find the toolkit's."""
    runtime, library = tmp_path / "libcudart.so.77", tmp_path / "m.so"
    for path in (runtime, library):
        options = ["-shared", "-fPIC", "-x", "c", "-I" + str(tvm_ffi_include_dirs()[0]), "-"]
        text = "" if path == runtime else EXPORT.replace("VALUE", "7")
        needed = [] if path == runtime else ["-x", "none", "-Wl,--no-as-needed", str(runtime)]
        command = ["c++", *options, *needed, f"-Wl,-soname,{path.name}", "-o", str(path)]
        subprocess.run(command, input=text, text=True, check=True)
    runtime.rename(tmp_path / "elsewhere.so")
    majors = []
    monkeypatch.setattr("jitload.toolchain.libraries.find_installed", lambda _, major, settings: majors.append(major))
    with pytest.raises(LoadError, match=r"runtime library of CUDA 77: pip install 'nvidia-cuda-runtime==77\.\*'"):
        jitload.load_module(library)
    monkeypatch.setattr("jitload.toolchain.libraries.find_installed", lambda *_: tmp_path / "elsewhere.so")
    assert jitload.load_module(library).get() == 7
    assert majors == [77]


STUB_SOURCE = r"""
// Scales x; "in place" \ '''.
extern "C" __global__ void scale(float* x, float factor, int n, bool is_fast) {}
// Moves x "by a vector"
extern "C" __global__ void shift(const float4* x, float3 by) {}
extern "C" __global__ void lambda(int* in) {}
extern "C" __global__ void odd(int* self) {}
"""
STUB_CPP = r"""
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
    load(STUB_SOURCE, arch="cpu").write_stub(directory / "vec.pyi")
    module = jitload.load_inline("cpp", cpp_sources=STUB_CPP, functions=["add", "run"])
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
