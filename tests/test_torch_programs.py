"""The texts of `torch_programs/` are built, and their host side runs with tensors on the CPU.

Texts that can share a unit are built together here, and each alone with `-m soak`. `tools/torch_compare.py` compares
them with torch's own builds, on a GPU.
"""

import shutil
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from jitload import cpp_extension
from torch_programs import PROGRAMS, Program, difference, functions_of, names

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc, and there is none on the PATH")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:Sparse invariant checks")
EACH = [pytest.param(program, id=program.name, marks=[needs_nvcc] if program.cuda else []) for program in PROGRAMS]
parametrized = pytest.mark.parametrize("program", EACH)


@pytest.fixture(autouse=True, scope="module")
def arch() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JITLOAD_ARCH", "sm_90a")
        yield


@pytest.fixture(autouse=True)
def no_fallback(monkeypatch: pytest.MonkeyPatch):
    """Fail if a text is left to torch, which would take a minute for it."""
    monkeypatch.setattr(cpp_extension, "_build_with_torch", lambda *call: pytest.fail(str(call[2])))


@pytest.fixture(scope="module")
def build() -> Callable[[Program], ModuleType]:
    """Return a function that builds a text, with the others that can share its unit."""
    modules: dict[str, ModuleType] = {}

    def build_group(program: Program) -> ModuleType:
        key = unit_of(program)
        if key not in modules:
            group = [p for p in PROGRAMS if unit_of(p) == key]
            modules[key] = load_together(key, group) if program.name != key else load(program)
        return modules[key]

    return build_group


def unit_of(program: Program) -> str:
    """Return the name of the unit in which a text is built: its own, if it cannot share one."""
    if not program.functions or program.cuda_flags:
        return program.name
    return "with_kernels" if program.cuda else "without_kernels"


def load(program: Program) -> ModuleType:
    return cpp_extension.load_inline(**program.arguments())


def load_together(name: str, group: list[Program]) -> ModuleType:
    # Without a GPU, no kernel runs: code that is not optimized is compiled in two thirds of the time.
    plain = ["-Xcicc", "-O0", "-Xptxas", "-O0"]
    return cpp_extension.load_inline(
        name=name,
        cpp_sources=[program.cpp for program in group],
        cuda_sources=[program.cuda for program in group if program.cuda] or None,
        functions=[function for program in group for function in program.functions],
        extra_cuda_cflags=None if torch.cuda.is_available() else plain,
    )


@parametrized
def test_a_text_is_built_and_behaves_on_the_cpu(program: Program, build: Callable[[Program], ModuleType]):
    check_calls(program, build(program), "cpu")


@pytest.mark.soak
@parametrized
def test_a_text_is_built_alone(program: Program):
    check_calls(program, load(program), "cpu")


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
@parametrized
def test_a_text_behaves_on_a_gpu(program: Program, build: Callable[[Program], ModuleType]):
    check_calls(program, build(program), "cuda")


def check_calls(program: Program, module: ModuleType, device: str) -> None:
    """Run the calls of a text, without a GPU only those that fail before they need one."""
    functions = functions_of(module)
    for call in program.calls:
        scope = {**names(device), **functions}
        if device in call.on:
            with pytest.raises(Exception) as caught:
                eval(call.expression, scope)
            assert f"{type(caught.value).__name__}: {caught.value}".startswith(call.error), call.expression
        elif call.on != ("cpu",) and (device == "cuda" or program.cuda is None):
            value = eval(call.expression, scope)
            if call.result:
                assert not difference(value, eval(call.result, names(device))), call.expression
