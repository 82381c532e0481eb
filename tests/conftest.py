"""Fixtures of the whole test suite."""

from __future__ import annotations

import functools
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from builds import build, kernel
from filelock import FileLock
from support.fixtures import loaded_stub, stub_driver, stub_library  # noqa: F401  pytest finds fixtures by name here

from jitload.building import runtime
from jitload.cache.store import claim_entry
from jitload.cpu import build as cpu_build
from jitload.cuda import kernels
from jitload.cuda.kernels import DeviceSource
from jitload.cuda.nvrtc import NvrtcJob, NvrtcResult
from jitload.host_cpp import library, precompiled, steps
from jitload.host_cpp.precompiled import HeaderSpec, PrecompiledHeader
from jitload.settings import Settings, read_settings
from jitload.toolchain.cuda import CudaToolchain
from jitload.toolchain.host import find_compiler, own_include_dir

HEADER = "jitload_cpu.h"  # of kernels for the CPU


def pytest_configure() -> None:
    """Let Ctrl-C arrive in tests that send it, and let processes that tests start keep the modules they compile.

    What a shell starts in the background ignores Ctrl-C, children too. Hundreds of processes import jitload, torch or
    Triton: compiling torch's modules takes as long again as importing them.
    """
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give the files whose tests share a build to one process each; two would build it twice."""
    from xdist.scheduler import LoadScopeScheduling

    class ByBuild(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return shared_build(nodeid.partition("::")[0]) or nodeid

    if config.getvalue("dist") != "load" or not hasattr(config.option, "loadscopereorder"):
        return None
    config.option.loadscopereorder = False  # the stub driver comes last
    return ByBuild(config, log)


@functools.cache
def shared_build(file: str) -> str:
    """Return a name for what the tests of a file build once for all of them, or nothing."""
    text = (Path(__file__).parent / Path(file).name).read_text()
    if "wrapper_fixtures" in text:
        return "wrapper_fixtures"
    return file if 'scope="module"' in text else ""


@pytest.hookimpl(trylast=True)  # behind plugins that shuffle
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for: `-m soak`; in any order, the stub driver comes last.

    Before and with the stub, the files that run in one process each come first, so that all processes end together.
    """
    if "soak" not in (config.option.markexpr or ""):
        soaks = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if item not in soaks]
        config.hook.pytest_deselected(items=soaks)
    # A process cannot let go of the stub, and then has a driver and two GPUs: what other tests say it has not.
    has_driver = Path("/dev/nvidiactl").exists()
    stubbed = {item for item in items if not has_driver and "loaded_stub" in getattr(item, "fixturenames", ())}
    late = {item.path for item in stubbed if shared_build(item.path.name)}
    items.sort(key=lambda item: (item in stubbed or item.path in late, not shared_build(item.path.name)))


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def used_cache(run_dir: Path) -> Path:
    """Make a cache with what the first builds on a machine make for all: the runtime, and what the compiler said."""
    made = run_dir / "used" / "cache"
    with FileLock(run_dir / "used.lock"):
        if not made.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("JITLOAD_CACHE_DIR", str(made))
                entry = build(kernel("first"), "first").parents[1]
                settings = read_settings()
                for find_or_build in (runtime.find_or_build_cpu_runtime, runtime.find_or_build_triton_runtime):
                    find_or_build(find_compiler(settings), made, settings)
            for leftover in (entry, *(made / name for name in (".grown", ".locks", ".uses", ".work"))):
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink(missing_ok=True)
    return made


@pytest.fixture
def cache(used_cache: Path, empty_cache: Path) -> Path:
    """Give a cache of its own that has what all libraries share, without the modules of the process."""
    return Path(shutil.copytree(used_cache, empty_cache, ignore=shutil.ignore_patterns("cpu_*", "triton_*")))


@pytest.fixture
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give a cache of its own where nothing was ever built, without the modules of the process."""
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("jitload.pipeline._modules", {})
    return tmp_path / "cache"


@pytest.fixture
def nvrtc_runs(monkeypatch: pytest.MonkeyPatch) -> list[NvrtcJob]:
    """What NVRTC was asked to compile, run by run."""
    jobs: list[NvrtcJob] = []
    run_nvrtc = kernels.run_nvrtc

    def noting(library_path: Path, job: NvrtcJob) -> NvrtcResult:
        jobs.append(job)
        return run_nvrtc(library_path, job)

    monkeypatch.setattr(kernels, "run_nvrtc", noting)
    return jobs


def share_precompiled_headers(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Precompile tvm-ffi's headers once in the cache of the run, for all caches of its processes.

    C++ without options then builds in half the time. A test that sets `JITLOAD_PRECOMPILE` gets what it asks for. The
    processes that tests start have no precompiled headers.
    """
    find, start = precompiled.find_precompiled, precompiled.start_precompiling

    def find_in_run(
        spec: HeaderSpec, cache_dir: Path, settings: Settings, include_dirs: Sequence[str] = ()
    ) -> PrecompiledHeader | None:
        if settings.precompiles:
            return find(spec, cache_dir, settings, include_dirs)
        return find(spec, directory, settings._replace(precompiles=True), include_dirs)

    def make_in_run(spec: HeaderSpec, cache_dir: Path, settings: Settings) -> None:
        if settings.precompiles:
            start(spec, cache_dir, settings)
            return
        options = {word for word in spec.command[1:] if word.startswith("-") and not word.startswith("-I")}
        if spec.includes == precompiled.PRELUDE and options == {steps.STANDARD, *steps.FLAGS, "-isystem"}:
            with suppress(FileExistsError):
                (directory.parent / "precompiled").mkdir()
                with claim_entry(directory, spec.key, settings) as work:
                    headers, problem = precompiled.make_header(spec.command, spec.includes, work.dir)
                    assert not problem
                    precompiled.publish_header(work, headers)

    patch.setattr(precompiled, "find_precompiled", find_in_run)
    patch.setattr(precompiled, "start_precompiling", make_in_run)
    flags = ("-O1", *steps.FLAGS[1:])
    for module in (steps, library):  # half the time again
        patch.setattr(module, "FLAGS", flags)


def precompile_cpu_header(directory: Path, patch: pytest.MonkeyPatch) -> None:
    """Precompile the header of kernels for the CPU once in a directory, for the processes of the run.

    g++ takes it where the options are the same, in half the time, and otherwise the header itself.
    """
    cpu_flags = cpu_build.cpu_flags

    def flags_in_run(source: DeviceSource, toolchain: CudaToolchain | None) -> tuple[str, ...]:
        flags = cpu_flags(source, toolchain)
        if source.cpu_flags or source.instrumentation or source.include_dirs:
            return flags
        compiled = directory / f"{HEADER}.gch"
        with FileLock(directory.with_suffix(".lock")):
            if not compiled.exists():
                directory.mkdir()
                command = [*find_compiler(read_settings()).command, *flags, "-x", "c++-header"]
                header = own_include_dir().parent / "cpu" / HEADER
                subprocess.run([*command, str(header), "-o", str(compiled)], check=True)
        return (f"-I{directory}", "-fpch-deps", *flags)

    patch.setattr(cpu_build, "cpu_flags", flags_in_run)


@pytest.fixture(scope="session", autouse=True)
def _cache(run_dir: Path, used_cache: Path) -> Iterator[Path]:
    """Give the test run a cache of its own; tests that look into a cache make one more."""
    with pytest.MonkeyPatch.context() as patch:
        directory = run_dir / "shared" / "cache"
        directory.parent.mkdir(exist_ok=True)
        patch.setenv("JITLOAD_CACHE_DIR", str(directory))
        patch.setenv("JITLOAD_CACHE_PATH", str(used_cache))  # the runtime library is compiled once
        patch.setenv("JITLOAD_PRECOMPILE", "0")  # no process in the background but where a test asks for it
        share_precompiled_headers(directory, patch)
        precompile_cpu_header(run_dir / "cpu_header", patch)
        patch.setenv("JITLOAD_CPU_GPU_CHECK", "0")  # NVRTC would take half as long as g++; test_cpu_gpu_check.py has it
        patch.setenv("TRITON_CACHE_DIR", str(run_dir / "triton"))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
        for name in ("ARCH", "NVRTC", "NVCC", "CXX", "TRUST_GROUP", "MODE", "CACHE_LIMIT"):
            patch.delenv(f"JITLOAD_{name}", raising=False)
        patch.delenv("TVM_FFI_CUDA_ARCH_LIST", raising=False)
        yield directory
