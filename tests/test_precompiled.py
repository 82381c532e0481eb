"""Precompiled headers for NVRTC: the same code and messages as without them, and when they are used."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from builds import ARCH, run_python

import jitload
from jitload.cuda import isolated, precompiled
from jitload.cuda.job import NvrtcJob, NvrtcResult
from jitload.errors import CompileError
from jitload.kernels.source import leading_directives

HEADER = """#pragma once
#warning first
namespace { __device__ int hidden = OFFSET; }
template <class T> __device__ T twice(T x) { __builtin_assume(x > 0); return 2 * x; }
"""
SOURCE = """// The header needs this macro.
#define OFFSET 3
#include "twice.cuh"
#define FACTOR %d
namespace { __device__ int own; }
static __device__ int counter = 4;
template <class T> __global__ void generic(T* y) { *y = twice(*y) + own; }
extern "C" __global__ void k(int* y) {
    int unused;
    *y = twice(*y) * FACTOR + hidden + own + counter + __LINE__ + __FILE__[*y];
}
"""
LAUNCH = {"k": jitload.Launch(), "generic": jitload.Launch(kernel="generic<float>")}


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path) -> Callable[..., jitload.Cubin]:
    """Compile with precompiled headers in this process, as workers do, from the second compile on."""
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "1")
    monkeypatch.setattr(isolated, "is_needed", False)
    monkeypatch.setattr(precompiled, "_SLOW_S", 0.0)
    monkeypatch.setattr(precompiled, "_kept", {})
    monkeypatch.setattr(precompiled, "_slow", set())
    monkeypatch.setattr(precompiled, "free_memory", lambda: 1 << 40)
    (tmp_path / "twice.cuh").write_text(HEADER)

    def compile_source(text: str = SOURCE % 1, **options: object) -> jitload.Cubin:
        return jitload.compile_cubin(text, arch=ARCH, extra_include_paths=[tmp_path], **options)

    return compile_source


def kept() -> list[int]:
    return [descriptor for descriptor in precompiled._kept.values() if descriptor is not None]


@pytest.mark.parametrize(
    ("text", "directives"),
    [
        ("", ""),
        ("int x;\n#include <a>\n", ""),
        ("#define A 1\n", ""),
        ("#include <a>\n#define A 1\nint x;", "#include <a>\n"),
        ("/////// b\n/* c\n */ #include <a> // d\nint x;\n#include <b>\n", "/////// b\n/* c\n */ #include <a> // d\n"),
        ("#include <a>\n#ifdef B\n#include <b>\n#endif\n#include <c>\nint x;", "#include <a>\n"),
        ("#include <a>\n#ifdef A\n#include <b>\nint x;\n#endif\n", "#include <a>\n"),
        ('#define A "// \\\n " \\\n 1\n#include <a>\nint x;', '#define A "// \\\n " \\\n 1\n#include <a>\n'),
        ("#include <a>\n#line 7\n#include <b>\n", "#include <a>\n"),
        ("#include <a>\n/* b", "#include <a>\n"),
        ("#define A {\n#include <a>\n", ""),
        ("  #  include <a>\r\nint x;", "  #  include <a>\r\n"),
    ],
)
def test_the_directives_end_with_the_last_include(text, directives):
    assert leading_directives(text) == directives


def test_long_comments_are_read_in_linear_time():
    start = time.perf_counter()
    assert leading_directives("/" * 20000 + "x" + "/*" * 20000) == ""
    assert time.perf_counter() - start < 1


def test_code_and_messages_about_it_are_those_without_a_precompiled_header(compiles):
    plain = compiles()
    assert not kept()
    created, used = compiles(), compiles()
    assert len(kept()) == 1
    assert plain.data == created.data == used.data
    assert "twice.cuh(2): warning" in plain.log
    assert created.log == used.log
    for log in (plain.log, used.log):
        assert '(9): warning #177-D: variable "unused"' in log
    assert compiles(SOURCE % 2).data != plain.data  # a macro after the last #include does not matter
    assert len(kept()) == 1


def test_errors_are_those_without_a_precompiled_header(compiles):
    wrong = SOURCE.replace("*y = twice(*y)", "*y = thrice(*y)") % 1
    errors = []
    for _ in range(3):
        with pytest.raises(CompileError) as caught:
            compiles(wrong)
        errors.append(caught.value)
    assert len(kept()) == 1
    assert str(errors[1]) == str(errors[2])
    for error in errors:
        (diagnostic,) = [d for d in error.diagnostics if d.severity == "error"]
        assert (diagnostic.file, diagnostic.line) == ("kernel.cu", 10)
        assert 'identifier "thrice" is undefined' in error.log


def test_an_error_in_a_header_is_that_without_a_precompiled_header(compiles, tmp_path):
    (tmp_path / "twice.cuh").write_text("#error stop\n")
    errors = []
    for _ in range(2):
        with pytest.raises(CompileError) as caught:
            compiles()
        errors.append(str(caught.value))
    assert errors[0] == errors[1]
    assert not kept()


def test_a_changed_header_is_read_again(compiles, tmp_path):
    old = [compiles().data for _ in range(3)]
    (tmp_path / "twice.cuh").write_text(HEADER.replace("2 * x", "3 * x"))
    new = [compiles().data for _ in range(3)]
    assert len({*old}) == len({*new}) == 1
    assert old[0] != new[0]


def test_options_are_part_of_the_key(compiles):
    codes = [compiles(extra_cuda_cflags=[option]).data for option in ("-DOTHER", "-G", "-DOTHER", "-G")]
    assert codes[:2] == codes[2:]
    assert codes[0] != codes[1]
    assert len(kept()) == 2


def test_a_process_keeps_two_precompiled_headers(compiles):
    descriptors = len(os.listdir("/proc/self/fd"))
    for number in (1, 1, 2, 2, 3, 3):
        compiles(f"#define NUMBER {number}\n{SOURCE % 1}")
    headers = kept()
    assert len(headers) == 2
    assert len(os.listdir("/proc/self/fd")) == descriptors + 2
    for _ in range(3):
        with pytest.raises(CompileError):
            compiles("#define OFFSET 1\n#include <twice.cuh>\n#include <none.cuh>\n")
    assert kept() == headers[1:]
    assert len(os.listdir("/proc/self/fd")) == descriptors + 1


class OldNvrtc:
    """What cuda.bindings makes of NVRTC before 12.8."""

    def nvrtcSetPCHHeapSize(self, size: int) -> tuple[int]:  # noqa: N802
        raise RuntimeError("Function nvrtcSetPCHHeapSize not found")


@pytest.mark.parametrize("reason", ["memory", "nvrtc", "setting"])
def test_headers_are_not_precompiled(compiles, monkeypatch, reason):
    if reason == "memory":
        monkeypatch.setattr(precompiled, "free_memory", lambda: 1 << 30)
    elif reason == "nvrtc":
        precompile = precompiled._precompile
        monkeypatch.setattr(precompiled, "_precompile", lambda _, *arguments: precompile(OldNvrtc(), *arguments))
    else:
        monkeypatch.setenv("JITLOAD_PRECOMPILE", "0")
    assert compiles().data == compiles().data
    assert not kept()


def test_slow_headers_move_to_a_child_process(compiles, monkeypatch):
    jobs: list[NvrtcJob] = []
    original = isolated.run_isolated
    monkeypatch.setattr(isolated, "run_isolated", lambda path, job: jobs.append(job) or original(path, job))
    monkeypatch.setattr(precompiled, "_SLOW_S", 100.0)
    compiles()
    compiles()
    assert not jobs
    monkeypatch.setattr(precompiled, "_SLOW_S", 0.0)
    compiles()
    assert not jobs
    compiles()
    assert [job.directives for job in jobs] == [SOURCE.partition("#define FACTOR")[0]]
    compiles(SOURCE.replace("OFFSET 3", "OFFSET 4") % 1)
    assert len(jobs) == 1


@pytest.mark.parametrize(
    "text", [SOURCE % 1, SOURCE.replace("twice(*y) *", "thrice(*y) *") % 1], ids=["right", "wrong"]
)
def test_headers_are_precompiled_in_a_child_after_a_slow_compile(compiles, monkeypatch, text):
    questions: list[isolated._Question] = []
    monkeypatch.setattr(isolated, "is_needed", True)
    monkeypatch.setattr(isolated._children, "ask", lambda question, tries: questions.append(question))
    with suppress(CompileError):
        compiles(text)
    assert isolated._precompiling
    isolated._precompiling.join()
    monkeypatch.setattr(isolated, "is_needed", False)  # from now on, this process is the child
    (question,) = questions
    assert isinstance(isolated._answer(question), NvrtcResult)
    (header,) = kept()
    monkeypatch.setattr(precompiled, "_precompile", None)  # no other header is created
    assert compiles(SOURCE % 2).data
    assert kept() == [header]


def test_a_compile_waits_for_headers_that_are_being_precompiled(monkeypatch):
    answered: list[bool] = []

    def ask(question: isolated._Question, tries: int) -> tuple[NvrtcResult, str]:
        has_code = "int x;" in question.job.source
        time.sleep(0 if has_code else 0.2)
        answered.append(has_code)
        return NvrtcResult(cubin=b"", log="", lowered={}, ptx="", spill_bytes={}), ""

    monkeypatch.setattr(isolated._children, "ask", ask)
    job = NvrtcJob("k.cu", '#line 1 "k.cu"\n#include <a>\nint x;', (), directives="#include <a>\n")
    isolated.precompile_later(Path("nvrtc"), job)
    isolated.run_isolated(Path("nvrtc"), job)
    assert answered == [False, True]


def test_a_child_whose_parent_ends_leaves_no_unfinished_header(tmp_path):
    program = f"""
import os, sys, tempfile, time
sys.path[:] = {sys.path!r}
from jitload.building import child_process
child_process._POLL_S = 0.01
child_process.end_with_parent(os.getppid())
with tempfile.TemporaryDirectory(prefix="jitload-"):
    open({str(tmp_path / "begun")!r}, "w")
    time.sleep(60)
"""
    parent = f"""
import os, subprocess, sys, time
subprocess.Popen([sys.executable, "-c", {program!r}])
while not os.path.exists({str(tmp_path / "begun")!r}): time.sleep(0.01)
assert any(name.startswith("jitload-") for name in os.listdir({str(tmp_path)!r}))
"""
    assert run_python(parent, {"TMPDIR": str(tmp_path)}).returncode == 0
    deadline = time.monotonic() + 60
    while os.listdir(tmp_path) != ["begun"]:
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_an_idle_child_ends():
    program = "from jitload.building.child_process import answer_questions; answer_questions(print, idle_s=0.1)"
    start = time.monotonic()
    assert run_python(program).returncode == 0
    assert time.monotonic() - start < 30
