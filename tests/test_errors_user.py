"""Mistakes of users: each raises one error that says what failed, on which input, and what to do next."""

from types import SimpleNamespace

import pytest
from builds import ADD, ARCH, build, kernel, message, work_dirs

import jitload
from jitload import Launch
from jitload.cuda.messages import arch_advice, hint_for
from jitload.errors import CacheError, CompileError, LaunchSpecError, ToolchainError
from jitload.nvrtc import nvrtc_compile

TEMPLATE = "namespace ns { template <class T> __global__ void scale(T* x) { x[0] *= 2; } }\n"


# ---- the source ------------------------------------------------------------------------------------------------


def test_an_error_in_line_7_says_line_7_and_shows_it():
    text = "\n\n\n\n\n" + 'extern "C" __global__ void k(float* x) {\n    x[0] = twise(x[1]);\n}\n'
    assert message(CompileError, text, name="vec") == (
        "NVRTC could not compile 'vec.cu' for sm_90a: vec.cu:7: identifier \"twise\" is undefined\n"
        'vec.cu(7): error: identifier "twise" is undefined\n'
        "      x[0] = twise(x[1]);\n"
        "             ^\n\n"
        '1 error detected in the compilation of "/jitload/vec.cu".'
    )


def test_an_error_that_only_an_instantiation_shows_is_the_sources_own():
    text = TEMPLATE + "struct S {};\n"
    raised = message(CompileError, text, functions={"f": Launch(kernel="ns::scale<S>")})
    assert raised.startswith(
        "NVRTC could not compile 'm.cu' for sm_90a: m.cu:1: no operator \"*=\" matches these operands\n"
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
    ("", "module 'm' has no source: pass cuda_sources= or cpp_sources=, or files as sources="),
    ([" ", "\n"], "module 'm' has no source: pass cuda_sources= or cpp_sources=, or files as sources="),
    ("a\0b", "cuda_sources contains a NUL character, at which compilers stop reading"),
    ([ADD, "\0"], "cuda_sources[1] contains a NUL character, at which compilers stop reading"),
    ("// \ud800", "cuda_sources is not valid Unicode: it has a lone surrogate at position 3"),
    (5, "cuda_sources must be a str or a list of str, got int"),
    (b"text", "cuda_sources must be a str or a list of str, got bytes"),
    ([ADD, 5], "cuda_sources must be a str or a list of str, got int at position 1"),
]


@pytest.mark.parametrize(("text", "expected"), BAD_SOURCES)
def test_an_empty_or_unreadable_source_is_refused(text, expected):
    assert message(jitload.JitLoadError, text) == expected


@pytest.mark.parametrize("text", [None, "", [" ", "\n"]])
def test_compile_cubin_refuses_an_empty_source(text):
    with pytest.raises(jitload.JitLoadError, match=r"(?m)^the source of 'k' is empty$"):
        jitload.compile_cubin(text, name="k", arch=ARCH)


def test_a_missing_header_says_where_to_get_it():
    raised = message(CompileError, '#include "nope.h"\n' + ADD)
    assert raised.startswith("NVRTC could not compile 'm.cu' for sm_90a: m.cu:1: cannot open source file \"nope.h\"\n")
    assert raised.endswith(
        "NVRTC has no 'nope.h': pass its directory in extra_include_paths=[…]. "
        "CUDA's own headers are installed with: pip install 'jitload[cu13]'  ('jitload[cu12]' for CUDA 12)"
    )


@pytest.mark.parametrize("header", ["torch/extension.h", "ATen/cuda/CUDAContext.h", "c10/cuda/CUDAStream.h"])
def test_a_header_for_host_code_says_so(header):
    raised = message(CompileError, f"#include <{header}>\n{ADD}")
    assert raised.startswith("NVRTC could not compile 'm.cu' for sm_90a: m.cu:1: cannot open source file")
    assert raised.endswith(f"<{header}> is for host code, and NVRTC compiles only the kernels: leave the bindings out.")


# ---- functions= and launches -----------------------------------------------------------------------------------

BAD_FUNCTIONS = [
    (
        ADD + kernel("subtract"),
        "ad",
        "functions: there is no kernel 'ad'\n    Did you mean 'add'? The kernels are: add, subtract",
    ),
    (ADD, ["ADD"], "functions: there is no kernel 'ADD'\n    Did you mean 'add'? The kernels are: add"),
    (ADD, ["nothing_like_it"], "functions: there is no kernel 'nothing_like_it'\n    The kernels are: add"),
    (ADD, [], "functions: is empty\n    Leave it out to export every kernel."),
    (ADD, ["add", "add"], "functions: names 'add' twice"),
    (ADD, 5, "functions: must be a name, several names, or a mapping to Launch records, got int"),
    (
        ADD,
        {"add": 5},
        "kernel 'add', functions: functions['add'] must be a Launch, a list of them or a docstring, got int",
    ),
    (
        ADD,
        ["ns::add"],
        (
            "functions: 'ns::add' cannot be the name of an exported function\n"
            "    Use ASCII letters, digits (not first) and underscores; name the kernel itself with Launch(kernel=…)."
        ),
    ),
    ("__device__ int f() { return 0; }", None, "functions: the source has no kernel\n    Write a __global__ function."),
    (
        TEMPLATE,
        None,
        (
            "functions: the source has no kernel but templates\n"
            '    Instantiate one of the templates (ns::scale): functions={"f": Launch(kernel="ns::scale<…>")}'
        ),
    ),
    (
        TEMPLATE + ADD,
        "scale",
        (
            "kernel 'scale': 'ns::scale' is a template that is not instantiated\n"
            '    Choose an instantiation: functions={"scale": Launch(kernel="ns::scale<…>")}'
        ),
    ),
    (
        kernel("_doc_x"),
        None,
        (
            "functions: '_doc_x' cannot be exported, because names that begin with '_doc_' are reserved\n"
            '    Export it under another name: functions={"f": Launch(kernel="_doc_x")}'
        ),
    ),
    (
        ADD,
        {"add": Launch(grid="ceil_div(m, 256)", block=256)},
        (
            "kernel 'add', grid: there is no parameter 'm'\n    ceil_div(m, 256)\n             ^\n"
            "    The names here are x, y, n."
        ),
    ),
    (
        ADD,
        {"add": Launch(args={"m": 1})},
        "kernel 'add', args: there is no parameter 'm'\n    Its parameters are x, y, n.",
    ),
    (ADD, {"add": Launch(nullable="n")}, "kernel 'add', nullable: 'n' (int) is not a pointer"),
    (ADD, {"add": Launch(args={"x": 1})}, "kernel 'add', args: 'x' (const float*) is not an integer parameter"),
    (
        ADD,
        {"add": Launch(params="ab")},
        "kernel 'add', params: has 1 name, but add(const float* x, float* y, int n) has 3 parameters",
    ),
    (
        ADD,
        {"add": Launch(params=("a", "b"))},
        "kernel 'add', params: has 2 names, but add(const float* x, float* y, int n) has 3 parameters",
    ),
]


@pytest.mark.parametrize(("text", "functions", "expected"), BAD_FUNCTIONS)
def test_functions_that_do_not_fit(text, functions, expected):
    assert message(LaunchSpecError, text, functions=functions) == expected


def test_a_kernel_that_nvrtc_refuses_comes_with_its_words():
    raised = message(LaunchSpecError, TEMPLATE, functions={"f": Launch(kernel="ns::scale<flot>")})
    assert raised.startswith("kernel 'f', Launch.kernel: 'ns::scale<flot>' does not match any kernel of that name\n")
    assert 'identifier "flot" is undefined' in raised
    assert "__jitload" not in raised


def test_a_kernel_expression_with_other_code_is_refused_before_nvrtc():
    raised = message(LaunchSpecError, TEMPLATE, functions={"f": Launch(kernel='scale); system("x"')})
    assert raised.startswith("kernel 'f', kernel: this is not a kernel: ")


def test_a_failed_launch_leaves_nothing_behind(tmp_path, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path))
    message(LaunchSpecError, ADD, functions="ad")
    message(CompileError, kernel("k", "x[0] = nothing;"))
    assert [name for name in work_dirs(tmp_path) if name.startswith("m-")] == []


# ---- options and architectures ---------------------------------------------------------------------------------

BAD_OPTIONS = [
    ({"extra_cuda_cflags": "-O3"}, "extra_cuda_cflags must be a list of str, one option each, got '-O3'"),
    ({"extra_cuda_cflags": [5]}, "extra_cuda_cflags must be a list of str, one option each, got [5]"),
    ({"extra_cuda_cflags": 5}, "extra_cuda_cflags must be a list of str, one option each, got 5"),
    ({"extra_cuda_cflags": ["-D"]}, "extra_cuda_cflags ends with '-D', which takes a value"),
    ({"extra_cuda_cflags": ["-DA=\0"]}, "extra_cuda_cflags contains a NUL character, at which compilers stop reading"),
    (
        {"extra_cuda_cflags": ["-arch=volta"]},
        (
            "extra_cuda_cflags has '-arch=volta', which does not name an architecture such as sm_90a; arch= takes "
            "architectures, too"
        ),
    ),
    ({"extra_include_paths": 5}, "extra_include_paths must be a path or a list of paths, got 5"),
    ({"extra_include_paths": [b"x"]}, "extra_include_paths must be a path or a list of paths, got [b'x']"),
    ({"name": 5}, "name must be a str, got int"),
    ({"name": ""}, "name='' must have 1 to 256 printable characters"),
]


@pytest.mark.parametrize(("options", "expected"), BAD_OPTIONS)
def test_options_paths_and_names_of_another_type_are_refused(options, expected):
    assert message(jitload.JitLoadError, ADD, **options) == expected


def test_options_and_paths_may_come_from_a_generator(tmp_path):
    (tmp_path / "name.h").write_text("#define NAME given\n")
    text = '#include "name.h"\nextern "C" __global__ void NAME() { static_assert(N == 3, ""); }'
    paths, flags = (path for path in [tmp_path]), (flag for flag in ["-DN=3"])
    assert build(text, extra_include_paths=paths, extra_cuda_cflags=flags).is_file()


def test_compile_cubin_says_what_its_arguments_lack():
    with pytest.raises(jitload.JitLoadError, match="kernels must be a str or a list of str, got int at position 0"):
        jitload.compile_cubin(ADD, arch="sm_90a", kernels=[1])


def test_a_driver_that_does_not_start_is_no_missing_gpu(monkeypatch):
    status = iter([803, 803, 100, 100])
    driver = SimpleNamespace(cuCtxGetDevice=lambda _: 3, cuInit=lambda _: next(status))
    monkeypatch.setattr("jitload.toolchain.arch.load_driver", lambda: driver)
    monkeypatch.delenv("JITLOAD_ARCH", raising=False)
    assert "needs a GPU, and the CUDA driver does not start (error 803). Name" in message(
        ToolchainError, ADD, arch="native"
    )
    assert "and there is none here" in message(ToolchainError, ADD, arch="native")


@pytest.mark.parametrize("variable", ["JITLOAD_CACHE_DIR", "JITLOAD_CACHE_PATH"])
def test_a_home_that_nobody_knows_is_named(monkeypatch, variable):
    monkeypatch.setenv(variable, "~no-such-user/cache")
    problem = "=~no-such-user/cache: the home directory of this user is unknown."
    assert message(CacheError, ADD).startswith(variable + problem)


def test_an_option_that_nvrtc_does_not_know():
    assert message(CompileError, ADD, extra_cuda_cflags=["--bogus"]) == (
        "NVRTC could not compile 'm.cu' for sm_90a\nnvrtc: error: unrecognized option --bogus found\n"
        "NVRTC does not have all options of nvcc, and fast_compile=True needs CUDA 12.9: remove this option from "
        "extra_cuda_cflags."
    )


NO_GPU = (
    "arch='native' needs a GPU, and there is none here. "
    "Name an architecture, arch='sm_90a', or set JITLOAD_ARCH=sm_90a."
)
BAD_ARCHS = [
    ("hopper", "arch='hopper' is not an architecture; write 'sm_90a', '9.0a' or 'native'."),
    (["sm_90", "sm_90x"], "arch='sm_90x' is not an architecture; write 'sm_90a', '9.0a' or 'native'."),
    ("", "arch= is empty; name an architecture such as 'sm_90a', or 'native'."),
    ([], "arch= is empty; name an architecture such as 'sm_90a', or 'native'."),
    (9.0, "arch= must be a str such as 'sm_90a', or several, got float"),
    (b"sm_90", "arch= must be a str such as 'sm_90a', or several, got bytes"),
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


@pytest.mark.parametrize(
    ("number", "oldest", "major", "expected"),
    [
        (999, 75, 13, "Install a newer one (pip install -U 'jitload[cu13]'), or name"),
        (110, 50, 12, "Install a newer one (pip install -U 'jitload[cu12]', or 'jitload[cu13]' without JITLOAD_NVR"),
        (70, 75, 13, "Name another architecture, or install an older NVRTC (pip install 'jitload[cu12]') and set JI"),
        (37, 50, 12, "Name another architecture."),
    ],
)
def test_advice_about_an_unknown_architecture_depends_on_the_release_of_nvrtc(number, oldest, major, expected):
    assert arch_advice(number, oldest, major).startswith(expected)


def test_native_without_a_gpu_says_to_name_an_architecture(monkeypatch):
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    assert message(ToolchainError, ADD, arch="native") == NO_GPU
    monkeypatch.setenv("JITLOAD_ARCH", "native")
    assert message(ToolchainError, ADD, arch="native") == NO_GPU
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
    assert message(jitload.JitLoadError, "int f() { return 1; }").startswith("module 'm' has no device code")


def test_hint_for_complex_numbers_of_an_old_thrust():
    log = (
        "/include/cccl/thrust/complex.h(336): error: A function explicitly marked as a __host__ function is not allowed"
    )
    assert "use cuda::std::complex" in hint_for(log, [])
    assert not hint_for(log.replace("thrust/", "mine/"), [])
