"""The stub driver as pytest fixtures; a conftest imports them."""

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

import jitload

from .calls import fresh
from .driver import StubDriver, build_stub, has_real_driver


@pytest.fixture(scope="session")
def stub_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stub `libcuda.so.1`, built once."""
    return build_stub(tmp_path_factory.mktemp("driver"))


@pytest.fixture(scope="session")
def loaded_stub(stub_library: Path) -> StubDriver:
    """The stub driver, loaded into this process, unless the real one is: there is one place for both.

    tvm-ffi asks torch for GPUs as it is imported. A torch for CUDA keeps its first answer, and warns of a driver that
    it cannot use, so that is asked before the stub is there.
    """
    importlib.import_module("tvm_ffi")
    if has_real_driver():
        pytest.skip("the CUDA driver is loaded in this process; run pytest -m 'not gpu' by itself")
    return StubDriver(stub_library)


@pytest.fixture
def stub_driver(loaded_stub: StubDriver) -> Iterator[StubDriver]:
    """The stub driver in its first state: two idle devices, an empty log, no failures."""
    loaded_stub.reset()
    yield loaded_stub
    loaded_stub.reset()


@pytest.fixture
def unused(path: str, stub_driver: StubDriver) -> jitload.Module:
    """The library of a test file's own fixture `path`, which was not called yet, with device 0 in use."""
    module = fresh(path)
    stub_driver.use_device(0)
    stub_driver.clear()
    return module
