"""Kernels of many kinds: the machine code is that of a launch of Triton's, byte by byte, and becomes a library."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("triton")

import torch
import triton.language as tl
import triton_helpers as helpers
import triton_zoo as zoo
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton_support import ARCH

import jitload


def some(dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(64, 64, dtype=dtype, device="meta")


BF16, F32, F8, I32, I64 = map(some, (torch.bfloat16, torch.float32, torch.float8_e4m3fn, torch.int32, torch.int64))
BITS, ADDRESSES = some(torch.bool), some(torch.uint64)
CASES: dict[str, tuple[Any, tuple[Any, ...], dict[str, Any]]] = {
    "a sum of two": (
        zoo.add_norm, (BF16, BF16, BF16, 4096, 4096, 4096, 1e-6, 0.0), {"HAS_MORE": True, "BLOCK": 4096, "num_warps": 8}
    ),
    "one alone": (
        zoo.add_norm, (BF16, None, BF16, 4096, 1, 99, 1e-6, 1.0),
        {"HAS_MORE": False, "BLOCK": 128, "DTYPE": tl.float16},
    ),
    "bits": (zoo.fill, (F32, BITS, -1.5, True, 100), {"BLOCK": 128}),
    "defaults": (zoo.gather, (F32, I64, F32, 5, 64), {}),
    "other than defaults": (zoo.gather, (F32, I64, F32, 5, 64), {"scale": 2.5, "offset": 7}),
    "a text": (zoo.gate, (BF16, BF16, 100), {"KIND": "silu", "FUNCTION": None, "BLOCK": 128}),
    "a function": (zoo.gate, (BF16, BF16, 100), {"KIND": "", "FUNCTION": helpers.halve, "BLOCK": 128}),
    "tuples": (zoo.join, ((F32, F32, BF16), (3, 16, 1), F32), {"BLOCK": 64}),
    "an enum": (zoo.modes, (F32,), {"MODE": zoo.Mode.FILL, "SHAPE": (64, 3), "DTYPE": tl.float32, "FLAG": True}),
    "assorted": (zoo.assorted, (I32, F32, I32, 100), {"BLOCK": 128}),
    "what is constant": (zoo.constant, (F8, F8), {"BLOCK": 64}),
    "addresses": (zoo.constant, (ADDRESSES, ADDRESSES), {"BLOCK": 64}),
    "nothing": (zoo.nothing, (), {"BLOCK": 1}),
}  # fmt: skip


@pytest.fixture
def triton_without_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Triton believe in a GPU, as far as `warmup()` asks for one."""
    properties = {"max_shared_mem": 232448, "multiprocessor_count": 132, "warpSize": 32}
    stand_in = SimpleNamespace(
        get_current_device=lambda: 0,
        get_current_stream=lambda *_: 0,
        get_current_target=lambda: GPUTarget("cuda", 90, 32),
        utils=SimpleNamespace(get_device_properties=lambda _: properties),
        map_python_to_cpp_type=str,
    )
    before = dict(vars(driver))
    driver.set_active(stand_in)
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    yield
    vars(driver).clear()
    vars(driver).update(before)


@pytest.mark.parametrize("name", CASES)
def test_the_machine_code_is_that_of_a_launch(name, triton_without_gpu):
    kernel, args, options = CASES[name]
    launched = kernel.warmup(*args, grid=(1,), **options)
    launched = launched.result() if hasattr(launched, "result") else launched
    cubin = jitload.extract_triton(kernel, *args, arch=ARCH, **options)
    assert cubin.data == launched.asm["cubin"]
    assert cubin.triton == jitload.extract_triton(launched).triton
    facts = (launched.metadata.num_warps, launched.metadata.shared)
    assert (cubin.triton.num_warps, cubin.triton.shared_bytes) == facts
