"""The public functions: their arguments, their results, and the effect of identical and changed calls."""

import inspect
import logging
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from builds import ADD, ARCH, build, kernel, load, message

import jitload
import jitload.dtype
import jitload.extension
from jitload import Launch
from jitload.nvrtc import nvrtc_compile
from jitload.request.arguments import read_flags, read_options
from jitload.request.request import Call, make_request
from jitload.request.sources import SUFFIXES, inline_sources
from jitload.toolchain import arch

TWO = kernel("first") + kernel("second")


def value_of(path: str | Path) -> str:
    """Return the name of the first kernel of a library, by which the tests tell versions apart."""
    return next(iter(jitload.load_module(path)))


@pytest.mark.parametrize(
    ("functions", "names"),
    [
        (None, ["first", "second"]),
        ("second", ["second"]),
        (["second", "first"], ["second", "first"]),
        (("first",), ["first"]),
        ({"second": "Its doc."}, ["second"]),
        ({"second": Launch(grid=1, block=1), "first": None}, ["second", "first"]),
        ({"other": Launch(kernel="first")}, ["other"]),
    ],
)
def test_functions_choose_the_exports(functions, names):
    assert list(load(TWO, functions=functions)) == names


def test_docs_come_from_the_mapping_or_the_launch():
    assert load(ADD).add.__doc__ == "add(const float* x, float* y, int n)"
    assert load(ADD, functions={"add": "Mine."}).get_function_doc("add") == "Mine."
    assert load(ADD, functions={"add": Launch(doc="Of the launch.")}).add.__doc__.startswith("Of the launch.\n")
    assert load(ADD, functions={"add": ""}).add.__doc__ == "add(const float* x, float* y, int n)"


@pytest.mark.parametrize(
    "data",
    [
        ADD.encode(),
        b"\xef\xbb\xbf" + ADD.encode(),
        ADD.replace("\n", "\r\n").encode(),
        ADD.replace("one.", "one - größer!").encode(),
    ],
    ids=["plain", "byte order mark", "CRLF", "UTF-8"],
)
def test_a_file_is_utf8(data, tmp_path):
    file = tmp_path / "add.cu"
    file.write_bytes(data)
    module = jitload.load("from_file", sources=file, arch=ARCH)
    assert list(module) == ["add"]


def test_a_file_that_is_not_utf8_is_refused(tmp_path):
    file = tmp_path / "latin.cu"
    file.write_bytes(b'#define NAME "gr\xf6sser"\n' + ADD.encode())
    with pytest.raises(jitload.JitLoadError, match=r"latin\.cu is not UTF-8 \(byte 16\), .*\.o and \.cubin"):
        jitload.load("m", sources=[file], arch=ARCH)


def test_the_documentation_names_every_suffix():
    page = (Path(__file__).parents[1] / "docs" / "sources.md").read_text()
    for name, text in (
        ("the table of docs/sources.md", page),
        ("the docstring of load() in api.py", jitload.load.__doc__),
    ):
        missing = [suffix for suffix in SUFFIXES if f"`{suffix}`" not in text]
        assert missing == [], f"{name} has no {missing}"


@pytest.mark.parametrize(("argument", "name"), [("sources", "k.txt"), ("cuda_files", "k"), ("cpp_files", "k.hpp")])
def test_a_file_with_an_unknown_suffix_is_refused(name, argument, tmp_path):
    (tmp_path / name).write_text(ADD)
    with pytest.raises(jitload.JitLoadError, match=r"CUDA C\+\+ \(\.cu, \.cuh\).*\.cpp.*\.o.*\.cubin") as caught:
        jitload.load("m", **{argument: tmp_path / name}, arch=ARCH)
    assert f"{name}': its suffix" in str(caught.value)


def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(jitload.JitLoadError, match=r"source 'nowhere\.cu' cannot be read: No such file"):
        jitload.build("m", sources="nowhere.cu", arch=ARCH)


def test_several_files_each_find_their_neighbours(tmp_path):
    for folder, name in (("one", "first"), ("two", "second")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{name}.cuh").write_text(f"#define BODY_{name} x[0] = 1;\n")
        text = f'#include "{name}.cuh"\n' + kernel(name, f"BODY_{name}")
        (tmp_path / folder / f"{name}.cu").write_text(text)
    files = [tmp_path / "one" / "first.cu", str(tmp_path / "two" / "second.cu")]
    assert list(jitload.load("two_files", sources=files, arch=ARCH)) == ["first", "second"]
    assert list(jitload.load("two_files", cuda_files=files[1:], arch=ARCH)) == ["second"]


def test_the_message_of_a_file_names_it(tmp_path):
    files = [tmp_path / "good.cu", tmp_path / 'a "quoted" \\ (name).cu']
    files[0].write_text(kernel("good"))
    files[1].write_text("\n" + kernel("bad", "x[0] = nothing;"))
    for sources in (files[1], files):
        with pytest.raises(jitload.errors.CompileError) as caught:
            jitload.load("m", sources=sources, arch=ARCH)
        assert [(d.file, d.line) for d in caught.value.diagnostics] == [(str(files[1]), 2)]


def test_the_working_directory_is_not_searched_for_headers(tmp_path, monkeypatch):
    (tmp_path / "here.h").write_text("")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(jitload.errors.CompileError, match=r'cannot open source file "here\.h"'):
        load('#include "here.h"\n' + ADD)


@pytest.mark.parametrize(("name", "file"), [("a.b-c_1", "a.b-c_1.so"), (".hidden", "_hidden.so"), ("-o", "_o.so")])
def test_dots_and_hyphens_of_a_name_stay_in_the_file_name(name, file, tmp_path):
    assert build(ADD, name, build_directory=tmp_path) == tmp_path / file


def test_flags_arrive_as_they_are_written():
    words = "a $b `c` $(touch x) :#'&;né"
    text = f"static_assert(sizeof(WORDS) == {len(words.encode()) + 1}, WORDS);\n" + kernel("k", "x[0] = VALUE;")
    assert list(load(text, extra_cuda_cflags=[f'-DWORDS="{words}"', "-D", "VALUE=1 + 1", ""])) == ["k"]


WORDS = [
    ("-O3 -lineinfo", ["-O3", "-lineinfo"]),
    ("-gencode arch=compute_80,code=sm_80", ["-gencode", "arch=compute_80,code=sm_80"]),
    ("""-DNAME='"x"'""", ['-DNAME="x"']),
    ('-DNAME="a b"', ['-DNAME="a b"']),  # what follows is unchanged
    (r'-DNAME="a\"b"', [r'-DNAME="a\"b"']),
    ("-DCOMMA=','", ["-DCOMMA=','"]),
    ("'-DNAME=\"x y\"'", ['-DNAME="x y"']),  # an option in quotes
    ('-I"/a b"', ["-I/a b"]),
]


@pytest.mark.parametrize(("option", "words"), WORDS)
def test_options_may_be_written_for_a_shell(option, words):
    assert read_flags([option, "-w"], "extra_cflags") == (*words, "-w")


ARCHS = [
    (["-gencode=arch=compute_80,code=sm_80"], ("sm_90a", "sm_80")),
    (["-gencode", "arch=compute_80,code=[sm_80,compute_80]"], ("sm_90a", "sm_80", "compute_80")),
    (["-arch=compute_80", "-code=sm_80,sm_90a"], ("sm_90a", "sm_80")),
    (["--gpu-architecture=compute_75", "-arch=sm_90a"], ("sm_90a", "compute_75")),
    (["-arch=native", "-rdc=true"], ("sm_90a",)),
]


@pytest.mark.parametrize(("options", "expected"), ARCHS)
def test_options_of_nvcc_add_architectures(options, expected):
    sources = inline_sources("m", ADD)
    call = Call("m", sources, makes="library", arch=ARCH, options=read_options(extra_cuda_cflags=options))
    request = make_request(call)
    assert request.archs == expected
    assert request.options == ()


def test_without_a_gpu_the_architectures_are_those_of_the_options(monkeypatch):
    monkeypatch.delenv("JITLOAD_ARCH", raising=False)
    monkeypatch.setattr(arch, "current_capability", lambda: None)
    module = jitload.load_inline("m", cuda_sources=ADD, extra_cuda_cflags=["-arch=sm_80"])
    assert module.add.kernels.keys() == {"sm_80"}


def test_include_paths_may_have_any_letters(tmp_path):
    home = tmp_path / "with space do$llar co:lon ha#sh quo'te\" ünï $(x)`y` a&b;c\\d"
    home.mkdir()
    (home / "value.h").write_text("#define VALUE 1\n")
    text = '#include "value.h"\n' + kernel("k", "x[0] = VALUE;")
    assert list(load(text, extra_include_paths=[home], build_directory=home)) == ["k"]
    for flags in ([f"-I{home}"], ["-I", str(home)], ["--include-path", str(home)], [f"--include-path={home}"]):
        assert list(load(text, extra_cuda_cflags=flags)) == ["k"]
    assert os.listdir(tmp_path) == [home.name]


def test_a_build_directory_has_the_newest_library_under_the_name(tmp_path):
    for name in ("first", "second", "first"):
        path = build(kernel(name), "lib", build_directory=tmp_path / "deep" / "er")
        assert path == tmp_path / "deep" / "er" / "lib.so"
        assert value_of(path) == name


def test_an_output_is_a_file_of_any_name(tmp_path):
    path = tmp_path / "new" / "any name.bin.so"
    assert build(ADD, output=path) == path
    assert value_of(path) == "add"
    assert build(kernel("other"), output=str(path), build_directory=tmp_path / "unused") == path
    assert value_of(path) == "other"
    assert not (tmp_path / "unused").exists()


@pytest.mark.parametrize("option", ["output", "build_directory"])
def test_a_place_that_cannot_be_written_is_named(option, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(jitload.JitLoadError, match=r".*/file/x.* cannot be written: (Not a dir|File exists)"):
        build(ADD, **{option: tmp_path / "file" / "x"})


def test_an_identical_call_returns_the_same_module():
    module = load(ADD)
    assert load(ADD) is module
    assert load(ADD, arch=["90a", "sm_90a", "9.0a"]) is module
    assert load(ADD, extra_cuda_cflags=["-O3", ""]) is module  # what NVRTC does not see makes no difference
    assert load(ADD, "other") is not module
    assert load(ADD + " ") is not module


def test_the_environment_is_read_at_each_call(monkeypatch, tmp_path):
    monkeypatch.setenv("JITLOAD_ARCH", "80, 90a, sm_80")
    assert "(sm_80, sm_90a)" in repr(load(ADD, arch="native"))
    monkeypatch.setenv("JITLOAD_ARCH", "sm_86")
    assert "(sm_86)" in repr(load(ADD, arch="native"))
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "new"))
    assert build(ADD).is_relative_to(tmp_path / "new")


def test_upstreams_variable_answers_where_ours_does_not(monkeypatch):
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: None)
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "8.0 9.0a")
    assert "(sm_80, sm_90a)" in repr(load(ADD, arch="native"))
    assert "(sm_89)" in repr(load(ADD, arch="8.9"))
    monkeypatch.setenv("TVM_FFI_CUDA_ARCH_LIST", "9.0+PTX")
    assert message(jitload.errors.ToolchainError, ADD, arch="native") == (
        "TVM_FFI_CUDA_ARCH_LIST='9.0+PTX' is not an architecture; write 'sm_90a', '9.0a' or 'native'."
    )
    monkeypatch.setenv("JITLOAD_ARCH", "sm_86")
    assert "(sm_86)" in repr(load(ADD, arch="native"))
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: (9, 0))
    assert "(sm_90a)" in repr(load(ADD, arch="native"))


def test_nvrtc_compile_is_upstreams(monkeypatch):
    monkeypatch.setenv("JITLOAD_ARCH", "sm_80")
    assert list(inspect.signature(nvrtc_compile).parameters)[:4] == ["source", "name", "arch", "extra_opts"]
    data = nvrtc_compile(kernel("k", "x[0] = VALUE;"), extra_opts=["-DVALUE=1"])
    assert isinstance(data, bytes)
    assert b"k" in data
    with pytest.raises(jitload.errors.CompileError, match=r"my\.cu:1: identifier"):
        nvrtc_compile(kernel("k", "x[0] = VALUE;"), name="my.cu")


def test_verbose_writes_to_standard_error_unless_logging_is_configured(capsys, monkeypatch):
    monkeypatch.setattr(logging.getLogger("jitload"), "hasHandlers", lambda: False)
    monkeypatch.setenv("JITLOAD_LIBRARY", "now")
    text = kernel("k", "x[0] = 41;")
    load(text, verbose=True)
    shown = capsys.readouterr().err
    assert "jitload: m is not in the cache" in shown
    assert "jitload: ninja builds m: " in shown
    assert "-c wrapper.cc -o wrapper.o" in shown
    load(text, verbose=True, keep_module_alive=False)
    assert "jitload: m is in the cache: " in capsys.readouterr().err
    load(text + "//")
    assert capsys.readouterr().err == ""


def test_a_warning_is_shown_though_the_build_succeeds(caplog):
    load(kernel("k", "int unused;"))
    assert 'm.cu(1): warning #177-D: variable "unused" was declared but never referenced' in caplog.text


def test_threads_that_make_one_call_share_the_module_and_the_output(tmp_path):
    text = kernel("threads", "x[0] = 41;")
    build(text)
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        return load(text), build(text, output=tmp_path / "out.so")

    with ThreadPoolExecutor(8) as pool:
        modules, paths = zip(*pool.map(work, range(8)), strict=True)
    assert len({id(module) for module in modules}) == 1
    assert set(paths) == {tmp_path / "out.so"}
    assert os.listdir(tmp_path) == ["out.so"]
    assert load(text) is modules[0]
    assert load(text, keep_module_alive=False) is not modules[0]


TYPES = [
    ("float32", "float"),
    ("torch.uint8", "uint8_t"),
    (torch.float16, "__half"),
    (torch.bfloat16, "__nv_bfloat16"),
    (torch.float8_e4m3fn, "__nv_fp8_e4m3"),
    (np.dtype("int64"), "int64_t"),
    (torch.bool, "bool"),
    (np.bool_, "bool"),
]


@pytest.mark.parametrize(("dtype", "expected"), TYPES)
def test_the_cpp_type_of_a_dtype(dtype, expected):
    assert jitload.to_cpp_dtype(dtype) == expected


def test_a_dtype_without_a_cpp_type():
    with pytest.raises(ValueError, match=r"^CUDA has no C\+\+ type for dtype 'complex64'; it has types for float32, "):
        jitload.to_cpp_dtype(torch.complex64)


def test_the_loading_functions_under_the_path_of_upstream():
    assert jitload.extension.load_inline is jitload.load_inline
    assert jitload.extension.build is jitload.build
