"""The kernel library's header: dtypes, dispatch and checks, with and without CUDA's own types."""

from typing import Any

import numpy as np
import pytest
import torch
from support.wrappers import Wrapper, build_wrapper, find_cuda_headers, load, refusal

DTYPES = {
    1: ("float32", "float64", "float16", "bfloat16"),
    2: ("float8_e4m3fn", "float8_e5m2"),
    3: ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    0: ("bool",),
}


@pytest.fixture(scope="module", params=["bare", "cuda"])
def library(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The library with no header of CUDA's, and with one of them before ours and others behind it."""
    has_cuda = request.param == "cuda"
    if has_cuda and find_cuda_headers() is None:
        pytest.skip("CUDA's headers are not installed: nvidia-cuda-runtime and nvidia-cuda-crt")
    flags = ["-DCUDA_TYPES", "-Wno-error"] if has_cuda else []
    wrapper = Wrapper(source="dtypes", flags=flags, has_cuda=has_cuda)
    return load(build_wrapper(wrapper, tmp_path_factory.mktemp("library") / request.param))


def tensor(dtype: str, *shape: int) -> torch.Tensor:
    return torch.zeros(shape or (4,)).to(getattr(torch, dtype))


def test_dispatch_knows_every_dtype(library):
    for group, dtypes in DTYPES.items():
        for dtype in dtypes:
            assert library.any_of(tensor(dtype)) == f"kernel_{dtype}"
            assert library.list_of(tensor(dtype)) == group


def test_a_dtype_that_is_not_in_the_list(library):
    said = refusal(library.any_of, tensor("complex64"))
    assert said.startswith("TypeError: Unsupported dtype: x.dtype() is complex64, expected one of bool, int8, int16,")
    said = refusal(library.pair, tensor("float16"), tensor("int8"))
    assert said == "TypeError: Unsupported dtype: y.dtype() is int8, expected one of int32, int64"
    assert library.pair(tensor("float16"), tensor("int64")) == "float16_int64"


def test_an_allocation_needs_a_framework(library):
    assert library.allocated(tensor("int8")).shape == (2, 3)
    said = refusal(library.allocated, np.zeros(3))
    assert said.startswith(
        "RuntimeError: alloc_tensor(): no argument of this call is a tensor of a framework that alloc"
    )


def test_checks_name_their_argument(library):
    values, index = tensor("float32"), tensor("int64")
    library.check_dtype(values, None)
    library.check_dtype(values, index)
    assert refusal(library.check_dtype, index, None) == "TypeError: values must be float32, got int64"
    assert refusal(library.check_dtype, values, values) == "TypeError: index.value() must be int64, got float32"
    assert refusal(library.check_dtype, tensor("float32", 2, 2), None) == (
        "ValueError: values must be a 1D tensor, got one of 2 dimensions, as there is no index"
    )


def test_a_views_first_element(library):
    assert library.first_element(torch.arange(10)[3:]) == 3
