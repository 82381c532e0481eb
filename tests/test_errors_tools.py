"""Tools that are missing or do not work: the ToolchainError says how to get one, or contains the tool's output."""

import shutil
import signal
import sys
from pathlib import Path

import pytest
from builds import ADD, build, message, run_python, work_dirs

import jitload
from jitload.building.ninja import _start, _stop, compile_step, run_ninja, write_ninja
from jitload.errors import CompileError, ToolchainError
from jitload.settings import read_settings
from jitload.toolchain import cuda
from jitload.toolchain.host import find_ninja


@pytest.mark.parametrize(
    "variable",
    [
        *("CLICOLOR_FORCE=1", "NINJA_STATUS=[%f of %t] ", "GCC_COLORS=error=01;31", "LC_ALL=de_DE.UTF-8"),
        *("GCC_EXTRA_DIAGNOSTIC_OUTPUT=fixits-v2", "NVCC_APPEND_FLAGS=--no-such-option", "DEPENDENCIES_OUTPUT=other.d"),
    ],
)
def test_the_callers_variables_do_not_change_what_compilers_print(variable, tmp_path, monkeypatch):
    name, _, value = variable.partition("=")
    monkeypatch.setenv(name, value)
    (tmp_path / "broken.cc").write_text("int f() { return absent; }\n")
    write_ninja(tmp_path, [compile_step(("c++",), (), "broken.cc", "broken.o")])
    with pytest.raises(CompileError) as caught:
        run_ninja(find_ninja(read_settings()), tmp_path, name="broken")
    assert [(d.file, d.line, d.severity) for d in caught.value.diagnostics] == [("broken.cc", 1, "error")]
    assert "absent" in caught.value.diagnostics[0].message
    assert "\x1b" not in caught.value.log
    assert caught.value.log.startswith("broken.cc: In function")
    assert not (tmp_path / "other.d").exists()


@pytest.mark.usefixtures("cache")  # an entry that is there needs no tool
def test_without_a_compiler_the_error_says_how_to_install_one(monkeypatch, tmp_path):
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert message(ToolchainError, ADD) == (
        "no C++ compiler: c++, g++ or clang++ is not on the PATH. Install one (apt install g++, or dnf install "
        "gcc-c++). Without root: pip install ziglang, and set JITLOAD_CXX='python -m ziglang c++'."
    )
    with pytest.raises(
        ToolchainError, match=r"PATH\. Kernels on the CPU need g\+\+: apt install g\+\+, or dnf install g.*c\+\+\.$"
    ):
        jitload.build_inline("m", cuda_sources=ADD, arch="cpu")
    monkeypatch.setenv("JITLOAD_CXX", "g++-99 -m64")
    assert message(ToolchainError, ADD).startswith("no C++ compiler: 'g++-99 -m64' (from JITLOAD_CXX or CXX) is not on")


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Return a way to put a shell script in the compiler's place, with a cache of its own."""
    path = tmp_path / "bin dir" / "c++"
    path.parent.mkdir()
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("JITLOAD_CXX", f"'{path}'")

    def write(script: str) -> Path:
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return tmp_path / "cache"

    return write


def test_a_compiler_that_does_not_work(compiler):
    compiler("echo 'no licence' >&2; exit 3")
    with pytest.raises(ToolchainError) as caught:
        jitload.build_inline("m", cpp_sources="int f() { return 1; }", functions="f")
    raised = caught.value.message()
    assert raised.startswith("the C++ compiler ")
    assert raised.endswith("/bin dir/c++ does not work:\nno licence\nRepair it, or set JITLOAD_CXX to another.")


def test_a_failed_host_compile_keeps_its_directory_and_says_where(compiler):
    real = shutil.which("c++")
    cache = compiler(
        f'case "$*" in *wrapper.cc*) echo "wrapper.cc:3:1: error: on purpose"; exit 1;; esac; exec {real} "$@"'
    )
    with pytest.raises(CompileError) as caught:
        build(ADD)
    error = caught.value
    assert (error.stage, error.log.strip()) == ("host", "wrapper.cc:3:1: error: on purpose")
    assert [(d.file, d.line, d.message) for d in error.diagnostics] == [("wrapper.cc", 3, "on purpose")]
    assert error.work_dir is not None
    assert (error.work_dir / "wrapper.cc").is_file()
    assert (error.work_dir / "build.ninja").is_file()
    lines = str(error).splitlines()
    assert lines[0] == "the C++ compiler could not compile 'm': wrapper.cc:3: on purpose"
    assert lines[2].startswith("Command: ")
    assert "-c wrapper.cc -o wrapper.o" in lines[2]
    assert lines[3] == f"The failed build is kept in {error.work_dir}"
    assert work_dirs(cache) == [error.work_dir.name]
    compiler(f'exec {real} "$@"')
    assert build(ADD).is_file()  # a failure is never remembered


@pytest.mark.usefixtures("cache")  # an entry that is there needs no tool
def test_without_nvrtc_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    how = "pip install 'jitload[cu13]'"
    monkeypatch.setenv("JITLOAD_NVRTC", "99")
    raised = message(ToolchainError, ADD)
    assert raised.startswith(
        "NVRTC 99 (JITLOAD_NVRTC=99) was not found: compiling CUDA source needs it. Install it with: "
    )
    assert how in raised
    monkeypatch.setenv("JITLOAD_NVRTC", str(tmp_path))
    assert message(ToolchainError, ADD).startswith(
        f"JITLOAD_NVRTC={tmp_path}: no libnvrtc.so there. Name a CUDA toolkit"
    )
    (tmp_path / "libnvrtc.so.13").write_text("not a library")
    monkeypatch.setenv("JITLOAD_NVRTC", str(tmp_path / "libnvrtc.so.13"))
    assert message(ToolchainError, ADD).startswith(f"NVRTC cannot be loaded from {tmp_path}/libnvrtc.so.13: ")


@pytest.mark.usefixtures("cache")  # an entry that is there needs no tool
def test_no_wheel_and_no_toolkit_has_nvrtc(monkeypatch):
    monkeypatch.setattr(cuda, "_wheel_toolchains", lambda: iter(()))
    monkeypatch.setattr(cuda, "_toolkits", lambda _: iter(()))
    monkeypatch.setattr(sys, "path", [*sys.path, "/not/there"])  # what was found before is remembered by the path
    assert message(ToolchainError, ADD) == (
        "NVRTC was not found: compiling CUDA source needs it. Install it with: pip install 'jitload[cu13]'  (or "
        "'jitload[cu12]' for a driver older than CUDA 13), or point JITLOAD_NVRTC to a CUDA toolkit."
    )


def test_a_ninja_that_does_not_run_or_fails_by_itself(tmp_path):
    ninja = tmp_path / "ninja"
    ninja.write_text("#!/bin/sh\necho 'ninja: error: no space'; exit 1\n")
    with pytest.raises(ToolchainError, match=f"ninja cannot be run: {ninja}: Permission denied"):
        run_ninja(ninja, tmp_path, name="m")
    ninja.chmod(0o755)
    with pytest.raises(ToolchainError, match=r"(?m)^ninja failed on module 'm': ninja: error: no space$"):
        run_ninja(ninja, tmp_path, name="m")


def test_a_command_that_will_not_end_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr("jitload.building.ninja._SHUTDOWN_S", 0.3)
    process = _start(["/bin/sh", "-c", "trap '' TERM; echo on; while :; do sleep 9; done"], tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "on\n"
    _stop(process)
    assert process.returncode == -9
    assert process.stdout.closed


@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM], ids=lambda sign: sign.name)
def test_a_signal_while_ninja_starts_ends_it(sign, tmp_path, monkeypatch):
    processes = []

    def start(*_):
        processes.append(_start(["/bin/sleep", "60"], tmp_path))
        signal.raise_signal(sign)
        return processes[0]

    monkeypatch.setattr("jitload.building.ninja._start", start)
    previous = signal.signal(sign, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_ninja(Path("ninja"), tmp_path, name="m")
        assert signal.getsignal(sign) is signal.default_int_handler
    finally:
        signal.signal(sign, previous)
    assert processes[0].returncode == -signal.SIGTERM


def test_what_a_toolkit_is_follows_its_file(tmp_path):
    (tmp_path / "lib").mkdir()
    library = tmp_path / "lib" / "libnvrtc.so.12.8.93"
    library.write_text("one")
    plain = tmp_path / "lib" / "libnvrtc.so"
    plain.symlink_to(library.name)
    toolchains = [cuda._requested_toolchain(plain)]
    library.write_text("other")
    toolchains.append(cuda._requested_toolchain(plain))
    assert [toolchain.version for toolchain in toolchains] == [(12, 8, 93)] * 2
    assert toolchains[0].identity != toolchains[1].identity
    plain.unlink()
    plain.write_text("a file of its own")
    assert cuda._requested_toolchain(plain).major == 0


def test_without_ninja_the_error_says_how_to_install_it(tmp_path):
    code = """
import shutil, builds, jitload
which = shutil.which
shutil.which = lambda name, **options: None if name == "ninja" else which(name, **options)
try:
    builds.build(builds.ADD)
except jitload.errors.ToolchainError as error:
    print(error)
"""
    done = run_python(code, {"JITLOAD_CACHE_DIR": str(tmp_path)})
    assert (done.stdout, done.stderr) == ("ninja was not found. Install it with: pip install ninja\n", "")
