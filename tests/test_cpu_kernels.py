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

pytest_plugins = ["support.gpu_fixtures"]
NAMED = {
    "language": {
        "axpy": Launch(kernel="axpy<double>"),
        "language": Launch(),
        "vectors": Launch(),
        "references": Launch(),
    }
}


@pytest.fixture(scope="module")
def module() -> Callable[..., jitload.Module]:
    @functools.cache
    def build(file: str, arch: str | tuple[str, ...] = "cpu") -> jitload.Module:
        source = (SOURCES / f"{file}.cu").read_text()
        flags = ["-O0"] if file in ("narrow", "numbers") else OPTIMIZED  # in a third of the time
        return jitload.load_inline(
            f"cpu_{file}", cuda_sources=source, arch=arch, functions=NAMED.get(file), extra_cflags=flags
        )

    return build


def run(module: jitload.Module, name: str, device: str) -> list[Any]:
    case = CASES[name]
    given = case.fresh(device)
    getattr(module, name)[case.launch](*given)
    return given


def is_close(found: torch.Tensor, wanted: Any, case: Case, rtol: float) -> None:
    wanted = torch.as_tensor(wanted).reshape(-1)
    found = found.reshape(-1).cpu()
    if not found.dtype.is_floating_point:  # unsigned numbers compare as Python's
        assert found.tolist() == wanted.tolist()
        return
    if found.dtype in (torch.float16, torch.bfloat16):
        wanted = wanted.to(found.dtype)
    size = wanted.double()[wanted.double().isfinite()].abs().max().item() if wanted.numel() else 1
    torch.testing.assert_close(found.double(), wanted.double(), rtol=rtol, atol=rtol * min(size, 10), equal_nan=True)


def test_the_table_is_whole(module):
    assert len(CASES) >= 30
    kernels = {name for file in {case.file for case in CASES.values()} for name in module(file)}
    assert kernels == set(CASES)


@pytest.mark.parametrize("name", CASES)
def test_on_the_cpu(name, module):
    case = CASES[name]
    given = run(module(case.file), name, "cpu")
    for at, wanted in case.expected(*case.fresh()).items():
        is_close(given[at], wanted, case, case.rtol)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("name", CASES)
def test_both_targets_agree(name, module):
    case = CASES[name]
    on_cpu, on_gpu = (run(module(case.file, ("native", "cpu")), name, device) for device in ("cpu", "cuda"))
    for at in case.expected(*case.fresh()):
        is_close(on_gpu[at], on_cpu[at], case, case.gpu_rtol)
