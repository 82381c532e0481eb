"""Fixtures of the whole test suite."""

import functools
import gc
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from builds import build, kernel
from filelock import FileLock
from support.fixtures import loaded_stub, stub_driver, stub_library, unused  # noqa: F401  pytest finds fixtures here
from support.gpu_fixtures import cubin, device, gpu, hopper, ptx, two_gpus  # noqa: F401  likewise
from support.headers import share_headers
from support.pages import run_page  # noqa: F401  likewise

from jitload.building import runtime
from jitload.building.native import NAMES
from jitload.cuda.job import NvrtcJob, NvrtcResult
from jitload.kernels import compilation as kernels
from jitload.settings import read_settings


def pytest_configure() -> None:
    """Let Ctrl-C arrive in tests that send it, and let all processes keep the modules they compile.

    What a shell starts in the background ignores Ctrl-C, children too. Hundreds of processes import jitload, torch or
    Triton: compiling torch's modules takes as long again as importing them. Rewriting the assertions of the tests takes
    longer than the rest of the collection.
    """
    gc.disable()  # until the end of the collection, which is faster by a tenth without it
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
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
    for fixture in ("wrapper_fixtures", "run_page"):
        if fixture in text:
            return fixture
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


def pytest_collection_finish() -> None:
    """Let the garbage collector look at what tests make, and not at all that was imported before."""
    gc.freeze()
    gc.enable()


@pytest.fixture(scope="session")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory that all processes of this test run share."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def used_cache(run_dir: Path) -> Path:
    """Make a cache with what the first builds on a machine make for all: what the tools said. Build the runtime."""
    made = run_dir / "used" / "cache"
    with FileLock(run_dir / "used.lock"):
        if not made.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("JITLOAD_CACHE_DIR", str(made))
                entry = build(kernel("first"), "first").parents[1]
                runtime.find_objects(NAMES, read_settings())
            for leftover in (entry, *(made / name for name in (".locks", ".work"))):
                if leftover.is_dir():
                    shutil.rmtree(leftover)
                else:
                    leftover.unlink(missing_ok=True)
    return made


@pytest.fixture
def cache(used_cache: Path, empty_cache: Path) -> Path:
    """Give a cache of its own that has what all libraries share, without the modules of the process."""
    return Path(shutil.copytree(used_cache, empty_cache))


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


@pytest.fixture(scope="session", autouse=True)
def _cache(run_dir: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Give the test run a cache of its own; tests that look into a cache make one more."""
    with pytest.MonkeyPatch.context() as patch:
        directory = run_dir / "shared" / "cache"
        directory.parent.mkdir(exist_ok=True)
        patch.setenv("JITLOAD_CACHE_DIR", str(directory))
        patch.setenv("JITLOAD_PRECOMPILE", "0")  # no process in the background but where a test asks for it
        patch.setenv("JITLOAD_LIBRARY", "never")  # likewise
        share_headers(run_dir, patch)
        patch.setenv("JITLOAD_CPU_GPU_CHECK", "0")  # NVRTC would take half as long as g++; test_cpu_gpu_check.py has it
        patch.setattr("jitload.prebuilding.api.worker_count", lambda: 1)  # each imports jitload and maybe Triton
        patch.setenv("TRITON_CACHE_DIR", str(run_dir / "triton"))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
        for name in ("ARCH", "NVRTC", "NVCC", "CXX", "TRUST_GROUP", "MODE", "CACHE_LIMIT"):
            patch.delenv(f"JITLOAD_{name}", raising=False)
        patch.delenv("TVM_FFI_CUDA_ARCH_LIST", raising=False)
        request.getfixturevalue("used_cache")
        yield directory
