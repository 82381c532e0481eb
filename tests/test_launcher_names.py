"""Every public name of tvm-ffi's launcher headers, in each of the forms that those take."""

from typing import Any

import pytest
from support.program import CUBIN
from support.wrappers import Wrapper, build_wrapper, find_cuda_headers, load, refusal

FLAGS = {
    "bare": (),  # no header of CUDA's
    "driver": ("-DTVM_FFI_CUBIN_LAUNCHER_USE_DRIVER_API=1",),
}


@pytest.fixture(scope="module", params=FLAGS)
def names(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    has_cuda = request.param != "bare"
    if has_cuda and find_cuda_headers() is None:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    wrapper = Wrapper(source="unified", flags=FLAGS[request.param], has_cuda=has_cuda)
    return load(build_wrapper(wrapper, tmp_path_factory.mktemp("names") / request.param))


def test_all_forms_of_a_launch(names, stub_driver):
    stub_driver.use_device(0)
    assert names.launches(CUBIN.read_bytes()) == 7
    launches = stub_driver.launches()
    grids = [(1, 1, 1), (2, 3, 1), (2, 3, 4), (4, 1, 1), (4, 1, 1), (1, 1, 1), (1, 1, 1)]
    assert [launch.grid for launch in launches] == grids
    assert [launch.shared_bytes for launch in launches] == [0, 64, 0, 128, 128, 0, 0]
    assert [launch.cluster for launch in launches[3:5]] == [(2, 1, 1)] * 2


def test_by_handle(names, stub_driver):
    stub_driver.use_device(0)
    assert names.by_handle(CUBIN.read_bytes(), -1) == 232_448 - 128
    assert names.by_handle(CUBIN.read_bytes(), 100_000) == 100_000
    assert "CUDA_ERROR_INVALID_VALUE (1)" in refusal(names.by_handle, CUBIN.read_bytes(), 300_000)
