"""Fixtures of the whole test suite."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fixtures import loaded_stub, stub_driver, stub_library  # noqa: F401  pytest finds fixtures by name here

from jitload.device import kernels
from jitload.nvrtc import NvrtcJob, NvrtcResult


def pytest_configure() -> None:
    """Let Ctrl-C arrive in tests that send it: what a shell starts in the background ignores it, children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)  # behind plugins that shuffle
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what takes minutes, unless it is asked for: `-m soak`; in any order, the stub driver comes last."""
    if "soak" not in (config.option.markexpr or ""):
        soaks = [item for item in items if item.get_closest_marker("soak")]
        items[:] = [item for item in items if item not in soaks]
        config.hook.pytest_deselected(items=soaks)
    if not Path("/dev/nvidiactl").exists():
        # A process cannot let go of the stub, and then has a driver and two GPUs: what other tests say it has not.
        items.sort(key=lambda item: "loaded_stub" in getattr(item, "fixturenames", ()))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, without the modules of the process."""
    monkeypatch.setenv("JITLOAD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("jitload.serving._modules", {})
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
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Give the test run a cache of its own; tests that look into a cache make one more."""
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("cache")
        patch.setenv("JITLOAD_CACHE_DIR", str(directory))
        patch.setenv("JITLOAD_PRECOMPILE", "0")  # nothing in the background but where a test asks for it
        patch.setenv("TRITON_CACHE_DIR", str(tmp_path_factory.mktemp("triton")))
        patch.setenv("TRITON_DEFAULT_FP_FUSION", "1")  # Triton 3.9 warns where it is not set
        for name in ("ARCH", "NVRTC", "NVCC", "CXX", "TRUST_GROUP", "MODE", "CACHE_LIMIT"):
            patch.delenv(f"JITLOAD_{name}", raising=False)
        yield directory
