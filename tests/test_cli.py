"""The commands: their output, and the files of a cache that they must not touch."""

import json
import os
import pickle
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from builds import ADD, ARCH, build, kernel, python_command, python_env, run_jitload
from support.kernels import SPILLS

import jitload
from jitload.cli import main
from jitload.cli.main import _OPTIONS
from jitload.cli.main import jitload as commands
from jitload.errors import CompileError
from jitload.words import Argument, Words, in_options

TEXT = """
__device__ int counter;
extern "C" __global__ void add(const float* x, float* y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = x[i] + counter;
}
"""


@pytest.fixture
def source(cache, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "vec.cu"
    path.write_text(TEXT)
    return path


def run(capsys, *words: object) -> tuple[int, str, str]:
    code = main(list(map(str, words)))
    output = capsys.readouterr()
    return code, output.out, output.err


def test_a_library_that_is_compiled_and_inspected(source, capsys):
    assert run(capsys, "compile", source, "--arch", f"{ARCH},sm_80", "-o", "out/vec.so")[0] == 0
    assert list(jitload.load_module("out/vec.so")) == ["add"]
    code, out, _ = run(capsys, "inspect", "out/vec.so")
    lines = out.splitlines()
    assert (code, lines[0]) == (0, f"vec ({ARCH}, sm_80)")
    assert lines[1:3] == ["  add(const float* x, float* y, int n)", "  variable counter, 4 bytes"]
    assert [line.split()[:2] for line in lines[4:]] == [["add", ARCH], ["add", "sm_80"]]
    described = json.loads(run(capsys, "inspect", "out/vec.so", "--json")[1])
    assert described["functions"] == ["add"]
    assert {row["arch"]: row["registers"] > 0 for row in described["kernels"]} == {ARCH: True, "sm_80": True}


def test_inspect_says_what_an_entry_of_the_cache_was_made_of(source, capsys):
    path = jitload.build("vec", sources=source, arch=ARCH, extra_cuda_cflags=["-DN=4"])
    assert "  options: -DN=4" in run(capsys, "inspect", path)[1].splitlines()


def test_the_default_output_is_named_after_the_first_source(source, capsys):
    shown = json.loads(run(capsys, "compile", source.name, "--arch", "cpu", "--json")[1])
    assert Path(shown["path"]).resolve() == source.with_suffix(".so").resolve()
    assert [row["name"] for row in shown["kernels"]] == ["add"]


def test_resources_tell_spilled_registers(source, capsys, caplog):
    source.write_text(SPILLS)
    row = json.loads(run(capsys, "compile", source, "--arch", ARCH, "--json")[1])["kernels"][0]
    assert (row["name"], row["arch"], row["registers"]) == ("spilling", ARCH, 32)
    assert row["spill_bytes"] > 0
    assert "ptxas info" not in caplog.text  # it became the table
    table = run(capsys, "compile", source, "--arch", ARCH)[1].splitlines()
    assert table[0].split() == ["kernel", "arch", "registers", "spills", "local", "shared", "max", "threads"]
    assert table[1].split()[:6] == ["spilling", ARCH, "32", str(row["spill_bytes"]), "B", "!"]
    assert table[1] in run(capsys, "inspect", "vec.so")[1].splitlines()


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["compile", "vec.cu", "--arch", "foo"], 1, "--arch foo is not an architecture"),
        (["compile", "vec.cu", "--arch", ARCH, "--cuda-flags=--odd"], 1, "remove this option from --cuda-flags."),
        (["compile", "empty.cu", "--arch", ARCH], 1, "module 'empty' has no source: the files are empty"),
        (["compile", "host.cu", "--arch", ARCH], 1, "name its functions in --functions, or export"),
        (["prebuild", "vec.cu"], 1, "'vec.cu' names no requests"),
        (["inspect", "empty.so"], 1, "empty.so: file too short\nBuild or copy the library again, for this machine"),
        (["inspect", "vec.cu"], 1, "build one from it first: jitload compile vec.cu"),
        (["compile"], 2, "Missing argument 'SOURCE...'"),
        (["frobnicate"], 2, "No such command 'frobnicate'"),
    ],
)
def test_an_error_names_the_option_and_has_an_exit_code(source, capsys, words, code, message):
    for name in ("empty.cu", "empty.so"):
        Path(name).touch()
    Path("host.cu").write_text("int f(int x) { return x; }")
    returned, out, err = run(capsys, *words)
    assert (returned, out) == (code, "")
    assert message in err
    assert not re.search(r"(?<!-)\b(?:arch|extra_\w+|functions)=", err)
    assert "Check failed" not in err


def test_the_spelling_of_options_leaves_the_output_of_compilers_alone():
    log = "k.cu(1): error: arch='sm_1' extra_cuda_cflags"
    lines_of_source = Argument("extra_cuda_cflags", "-lineinfo", python="extra_cuda_cflags=['-lineinfo']")
    hint = Words("leave ", lines_of_source, " out of arch='sm_90a'")
    assert hint == "leave extra_cuda_cflags=['-lineinfo'] out of arch='sm_90a'"
    error = CompileError(stage="nvrtc", name="k.cu", log=log, hint=hint)
    lines = in_options(pickle.loads(pickle.dumps(error)), _OPTIONS).splitlines()
    assert log in lines
    assert lines[-2] == "leave --cuda-flags=-lineinfo out of arch='sm_90a'"


def test_an_instantiation_is_refused_as_the_name_of_a_function(source, capsys):
    source.write_text("template <class T> __global__ void k(T* x) {}")
    message = "Instantiate one of the templates (k): add `template __global__ void k<float>(…);`"
    assert message in run(capsys, "compile", source, "--arch", ARCH)[2]
    source.write_text("template <class T> __global__ void k(T* x) {}\ntemplate __global__ void k<int>(int*);")
    _, _, err = run(capsys, "compile", source, "--arch", ARCH, "--functions", "k<int>")
    assert "leave out its namespace and its template arguments.\n" in err
    assert "Launch" not in err
    assert run(capsys, "compile", source, "--arch", ARCH, "--functions", "k")[0] == 0


def test_host_functions_are_compiled_and_listed(source, capsys):
    Path("host.cpp").write_text("int twice(int* x) { return 2 * x[0]; }")
    returned, _, err = run(capsys, "compile", "host.cpp")
    message = "The library exports no functions. Name the C++ functions to export: --functions f,g\n"
    assert (returned, err) == (0, message)
    assert run(capsys, "inspect", "host.so")[1].splitlines()[1] == "  no functions that Python can call"
    assert run(capsys, "compile", "host.cpp", "--functions", "twice")[1].startswith("twice: a host function\n")
    assert run(capsys, "inspect", "host.so")[1].splitlines()[1] == "  twice(int* x)"


def test_output_that_cannot_be_written(cache):
    build(kernel("k"))
    command = [sys.executable, "-m", "jitload", "cache", "list"]
    options = {"stderr": subprocess.PIPE, "text": True, "env": python_env()}
    with open("/dev/full", "w") as full:
        done = subprocess.run(command, check=False, stdout=full, **options)
    assert (done.returncode, done.stderr) == (1, "jitload: the output cannot be written: No space left on device\n")
    closed = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], check=False, **options)
    assert (closed.returncode, closed.stderr) == (0, "")


def test_a_working_directory_that_is_gone_is_named(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("JITLOAD_CACHE_DIR", "relative")
    monkeypatch.chdir(tmp_path)
    tmp_path.rmdir()
    assert run(capsys, "cache", "list") == (1, "", "jitload: the working directory: No such file or directory\n")


def test_doctor_finds_that_kernels_run_on_this_machine(cache, capsys):
    code, out, _ = run(capsys, "doctor")
    rows = {line.split("  ")[0]: line for line in out.splitlines()}
    assert code == 0
    assert jitload.__version__ in rows["jitload"]
    assert "its result is right" in rows["kernel on the CPU"]
    assert out.endswith("jitload builds and runs kernels here.\n")


def test_doctor_says_what_is_missing(empty_cache, capsys, monkeypatch):
    monkeypatch.setenv("JITLOAD_CXX", "/no/compiler")
    monkeypatch.setenv("JITLOAD_NVRTC", "/no/nvrtc")
    monkeypatch.setenv("JITLOAD_CUTLASS", "/no/cutlass")
    monkeypatch.setattr("jitload.toolchain.arch.load_driver", lambda: None)
    code, out, _ = run(capsys, "doctor", "--json")
    report = json.loads(out)
    missing = {row["subject"]: row["advice"] for row in report["findings"] if not row["is_good"]}
    assert (code, report["works"]) == (1, False)
    assert "/no/compiler" in missing["C++ compiler"]
    assert "/no/nvrtc" in missing["NVRTC"]
    assert "JITLOAD_CUTLASS=/no/cutlass: this directory has no include/cutlass" in missing["CUTLASS"]
    assert "no NVIDIA driver" in missing["driver"]
    assert "kernel on the CPU" in missing


@pytest.mark.usefixtures("empty_cache")
def test_doctor_needs_nvrtc_and_no_compiler_for_kernels_on_the_gpu(capsys, monkeypatch):
    monkeypatch.setenv("JITLOAD_CXX", "/no/compiler")
    monkeypatch.setattr("jitload.toolchain.arch.current_capability", lambda: (9, 0))
    monkeypatch.setattr("jitload.cli.doctor._run_on_gpu", lambda: "from the cache")
    code, out, _ = run(capsys, "doctor", "--json")
    rows = {row["subject"]: row for row in json.loads(out)["findings"]}
    assert (code, rows["kernel on the CPU"]["is_good"], rows["kernel on the GPU"]["is_good"]) == (0, False, True)
    assert rows["C++ compiler"]["advice"].startswith("needed for C++, PyTorch extension sources, kernels on the CPU")
    monkeypatch.setenv("JITLOAD_NVRTC", "/no/nvrtc")
    assert run(capsys, "doctor")[0] == 1


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_doctor_runs_a_kernel_on_the_gpu(empty_cache, capsys, monkeypatch):
    monkeypatch.setenv("JITLOAD_CXX", "/no/compiler")
    code, out, _ = run(capsys, "doctor", "--json")
    rows = {row["subject"]: row for row in json.loads(out)["findings"]}
    assert code == 0
    assert rows["kernel on the GPU"]["is_good"], rows["kernel on the GPU"]["advice"]


def test_the_manual_has_a_row_for_each_command():
    page = (Path(__file__).parents[1] / "docs" / "command_line.md").read_text()
    names = [f"jitload {name}" for name in commands.commands] + [*commands.commands["cache"].commands]
    assert [name for name in names if f"`{name}" not in page.replace("`jitload cache ", "`jitload cache `")] == []


def test_a_shell_gets_a_script_for_completion():
    env = python_env() | {"_JITLOAD_COMPLETE": "bash_source"}
    code = "import sys; from jitload.cli import main; sys.exit(main([]))"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert "_JITLOAD_COMPLETE=bash_complete" in done.stdout


def run_cache(capsys, *words: str) -> tuple[int, str, str]:
    return run(capsys, "cache", *words)


def key_of(path: Path) -> str:
    return path.parent.parent.name[-64:]


def test_a_path_and_an_empty_list_make_no_directory(empty_cache, capsys):
    assert run_cache(capsys, "path") == (0, f"{empty_cache}\n", "")
    assert run_cache(capsys, "list") == (0, f"name  arch  age  size  key\n0 entries, 0 B, in {empty_cache}\n", "")
    assert (run_cache(capsys, "clear")[0], run_cache(capsys, "prune", "--max-age", "1d")[0]) == (0, 0)
    assert not empty_cache.exists()


def test_list_shows_each_entry(cache, capsys):
    path = build(ADD, "vec")
    code, out, _ = run_cache(capsys, "list")
    rows = [line.split() for line in out.splitlines()]
    assert (code, [row[0] for row in rows]) == (0, ["name", "vec", "1"])
    assert rows[1][1] == ARCH
    assert rows[1][-1] == key_of(path)[:16]
    (row,) = [json.loads(line) for line in run_cache(capsys, "list", "--json")[1].splitlines() if '"vec"' in line]
    assert row["key"] == key_of(path)
    assert row["size"] == sum(file.stat().st_size for file in path.parent.iterdir())
    assert row["dir"] == str(path.parent)
    assert row["age_s"] < 60


def test_prune_removes_what_was_used_least_recently(cache, capsys):
    paths = [build(kernel(f"k{number}"), f"m{number}") for number in range(3)]
    for age_s, path in zip((3000, 1000, 2000), paths, strict=True):
        then = time.time() - age_s
        os.utime(path.parent / "manifest.json", (then, then))
    assert run_cache(capsys, "prune")[0] == 2
    assert run_cache(capsys, "prune", "--max-age", "40m")[1].startswith("removed 1 entry")
    assert [path.exists() for path in paths] == [False, True, True]
    size = sum(file.stat().st_size for file in cache.glob("*-*/*/*") if file.parent.parent.name[0] != ".")
    assert run_cache(capsys, "prune", "--max-size", str(size - 1))[1].startswith("removed 1 entry")
    assert [path.exists() for path in paths] == [False, True, False]
    assert build(kernel("k2"), "m2").exists()


def test_a_library_that_a_process_has_mapped_is_not_removed(cache, capsys):
    code = "import sys, builds; builds.load(builds.ADD); print('loaded', flush=True); sys.stdin.readline()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(python_command(code), env=python_env({"JITLOAD_LIBRARY": "now"}), **pipes) as process:
        assert process.stdout.readline() == "loaded\n"
        for command in (["clear"], ["prune", "--max-size", "0"]):
            returned, out, _ = run_cache(capsys, *command)
            assert (returned, "1 entry in use" in out) == (0, True)
        assert [path.name for path in cache.glob("*-*/*/*.so")] == ["m.so"]
        process.stdin.write("\n")
    assert run_cache(capsys, "prune", "--max-size", "0")[1].startswith("removed 1 entry")
    assert not list(cache.glob("*-*/*/*.so"))


def test_clear_removes_everything(cache, capsys, tmp_path, monkeypatch):
    path = build(ADD)
    os.truncate(build(kernel("k")), 10)
    build(kernel("k"))
    script = tmp_path / "broken-c++"
    script.write_text(f'#!/bin/sh\ncase "$*" in *wrapper.cc*) exit 1;; esac\nexec {shutil.which("c++")} "$@"\n')
    script.chmod(0o755)
    with monkeypatch.context() as patch, pytest.raises(CompileError, match="failed build is kept"):
        patch.setenv("JITLOAD_CXX", str(script))
        build(kernel("broken"))
    assert run_cache(capsys, "clear")[1].startswith("removed 2 entries")
    left = {str(file.relative_to(cache)) for file in cache.rglob("*") if file.is_file()}
    assert {name.partition("/")[0] for name in left} <= {".tools", ".locks"}
    assert build(ADD) == path


def test_the_module_runs_as_a_command(cache):
    assert run_jitload("cache", "path").stdout == f"{cache}\n"
    assert run_jitload().returncode == 2


def test_the_command_is_light_to_import():
    code = (
        "import sys, jitload.cli; print(sorted({'torch', 'tvm_ffi', 'numpy', 'jinja2', 'tarfile'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=python_env(), capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_cache_that_other_users_can_write_to_is_not_written(cache, capsys):
    build(ADD)
    cache.chmod(0o777)
    code, _, err = run_cache(capsys, "clear")
    assert code == 1
    assert "everyone can write to" in err
