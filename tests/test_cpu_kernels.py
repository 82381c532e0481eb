"""One table of kernels, run on the CPU against NumPy and torch, and on both targets against each other."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from cpu_cases import CASES, SOURCES, Case
from support.headers import OPTIMIZED

import jitload
from jitload import Launch

PLAIN = dict.fromkeys(("language", "vectors", "references"), Launch())
NAMED = {"language": {"axpy": Launch(kernel="axpy<double>"), **PLAIN}}


@pytest.fixture(scope="module")
def module() -> Callable[..., jitload.Module]:
    @functools.cache
    def build(file: str, arch: str | tuple[str, ...] = "cpu") -> jitload.Module:
        source = (SOURCES / f"{file}.cu").read_text()
        flags = OPTIMIZED if file in ("blocks", "language", "warps") else None
        return jitload.load_inline(
            f"cpu_{file}", cuda_sources=source, arch=arch, functions=NAMED.get(file), extra_cflags=flags
        )

    return build


def run(module: jitload.Module, name: str, device: str) -> list[Any]:
    case = CASES[name]
    arguments = case.fresh(device)
    getattr(module, name)[case.launch](*arguments)
    return arguments


def is_close(result: torch.Tensor, expected: Any, case: Case, rtol: float) -> None:
    expected = torch.as_tensor(expected).reshape(-1)
    result = result.reshape(-1).cpu()
    if not result.dtype.is_floating_point:  # unsigned numbers compare as Python's
        assert result.tolist() == expected.tolist()
        return
    if result.dtype in (torch.float16, torch.bfloat16):
        expected = expected.to(result.dtype)
    size = expected.double()[expected.double().isfinite()].abs().max().item() if expected.numel() else 1
    torch.testing.assert_close(result.double(), expected.double(), rtol=rtol, atol=rtol * min(size, 10), equal_nan=True)


def test_the_table_is_whole(module):
    assert len(CASES) >= 30
    kernels = {name for file in {case.file for case in CASES.values()} for name in module(file)}
    assert kernels == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name, module):
    case = CASES[name]
    arguments = run(module(case.file), name, "cpu")
    for index, expected in case.expected(*case.fresh()).items():
        is_close(arguments[index], expected, case, case.rtol)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", CASES)
def test_both_targets_agree(name, module):
    case = CASES[name]
    on_cpu, on_gpu = (run(module(case.file, ("native", "cpu")), name, device) for device in ("cpu", "cuda"))
    for index in case.expected(*case.fresh()):
        is_close(on_gpu[index], on_cpu[index], case, case.gpu_rtol)
