"""Mistakes in arguments, each of which raises one clear error, and unusual arguments that are valid."""

import inspect
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from builds import ADD, ARCH, build, kernel, load, run_python

import jitload
from jitload import nvrtc
from jitload.building.ninja import Step, ninja_text
from jitload.cpptext.source_kind import classify
from jitload.errors import JitLoadError, LaunchSpecError, ToolchainError
from jitload.settings import read_settings

LAUNCH = "void start() { add<<<1, 1>>>(0, 0, 0); }"

# ---- paths -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["output", "build_directory"])
@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"/tmp/x.so", " must be a path, a str or os.PathLike, got bytes"),
        (3, " must be a path, a str or os.PathLike, got int"),
        ("/tmp/a\0b", r"='/tmp/a\\x00b' contains a NUL character, which a path cannot"),
        ("", " is an empty path"),
    ],
)
def test_a_value_that_is_not_a_path_is_refused(argument, value, problem):
    with pytest.raises(JitLoadError, match=f"^{argument}{problem}"):
        build(ADD, **{argument: value})


def test_other_arguments_refuse_values_that_are_not_paths():
    for value in (b"/tmp/x.so", None, "a\0b"):
        with pytest.raises(JitLoadError, match=r"^path(='a\\x00b')? (must be|contains a NUL)"):
            jitload.load_module(value)
    with pytest.raises(JitLoadError, match=r"^sources='a\\x00b.cu' contains a NUL character"):
        jitload.load("m", sources=["a\0b.cu"], arch=ARCH)
    with pytest.raises(JitLoadError, match=r"^extra_include_paths='a\\x00b' contains a NUL"):
        build(ADD, extra_include_paths=["a\0b"])

    class Bytes:
        def __fspath__(self) -> bytes:
            return b"x"

    with pytest.raises(JitLoadError, match="output must be a path of type str, got a path of type bytes"):
        build(ADD, output=Bytes())


GONE = """
import os, tempfile, jitload
from jitload import nvrtc
from builds import ADD, ARCH, build
place = tempfile.mkdtemp()
os.chdir(place)
os.rmdir(place)
assert os.path.isfile(build(ADD)) and nvrtc.nvrtc_compile(ADD, arch=ARCH)
calls = (
    lambda: build(ADD, output="x.so"),
    lambda: build(ADD, build_directory="x"),
    lambda: jitload.load_module("x"),
    lambda: build(ADD, extra_include_paths=["x"]),
    lambda: jitload.load("m", sources="x.cu", arch=ARCH),
)
for call in calls:
    try:
        call()
    except jitload.JitLoadError as error:
        print(error)
os.environ["JITLOAD_CACHE_DIR"] = "relative"
try:
    build(ADD)
except jitload.errors.CacheError as error:
    print(error)
"""


def test_a_working_directory_that_is_gone():
    done = run_python(GONE)
    assert done.stderr == ""
    gone = "is relative, and the working directory no longer exists"
    assert done.stdout.splitlines() == [
        f"output='x.so' {gone}; pass an absolute path",
        f"build_directory='x' {gone}; pass an absolute path",
        f"path='x' {gone}; pass an absolute path",
        f"extra_include_paths='x' {gone}; pass an absolute path",
        "source 'x.cu' cannot be read: No such file or directory",
        f"JITLOAD_CACHE_DIR=relative {gone}. Write an absolute path.",
    ]


@pytest.mark.parametrize("character", ["|", "\n"])
def test_a_path_that_ninja_cannot_read(character, tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / f"a{character}b"))
    assert build(kernel("unread")).is_file()  # what ninja reads there has no path
    with pytest.raises(ToolchainError, match=r"ninja cannot read the path .* Move the file"):
        ninja_text([Step(output="x", command=("c",), inputs=(f"a{character}b",))])


def test_a_cache_whose_path_has_characters_that_ninja_and_shells_read(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "a $b:c 'd\" #e"))
    assert build(kernel("unread")).is_file()


def test_an_option_that_ninja_cannot_read():
    with pytest.raises(ToolchainError, match=r"^ninja cannot read an option with a line break: '-DTEXT=a\\nb'"):
        jitload.build_inline("m", cpp_sources="int f() { return 1; }", functions="f", extra_cflags=["-DTEXT=a\nb"])


# ---- functions of C++ ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("nothing", [[], (), {}, None])
def test_no_functions_export_nothing_by_themselves(nothing):
    """As upstream has it; what is exported by hand is there."""
    text = "int f() { return 1; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(g, f);"
    assert list(jitload.load_inline("m", cpp_sources=text, functions=nothing)) == ["g"]


def test_a_cubins_file_whose_name_is_no_name_in_cpp(tmp_path):
    (tmp_path / "w.cc").write_text("TVM_FFI_EMBED_CUBIN(k);\n")
    (tmp_path / "k.sm_90.cubin").write_bytes(b"")
    with pytest.raises(JitLoadError) as caught:
        jitload.build("m", sources=[tmp_path / "w.cc", tmp_path / "k.sm_90.cubin"])
    assert str(caught.value) == (
        f"{tmp_path}/k.sm_90.cubin is embedded as 'k.sm_90', which is not a C++ name; "
        "TVM_FFI_EMBED_CUBIN needs ASCII letters, digits (not first) and underscores"
    )


def test_a_word_of_the_language_is_no_functions_name():
    with pytest.raises(LaunchSpecError, match=r"^functions: 'class' is a C\+\+ keyword, so no function can"):
        jitload.build_inline("m", cpp_sources="int f() { return 1; }", functions={"f": "", "class": ""})


# ---- tools and options -----------------------------------------------------------------------------------------

COMPILERS = {
    "g++ 'unclosed": 'JITLOAD_CXX or CXX is "g\\+\\+ \'unclosed", which is not a command: No closing quotation',
    "true": "bin/true .*does not seem to be a C\\+\\+ compiler",
    "false": "the C\\+\\+ compiler .*false does not work",
}


@pytest.mark.parametrize("variable", ["CXX", "JITLOAD_CXX"])
@pytest.mark.parametrize("command", COMPILERS)
def test_a_command_that_is_not_a_compiler_is_refused(variable, command, monkeypatch):
    monkeypatch.delenv("JITLOAD_CXX", raising=False)
    monkeypatch.setenv(variable, command)
    with pytest.raises(ToolchainError, match=COMPILERS[command]):
        build(ADD, arch="cpu")


def test_a_compiler_that_makes_nothing(tmp_path, monkeypatch):
    script = tmp_path / "c++"
    script.write_text("#!/bin/sh\necho 'idle version 1' >&2\n")
    script.chmod(0o755)
    monkeypatch.setenv("JITLOAD_CXX", str(script))
    with pytest.raises(ToolchainError, match=r"reported no error but did not make m\.so\. Is it a C\+\+ compiler"):
        build(kernel("made_of_nothing"))


@pytest.mark.parametrize("flag", ["-dlto", "--dlink-time-opt", "-lto"])
def test_options_for_a_later_link(flag):
    with pytest.raises(JitLoadError, match=f"extra_cuda_cflags has '{flag}': jitload does not link device code"):
        build(ADD, extra_cuda_cflags=[flag])


@pytest.mark.parametrize("flag", ["-ptx", "--ptx", "-cubin", "--cubin", "--fatbin", "-c", "-E", "-M", "--dryrun", "-o"])
def test_options_for_another_output_are_refused(flag):
    message = f"extra_cuda_cflags has '{flag}': jitload chooses the type and the path"
    for text in (ADD,) if flag == "-c" else (ADD, f"{ADD}{LAUNCH}"):
        with pytest.raises(JitLoadError, match=message):
            build(text, extra_cuda_cflags=[flag, "x"])


def test_nvrtc_compile_refuses_a_name_that_is_not_text():
    with pytest.raises(JitLoadError, match=r"(?m)^name must be a str, got int$"):
        nvrtc.nvrtc_compile(ADD, name=1, arch=ARCH)
    with pytest.raises(JitLoadError, match=r"^name contains a NUL character"):
        nvrtc.nvrtc_compile(ADD, name="a\0b", arch=ARCH)


# ---- modules ---------------------------------------------------------------------------------------------------


def test_global_tensor_refuses_other_objects_and_shapes():
    for value_of_another_type in (None, "m", object()):
        with pytest.raises(TypeError, match=r"takes a module that jitload built, got"):
            jitload.global_tensor(value_of_another_type, "v", "float32", (4,))
    module: Any = load("__device__ float v[4];" + ADD)
    for shape in ("ab", None, 4.0, (2, 2.0)):
        with pytest.raises(
            TypeError, match=f"^shape must be an int or a sequence of them, got {re.escape(repr(shape))}$"
        ):
            jitload.global_tensor(module, "v", "float32", shape)


def test_global_tensors_shape_may_be_any_that_counts():
    module: Any = jitload.load_inline("m", cuda_sources="__device__ float v[4];", arch="cpu")
    for shape in (np.array([2, 2]), torch.Size([4]), np.int64(4), range(4, 5)):
        assert jitload.global_tensor(module, "v", "float32", shape).numel() == 4


def test_a_set_of_functions_is_one_request_whatever_its_order():
    names = [f"k{number}" for number in range(8)]
    text = "".join(kernel(name) for name in names)
    assert list(load(text, functions=set(names))) == names
    assert load(text, functions=set(names)) is load(text, functions=frozenset(reversed(names)))


def test_nobody_can_change_a_module_that_others_hold():
    module, same = load(ADD), load(ADD)
    assert module is same
    for name in ("add", "other"):
        with pytest.raises(
            AttributeError, match=f"cannot set '{name}' on .*, which is shared by everything that loads this source"
        ):
            setattr(module, name, 3)
    assert repr(same.add).startswith("<jitload function add(")
    assert same.add is module.add


# ---- sources that look wrong and are not -----------------------------------------------------------------------


@pytest.mark.parametrize("flags", [["-DN"], ["-D", "N=1"], ["--pre-include=any.h"]])
def test_launches_in_a_branch_that_an_option_enables_count(flags):
    assert classify([f"#ifdef N\n{LAUNCH}\n#endif\n{ADD}"], has_embed_cubin=False, options=flags) == "mixed"
    assert classify([f"#ifndef N\n{LAUNCH}\n#endif\n{ADD}"], has_embed_cubin=False, options=["-DN"]) == "device"


@pytest.mark.parametrize("guard", ["#ifndef __CUDACC_RTC__", "#ifdef __NVCC__", "#if !defined(__CUDA_ARCH__)"])
def test_launches_hidden_from_nvrtc_leave_the_kernels_loadable(guard):
    text = f"{guard}\n{LAUNCH}\n#endif\n{ADD}"
    assert list(load(text)) == ["add"]
    assert list(jitload.load_inline("m", cuda_sources=text, arch="cpu")) == ["add"]
    exported = f"{guard}\n{LAUNCH}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(start, start);\n#endif\n{ADD}"
    assert classify([exported], has_embed_cubin=False, for_nvrtc=True) == "mixed"


def test_lines_that_end_with_cr_alone(tmp_path):
    text = '#define ONE 1\r// one\rextern "C" __global__ void k(float* x) { x[0] = ONE; }\r'
    assert list(load(text)) == ["k"]
    file = tmp_path / "k.cu"
    file.write_bytes(text.encode())
    assert list(jitload.load("m", sources=file, arch=ARCH)) == ["k"]
    with pytest.raises(jitload.errors.CompileError) as caught:
        build(text.replace("ONE; }", "TWO; }"))
    assert caught.value.diagnostics[0].line == 3


def test_kernels_that_a_macro_of_the_flags_makes():
    flags = ['-DKERN=extern "C" __global__ void']
    text = "KERN made(float* x) { x[0] = 1; }"
    assert list(load(text, extra_cuda_cflags=flags)) == ["made"]
    assert list(load(text, extra_cuda_cflags=flags, functions=["made"])) == ["made"]
    assert jitload.compile_cubin(text, arch=ARCH, extra_cuda_cflags=flags).kernels[0].name == "made"


def test_kernels_in_a_header_that_the_flags_include(tmp_path):
    header = tmp_path / "k.h"
    header.write_text(ADD)
    assert list(load("struct Unused;", extra_cuda_cflags=["-include", os.fspath(header)])) == ["add"]


FLAGS = (
    ("JITLOAD_ISOLATE", "isolates", False),
    ("JITLOAD_CPU_GPU_CHECK", "checks_for_gpu", True),
    ("JITLOAD_PRECOMPILE", "precompiles", True),
    ("JITLOAD_TRUST_GROUP", "trusts_group", False),
    ("JITLOAD_CACHE_REMOTE_WRITE", "remote_writes", False),
)


@pytest.mark.parametrize(("variable", "field", "default"), FLAGS)
def test_variables_that_turn_something_on_or_off(monkeypatch, variable, field, default):
    monkeypatch.setenv("JITLOAD_CACHE_REMOTE", "file:///nowhere")
    texts = [("", default), *((text, True) for text in ("1", "true", "YES", "On"))]
    for text, value in (*texts, *((text, False) for text in ("0", "False", "no", "OFF"))):
        monkeypatch.setenv(variable, text)
        assert getattr(read_settings(), field) is value
    for text in ("maybe", "2", " ", "trüe"):
        monkeypatch.setenv(variable, text)
        with pytest.raises(
            JitLoadError, match=rf"{variable}='{text}' must be 1, true, yes or on, or 0, false, no or off"
        ):
            jitload.load_inline("flags", cuda_sources="__global__ void k() {}")


FLAGS = {
    name: parameter.annotation
    for name, parameter in inspect.signature(jitload.load_inline).parameters.items()
    if parameter.annotation in ("bool", "bool | None")
}


@pytest.mark.parametrize("name", FLAGS)
def test_arguments_that_turn_something_on_or_off(name):
    assert {"isolate", "debug"} <= FLAGS.keys()
    for value in ("yes", "off", 2, [], *(() if "None" in FLAGS[name] else (None,))):
        with pytest.raises(JitLoadError, match=rf"{name}={re.escape(repr(value))} must be True"):
            jitload.load_inline("flags", cuda_sources="__global__ void k() {}", **{name: value})
    with pytest.raises(JitLoadError, match="isolate='yes' must be True, False or None"):
        jitload.compile_cubin("__global__ void k() {}", isolate="yes")
