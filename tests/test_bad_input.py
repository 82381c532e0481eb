"""Mistakes in arguments, each of which raises one clear error, and unusual arguments that are valid."""

import inspect
import os
import re
from typing import Any

import numpy as np
import pytest
import torch
from builds import ADD, ARCH, build, kernel, load

import jitload
from jitload.cpptext.source_kind import classify
from jitload.errors import CompileError, JitLoadError, ToolchainError
from jitload.settings import read_settings

LAUNCH = "void start() { add<<<1, 1>>>(0, 0, 0); }"


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


def test_an_option_that_ninja_cannot_read():
    with pytest.raises(ToolchainError, match=r"^ninja cannot read an option with a line break: '-DTEXT=a\\nb'"):
        jitload.build_inline("m", cpp_sources="int f() { return 1; }", functions="f", extra_cflags=["-DTEXT=a\nb"])


@pytest.mark.parametrize("nothing", [[], (), {}, None])
def test_no_functions_export_nothing_by_themselves(nothing):
    """As upstream has it; what is exported by hand is there."""
    text = "int f() { return 1; }\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(g, f);"
    assert list(jitload.load_inline("m", cpp_sources=text, functions=nothing)) == ["g"]


def test_a_word_of_the_language_is_no_functions_name():
    with pytest.raises(CompileError, match=r"functions\['class'\]:1"):
        jitload.build_inline("m", cpp_sources="int f() { return 1; }", functions={"f": "", "class": ""})


COMPILERS = {
    "g++ 'unclosed": 'JITLOAD_CXX or CXX is "g\\+\\+ \'unclosed", which is not a command: No closing quotation',
    "true": "bin/true .*does not seem to be a C\\+\\+ compiler",
    "false": "the C\\+\\+ compiler .*false does not work",
}


@pytest.mark.parametrize("command", COMPILERS)
def test_a_command_that_is_not_a_compiler_is_refused(command, monkeypatch):
    monkeypatch.setenv("JITLOAD_CXX", command)
    with pytest.raises(ToolchainError, match=COMPILERS[command]):
        build(ADD, arch="cpu")


@pytest.mark.parametrize("flag", ["-dlto", "-lto"])
def test_options_for_a_later_link(flag):
    with pytest.raises(JitLoadError, match=f"extra_cuda_cflags has '{flag}': jitload does not link device code"):
        build(ADD, extra_cuda_cflags=[flag])


@pytest.mark.parametrize("flag", ["-ptx", "--cubin", "-c", "-o"])
def test_options_for_another_output_are_refused(flag):
    message = f"extra_cuda_cflags has '{flag}': jitload chooses the type and the path"
    for text in (ADD,) if flag == "-c" else (ADD, f"{ADD}{LAUNCH}"):
        with pytest.raises(JitLoadError, match=message):
            build(text, extra_cuda_cflags=[flag, "x"])


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


@pytest.mark.parametrize("flags", [["-DN"], ["--pre-include=any.h"]])
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


VARIABLES = (
    ("JITLOAD_ISOLATE", "isolates", False),
    ("JITLOAD_CPU_GPU_CHECK", "checks_for_gpu", True),
    ("JITLOAD_PRECOMPILE", "precompiles", True),
    ("JITLOAD_TRUST_GROUP", "trusts_group", False),
    ("JITLOAD_CACHE_REMOTE_WRITE", "remote_writes", False),
)


@pytest.mark.parametrize(("variable", "field", "default"), VARIABLES)
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
