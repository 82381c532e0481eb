"""Mistakes of users: each raises one error that says what failed, on which input, and what to do next; its code."""

import json
import pickle
import re
import traceback
from types import SimpleNamespace

import pytest
from builds import ADD, ARCH, build, kernel, message

import jitload
from jitload import Launch, errors
from jitload.cli import main
from jitload.cli.doctor import read_sections
from jitload.errors import CacheError, CompileError, JitLoadError, LaunchSpecError, MismatchError, ToolchainError
from jitload.nvrtc import nvrtc_compile

TEMPLATE = "namespace ns { template <class T> __global__ void scale(T* x) { x[0] *= 2; } }\n"


def test_an_error_in_line_7_says_line_7_and_shows_it():
    text = "\n\n\n\n\n" + 'extern "C" __global__ void k(float* x) {\n    x[0] = twise(x[1]);\n}\n'
    assert message(CompileError, text, name="vec") == (
        "NVRTC could not compile 'vec.cu' for sm_90a: vec.cu:7: identifier \"twise\" is undefined\n"
        'vec.cu(7): error: identifier "twise" is undefined\n'
        "      x[0] = twise(x[1]);\n"
        "             ^\n\n"
        '1 error detected in the compilation of "/jitload/vec.cu".'
    )


def test_an_error_of_the_source_hides_no_name_and_is_told_alone():
    text = "#if 0\n__global__ void never() {}\n#endif\n" + kernel("k", "x[0] = nothing;")
    with pytest.raises(CompileError) as caught:
        build(text)
    error = caught.value
    facts = [(d.file, d.line, d.severity, d.message) for d in error.diagnostics]
    assert facts == [("m.cu", 4, "error", 'identifier "nothing" is undefined')]
    assert (error.stage, error.name, error.work_dir, error.__context__) == ("nvrtc", "m.cu", None, None)
    assert "--gpu-architecture=sm_90a" in error.command
    assert "__jitload" not in str(error)


BAD_SOURCES = [
    (None, "module 'm' has no source: pass cuda_sources= or cpp_sources=, or files as sources="),
    ([" ", "\n"], "module 'm' has no source: pass cuda_sources= or cpp_sources=, or files as sources="),
    ("a\0b", "cuda_sources contains a NUL character, at which compilers stop reading"),
    ("// \ud800", "cuda_sources is not valid Unicode: it has a lone surrogate at position 3"),
    (5, "cuda_sources must be a str or a list of str, got 5"),
]


@pytest.mark.parametrize(("text", "expected"), BAD_SOURCES)
def test_an_empty_or_unreadable_source_is_refused(text, expected):
    assert message(jitload.JitLoadError, text) == expected


def test_a_missing_header_says_where_to_get_it():
    raised = message(CompileError, '#include "nope.h"\n' + ADD)
    assert raised.startswith("NVRTC could not compile 'm.cu' for sm_90a: m.cu:1: cannot open source file \"nope.h\"\n")
    assert "NVRTC has no 'nope.h': pass its directory in extra_include_paths=[…]. CUDA's own headers are in" in raised


HOST_HEADERS = {
    "torch/extension.h": r"is for host code, and NVRTC .*For GPUs, jitload\.cpp_extension builds the whole source",
    "tvm/ffi/function.h": r"is for host code, and NVRTC .*For GPUs, load_inline\(\) builds the whole source",
    "cub/device/device_for.cuh": r"pass the source to load_inline\(\) and name the host function .*functions=\['run'\]",
}


def test_an_instruction_of_another_architecture_is_the_reason():
    raised = message(CompileError, kernel("k", 'asm("tcgen05.wait::ld.sync.aligned;");'))
    assert re.search(r"^NVRTC .*: Instruction 'tcgen05.wait' not.*\n[^$]*needs another arch.* in arch= or", raised)


@pytest.mark.parametrize("header", HOST_HEADERS)
def test_a_header_for_host_code_says_so(header):
    with pytest.raises(CompileError, match=HOST_HEADERS[header]):
        jitload.compile_cubin(f"#define HEADER <{header}>\n#include HEADER\n{ADD}", arch="sm_90a")


BAD_FUNCTIONS = [
    (ADD + kernel("subtract"), "ad", "there is no kernel 'ad'\n    Did you mean 'add'? The kernels are: add, subtract"),
    (ADD, [], "functions: is empty\n    Leave it out to export every kernel."),
    ("__device__ int f() { return 0; }", None, ", or pass kind='host'."),
    (TEMPLATE, None, 'one of the templates (ns::scale): functions={"f": Launch(kernel="ns::scale<…>")}'),
    (TEMPLATE + ADD, "scale", 'Choose an instantiation: functions={"scale": Launch(kernel="ns::scale<…>")}'),
    (ADD, {"add": Launch(args={"m": 1})}, "args: there is no parameter 'm'\n    Its parameters are x, y, n."),
    (ADD, {"add": Launch(nullable="n")}, "kernel 'add', nullable: 'n' (int) is not a pointer"),
]


@pytest.mark.parametrize(("text", "functions", "words"), BAD_FUNCTIONS)
def test_functions_that_do_not_fit_the_kernels(text, functions, words):
    assert message(LaunchSpecError, text, functions=functions).endswith(words)


def test_a_kernel_that_nvrtc_refuses_comes_with_its_words():
    raised = message(LaunchSpecError, TEMPLATE, functions={"f": Launch(kernel="ns::scale<flot>")})
    assert raised.startswith("kernel 'f', Launch.kernel: 'ns::scale<flot>' does not match any kernel of that name\n")
    assert 'identifier "flot" is undefined' in raised
    assert "__jitload" not in raised


def test_a_kernel_expression_with_other_code_is_refused_before_nvrtc():
    raised = message(LaunchSpecError, TEMPLATE, functions={"f": Launch(kernel='scale); system("x"')})
    assert raised.startswith("kernel 'f', kernel: this is not a kernel: ")


BAD_OPTIONS = [
    ({"extra_cuda_cflags": "-O3"}, "extra_cuda_cflags must be a list of str, one option each, got '-O3'"),
    ({"extra_cuda_cflags": ["-rdc=maybe"]}, "extra_cuda_cflags has '-rdc=maybe', where nvcc expects true or false"),
    ({"extra_cuda_cflags": ["-DA=\0"]}, "extra_cuda_cflags contains a NUL character, at which compilers stop reading"),
    ({"extra_include_paths": 5}, "extra_include_paths must be a path or a list of paths, got 5"),
]


@pytest.mark.parametrize(("options", "expected"), BAD_OPTIONS)
def test_options_paths_and_names_of_another_type_are_refused(options, expected):
    assert message(jitload.JitLoadError, ADD, **options) == expected


def test_a_driver_that_does_not_start_is_no_missing_gpu(monkeypatch):
    status = iter([803, 803, 100, 100])
    driver = SimpleNamespace(cuCtxGetDevice=lambda _: 3, cuInit=lambda _: next(status))
    monkeypatch.setattr("jitload.toolchain.arch.load_driver", lambda: driver)
    monkeypatch.delenv("JITLOAD_ARCH", raising=False)
    assert "needs a GPU, and the CUDA driver does not start (error 803). Name" in message(
        ToolchainError, ADD, arch="native"
    )
    assert "and there is none here" in message(ToolchainError, ADD, arch="native")


def test_a_home_that_nobody_knows_is_named(monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", "~no-such-user/cache")
    problem = "JITLOAD_CACHE_DIR=~no-such-user/cache: the home directory of this user is unknown."
    assert message(CacheError, ADD).startswith(problem)


def test_an_option_that_nvrtc_does_not_know():
    raised = message(CompileError, ADD, extra_cuda_cflags=["--bogus"])
    assert raised.splitlines()[0].endswith("'m.cu' for sm_90a: nvrtc: error: unrecognized option --bogus found")
    assert raised.endswith(": remove this option from extra_cuda_cflags.")


NO_GPU = "there is none here. Name an architecture, arch='sm_90a', or set JITLOAD_ARCH=sm_90a."
BAD_ARCHS = [
    ("hopper", "arch='hopper' is not an architecture; write 'sm_90a', '9.0a' or 'native'."),
    (["sm_90", "sm_90x"], "arch='sm_90x' is not an architecture; write 'sm_90a', '9.0a' or 'native'."),
    ([], "arch= is empty; name an architecture such as 'sm_90a', or 'native'."),
    (9.0, "arch= must be a str such as 'sm_90a', or several, got float"),
]


@pytest.mark.parametrize(("arch", "expected"), BAD_ARCHS)
def test_an_unknown_architecture_is_refused(arch, expected):
    assert message(ToolchainError, ADD, arch=arch) == expected


def test_an_architecture_that_this_nvrtc_does_not_know_lists_those_it_does():
    raised = message(ToolchainError, ADD, arch="sm_999")
    assert raised.startswith("this NVRTC (libnvrtc.so.1")
    assert "does not know sm_999; it knows sm_" in raised
    assert "sm_90, " in raised
    assert ". Install a newer one (pip install -U " in raised
    assert ". Name another architecture" in message(ToolchainError, ADD, arch="sm_30")


def test_native_without_a_gpu_says_to_name_an_architecture(monkeypatch):
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    for variable in ("", "native"):
        monkeypatch.setenv("JITLOAD_ARCH", variable)
        assert message(ToolchainError, ADD, arch="native").endswith(NO_GPU)
    monkeypatch.setenv("JITLOAD_ARCH", "hopper")
    expected = "JITLOAD_ARCH='hopper' is not an architecture; write 'sm_90a', '9.0a' or 'native'."
    assert message(ToolchainError, ADD, arch="native") == expected


def test_one_cubin_takes_one_architecture():
    with pytest.raises(ToolchainError, match=r"compile_cubin\(\) makes one cubin, .* not sm_80, sm_90a\."):
        jitload.compile_cubin(ADD, arch="80,90a")
    with pytest.raises(ToolchainError, match=r"nvrtc_compile\(\) makes one cubin, .* not sm_80, sm_90a\."):
        nvrtc_compile(ADD, arch="80,90a")
    for bad in (5, "\0"):
        with pytest.raises(jitload.JitLoadError, match=r"source (must be a str, got int|contains a NUL character)"):
            nvrtc_compile(bad, arch=ARCH)


def test_host_code_says_which_road_to_take():
    assert "For C++ of your own, name its functions in functions=" in message(LaunchSpecError, "int f() { return 1; }")


CLASSES = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, JitLoadError)}
ERRORS = [
    *(error_type("it failed") for error_type in sorted(CLASSES - {CompileError, MismatchError}, key=str)),
    MismatchError("it differs", function="f", output="y"),
    *(CompileError(stage=stage, name="m", log="it failed") for stage in errors.STAGES),
]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: error.code)
def test_each_code_has_a_section_and_the_reason_ends_the_traceback(error):
    assert "**What to do.**" in read_sections()[error.code]
    assert error.code not in str(error)
    lines = traceback.format_exception_only(pickle.loads(pickle.dumps(error)))
    assert re.search("it failed|it differs|could not compile", "".join(lines).splitlines()[-1])


@pytest.mark.parametrize(
    "error",
    [
        CompileError(stage="host", name="m", log="m.cc:1: error: no\n   ^", command=("g++",), hint="advice"),
        LaunchSpecError("no 'm'", kernel="f", field="grid[0]", expression="m + 1", column=0, hint="advice"),
        ToolchainError("the tool failed:\nits output\nadvice"),
    ],
)
def test_the_reason_is_the_first_line_and_the_last(error):
    first, *between, last = str(error).splitlines()
    assert last == first.rstrip(":")
    assert "advice" in "".join(between)
    assert error.message().startswith(first)
    assert f"{error}" == error.message()  # errors that quote it do not repeat the reason in their middle


def test_the_last_line_of_a_command_that_fails_is_the_reason(tmp_path, capsys):
    (tmp_path / "k.cu").write_text("__global__ void k(int* x) { x[0] = nothing; }")
    assert main(["compile", str(tmp_path / "k.cu"), "--arch", "sm_90", "-o", str(tmp_path / "k.so")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert 'identifier "nothing" is undefined' in lines[-1]
    assert lines[0] == "JL-NVRTC: `jitload explain JL-NVRTC` says what to do"


def test_each_section_is_about_a_code():
    assert read_sections().keys() == {error.code for error in ERRORS}


def test_explain_prints_the_section_of_a_code(capsys):
    assert main(["explain", "jl-tools"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("JL-TOOLS\n\n**Cause.** ")
    assert "](" not in text
    assert main(["explain", "JL-TOOLS", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["text"] == read_sections()["JL-TOOLS"]
    assert main(["explain", "JL-NOTHING"]) == 2
    assert "JL-NVRTC" in capsys.readouterr().err
