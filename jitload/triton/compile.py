"""Compiles kernels with Triton, without a GPU and without source lines in the machine code, and writes their record."""

from __future__ import annotations

import hashlib
import operator
import os
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from jitload.building.stages import stage
from jitload.errors import CompileError, JitLoadError, SignatureError
from jitload.model import Cubin
from jitload.request.request import Request
from jitload.toolchain.arch import capability_of
from jitload.triton.kernel import TritonKernel
from jitload.triton.key import outer_values, plan_parts
from jitload.triton.metadata import read_compiled_kernel
from jitload.triton.plan import Plan
from jitload.triton.versions import cuda_backend, cuda_target, stable_interface
from jitload.triton.wrapper import write_triton_sources

_LINE_INFO = "TRITON_DISABLE_LINE_INFO"
_FIRST_WITH_CLUSTERS = 90
_MAX_WARPS, _MAX_CTAS = 32, 16  # warps per block of at most 1024 threads; blocks per cluster
_lock = threading.Lock()


def write_triton_kernels(request: Request, work_dir: Path) -> None:
    """Compile a Triton kernel, and write its record to a work directory."""
    source = request.triton
    assert source is not None

    def compiled(plan: Plan, arch: str) -> Cubin:
        with stage(f"Triton compiles {source.name} for {arch}"):
            return compile_cubin(source.kernel, plan, capability_of(arch)[0])

    variants = tuple(
        variant._replace(cubins=variant.cubins or tuple(compiled(variant.plan, arch) for arch in request.archs))
        for variant in source.variants
    )
    write_triton_sources(request.name, (source._replace(variants=variants),), work_dir)


def compile_cubin(kernel: TritonKernel, plan: Plan, capability: int) -> Cubin:
    """Compile one specialization of a kernel for an architecture. Return a cubin that records what a launch needs."""
    return read_compiled_kernel(_compile(kernel, plan, capability), plan.constexprs)


def _compile(kernel: TritonKernel, plan: Plan, capability: int) -> Any:
    """Return Triton's `CompiledKernel`, which Triton may take from its own cache."""
    import triton as package

    _check_readable(kernel)
    numbers = _check_options(kernel, plan.options, cuda_backend(capability), capability)
    source = _ast_source(kernel, plan)
    # Triton's hash lacks the values in `extra`. Without them, Triton's cache could return code for other values.
    if extra := _missing_in_hash(kernel, plan):
        own_hash = source.hash()
        source.hash = lambda: hashlib.sha256(f"{own_hash} {extra}".encode()).hexdigest()
    target = cuda_target(capability)
    # The function or the environment may ask for assertions in the code, as when Triton itself launches a kernel.
    has_assertions = bool(getattr(kernel.function, "debug", None)) or os.environ.get("TRITON_DEBUG", "0") == "1"
    options = {"debug": has_assertions, **plan.options, **numbers}
    try:
        with _without_line_info():
            return package.compile(source, target=target, options=options)
    except JitLoadError:
        raise
    except Exception as error:
        raise CompileError(stage="triton", name=kernel.name, log="\n".join(_messages(error))) from error


def _check_readable(kernel: TritonKernel) -> None:
    """Raise SignatureError if Triton cannot read the source of the kernel and of the functions that it calls."""
    try:
        kernel.function.cache_key  # noqa: B018  Triton reads all sources to compute the key
    except Exception as error:
        raise SignatureError(
            f"kernel {kernel.name!r}: Triton cannot read its source, or that of a function it calls: {error}"
        ) from error


def _messages(error: BaseException) -> Iterator[str]:
    """Yield the texts of an error and its causes. In older releases of Triton, only a cause says what is wrong."""
    text = f"{type(error).__name__}: {error}"
    yield text
    if error.__cause__ is not None and str(error.__cause__) not in text:
        yield from _messages(error.__cause__)


@contextmanager
def _without_line_info() -> Iterator[None]:
    """Make Triton leave source lines out of the machine code, unless `TRITON_DISABLE_LINE_INFO` is set already.

    Source lines double the size of the machine code, and make it depend on the source's directory. All releases of
    Triton read the setting from the environment, and include it in the keys of Triton's cache.

    Because the environment is shared, a lock makes threads wait for each other. This costs no time, because Triton
    compiles with the GIL held. Three kernels took 2.1 s one after the other, and 2.3 s without the lock (Triton 3.9).
    """
    with _lock:
        if _LINE_INFO in os.environ:
            yield
            return
        os.environ[_LINE_INFO] = "1"
        try:
            yield
        finally:
            os.environ.pop(_LINE_INFO, None)


# ---- options ---------------------------------------------------------------------------------------------------

_NUMBERS = {
    "num_warps": f"a power of 2 from 1 to {_MAX_WARPS}: a block has at most {32 * _MAX_WARPS} threads, 32 a warp",
    "num_ctas": f"a power of 2 from 1 to {_MAX_CTAS}, the most blocks that a cluster has",
    "num_stages": "0 or more",
    "maxnreg": "1 or more",
}


def _check_options(kernel: TritonKernel, options: Mapping[str, Any], backend: Any, capability: int) -> dict[str, int]:
    """Return the options that are numbers, by name.

    Raise SignatureError for options that Triton ignores or that make Triton fail without a message.
    """
    fields = type(backend.parse_options({})).__dataclass_fields__
    if unknown := [name for name in options if name not in fields]:
        parameters = ", ".join(param.name for param in kernel.params)
        raise SignatureError(
            f"kernel {kernel.name!r}: {unknown[0]!r} is neither a parameter ({parameters}) nor an option of Triton's "
            "compiler, such as num_warps, num_stages, num_ctas, maxnreg"
        )
    return {name: _check_number(kernel, name, value, capability) for name, value in options.items() if name in _NUMBERS}


def _check_number(kernel: TritonKernel, name: str, value: Any, capability: int) -> int:
    """Return the value of an option as a number. Raise SignatureError if the number is out of range.

    Triton accepts some numbers that no GPU supports, and ends the process on others.
    """
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    highest = {"num_warps": _MAX_WARPS, "num_ctas": _MAX_CTAS}.get(name, 2**31 - 1)
    lowest = 0 if name == "num_stages" else 1
    is_power = number & (number - 1) == 0 or name not in ("num_warps", "num_ctas")
    if isinstance(value, bool) or not lowest <= number <= highest or not is_power:
        raise SignatureError(f"kernel {kernel.name!r}: {name}={value!r} must be {_NUMBERS[name]}")
    if name == "num_ctas" and number > 1 and capability < _FIRST_WITH_CLUSTERS:
        raise SignatureError(
            f"kernel {kernel.name!r}: num_ctas={number} needs clusters, which only sm_90 and newer have, not "
            f"sm_{capability}: leave it out for sm_{capability}"
        )
    return number


# ---- Triton's record of what to compile ------------------------------------------------------------------------


def _ast_source(kernel: TritonKernel, plan: Plan) -> Any:
    """Return Triton's `ASTSource`."""
    attributes = {path: [["tt.divisibility", 16]] for path in plan.multiples}
    with stable_interface("ASTSource"):
        from triton.compiler import ASTSource

        return ASTSource(
            fn=kernel.function, signature=dict(plan.types), constexprs=dict(plan.constants), attrs=attributes
        )


def _missing_in_hash(kernel: TritonKernel, plan: Plan) -> str:
    """Return a text of the values that affect the machine code but not Triton's hash, or "" if there are none.

    If a value is unknown, return a random text, so that the hash is new.
    """
    values = outer_values(kernel.function)
    if values is None:
        return secrets.token_hex(16)
    constants = (getattr(value, "value", value) for value in plan.constants.values())
    if all(type(value) in (type(None), bool, int, float) for value in constants):
        return repr(values) if values else ""
    # Triton's hash is the same for a str and for the number or the None that it spells, such as "1" and 1. Functions
    # among the constants may read globals that change, and objects of the user's may change as well.
    return repr((values, plan_parts(plan)))
