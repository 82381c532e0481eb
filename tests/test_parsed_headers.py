"""Compiles with kept headers: the same code and messages as without them, and when headers are kept."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from builds import ARCH, run_python
from test_nvrtc import CRASHING, await_death, is_alive

import jitload
from jitload.cuda import isolated, nvrtc, parsed_headers, program
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
NEVER_ENDS = (
    SOURCE.replace("FACTOR %d", "FACTOR 1")
    + "constexpr int f(int n) { return n < 2 ? n : f(n - 1) + f(n - 2); }\n"
    + "".join(f"constexpr int x{number} = f(90);\n" for number in range(90))  # NVRTC gives up after a second for each
)


@pytest.fixture
def ask() -> Callable[..., object]:
    """The method that asks a child, which the fixture `compiles` replaces."""
    return isolated._children.ask


@pytest.fixture
def compiles(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, cache: Path, ask: Callable[..., object]
) -> Iterator[Callable[..., jitload.Cubin]]:
    """Compile with `isolate=True`. This process does the work of the child."""
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "1")
    monkeypatch.setattr(isolated._children, "ask", lambda question, tries: (isolated._answer(question), ""))
    slow: set[str] = set()
    monkeypatch.setattr(program, "slow", slow)
    monkeypatch.setattr(nvrtc, "slow", slow)
    monkeypatch.setattr(parsed_headers, "free_memory", lambda: 1 << 40)
    parsed_headers._connection.cache_clear()
    (tmp_path / "twice.cuh").write_text(HEADER)

    def compile_source(text: str = SOURCE % 1, **options: object) -> jitload.Cubin:
        return jitload.compile_cubin(text, arch=ARCH, extra_include_paths=[tmp_path], **{"isolate": True, **options})

    yield compile_source
    parsed_headers._connection.cache_clear()  # the forks have copies of this process's pipes


@pytest.fixture
def plain_compiles(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that are compiled without kept headers."""
    sources: list[str] = []
    original = parsed_headers.compile_in_process

    def compile_in_process(path: Path, job: NvrtcJob) -> NvrtcResult:
        sources.append(job.source)
        return original(path, job)

    monkeypatch.setattr(parsed_headers, "compile_in_process", compile_in_process)
    return sources


def children(process: int) -> list[int]:
    """Return the ids of the processes that a process has forked and that run."""
    pids = []
    for task in Path(f"/proc/{process}/task").iterdir():
        with suppress(FileNotFoundError):  # a thread may end meanwhile
            pids += map(int, (task / "children").read_text().split())
    return list(filter(is_alive, pids))


@pytest.mark.parametrize(
    ("text", "directives"),
    [
        ("#include <a>\n#define A 1\nint x;", "#include <a>\n"),
        ("/////// b\n/* c\n */ #include <a> // d\nint x;\n#include <b>\n", "/////// b\n/* c\n */ #include <a> // d\n"),
        ("#include <a>\n#ifdef B\n#include <b>\n#endif\n#include <c>\nint x;", "#include <a>\n"),
        ("#include <a>\n#ifdef A\n#include <b>\nint x;\n#endif\n", "#include <a>\n"),
        ('#define A "// \\\n " \\\n 1\n#include <a>\nint x;', '#define A "// \\\n " \\\n 1\n#include <a>\n'),
        ("#include <a>\n#line 7\n#include <b>\n", "#include <a>\n"),
    ],
)
def test_the_directives_end_with_the_last_include(text, directives):
    assert leading_directives(text) == directives


@pytest.mark.parametrize("flags", [("-lineinfo",), ("--std=c++14", "-DFACTORS")])
def test_code_and_messages_are_those_of_a_plain_compile(compiles, plain_compiles, flags):
    plain = compiles(isolate=False, extra_cuda_cflags=flags)
    for _ in range(2):
        kept = compiles(extra_cuda_cflags=flags)
        assert kept.data == plain.data
        assert kept.log == plain.log
    assert "twice.cuh(2): warning" in plain.log
    assert '(9): warning #177-D: variable "unused"' in plain.log
    other = SOURCE % 2  # a macro after the last #include does not matter
    assert compiles(other, extra_cuda_cflags=flags).data == compiles(other, isolate=False, extra_cuda_cflags=flags).data
    assert not plain_compiles
    assert parsed_headers._connection.cache_info().misses == 1


def test_kernels_are_named_by_expressions(compiles, plain_compiles, tmp_path):
    for types in ("float int", "short long"):
        functions = {f"k_{name}": jitload.Launch(kernel=f"generic<{name}>") for name in types.split()}
        options = {"functions": functions, "isolate": True, "extra_include_paths": [tmp_path], "arch": ARCH}
        module = jitload.load_inline("named", cuda_sources=SOURCE % 1, **options)
        assert [module[name].kernel.parameters[0].type for name in functions] == [f"{name[2:]}*" for name in functions]
    assert not plain_compiles
    assert parsed_headers._connection.cache_info().misses == 1


ERRORS = [("*y = twice(*y)", "*y = thrice(*y)"), ("}\n", ""), ("twice.cuh", "broken.cuh"), ("generic(", "named(")]


@pytest.mark.parametrize(("old", "new"), ERRORS)
def test_errors_are_those_of_a_plain_compile(compiles, plain_compiles, tmp_path, old, new):
    (tmp_path / "broken.cuh").write_text("#include <none.cuh>\n")
    text, kernels = SOURCE.replace(old, new).replace("%d", "1"), ["generic<nothing>"] if new == "named(" else []
    errors = []
    for isolate in (False, True, True):
        with pytest.raises(jitload.JitLoadError) as caught:
            compiles(text, isolate=isolate, kernels=kernels)
        errors.append(str(caught.value))
    assert errors[0] == errors[1] == errors[2]
    assert bool(plain_compiles) == (new in ("broken.cuh", "named("))


def test_a_changed_header_is_read_again(compiles, tmp_path):
    old = [compiles().data for _ in range(2)]
    (tmp_path / "twice.cuh").write_text(HEADER.replace("2 * x", "3 * x"))
    new = [compiles().data for _ in range(2)]
    assert len({*old}) == len({*new}) == 1
    assert old[0] != new[0]


def test_two_sets_of_headers_are_kept(compiles, plain_compiles):
    processes, descriptors = set(children(os.getpid())), len(os.listdir("/proc/self/fd"))
    for number in (1, 1, 2, 2, 3, 3):
        compiles(f"#define NUMBER {number}\n{SOURCE % 1}")
    deadline = time.monotonic() + 30
    while len(set(children(os.getpid())) - processes) > 2:  # the oldest one ends by itself
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= descriptors + 2
    assert not plain_compiles
    kept = set(children(os.getpid())) - processes
    parsed_headers._connection.cache_clear()
    for process in kept:
        await_death(process)


def forbid_leases(file: object, command: int, argument: object = 0) -> int:
    raise OSError("no leases")


@pytest.mark.parametrize("reason", ["memory", "lease", "include", "level", "backslash", "setting"])
def test_headers_are_not_kept(compiles, plain_compiles, monkeypatch, reason):
    text = SOURCE % 1
    if reason == "memory":
        monkeypatch.setattr(parsed_headers, "free_memory", lambda: 1 << 30)
    elif reason == "lease":
        monkeypatch.setattr(parsed_headers.fcntl, "fcntl", forbid_leases)
    elif reason == "setting":
        monkeypatch.setenv("JITLOAD_PRECOMPILE", "0")
    else:
        include, level = '# /* */ include "twice.cuh"\n', "int level = __INCLUDE_LEVEL__;\n"
        text += {"include": include, "level": level, "backslash": "// \\"}[reason]
    assert compiles(text).data == compiles(text).data == compiles(text, isolate=False).data
    assert len(plain_compiles) == 2


def test_after_the_end_of_its_process_a_source_is_compiled_without_it(compiles, plain_compiles, caplog):
    processes = set(children(os.getpid()))
    plain = compiles()
    (process,) = set(children(os.getpid())) - processes
    os.kill(process, signal.SIGSTOP)  # so that it forks no more
    for descendant in (process, *children(process)):
        os.kill(descendant, signal.SIGKILL)
    assert compiles().data == plain.data
    assert len(plain_compiles) == 1
    assert "NVRTC compiles kernel.cu without kept headers" in caplog.text


def test_a_crash_ends_one_fork_and_is_reported(monkeypatch, cache):
    """The fork dies first, and then the child process in a plain compile."""
    monkeypatch.setenv("JITLOAD_PRECOMPILE", "1")
    monkeypatch.setattr("jitload.signature.probe.instantiations", lambda _: "")
    for _ in range(2):
        with pytest.raises(CompileError, match="was ended by SIGSEGV while it compiled"):
            source, functions = f"#include <cuda_fp16.h>\n{CRASHING}", {"k": jitload.Launch(kernel="k<256>")}
            jitload.load_inline("bad", cuda_sources=source, functions=functions, isolate=True, arch=ARCH)


def test_slow_headers_move_to_a_child_process(compiles, monkeypatch):
    jobs: list[NvrtcJob] = []
    original = isolated.run_isolated
    monkeypatch.setattr(isolated, "run_isolated", lambda path, job: jobs.append(job) or original(path, job))
    monkeypatch.setattr(program, "_SLOW_S", 100.0)
    compiles(isolate=False)
    compiles(isolate=False)
    assert not jobs
    monkeypatch.setattr(program, "_SLOW_S", 0.0)
    compiles(isolate=False)
    assert not jobs
    assert isolated._compiling
    isolated._compiling.exception()
    compiles(isolate=False)
    assert [job.directives for job in jobs] == [SOURCE.partition("#define FACTOR")[0]]
    compiles(SOURCE.replace("OFFSET 3", "OFFSET 4") % 1, isolate=False)
    assert len(jobs) == 1
    isolated._compiling.exception()


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "pass"])
def test_processes_with_headers_end_with_the_program(tmp_path, end):
    """One process waits, and one compiles."""
    (tmp_path / "twice.cuh").write_text(HEADER)
    code = f"""
import os, threading, time, jitload, test_parsed_headers as test
options = {{"arch": test.ARCH, "extra_include_paths": [{str(tmp_path)!r}], "isolate": True}}
jitload.compile_cubin(test.SOURCE % 1, **options)
threading.Thread(target=jitload.compile_cubin, args=(test.NEVER_ENDS,), kwargs=options, daemon=True).start()
time.sleep(1)
(child,) = test.children(os.getpid())
(headers,) = test.children(child)
print(child, headers, *test.children(headers), flush=True)
{end}
"""
    done = run_python(code, {"JITLOAD_PRECOMPILE": "1"})
    processes = [int(pid) for pid in done.stdout.split()]
    assert len(processes) == 3
    for process in processes:
        await_death(process)
