"""The wrappers of `tests/launcher/` as pytest fixtures; a test module imports those that it uses."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jitload

from .driver import StubDriver
from .program import CUBIN
from .wrappers import Wrapper, build_wrapper, find_cuda_headers, load

IMAGE = CUBIN.read_bytes()
SCALE = """
extern "C" __global__ void scale_float32(float* y, const float* x, long long n) { y[0] = x[n]; }
extern "C" __global__ void scale_float16(short* y, const short* x, long long n) { y[0] = x[n]; }
"""


def _wrappers() -> dict[str, Wrapper]:
    scale = jitload.compile_cubin(SCALE, arch="sm_90").data
    wrappers = {
        "guide": Wrapper(
            source="guide",
            cubins={"first": IMAGE, "second": IMAGE},
            unsized=["second"],
            flags=["-fvisibility=hidden"],
            is_linked=True,
        ),
        "library": Wrapper(source="library", cubins={"scale": scale}),
        "bare": Wrapper(source="features", bytes_of=IMAGE),
    }
    if find_cuda_headers() is not None:
        wrappers["cuda"] = Wrapper(source="features", bytes_of=IMAGE, has_cuda=True)
    return wrappers


_built: dict[str, Path] = {}


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The wrappers, compiled once: each source, and the one with all features with and without CUDA's headers."""
    if not _built:
        wrappers = _wrappers()
        directory = tmp_path_factory.mktemp("launcher")
        with ThreadPoolExecutor(2) as pool:
            built = pool.map(lambda name: build_wrapper(wrappers[name], directory / name), wrappers)
            _built.update(zip(wrappers, built, strict=True))
    return _built


@pytest.fixture
def guide(libraries: dict[str, Path], stub_driver: StubDriver) -> Any:
    """The guide's wrapper, linked with the launcher's object."""
    return load(libraries["guide"])


@pytest.fixture
def library(libraries: dict[str, Path], stub_driver: StubDriver) -> Any:
    """The kernel library."""
    stub_driver.use_device(0)
    return load(libraries["library"])


@pytest.fixture(params=["bare", "cuda"])
def features(request: pytest.FixtureRequest, libraries: dict[str, Path], stub_driver: StubDriver) -> Any:
    """The module with all features, over a cubin that was just loaded: nothing is known of its kernels."""
    if request.param not in libraries:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    module = load(libraries[request.param])
    stub_driver.use_device(0)
    module.replace(IMAGE)
    stub_driver.clear()
    return module
